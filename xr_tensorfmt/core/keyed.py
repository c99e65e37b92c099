"""Tensors under keys, of formats that have no names for dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import prod
from typing import Any, Self

from xr_tensorfmt.core.container import Names, Tensor, named_dims
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Element
from xr_tensorfmt.core.header import check_size
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file; `offset` counts from the start of the file."""

    key: str
    shape: tuple[int, ...]
    element: Element
    offset: int
    nbytes: int

    @classmethod
    def of(
        cls, path: str, key: str, shape: Sequence[int], element: Element, offset: int, at: int
    ) -> Self:
        """A tensor that is described at byte `at`; the errors of `check_size`."""
        item = element.stored.itemsize
        check_size(path, shape, item, at)
        return cls(key, tuple(shape), element, offset, prod(shape) * item)

    @property
    def stop(self) -> int:
        """The byte after the data."""
        return self.offset + self.nbytes

    @property
    def layout(self) -> Dense:
        """How it is read and written."""
        return Dense(self.shape, self.element, self.offset)

    def tensor(
        self, dims: tuple[str, ...], facts: Mapping[str, Any], source: Source | None = None
    ) -> Tensor:
        """The variable that it becomes, with what else is known of it."""
        encoding = {
            **facts,
            "key": self.key,
            "offset": self.offset,
            "order": "C",
            "dtype": self.element.name,
        }
        return Tensor(
            self.key,
            dims,
            self.layout,
            encoding={"tensorfmt": encoding, "dtype": self.element.encoding},
            source=source,
        )


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


class KeyedDims:
    """Names for the dimensions of all tensors of a file.

    Parameters
    ----------
    requested : mapping or sequence, optional
        Names that the user asked for.
    keys : iterable of str
        The keys of the file.
    """

    def __init__(self, requested: Names, keys: Iterable[str]) -> None:
        self._requested, self._keys = requested, set(keys)
        if isinstance(requested, Sequence) and len(self._keys) != 1:
            raise ValueError(
                f"dims={requested!r} names the dimensions of one variable, but the file holds "
                f"{len(self._keys)}; give a mapping of keys to such names"
            )

    def of(self, key: str, rank: int) -> tuple[str, ...]:
        """Names for the dimensions of a tensor, none of which is a key."""
        default, requested = default_dims(key, rank, self._keys), self._requested
        if requested is None or (isinstance(requested, Mapping) and key not in requested):
            return default
        names = named_dims(requested, key, default)
        for name in names:
            if name in self._keys:
                raise ValueError(
                    f"dims={requested!r} gives a dimension of {key!r} the name of the variable "
                    f"{name!r}; choose another"
                )
        return names
