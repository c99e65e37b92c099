"""The labels of blocks, as texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from xr_tensorfmt.elements import Array
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.extents import Bytes, Extents, Integers
from xr_tensorfmt.layouts.base import Layout
from xr_tensorfmt.layouts.blocks import Blocks
from xr_tensorfmt.layouts.blockscan import LARGE_BLOCK
from xr_tensorfmt.layouts.blocktable import Listed, Regular
from xr_tensorfmt.layouts.labelled import label_at
from xr_tensorfmt.layouts.texts import UndecodableError, decode_texts
from xr_tensorfmt.selection import Entry, Selection, entry_indices, entry_part
from xr_tensorfmt.sources.base import Source

LabelErrors = Literal["strict", "surrogateescape"]

# Bytes of the file that are looked at together, and labels that are.
_WINDOW = 32 << 20
_MOST_LABELS = 1 << 16

_TEXT = np.dtype(object, metadata={"element_type": str})
"""The dtype by which xarray knows arrays of texts, so that it need not look at all of them."""


@dataclass(frozen=True)
class Labels(Layout):
    """One label of each block.

    Parameters
    ----------
    blocks : Blocks
        The blocks.
    number : int
        Which of the labels of a block.
    errors : {"strict", "surrogateescape"}
        What becomes of a label that is not UTF-8.
    """

    blocks: Blocks
    number: int
    errors: LabelErrors = "strict"

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of blocks."""
        return (self.blocks.table.count,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Python's own texts."""
        return _TEXT

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """As many as there are blocks in a chunk of their cells."""
        return self.blocks.chunk_shape(target)[:1]

    def extents(self, selection: Selection) -> Extents:
        """All labels of each block, since each says where the next one is."""
        return self._extents(self.blocks.table.places, selection.entries[0])

    def _extents(self, places: Regular | Listed, entry: Entry) -> Extents:
        starts = places.starts(entry)
        if isinstance(places, Regular):
            return Extents.uniform(starts, places.lead)
        return Extents(starts, places.stops(entry) - self.blocks.table.form.cell_bytes - starts)

    def read(self, source: Source, selection: Selection) -> Array:
        """Decode all labels of one length together."""
        texts = np.empty(selection.shape, dtype=self.dtype)
        size = self.blocks.table.mean_bytes
        count = _MOST_LABELS if size > LARGE_BLOCK else min(_MOST_LABELS, _WINDOW // size)
        for first in range(0, texts.size, count):
            part = entry_part(selection.entries[0], first, count)
            texts[first : first + count] = self._read_batch(source, part)
        return texts

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Fetch each label once."""
        unique, inverse = np.unique(points[0], return_inverse=True)
        picked: Array = self.read(source, Selection(self.shape, (unique,)))[inverse]
        return picked

    def _read_batch(self, source: Source, entry: Entry) -> Array:
        places = self.blocks.table.places
        extents = self._extents(places, entry)
        is_dense = isinstance(entry, slice) and entry.step == 1
        if is_dense and self.blocks.table.mean_bytes <= LARGE_BLOCK:
            first, last = extents.bounds
            window, starts = source.read(Extents.single(first, last)), extents.starts - first
        else:
            window, starts = source.read(extents), np.cumsum(extents.lengths) - extents.lengths
        if isinstance(places, Regular) and not _hold(places, window, starts):
            self.blocks.table.refute(source)
            return self._read_batch(source, entry)
        texts, lengths = label_at(window, starts)
        for _ in range(self.number):
            texts, lengths = label_at(window, texts + lengths)
        try:
            return decode_texts(window, texts, lengths, self.errors)
        except UndecodableError as error:
            within = error.number
            offset = int(extents.starts[within] + texts[within] - starts[within])
            number = int(entry_indices(entry)[within])
            raise self._undecodable(source, number, error.content, offset) from error

    def _undecodable(
        self, source: Source, number: int, content: bytes, offset: int
    ) -> TensorFormatError:
        return TensorFormatError(
            source.name,
            f"label {self.number} of block {number}",
            repr(content[:40]),
            "UTF-8",
            "open with errors='surrogateescape' to keep such bytes",
            offset=offset,
        )


def _hold(places: Regular, window: Bytes, starts: Integers) -> bool:
    return all(bool((window[starts + place] == byte).all()) for place, byte in places.marks)
