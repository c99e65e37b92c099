"""The protocol of a layout: where the values of a tensor are in a file, and how they are coded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.selection import PostIndexer, Selection
from xr_tensorfmt.core.source import Source

ByteRead = tuple[Source, Extents]
"""Byte ranges of a source that are read at once."""

Encoded = tuple[Extents, Bytes]
"""Byte ranges of a file and the bytes that belong there: the ranges one after the other."""

BATCH_BYTES = 1 << 20
"""Bytes that are encoded at a time, which fit into the cache of a processor."""

WHOLE = 0
"""The write unit of an axis that can only be written as a whole."""


class UnrepresentableValueError(ValueError):
    """A value for which a layout has no place, where another layout would have one."""


class Layout(ABC):
    """How the values of a tensor lie in the bytes of a Source.

    Layouts are immutable and picklable. The Source is an argument of each read.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values, in native byte order."""

    @abstractmethod
    def extents(self, selection: Selection) -> Extents:
        """Bytes that hold a selection (which must not be empty); nothing is read."""

    def reads(self, source: Source, selection: Selection) -> list[ByteRead]:
        """What `read` would fetch at most, by source and without empty ranges; nothing is read."""
        extents = self.extents(selection) if selection.size else None
        return [(source, extents)] if extents is not None and len(extents) else []

    def point_reads(self, source: Source, points: tuple[Integers, ...]) -> list[ByteRead]:
        """What `read_points` would fetch at most, as for `reads`."""
        unique = np.unique(np.stack(points, axis=-1), axis=0).tolist()
        entries = [tuple(slice(index, index + 1, 1) for index in point) for point in unique]
        extents = Extents.union([self.extents(Selection(self.shape, entry)) for entry in entries])
        return [(source, extents)] if len(extents) else []

    @abstractmethod
    def read(self, source: Source, selection: Selection) -> Array:
        """Read a selection.

        Parameters
        ----------
        source : Source
            The bytes.
        selection : Selection
            The elements; `extent` must be the shape of this layout.

        Returns
        -------
        ndarray of `dtype`
            Writable, of the selection's shape, in memory or a private window that belongs to the
            caller.

        Raises
        ------
        TensorFormatError
            The bytes violate the format.
        """

    @abstractmethod
    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read single elements.

        Parameters
        ----------
        source : Source
            The bytes.
        points : tuple of ndarray
            For each axis the indices of the elements, all one-dimensional and equally long, in
            any order and with repetitions.

        Returns
        -------
        ndarray of `dtype`
            One-dimensional, one element for each point.
        """

    @property
    def prefers_points(self) -> bool:
        """Whether one read of many points is cheaper than many reads of small selections."""
        return False

    @abstractmethod
    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Shape of efficient chunks: one range of bytes each, of at most `target` bytes."""

    def checked_places(self, source: Source) -> Layout:
        """The layout after its places in a file are verified, before bytes are overwritten."""
        return self

    @property
    def unchecked(self) -> Layout | None:
        """The layout whose values remain to be read by a check of the whole file.

        None if the check of the format reads all values, or if no byte is stored for them.
        """
        return self

    def compare(self, source: Source, selection: Selection, values: Array) -> None:
        """If overridden, compare values with those of a written file; ValueError if they differ."""
        raise NotImplementedError


class WritableLayout(Layout):
    """A layout whose values can be written to a new file, or in part to one that exists."""

    @abstractmethod
    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """Turn values into the bytes that are stored for them, a batch at a time.

        Parameters
        ----------
        selection : Selection
            The elements: slices of step 1 whose ends are multiples of `write_units`.
        values : ndarray of `dtype`
            The values, of the selection's shape.

        Yields
        ------
        tuple of (Extents, ndarray of uint8)
            Byte ranges and their bytes. Together they cover the selection.

        Raises
        ------
        ValueError
            A value cannot be stored.
        """

    def stored_element(self) -> Element:
        """Return the stored form of an element.

        Raises
        ------
        TypeError
            A part of the values cannot be written without the rest. This is the default.
        """
        raise TypeError(f"the layout {type(self).__name__} can only be written as a whole")

    @property
    def write_units(self) -> tuple[int, ...]:
        """Number of elements along each axis that fill whole bytes, or `WHOLE`.

        A part that is written begins and ends at multiples of these, or at the end of the axis.
        """
        return (1,) * len(self.shape)


class ReorderingLayout(Layout):
    """A layout that reorders values more cheaply while they are still packed."""

    @abstractmethod
    def read_in_order(
        self, source: Source, selection: Selection, keys: Sequence[PostIndexer]
    ) -> Array:
        """Read a selection, and apply a key to each axis of the values.

        Parameters
        ----------
        source : Source
            The bytes.
        selection : Selection
            The elements.
        keys : sequence of int, slice or ndarray
            The key for each axis of the selected values.

        Returns
        -------
        ndarray of `dtype`
            The same as ``in_order(self.read(source, selection), keys)``.
        """


def relative_slices(part: Selection, whole: Selection) -> tuple[slice, ...]:
    """Where a part of a selection is in the values of the whole; both are slices of step 1."""
    return tuple(
        slice(inner.start - outer.start, inner.stop - outer.start)
        for inner, outer in zip(part.entries, whole.entries, strict=True)
        if isinstance(inner, slice) and isinstance(outer, slice)
    )


def raw_bytes(stored: Array) -> Bytes:
    """Look at contiguous elements as bytes."""
    return stored.reshape(-1).view(np.uint8)
