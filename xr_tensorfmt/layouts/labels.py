"""The labels of blocks, as texts."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from xr_tensorfmt.elements import Array
from xr_tensorfmt.errors import (
    TensorFormatError,
    TensorFormatWarning,
    frames_to_the_user,
    shortened,
)
from xr_tensorfmt.extents import Bytes, Extents, Integers
from xr_tensorfmt.layouts.base import Layout
from xr_tensorfmt.layouts.blocks import Blocks
from xr_tensorfmt.layouts.blockscan import LARGE_BLOCK
from xr_tensorfmt.layouts.blocktable import Listed, Regular
from xr_tensorfmt.layouts.labelled import label_at
from xr_tensorfmt.layouts.texts import UndecodableError, decode_texts, repeated_text
from xr_tensorfmt.selection import Entry, Selection, entry_indices, entry_part
from xr_tensorfmt.sources.base import Source

LabelErrors = Literal["strict", "surrogateescape"]

COMPARED_AT_OPENING = 1 << 16
"""Blocks of a local file up to which repeated labels are looked for when it is opened.

Else they are when all labels of blocks with one label each are read, as for an index.
"""

# Bytes of the file that are looked at together, and labels that are.
_WINDOW = 16 << 20
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
            self._read_batch(texts[first : first + count], source, part)
        is_index = self.blocks.table.form.labels == 1 and selection.size == self.shape[0]
        if is_index and (texts.size > COMPARED_AT_OPENING or source.distant):
            self._warn_of_repeated(source, texts)
        return texts

    def _warn_of_repeated(self, source: Source, texts: Array) -> None:
        label = repeated_text(texts)
        if label is not None:
            warnings.warn(
                f"{source.name}: more than one block has the label {shortened(repr(label))}, which "
                "Vespa may refuse; all are kept",
                TensorFormatWarning,
                stacklevel=frames_to_the_user(),
            )

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Fetch each label once."""
        unique, inverse = np.unique(points[0], return_inverse=True)
        picked: Array = self.read(source, Selection(self.shape, (unique,)))[inverse]
        return picked

    def _read_batch(self, texts: Array, source: Source, entry: Entry) -> None:
        places = self.blocks.table.places
        extents = self._extents(places, entry)
        window, starts = self._labels_in(source, extents, entry)
        if isinstance(places, Regular) and not _hold(places, window, starts):
            self.blocks.table.refute(source)
            self._read_batch(texts, source, entry)
            return
        begins, lengths = label_at(window, starts)
        for _ in range(self.number):
            begins, lengths = label_at(window, begins + lengths)
        try:
            decode_texts(texts, window, begins, lengths, self.errors)
        except UndecodableError as error:
            within = error.number
            offset = int(extents.starts[within] + begins[within] - starts[within])
            number = int(entry_indices(entry)[within])
            raise self._undecodable(source, number, error.content, offset) from error

    def _labels_in(self, source: Source, extents: Extents, entry: Entry) -> tuple[Bytes, Integers]:
        """Bytes with the labels of blocks, and where those of each begin."""
        is_dense = isinstance(entry, slice) and entry.step == 1
        if not is_dense or self.blocks.table.mean_bytes > LARGE_BLOCK:
            return source.read(extents), np.cumsum(extents.lengths) - extents.lengths
        first, last = extents.bounds
        window = source.read(Extents.single(first, last))
        length = int(extents.lengths[0])
        if extents.lengths.strides[0]:
            return window, extents.starts - first
        # Of one length: together they fit the cache, so that each page is touched once.
        return extents.gather(window, first), np.arange(0, len(extents) * length, length)

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
