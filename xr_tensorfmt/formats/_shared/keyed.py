"""Tensors under keys, of formats that have no names for dimensions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, Literal, Self, TypeGuard

from xr_tensorfmt.contract import (
    EMBEDDED_KEY,
    MAX_TENSOR_BYTES,
    Container,
    Dense,
    Document,
    Element,
    Finding,
    Layout,
    Names,
    OpenOptions,
    Source,
    Tensor,
    TensorFormatError,
    check_rank,
    check_size,
    column_major,
    name_dims,
    shorten,
)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file; `offset` counts from the start of the file.

    `source` is that file, where it is another one than was opened.
    """

    key: str
    shape: tuple[int, ...]
    element: Element
    offset: int
    nbytes: int
    order: Literal["C", "F"] = "C"
    source: Source | None = None

    @classmethod
    def of(
        cls, path: str, key: str, shape: Sequence[int], element: Element, offset: int, at: int
    ) -> Self:
        """A tensor that is described at byte `at`; the errors of `check_size`."""
        item = element.stored.itemsize
        nbytes = prod(shape) * item
        if not 0 < nbytes <= MAX_TENSOR_BYTES:
            check_size(path, shape, item, at)
        return cls(key, tuple(shape), element, offset, nbytes)

    @classmethod
    def described(
        cls, document: Document, key: str, shape: object, element: Element, offset: int
    ) -> Self:
        """A tensor that a JSON document describes, whose shape is not yet checked."""
        path, at = document.path, document.offset
        if not isinstance(shape, list) or not all(map(is_count, shape)):
            raise document.error(f"the shape of {key!r}", shorten(repr(shape)), "a list of lengths")
        check_rank(path, repr(key), len(shape), at)
        return cls.of(path, key, shape, element, offset, at)

    @property
    def stop(self) -> int:
        """The byte after the data."""
        return self.offset + self.nbytes

    @property
    def layout(self) -> Layout:
        """How it is read and written."""
        if self.order == "F":
            return column_major(Dense(self.shape[::-1], self.element, self.offset))
        return Dense(self.shape, self.element, self.offset)

    def tensor(self, dims: tuple[str, ...], facts: Mapping[str, Any]) -> Tensor:
        """The variable that it becomes, with what else is known of it."""
        encoding = {
            **facts,
            "key": self.key,
            "offset": self.offset,
            "order": self.order,
            "dtype": self.element.name,
        }
        if self.source is not None:
            encoding["file"] = os.path.basename(self.source.name)
        return Tensor(
            self.key,
            dims,
            self.layout,
            encoding={"tensorfmt": encoding, "dtype": self.element.encoding},
            source=self.source,
        )


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value of a JSON document is a number of things, which bools are not."""
    return type(value) is int and 0 <= value < 1 << 63


def check_keys(path: str, tensors: Iterable[StoredTensor]) -> None:
    """Refuse keys that occur twice, and those that UTF-8 cannot encode."""
    keys: set[str] = set()
    hint = "the header is damaged"
    for tensor in tensors:
        key = tensor.key
        if key in keys:
            expected = "a different key for each tensor"
            raise TensorFormatError(path, "the key", f"{key!r} twice", expected, hint)
        if not key.isascii() and key.encode(errors="replace").decode() != key:
            expected = "a string that UTF-8 can encode"
            raise TensorFormatError(path, "the key", ascii(key), expected, hint)
        keys.add(key)


def default_dims(key: str, rank: int, keys: AbstractSet[str]) -> tuple[str, ...]:
    """Names for dimensions that nobody has named, none of which is a key."""
    names = [f"{key}_dim_{axis}" for axis in range(rank)]
    while not keys.isdisjoint(names):
        names = [f"{name}_" if name in keys else name for name in names]
    return tuple(names)


def _dims(requested: Names, tensors: Sequence[StoredTensor]) -> Iterator[tuple[str, ...]]:
    """Names for the dimensions of each tensor, none of which is a key."""
    keys = {tensor.key for tensor in tensors}
    if isinstance(requested, Sequence) and len(keys) != 1:
        raise ValueError(
            f"dims={requested!r} names the dimensions of one variable, but the file holds "
            f"{len(keys)}; give a mapping of keys to such names"
        )
    for tensor in tensors:
        names = default_dims(tensor.key, len(tensor.shape), keys)
        if requested is not None:
            names = name_dims(requested, tensor.key, names)
        for name in names:
            if name in keys:
                raise ValueError(
                    f"dims={requested!r} gives a dimension of {tensor.key!r} the name of the "
                    f"variable {name!r}; choose another"
                )
        yield names


def keyed_container(
    path: str,
    options: OpenOptions,
    tensors: Sequence[StoredTensor],
    facts: Mapping[str, Any],
    metadata: Mapping[str, Any] = MappingProxyType({}),
    findings: Iterable[Finding] = (),
) -> Container:
    """What a file becomes that holds tensors under keys, and metadata under names."""
    check_keys(path, tensors)
    dims = _dims(options.dims, tensors)
    siblings = {each.source.name: each.source for each in tensors if each.source is not None}
    return Container(
        tuple(each.tensor(names, facts) for each, names in zip(tensors, dims, strict=True)),
        attrs={name: value for name, value in metadata.items() if name != EMBEDDED_KEY},
        encoding={"tensorfmt": facts},
        siblings=tuple(siblings.values()),
        findings=tuple(findings),
        embedded=metadata.get(EMBEDDED_KEY),
    )
