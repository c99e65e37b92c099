"""Layouts of the labels of blocks, and a search for repeated labels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from xr_tensorfmt.core.elements import Array, ElementError
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Points, Selection, take_rows
from xr_tensorfmt.core.views import View
from xr_tensorfmt.errors import TensorFormatWarning, find_stack_level, shorten
from xr_tensorfmt.formats.vespa.blocks import Blocks
from xr_tensorfmt.formats.vespa.integers import unpack_many
from xr_tensorfmt.formats.vespa.scan import Window
from xr_tensorfmt.formats.vespa.spec import STRING_DTYPE, Strings

TextErrors = Literal["strict", "surrogateescape"]
"""How to decode bytes that are not UTF-8."""

BATCH_LABELS = 1 << 16
"""Number of blocks whose labels are read at a time."""

# A factor that makes the hash of a row depend on the order of its labels.
_HASH_FACTOR = 1_000_003
# Limit on repeated hashes to compare, far more than are reported.
_MAX_REPEATED_HASHES = 1 << 16


def decode_labels(window: Window, dimension: int, text_errors: TextErrors) -> Strings:
    """Return the label of every block of a window for a mapped dimension."""
    lengths, begins = unpack_many(window.content, window.starts)
    for _ in range(dimension):
        lengths, begins = unpack_many(window.content, begins + lengths)
    # One call decodes contiguous labels, if NUL can separate them.
    if not dimension and lengths.sum() + lengths.size == window.content.size:
        joined = window.content.copy()
        joined[window.starts] = 0
        if np.count_nonzero(joined) == lengths.sum():
            with suppress(UnicodeDecodeError):
                strings = joined[1:].tobytes().decode("utf-8", text_errors).split("\0")
                return np.fromiter(strings, STRING_DTYPE, len(strings))
    content = window.content.tobytes()
    labels: list[str] = []
    bounds = zip(begins.tolist(), (begins + lengths).tolist(), strict=True)
    try:
        for begin, stop in bounds:
            labels.append(content[begin:stop].decode("utf-8", text_errors))
    except UnicodeDecodeError as error:
        block = len(labels)
        raise ElementError(
            block,
            actual=repr(error.object[:40]),
            expected="UTF-8",
            hint="open with text_errors='surrogateescape' to keep such bytes",
            field=f"label {dimension} of block {window.blocks[block]}",
            offset=int(window.offsets[block] + begins[block] - window.starts[block]),
        ) from None
    return np.fromiter(labels, STRING_DTYPE, len(labels))


@dataclass(frozen=True)
class Labels(Layout):
    """Labels of all blocks for one mapped dimension."""

    blocks: Blocks
    # Index among the mapped dimensions.
    dimension: int
    text_errors: TextErrors = "strict"
    # All labels, if they are in memory.
    loaded: Strings | None = field(default=None, compare=False, repr=False)

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
        if self.loaded is not None:
            return Extents.empty()
        return self.blocks.find_labels(selection.indices[0])

    def decode(self, packed: Bytes, selection: Selection, out: Array | None = None) -> Array:
        """Decode the labels of one dimension."""
        blocks = selection.indices[0]
        if self.loaded is not None:
            return np.array(take_rows(self.loaded, blocks))
        extents = self.blocks.find_labels(blocks)
        starts = np.cumsum(extents.lengths) - extents.lengths
        window = Window(packed, blocks, extents.starts, starts)
        return decode_labels(window, self.dimension, self.text_errors)


@dataclass(frozen=True)
class IndexLabels(View):
    """Labels of an index. Reading all of them warns of a repeated one."""

    inner: Labels
    path: str

    def apply(self, selection: Selection, *values: Array) -> Array:
        """Compare the labels."""
        (strings,) = values
        if strings.size == self.shape[0] and not isinstance(selection, Points):
            # One batch of labels, from block 0.
            repeated = next(find_repeated_blocks(lambda: [(0, [strings])]), None)
            if repeated is not None:
                message = repeated.create_finding(self.path, self.inner.blocks).sentence
                warnings.warn(message, TensorFormatWarning, stacklevel=find_stack_level())
        return strings


@dataclass(frozen=True)
class RepeatedBlock:
    """A block with the labels of an earlier block."""

    block: int
    earlier: int
    labels: tuple[str, ...]

    def create_finding(self, path: str, blocks: Blocks) -> Finding:
        """Return the finding, a warning."""
        return Finding(
            path,
            int(blocks.offsets[self.block]),
            f"the labels of block {self.block}",
            f"{shorten(', '.join(map(repr, self.labels)))}, which block {self.earlier} has too; "
            "both are kept, but Vespa may refuse the file or keep only one; remove one",
            "warning",
        )


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
                yield RepeatedBlock(first + row, earlier, labels)


def _hash_rows(columns: Sequence[Strings]) -> Integers:
    """Hash rows of labels. Different rows rarely have the same hash."""
    mixed: Any = 0
    for strings in columns:
        # Python caches the hashes of strings, which an index needs anyway.
        hashes = np.fromiter(map(hash, strings.tolist()), np.int64, strings.size)
        mixed = mixed * _HASH_FACTOR ^ hashes
    return np.asarray(mixed)
