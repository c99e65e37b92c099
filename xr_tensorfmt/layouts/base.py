"""What every arrangement of values in bytes can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from xr_tensorfmt.elements import Array, ElementError
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.selection import Selection
from xr_tensorfmt.sources.base import Source

Read = tuple[Source, Extents]
"""Byte ranges of a source that are read at once."""


class Layout(ABC):
    """How the values of a tensor lie in the bytes of a Source.

    Layouts are frozen, picklable and know no Source: each read is given one.
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

    def reads(self, source: Source, selection: Selection) -> list[Read]:
        """What `read` would fetch at most, for each read of a source; nothing is read.

        Parameters
        ----------
        source : Source
            The bytes.
        selection : Selection
            The elements.

        Returns
        -------
        list of (Source, Extents)
            Only those of which there is something to fetch.
        """
        extents = self.extents(selection) if selection.size else None
        return [(source, extents)] if extents is not None and len(extents) else []

    def point_reads(self, source: Source, points: tuple[Integers, ...]) -> list[Read]:
        """What `read_points` would fetch at most, as for `reads`."""
        extents = self.point_extents(points)
        return [(source, extents)] if len(extents) else []

    def point_extents(self, points: tuple[Integers, ...]) -> Extents:
        """Bytes that hold single elements (at least one), given as for `read_points`."""
        unique = np.unique(np.stack(points, axis=-1), axis=0).tolist()
        entries = [tuple(slice(index, index + 1, 1) for index in point) for point in unique]
        return Extents.union([self.extents(Selection(self.shape, each)) for each in entries])

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
            Writable, of the selection's shape, in memory or a private window that is the
            caller's own.

        Raises
        ------
        TensorFormatError
            The bytes are not what the format demands.
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
            One-dimensional, an element a point.
        """

    @property
    def prefers_points(self) -> bool:
        """Whether one read of many points costs less than many reads of small selections."""
        return False

    @abstractmethod
    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Shape of chunks that read well: one range of bytes each, at most `target` bytes."""


def values_of(
    convert: Callable[[Array], Array], raw: Array, path: str, offset_of: Callable[[int], int]
) -> Array:
    """Turn stored elements into values, and name the place of one that has none.

    Parameters
    ----------
    convert : callable
        `Element.decode` or `Element.adopt`.
    raw : ndarray
        The stored elements.
    path : str
        The file, for the message.
    offset_of : callable
        Byte of the file at which the element at a flat position of `raw` begins.

    Returns
    -------
    ndarray
    """
    try:
        return convert(raw)
    except ElementError as error:
        raise TensorFormatError(
            path,
            "the element",
            error.found,
            error.expected,
            error.hint,
            offset=offset_of(error.position),
        ) from error
