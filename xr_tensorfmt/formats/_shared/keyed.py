"""Shared code of formats that store named tensors without dimension names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import repeat
from math import prod
from operator import add
from types import MappingProxyType
from typing import Any, TypeGuard

import numpy as np

from xr_tensorfmt.core.container import EMBEDDED_KEY, Container, Tensor
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Element, Plain
from xr_tensorfmt.core.fields import Fields
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import MAX_DIMENSIONS, check_size
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.open_options import Names, OpenOptions, name_dims
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import file_order
from xr_tensorfmt.errors import TensorFormatError, shorten

_BYTE = Plain(np.dtype(np.uint8))
_DIM_SUFFIXES = tuple(f"_dim_{axis}" for axis in range(MAX_DIMENSIONS))


@dataclass
class StoredTensors:
    """The tensors of a file by key. Opening omits the `unsupported` ones, which are bytes."""

    path: str
    layouts: dict[str, Any] = field(default_factory=dict)
    unsupported: dict[str, TensorFormatError] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)  # unless it is the opened file
    _shapes: dict[tuple[str, int], tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def add(self, key: str, layout: Layout, source: Source | None = None) -> None:
        """Add a tensor. Raise TensorFormatError if its key is repeated."""
        if key in self.layouts:
            raise _build_key_error(self.path, f"{key!a} twice")
        self.layouts[key] = layout
        if source is not None:
            self.sources[key] = source

    def add_unsupported(self, key: str, offset: int, nbytes: int, error: TensorFormatError) -> None:
        """Add a tensor whose bytes cannot be decoded."""
        self.add(key, Dense((nbytes,), _BYTE, offset))
        self.unsupported[key] = error

    def parse(
        self, document: Fields, key: str, shape: object, element: Element, offset: int
    ) -> int:
        """Add a tensor of a JSON document, and return its bytes, or raise TensorFormatError."""
        kind = repr(shape), id(element)  # a model has few, and `True` is not `1`
        shape_and_size = self._shapes.get(kind)
        if shape_and_size is None:
            if not isinstance(shape, list) or not all(map(is_count, shape)):
                field, actual = f"the shape of {key!r}", shorten(repr(shape))
                raise document.error(field, actual, "a list of lengths")
            item = element.stored.itemsize
            check_size(document.path, shape, item, document.offset or 0, repr(key))
            shape_and_size = self._shapes[kind] = tuple(shape), item * prod(shape)
        lengths, nbytes = shape_and_size
        self.layouts[key] = Dense(lengths, element, offset)
        return nbytes


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a JSON value is a non-negative integer below 2**63."""
    return type(value) is int and 0 <= value < 1 << 63


def _check_keys(path: str, keys: Iterable[str]) -> None:
    """Raise TensorFormatError if a key is not encodable as UTF-8."""
    try:
        "".join(keys).encode()
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise _build_key_error(path, ascii(next(x for x in keys if character in x))) from None


def _build_key_error(path: str, actual: str) -> TensorFormatError:
    expected = "different strings that UTF-8 can encode"
    return TensorFormatError(path, "the key", actual, expected, "the header is corrupt")


def get_default_dims(key: str, rank: int, keys: AbstractSet[str]) -> tuple[str, ...]:
    """Return names for the dimensions of a tensor that differ from all keys."""
    names = tuple(map(add, repeat(key, rank), _DIM_SUFFIXES))
    while keys and not keys.isdisjoint(names):
        names = tuple(f"{name}_" if name in keys else name for name in names)
    return names


def _name_dims(requested: Names, layouts: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the dimension names of each tensor: the user's if given, otherwise the defaults."""
    keys = layouts.keys()
    if isinstance(requested, Sequence) and len(keys) != 1:
        raise ValueError(
            f"dims={requested!r} names the dimensions of one variable, but the file has "
            f"{len(keys)}; pass a mapping of keys to dimension names"
        )
    similar_keys = {key for key in keys if "_dim_" in key}
    for key, layout in layouts.items():
        dims = get_default_dims(key, len(layout.shape), similar_keys)
        if requested is not None:
            dims = name_dims(requested, key, dims)
            if clash := keys & {*dims}:
                raise ValueError(
                    f"dims={requested!r} gives a dimension of {key!r} the name of the "
                    f"variable {min(clash)!r}; choose another"
                )
        yield dims


def build_tensor(
    key: str,
    dims: tuple[str, ...],
    layout: Layout,
    file_info: Mapping[str, Any],
    source: Source | None = None,
) -> Tensor:
    """Build a variable from a dense layout in either order. Its encoding includes `file_info`."""
    # Asking whether it is another class takes longer, because layouts have an abstract class.
    stored: Any = layout if isinstance(layout, Dense) else file_order(layout)[0]
    element: Element = stored.element
    encoding = {
        **file_info,
        "key": key,
        "offset": stored.offset,
        "order": "C" if stored is layout else "F",
        "dtype": element.name,
    }
    if source is not None:
        encoding["file"] = source.file_name
    encodings = {"tensorfmt": encoding, "dtype": element.encoding}
    return Tensor(key, dims, layout, {}, encodings, source)


def build_container(
    options: OpenOptions,
    tensors: StoredTensors,
    file_info: Mapping[str, Any],
    metadata: Mapping[str, Any] = MappingProxyType({}),
    findings: Iterable[Finding] = (),
) -> Container:
    """Build the container of a file with tensors under keys, and metadata."""
    layouts, sources = tensors.layouts, tensors.sources
    _check_keys(tensors.path, layouts)
    if tensors.unsupported:
        layouts = {x: layout for x, layout in layouts.items() if x not in tensors.unsupported}
    if not options.decode_floats:
        layouts = {x: replace(y, element=y.element.narrow) for x, y in layouts.items()}
    named = zip(layouts.items(), _name_dims(options.dims, layouts), strict=True)
    return Container(
        tuple([build_tensor(x, dims, y, file_info, sources.get(x)) for (x, y), dims in named]),
        attrs={name: value for name, value in metadata.items() if name != EMBEDDED_KEY},
        encoding={"tensorfmt": file_info},
        findings=tuple(findings),
        omitted=tensors.unsupported,
        embedded=metadata.get(EMBEDDED_KEY),
    )
