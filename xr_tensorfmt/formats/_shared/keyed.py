"""Shared code of formats that store named tensors without dimension names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, Literal, Self, TypeGuard

import numpy as np

from xr_tensorfmt.core.container import EMBEDDED_KEY, Container, Tensor
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Element, Plain
from xr_tensorfmt.core.fields import Fields
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import check_size
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.open_options import Names, OpenOptions, name_dims
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError, shorten

_BYTE = Plain(np.dtype(np.uint8))

PlacedTensors = dict[str, tuple[tuple[int, ...], Element, int, int]]
"""Shape, element, start and stop of tensors by key, in bytes after the start of the first one."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor stored in a file."""

    key: str
    shape: tuple[int, ...]
    element: Element
    offset: int
    order: Literal["C", "F"] = "C"
    source: Source | None = None  # None for the opened file
    unsupported: TensorFormatError | None = None  # why the values cannot be a variable

    @classmethod
    def create_unsupported(
        cls, key: str, offset: int, nbytes: int, error: TensorFormatError
    ) -> Self:
        """Create a tensor whose bytes cannot be decoded."""
        return cls(key, (nbytes,), _BYTE, offset, unsupported=error)

    @classmethod
    def from_document(
        cls, document: Fields, key: str, shape: object, element: Element, offset: int
    ) -> Self:
        """Create a tensor from a JSON document. Raise TensorFormatError if the shape is invalid."""
        if not isinstance(shape, list) or not all(map(is_count, shape)):
            raise document.error(f"the shape of {key!r}", shorten(repr(shape)), "a list of lengths")
        item, header_offset = element.stored.itemsize, document.offset or 0
        check_size(document.path, shape, item, header_offset, repr(key))
        return cls(key, tuple(shape), element, offset)

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return prod(self.shape) * self.element.stored.itemsize

    @property
    def stop(self) -> int:
        """Offset of the first byte after the data."""
        return self.offset + self.nbytes

    @property
    def layout(self) -> Layout:
        """Layout of the values."""
        if self.order == "F":
            from xr_tensorfmt.core.views import column_major  # noqa: PLC0415  # only NumPy has it

            return column_major(Dense(self.shape[::-1], self.element, self.offset))
        return Dense(self.shape, self.element, self.offset)

    def build_tensor(self, dims: tuple[str, ...], file_info: Mapping[str, Any]) -> Tensor:
        """Build the variable. Its encoding includes `file_info`."""
        encoding = {
            **file_info,
            "key": self.key,
            "offset": self.offset,
            "order": self.order,
            "dtype": self.element.name,
        }
        if self.source is not None:
            encoding["file"] = self.source.file_name
        return Tensor(
            self.key,
            dims,
            self.layout,
            encoding={"tensorfmt": encoding, "dtype": self.element.encoding},
            source=self.source,
        )


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a JSON value is a non-negative integer below 2**63."""
    return type(value) is int and 0 <= value < 1 << 63


def _check_keys(path: str, tensors: Iterable[StoredTensor]) -> None:
    """Raise TensorFormatError if a key is repeated or not encodable as UTF-8."""
    for key, count in Counter(tensor.key for tensor in tensors).items():
        if count > 1 or key.encode(errors="ignore").decode() != key:
            actual = f"{key!a} twice" if count > 1 else ascii(key)
            expected = "different strings that UTF-8 can encode"
            raise TensorFormatError(path, "the key", actual, expected, "the header is corrupt")


def get_default_dims(key: str, rank: int, keys: AbstractSet[str]) -> tuple[str, ...]:
    """Return names for the dimensions of a tensor that differ from all keys."""
    names = [f"{key}_dim_{axis}" for axis in range(rank)]
    while not keys.isdisjoint(names):
        names = [f"{name}_" if name in keys else name for name in names]
    return tuple(names)


def _name_dims(requested: Names, tensors: Sequence[StoredTensor]) -> Iterator[tuple[str, ...]]:
    """Yield the dimension names of each tensor: the user's if given, otherwise the defaults."""
    keys = {tensor.key for tensor in tensors}
    if isinstance(requested, Sequence) and len(keys) != 1:
        raise ValueError(
            f"dims={requested!r} names the dimensions of one variable, but the file has "
            f"{len(keys)}; pass a mapping of keys to dimension names"
        )
    for tensor in tensors:
        names = get_default_dims(tensor.key, len(tensor.shape), keys)
        if requested is not None:
            names = name_dims(requested, tensor.key, names)
            if clash := keys.intersection(names):
                raise ValueError(
                    f"dims={requested!r} gives a dimension of {tensor.key!r} the name of the "
                    f"variable {min(clash)!r}; choose another"
                )
        yield names


def build_container(
    path: str,
    options: OpenOptions,
    tensors: Sequence[StoredTensor],
    file_info: Mapping[str, Any],
    metadata: Mapping[str, Any] = MappingProxyType({}),
    findings: Iterable[Finding] = (),
) -> Container:
    """Build the container of a file with tensors under keys, and metadata."""
    _check_keys(path, tensors)
    omitted = {tensor.key: tensor.unsupported for tensor in tensors if tensor.unsupported}
    tensors = [tensor for tensor in tensors if not tensor.unsupported]
    if not options.decode_floats:
        tensors = [replace(tensor, element=tensor.element.narrow) for tensor in tensors]
    dims = _name_dims(options.dims, tensors)
    return Container(
        tuple(
            tensor.build_tensor(names, file_info)
            for tensor, names in zip(tensors, dims, strict=True)
        ),
        attrs={name: value for name, value in metadata.items() if name != EMBEDDED_KEY},
        encoding={"tensorfmt": file_info},
        findings=tuple(findings),
        omitted=omitted,
        embedded=metadata.get(EMBEDDED_KEY),
    )
