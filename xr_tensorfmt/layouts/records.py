"""One field of records that follow each other at a constant stride."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.chunks import contiguous_chunk
from xr_tensorfmt.elements import Array, Element
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.layouts.base import Layout, values_of
from xr_tensorfmt.selection import MOST_RUNS, Selection, entry_indices, entry_part
from xr_tensorfmt.sources.base import Source


@dataclass(frozen=True)
class Records(Layout):
    """A field of a table of records: one element, or a few side by side.

    Parameters
    ----------
    count : int
        Number of records.
    components : int
        Elements of the field; more than 1 are a second axis.
    element : Element
        What each is.
    offset : int
        Byte of the file at which the field of the first record begins.
    stride : int
        Bytes from one record to the next.
    """

    count: int
    components: int
    element: Element
    offset: int
    stride: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of records, and the components where there are several."""
        return (self.count,) if self.components == 1 else (self.count, self.components)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    @property
    def _field(self) -> int:
        return self.element.stored.itemsize * self.components

    def extents(self, selection: Selection) -> Extents:
        """The field of each record, or one range of whole records where none is left out."""
        entry = selection.entries[0]
        if isinstance(entry, slice) and entry.step == 1:
            last = self.offset + (entry.stop - 1) * self.stride + self._field
            return Extents.single(self.offset + entry.start * self.stride, last)
        return self._fields(entry_indices(entry))

    def _fields(self, numbers: Integers) -> Extents:
        return Extents.uniform(self.offset + numbers * self.stride, self._field)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Equal counts of records; the bytes that count are those of whole records."""
        return (*contiguous_chunk((self.count,), self.stride, target), *self.shape[1:])

    def read(self, source: Source, selection: Selection) -> Array:
        """Read the records in batches and pick their field."""
        if not selection.size:
            return np.empty(selection.shape, dtype=self.dtype)
        values = np.empty((selection.shape[0], self.components), dtype=self.dtype)
        for first in range(0, len(values), MOST_RUNS):
            part = entry_part(selection.entries[0], first, MOST_RUNS)
            batch = Selection(selection.extent, (part, *selection.entries[1:]))
            values[first : first + MOST_RUNS] = self._read_batch(source, batch)
        return values[:, 0] if self.components == 1 else values[:, selection.entries[1]]

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Fetch each record once."""
        unique, inverse = np.unique(points[0], return_inverse=True)
        raw = source.read(self._fields(unique)).view(self.element.stored)
        values = self._values(source, raw.reshape(-1, self.components), unique)
        picked: Array = values[inverse, points[1] if self.components > 1 else 0]
        return picked

    def _read_batch(self, source: Source, batch: Selection) -> Array:
        extents = self.extents(batch)
        numbers = entry_indices(batch.entries[0])
        stride = self.stride if len(extents) == 1 else self._field
        raw: Array = np.ndarray(
            (numbers.size, self.components),
            self.element.stored,
            source.read(extents),
            strides=(stride, self.element.stored.itemsize),
        )
        return self._values(source, raw, numbers)

    def _values(self, source: Source, raw: Array, numbers: Integers) -> Array:
        def offset_of(position: int) -> int:
            record, component = divmod(position, self.components)
            start = self.offset + int(numbers[record]) * self.stride
            return start + component * self.element.stored.itemsize

        return values_of(self.element.decode, raw, source.name, offset_of)
