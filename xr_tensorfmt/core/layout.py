"""Layouts: the byte ranges and encoding of the values of a tensor in a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from xr_tensorfmt.core.chunk_grid import contiguous_chunk
from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source

EncodedBatch = tuple[Extents, Bytes]
"""Byte ranges of a file and their concatenated bytes."""

BATCH_BYTES = 1 << 20
"""Bytes to encode at a time, to stay within a processor cache."""

WHOLE = 0
"""The write unit of an axis that can only be written as a whole."""


class UnrepresentableValueError(ValueError):
    """A layout cannot represent a value. A writer may try another layout."""


class Layout(ABC):
    """The byte ranges and encoding of the values of a tensor, immutable and picklable.

    Attributes
    ----------
    shape : tuple of int
        Lengths of the axes.
    dtype : numpy.dtype
        dtype of the values, in native byte order.
    """

    if TYPE_CHECKING:  # a subclass has fields or properties

        @property
        @abstractmethod
        def shape(self) -> tuple[int, ...]: ...  # noqa: D102

        @property
        @abstractmethod
        def dtype(self) -> np.dtype[Any]: ...  # noqa: D102

    @abstractmethod
    def locate(self, selection: Selection) -> Extents:
        """Return the byte ranges to read for a selection, which must not be empty."""

    def decode(self, packed: Bytes, selection: Selection, out: Array | None = None) -> Array:
        """Convert bytes to values. A `View` and a `Composite` use other layouts instead.

        Return `out`, or another array, which may share the memory of `packed`.

        Parameters
        ----------
        packed : ndarray of uint8
            The concatenated bytes of ``locate(selection)``. They may be overwritten.
        selection : Selection
            The elements. `Points` are different and sorted.
        out : ndarray of `dtype`, optional
            A contiguous array for the values. A layout may ignore it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not decode bytes itself")

    def locate_span(self, selection: Selection) -> Extents | None:
        """Return one range with all runs, if there are several and `decode` can skip the gaps."""
        return None

    @property
    def stop(self) -> int:
        """Byte after the last stored value, or 0 if no value is stored."""
        everything = Selection.everything(self.shape)
        extents = self.locate(everything) if everything.size else Extents.empty()
        return extents.bounds[1] if len(extents) else 0

    def batch_size(self, selection: Selection, max_bytes: int) -> int:
        """Return how many elements to fetch and decode in about `max_bytes` of memory."""
        return max_bytes // self.dtype.itemsize

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the shape of contiguous chunks of up to `target` bytes, or of one longer row."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    @property
    def layout_to_validate(self) -> Layout | None:
        """The part that `validate` must read, or None if `Format.check` reads all values."""
        return self


class SearchedLayout(Layout):
    """A layout that must read all bytes that `locate` returns to find those of a selection."""

    @abstractmethod
    def search(self, source: Source, selection: Selection) -> Array:
        """Find and decode the values of a selection, in its shape."""


class WritableLayout(Layout):
    """A layout that can also be written, as a whole or in part."""

    writes_any_rows: ClassVar[bool] = False
    """Whether `encode` takes an array of indices along the first axis, too."""

    @abstractmethod
    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Yield byte ranges and their bytes, batch by batch, until they cover the selection.

        Raise ValueError if a value cannot be stored, or UnrepresentableValueError if another
        layout may store it.

        Parameters
        ----------
        selection : Selection
            The elements: ranges of step 1 that start and stop at multiples of `write_units`. See
            `writes_any_rows`.
        values : ndarray of `dtype`
            The values, in the shape of the selection.
        """

    def stored_element(self) -> Element:
        """Return the type of the stored elements, or raise TypeError if parts cannot be written."""
        raise TypeError(f"the layout {type(self).__name__} can only be written as a whole")

    @property
    def write_units(self) -> tuple[int, ...]:
        """Elements per axis of whole bytes, or `WHOLE`. A region starts and stops at multiples."""
        return (1,) * len(self.shape)


def compute_relative_slices(part: Selection, whole: Selection) -> tuple[Any, ...]:
    """Return the index of a part in the values of the whole."""
    slices: list[Any] = []
    for inner, outer in zip(part.indices, whole.indices, strict=True):
        assert isinstance(inner, range)
        assert isinstance(outer, range)
        slices.append(slice(inner.start - outer.start, inner.stop - outer.start))
    return (*slices, ...)  # numpy scalars would lose the byte order


def view_as_bytes(stored: Array) -> Bytes:
    """View contiguous elements as bytes."""
    return stored.reshape(-1).view(np.uint8)
