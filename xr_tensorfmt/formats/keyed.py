"""Read and write formats that store named tensors without dimension names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from xr_tensorfmt.core.elements import Element, get_dtype_name
from xr_tensorfmt.core.file_format import (
    EMBEDDED_KEY,
    Container,
    Names,
    OpenOptions,
    Tensor,
    name_dims,
)
from xr_tensorfmt.core.header import CORRUPT, MAX_DIMENSIONS, Fields, check_size
from xr_tensorfmt.core.layout import Dense, Layout, Transposed
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError, shorten

if TYPE_CHECKING:
    from xarray import Variable

    from xr_tensorfmt.writing.checked_input import CheckedInput
    from xr_tensorfmt.writing.file_plan import Conversion

Shapes = dict[tuple[str, int], tuple[tuple[int, ...], int]]
"""Results of `parse_shape` by ``repr(shape)`` and element: a model has few. `True` is not `1`."""

Parsed: TypeAlias = Layout | tuple[tuple[int, ...], Element, int] | TensorFormatError
"""A layout, or the shape, element and offset of a `Dense` one, or why it is not supported."""

_DIM_SUFFIXES = tuple(f"_dim_{axis}" for axis in range(MAX_DIMENSIONS))


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
        actual = ascii(next(key for key in keys if character in key))
        expected = "a string that UTF-8 can encode"
        raise TensorFormatError(path, "the key", actual, expected, CORRUPT) from None


def build_error(
    document: Fields, field: str, key: str, actual: object, expected: str, hint: str = ""
) -> TensorFormatError:
    """Create an error about a tensor of a JSON document."""
    return document.error(f"{field} of {key!r}", shorten(repr(actual)), expected, hint)


def get_default_dims(key: str, rank: int, keys: AbstractSet[str]) -> tuple[str, ...]:
    """Return names for the dimensions of a tensor that differ from all keys."""
    names = tuple([key + suffix for suffix in _DIM_SUFFIXES[:rank]])
    while keys and not keys.isdisjoint(names):
        names = tuple(f"{name}_" if name in keys else name for name in names)
    return names


def _name_dims(
    requested: Names, layouts: Mapping[str, Any], keys: AbstractSet[str]
) -> list[tuple[str, ...]]:
    """Return the dimension names of some tensors of a file, as requested or by default."""
    fault = ""
    similar_keys = {key for key in keys if "_dim_" in key}
    named = [get_default_dims(x, len(y.shape), similar_keys) for x, y in layouts.items()]
    if isinstance(requested, Sequence) and len(keys) != 1:
        fault = (
            f"names the dimensions of one variable, but the file has {len(keys)}; pass "
            "dims={name: [...]} or --variable"
        )
    elif requested is not None:
        named = [name_dims(requested, key, dims) for key, dims in zip(layouts, named, strict=True)]
        for clash in keys & {dim for dims in named for dim in dims}:
            fault = f"gives a dimension the name of the variable {clash!r}; choose another"
    if fault:
        raise ValueError(f"dims={requested!r} {fault}")
    return named


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
    layouts: Mapping[str, Parsed],
    file_info: Mapping[str, Any],
    metadata: Mapping[str, Any] = MappingProxyType({}),
    sources: Mapping[str, Source] = MappingProxyType({}),
    **members: Any,
) -> Container:
    """Build the container of tensors under keys. Values may be in other files, the `sources`."""
    _check_keys(path, layouts)
    omitted = {x: y for x, y in layouts.items() if isinstance(y, TensorFormatError)}
    keys = layouts.keys() - omitted.keys()
    selected: Collection[str] = keys
    # A group may inherit coordinates of other groups.
    if options.select and "coordinates" not in str(metadata.get(EMBEDDED_KEY)):
        selected = options.select(keys)
    built: dict[str, Any] = {
        key: Dense(*layout) if isinstance(layout, tuple) else layout
        for key, layout in layouts.items()
        if key in selected
    }
    if not options.format_options.get("decode_floats", True):
        built = {x: replace(y, element=y.element.narrow) for x, y in built.items()}
    named = zip(built.items(), _name_dims(options.dims, built, keys), strict=True)
    return Container(
        tuple([build_tensor(x, dims, y, file_info, sources.get(x)) for (x, y), dims in named]),
        attrs={name: value for name, value in metadata.items() if name != EMBEDDED_KEY},
        embedded=metadata.get(EMBEDDED_KEY),
        omitted=omitted,
        **{"encoding": {"tensorfmt": file_info}, **members},
    )


KeyedVariable: TypeAlias = "tuple[Variable, Conversion]"
"""A variable to write, and its conversion, whose name is the key."""

Coordinates: TypeAlias = "dict[str, Variable]"


def count_bytes(entry: KeyedVariable) -> int:
    """Return the size of the values of a variable in the file."""
    variable, conversion = entry
    return int(variable.size) * conversion.element.stored.itemsize


def place_tensors(
    variables: Iterable[KeyedVariable], alignment: int = 1
) -> tuple[dict[str, tuple[int, int]], int]:
    """Return the bytes of tensors that follow each other from 0 on, and the end of the last one."""
    placed, stop = dict[str, tuple[int, int]](), 0
    for variable, conversion in variables:
        nbytes = count_bytes((variable, conversion))
        start = stop + -stop % alignment if nbytes else stop
        placed[conversion.name] = start, (stop := start + nbytes)
    return placed, stop


def build_layouts(
    variables: Iterable[KeyedVariable], placed: Mapping[str, tuple[int, int]], start: int
) -> Iterator[tuple[Variable, Dense, Conversion]]:
    """Yield variables with their layouts if places are relative to an offset of the file."""
    for variable, conversion in variables:
        offset = start + placed[conversion.name][0]
        yield variable, Dense(variable.shape, conversion.element, offset), conversion


def select_stored(
    checked: CheckedInput, elements: Mapping[str, Element], *, empty: bool
) -> tuple[list[KeyedVariable], Coordinates]:
    """Return the variables to store, and the coordinates to embed, by their dtypes and sizes."""
    stored = dict(checked.variables)
    embedded: Coordinates = {}
    for name, coordinate in checked.coordinates.items():
        has_dtype = get_dtype_name(coordinate.dtype) in elements or name in checked.encoding
        is_stored = has_dtype and (coordinate.size or empty)
        (stored if is_stored else embedded)[name] = coordinate
    variables = []
    for key, variable in stored.items():
        checked.warn_of_order(key, variable)
        conversion = checked.choose_conversion(key, variable, elements)
        narrow = conversion.element.narrow
        if narrow is not conversion.element and variable.dtype == narrow.dtype:
            conversion = replace(conversion, element=narrow)  # the values are not converted
        variables.append((variable, conversion))
    return variables, embedded


def embed_metadata(
    checked: CheckedInput,
    variables: Sequence[KeyedVariable],
    coordinates: Coordinates,
    attrs: Mapping[str, Any],
    stored_attrs: Mapping[str, Any],
) -> str:
    """Return JSON of coordinates, and of attributes and dims that the format does not store."""
    from xr_tensorfmt.core import embedded_metadata as metadata  # noqa: PLC0415  # only to write

    keys = {conversion.name for _, conversion in variables}
    similar_keys = {key for key in keys if "_dim_" in key}
    tensors = {}
    for variable, conversion in variables:
        key, dims = conversion.name, variable.dims
        default_dims = get_default_dims(key, len(dims), similar_keys)
        if variable.attrs or dims != default_dims:
            own = metadata.embed_variable(checked, key, variable)
            if own.attrs or own.dims != default_dims:
                tensors[key] = own
    embedded_attrs = {name: attrs[name] for name in attrs if name not in stored_attrs}
    if embedded_attrs and [*stored_attrs, *embedded_attrs] != list(attrs):
        # None marks the position of an attribute that the format stores.
        embedded_attrs = {name: embedded_attrs.get(name) for name in attrs}
    stored_coordinates = tuple(name for name in checked.coordinates if name in keys)
    labels = metadata.embed_coordinates(checked, coordinates)
    embedded = metadata.EmbeddedMetadata(tensors, stored_coordinates, labels, embedded_attrs)
    is_empty = embedded == metadata.EmbeddedMetadata()
    return "" if is_empty else metadata.encode_metadata(checked, embedded).decode()


def encode_dataset_attrs(checked: CheckedInput) -> dict[str, Any]:
    """Encode attributes of the Dataset. The name of the embedded metadata is reserved."""
    from xr_tensorfmt.core.embedded_metadata import encode_attrs  # noqa: PLC0415  # only to write

    if EMBEDDED_KEY in checked.attrs:
        raise ValueError(
            f"{checked.path}: the attribute {EMBEDDED_KEY!r} of the Dataset has the name of the "
            "metadata entry for dims and coordinates; rename it"
        )
    return encode_attrs(checked, checked.attrs, "the Dataset")
