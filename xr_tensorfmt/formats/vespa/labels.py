"""Layout of the labels of blocks, and a search for repeated labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.open_options import TextErrors
from xr_tensorfmt.core.selection import Selection, take_rows
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.formats.vespa.blocks import Blocks
from xr_tensorfmt.formats.vespa.scan import Window
from xr_tensorfmt.formats.vespa.spec import STRING_DTYPE, Strings

# A factor that makes the hash of a row depend on the order of its labels.
_HASH_FACTOR = 1_000_003
# Limit on repeated hashes to compare, far more than are reported.
_MAX_REPEATED_HASHES = 1 << 16


@dataclass(frozen=True)
class Labels(Layout):
    """Labels of all blocks for one mapped dimension."""

    blocks: Blocks
    # Index among the mapped dimensions.
    dimension: int
    text_errors: TextErrors = "strict"

    dtype = STRING_DTYPE
    layout_to_validate = None  # the check of Vespa reads all labels

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of blocks."""
        return (self.blocks.header.blocks,)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the number of blocks in a chunk of cells."""
        return self.blocks.chunk_shape(target)[:1]

    def locate(self, selection: Selection) -> Extents:
        """Return the labels of all dimensions, because their lengths vary."""
        blocks = selection.indices[0]
        starts = take_rows(self.blocks.offsets[:-1], blocks)
        return Extents(starts, self.blocks.find_cells(blocks) - starts)

    def decode(self, packed: Bytes, selection: Selection, out: Array | None = None) -> Array:
        """Decode the labels of one dimension."""
        extents = self.locate(selection)
        starts = np.cumsum(extents.lengths) - extents.lengths
        window = Window(packed, selection.indices[0], extents.starts, starts)
        return build_strings(window.decode_labels(self.dimension, self.text_errors))


def build_strings(labels: list[str]) -> Strings:
    """Return an array of Python strings."""
    return np.fromiter(labels, STRING_DTYPE, len(labels))


class RepeatedBlock(NamedTuple):
    """A block with the labels of an earlier block."""

    block: int
    earlier: int
    labels: str

    def create_finding(self, path: str, blocks: Blocks) -> Finding:
        """Return the finding, a warning."""
        message = (
            f"{self.labels}, which block {self.earlier} has too; both are kept, but Vespa may "
            "refuse the file or keep only one; remove one"
        )
        field, offset = f"the labels of block {self.block}", int(blocks.offsets[self.block])
        return Finding(path, offset, field, message, "warning")


Batches = Callable[[], Iterable[tuple[int, Sequence[Strings]]]]
"""Yields the index of the first block, and one column of labels per mapped dimension."""


def find_repeated_blocks(batches: Batches) -> Iterator[RepeatedBlock]:
    """Find blocks that have all labels of an earlier block. There must be a batch."""
    hashes = np.concatenate([_hash_rows(columns) for _, columns in batches()])
    hashes.sort()
    repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])[:_MAX_REPEATED_HASHES]
    first_blocks: dict[tuple[str, ...], int] = {}
    for first, columns in batches() if repeated.size else ():
        for row in np.flatnonzero(np.isin(_hash_rows(columns), repeated)).tolist():
            labels = tuple(column[row] for column in columns)
            earlier = first_blocks.setdefault(labels, first + row)
            if earlier != first + row:
                yield RepeatedBlock(first + row, earlier, shorten(", ".join(map(repr, labels))))


def _hash_rows(columns: Sequence[Strings]) -> Integers:
    """Hash rows of labels. Different rows rarely have the same hash."""
    mixed: Any = 0
    for strings in columns:
        # Python caches the hashes of strings, which an index needs anyway.
        hashes = np.fromiter(map(hash, strings.tolist()), np.int64, strings.size)
        mixed = mixed * _HASH_FACTOR ^ hashes
    return np.asarray(mixed)
