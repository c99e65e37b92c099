"""Shared code of formats that store named tensors without dimension names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any, TypeGuard, TypeVar

from xr_tensorfmt.core.elements import Element
from xr_tensorfmt.core.file_format import (
    EMBEDDED_KEY,
    Container,
    Names,
    OpenOptions,
    Tensor,
    name_dims,
)
from xr_tensorfmt.core.header import MAX_DIMENSIONS, Fields, check_size
from xr_tensorfmt.core.layout import Layout, Transposed
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import Finding, TensorFormatError, shorten

Shapes = dict[tuple[str, int], tuple[tuple[int, ...], int]]
"""Results of `parse_shape` by ``repr(shape)`` and element: a model has few. `True` is not `1`."""

Value = TypeVar("Value")
_DIM_SUFFIXES = tuple(f"_dim_{axis}" for axis in range(MAX_DIMENSIONS))


def split_omitted(
    parsed: Mapping[str, Value | TensorFormatError],
) -> tuple[dict[str, Value], dict[str, TensorFormatError]]:
    """Divide parsed tensors into supported ones, and errors about the others."""
    omitted = {key: x for key, x in parsed.items() if isinstance(x, TensorFormatError)}
    return {key: x for key, x in parsed.items() if not isinstance(x, TensorFormatError)}, omitted


def parse_shape(
    document: Fields, key: str, shape: object, element: Element, shapes: Shapes
) -> tuple[tuple[int, ...], int]:
    """Return the shape and bytes of a tensor of a JSON document, or raise TensorFormatError."""
    kind = repr(shape), id(element)
    if kind not in shapes:
        if not isinstance(shape, list) or not all(map(is_count, shape)):
            raise build_error(document, "the shape", key, shape, "a list of lengths")
        item = element.stored.itemsize
        check_size(document.path, shape, item, document.offset or 0, repr(key))
        shapes[kind] = tuple(shape), item * prod(shape)
    return shapes[kind]


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a JSON value is a non-negative integer below 2**63."""
    return type(value) is int and 0 <= value < 1 << 63


def _check_keys(path: str, keys: Iterable[str]) -> None:
    """Raise TensorFormatError if a key is not encodable as UTF-8."""
    try:
        "".join(keys).encode()
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise build_key_error(path, ascii(next(x for x in keys if character in x))) from None


def build_error(
    document: Fields, field: str, key: str, actual: object, expected: str, hint: str = ""
) -> TensorFormatError:
    """Create an error about a tensor of a JSON document."""
    return document.error(f"{field} of {key!r}", shorten(repr(actual)), expected, hint)


def build_key_error(path: str, actual: str) -> TensorFormatError:
    """Create an error about a key."""
    expected = "different strings that UTF-8 can encode"
    return TensorFormatError(path, "the key", actual, expected, "the header is corrupt")


def get_default_dims(key: str, rank: int, keys: AbstractSet[str]) -> tuple[str, ...]:
    """Return names for the dimensions of a tensor that differ from all keys."""
    names = tuple([key + suffix for suffix in _DIM_SUFFIXES[:rank]])
    while keys and not keys.isdisjoint(names):
        names = tuple(f"{name}_" if name in keys else name for name in names)
    return names


def _name_dims(requested: Names, layouts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the dimension names of each tensor: the user's if given, otherwise the defaults."""
    keys = layouts.keys()
    if isinstance(requested, Sequence) and len(keys) != 1:
        raise ValueError(
            f"dims={requested!r} names the dimensions of one variable, but the file has "
            f"{len(keys)}; pass a mapping of keys to dimension names"
        )
    similar_keys = {key for key in keys if "_dim_" in key}
    names = [get_default_dims(x, len(y.shape), similar_keys) for x, y in layouts.items()]
    if requested is None:
        return names
    names = [name_dims(requested, key, dims) for key, dims in zip(keys, names, strict=True)]
    for key, dims in zip(keys, names, strict=True):
        if clash := keys & {*dims}:
            raise ValueError(
                f"dims={requested!r} gives a dimension of {key!r} the name of the "
                f"variable {min(clash)!r}; choose another"
            )
    return names


def build_tensor(
    key: str,
    dims: tuple[str, ...],
    layout: Layout,
    file_info: Mapping[str, Any],
    source: Source | None = None,
) -> Tensor:
    """Build a variable from an array in either order. Its encoding includes `file_info`."""
    stored: Any = layout.inner if isinstance(layout, Transposed) else layout
    element: Element = stored.element
    order = "C" if stored is layout else "F"
    encoding = dict(file_info, key=key, offset=stored.offset, order=order, dtype=element.name)
    if source is not None:
        encoding["file"] = source.file_name
    encodings = {"tensorfmt": encoding, "dtype": element.encoding}
    return Tensor(key, dims, layout, {}, encodings, source)


def build_container(
    options: OpenOptions,
    path: str,
    layouts: Mapping[str, Any],
    file_info: Mapping[str, Any],
    metadata: Mapping[str, Any] = MappingProxyType({}),
    findings: Iterable[Finding] = (),
    sources: Mapping[str, Source | None] = MappingProxyType({}),
    omitted: Mapping[str, TensorFormatError] = MappingProxyType({}),
) -> Container:
    """Build the container of a file with tensors under keys, and metadata.

    The values of a tensor are in another file if `sources` has its key.
    """
    _check_keys(path, (*layouts, *omitted))
    if not options.format_options.get("decode_floats", True):
        layouts = {x: replace(y, element=y.element.narrow) for x, y in layouts.items()}
    named = zip(layouts.items(), _name_dims(options.dims, layouts), strict=True)
    return Container(
        tuple([build_tensor(x, dims, y, file_info, sources.get(x)) for (x, y), dims in named]),
        attrs={name: value for name, value in metadata.items() if name != EMBEDDED_KEY},
        encoding={"tensorfmt": file_info},
        findings=tuple(findings),
        omitted=omitted,
        embedded=metadata.get(EMBEDDED_KEY),
    )
