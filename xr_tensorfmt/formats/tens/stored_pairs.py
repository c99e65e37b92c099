"""Pairs as stored, for ``sparse="stored"``: values along one dimension, and their indices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.contract import Array, Container, Dense, Element, ElementError, Tensor
from xr_tensorfmt.formats.tens.pairs import build_pair_dtype
from xr_tensorfmt.formats.tens.storage import Storage

ENTRY = "entry"
"""Dimension of the pairs."""


def select_stored(container: Container) -> Container:
    """Return the pairs of a file, with a coordinate for the index along each dimension."""
    storage: Storage = container.parsed
    header = storage.header
    (tensor,) = container.tensors
    names = header.dimension_names if {ENTRY, tensor.name} & {*tensor.dims} else tensor.dims
    count, offset = (storage.pairs or 0,), storage.offset
    coordinates = []
    for axis, (name, length) in enumerate(zip(names, header.lengths, strict=True)):
        element = PairIndex(storage.element, prod(header.lengths[:axis]), length, header.size)
        encoding = {"tensorfmt": {"format": "tens", "axis": axis}}
        layout = Dense(count, element, offset)
        coordinates.append(Tensor(name, (ENTRY,), layout, encoding=encoding))
    # The dimensions are gone, and their coordinates with them.
    reserved = {ENTRY, *names, *tensor.dims}
    others = [
        coordinate
        for coordinate in container.coordinates
        if not reserved & {coordinate.name, *coordinate.dims}
    ]
    layout = Dense(count, PairValue(storage.element), offset)
    file_info = {**tensor.encoding["tensorfmt"], "sparse": "stored"}
    encoding = {**tensor.encoding, "tensorfmt": file_info}
    values = replace(tensor, dims=(ENTRY,), layout=layout, encoding=encoding)
    return replace(container, tensors=(values,), coordinates=(*coordinates, *others))


@dataclass(frozen=True)
class PairValue(Element):
    """The value of a stored pair."""

    value: Element

    @property
    def stored(self) -> np.dtype[Any]:
        """dtype of the pair."""
        return build_pair_dtype(self.value, 1)

    @property
    def name(self) -> str:
        """Name of the value's element."""
        return self.value.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the value."""
        return self.value.dtype

    def decode_into(self, values: Array, raw: Array) -> None:
        """Decode the value."""
        self.value.decode_into(values, raw["value"][..., 0])


@dataclass(frozen=True)
class PairIndex(PairValue):
    """The index of a stored pair along one dimension."""

    inner: int
    length: int
    total: int

    @property
    def name(self) -> str:
        """Formula for the index."""
        return f"index // {self.inner} % {self.length}"

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of an index."""
        return np.dtype(np.int64)

    def decode_into(self, values: Array, raw: Array) -> None:
        """Compute the index. Raise an error if the global index is out of bounds."""
        index = raw["index"].astype(np.uint64)
        outside = index >= np.uint64(self.total)
        if outside.any():
            position = int(np.argmax(outside))
            raise ElementError(
                position,
                f"the global index {int(index.flat[position])}",
                f"one below {self.total}",
                "the file is corrupt, or its dimension headers are wrong",
            )
        along = index // np.uint64(self.inner) % np.uint64(self.length)
        np.copyto(values, along, casting="unsafe")
