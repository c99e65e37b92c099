"""Names, dims, attributes and coordinates that a format does not support, embedded as JSON."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from json import dumps
from math import prod
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from xr_tensorfmt.core.elements import Array, build_elements
from xr_tensorfmt.core.file_format import (
    Container,
    Names,
    OpenOptions,
    Tensor,
    find_names,
    name_dims,
)
from xr_tensorfmt.core.header import parse_json
from xr_tensorfmt.core.layout import InMemory
from xr_tensorfmt.errors import Finding, shorten

if TYPE_CHECKING:
    from xarray import Variable

    from xr_tensorfmt.writing.checked_input import CheckedInput, DroppablePart

VERSION = 1

MAX_EMBEDDED_BYTES = 16 << 20
"""Limit on the embedded metadata, which are parsed at every opening."""

_DEFAULT_NAME = OpenOptions.name
# JSON of any other form raises one of these errors where it is used.
_ERRORS = (KeyError, TypeError, ValueError, AttributeError, RecursionError)


@dataclass(frozen=True)
class EmbeddedVariable:
    """Embedded metadata of a variable as JSON. Members are None if the format stores them."""

    name: str | None = None
    dims: tuple[str, ...] | None = None
    attrs: Mapping[str, Any] | None = None
    values: Mapping[str, Any] | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Parse a JSON object. Invalid data raise one of `_ERRORS`."""
        _to_strings([data["name"]] if "name" in data else ())
        return cls(**{**data, "dims": _to_strings(data["dims"]) if "dims" in data else None})


@dataclass(frozen=True)
class EmbeddedMetadata:
    """Embedded metadata of a Dataset. Attributes and values are encoded by `to_json`."""

    tensors: Mapping[str, EmbeddedVariable] = field(default_factory=dict)
    stored_coordinates: tuple[str, ...] = ()  # names of tensors
    coordinates: Mapping[str, EmbeddedVariable] = field(default_factory=dict)
    # Attributes that the format does not store, and None for a stored one in its position.
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Parse the result of `to_dict`. Invalid data raise one of `_ERRORS`."""
        members = dict(data)
        if (version := members.pop("version")) != VERSION:
            raise ValueError(f"version {version!r}, expected {VERSION}")
        for name in {"tensors", "coordinates"} & set(data):
            variables = data[name].items()
            members[name] = {key: EmbeddedVariable.from_dict(value) for key, value in variables}
        members["stored_coordinates"] = _to_strings(data.get("stored_coordinates", ()))
        return cls(**members)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object without empty members."""
        members = {"version": VERSION, **vars(self)}
        for name in ("tensors", "coordinates"):
            members[name] = {
                key: {k: value for k, value in vars(variable).items() if value is not None}
                for key, variable in members[name].items()
            }
        return {name: value for name, value in members.items() if value}


def apply_embedded_metadata(path: str, container: Container, options: OpenOptions) -> Container:
    """Apply the embedded metadata of a container, or ignore it with a finding."""
    try:
        embedded = EmbeddedMetadata.from_dict(_decode(container.embedded))
        applied = _apply(container, embedded, options)
    except _ERRORS as error:
        message = (
            "the names, dims, attributes and coordinates that xr_tensorfmt embedded do not fit "
            f"the file and are ignored ({shorten(f'{type(error).__name__}: {error}')})"
        )
        finding = Finding(path, "the embedded metadata", message, severity="warning")
        return replace(container, embedded=None, findings=(*container.findings, finding))
    return applied if options.dims is None else _rename_dims(applied, options.dims)


def _decode(embedded: Any) -> Any:
    """Return the JSON object. Some formats store it as a string or bytes."""
    if isinstance(embedded, bytes):
        embedded = embedded.decode()
    if not isinstance(embedded, str):
        return embedded
    if len(embedded) > MAX_EMBEDDED_BYTES:
        raise ValueError(f"{len(embedded)} characters, more than {MAX_EMBEDDED_BYTES}")
    return parse_json(embedded)


def _to_strings(values: Sequence[Any]) -> tuple[str, ...]:
    if isinstance(values, str) or not {*map(type, values)} <= {str}:
        raise TypeError(f"{values!r} is not a list of str")
    "".join(values).encode()  # raises if a name is not valid UTF-8
    return tuple(values)


def _apply(container: Container, embedded: EmbeddedMetadata, options: OpenOptions) -> Container:
    tensors: list[Tensor] = []
    coordinates: list[Tensor] = []
    # The only tensor of a format without names is embedded under the default name.
    is_single = len(container.tensors) == 1 and options.select is None
    is_unnamed = is_single and list(embedded.tensors) == [_DEFAULT_NAME]
    for tensor in container.tensors:
        key = _DEFAULT_NAME if is_unnamed else tensor.name
        variable = _apply_to_tensor(tensor, embedded.tensors.get(key, EmbeddedVariable()), options)
        is_coordinate = tensor.name in embedded.stored_coordinates
        (coordinates if is_coordinate else tensors).append(variable)
    for name, labels in embedded.coordinates.items():
        if labels.values is None:
            raise ValueError(f"{name!r} has no values")
        stored = Tensor(name, (), InMemory(array_from_json(labels.values)))
        coordinates.append(_apply_to_tensor(stored, labels, options))
    if any(tensor.dims == (tensor.name,) for tensor in tensors):
        raise ValueError("a variable has the name of its dimension and is not a coordinate")
    _check_names([*tensors, *coordinates])
    lengths: set[tuple[str, int]] = set()
    for tensor in [*tensors, *coordinates]:
        lengths |= {*zip(tensor.dims, tensor.layout.shape, strict=True)}
    if len(lengths) > len(dict(lengths)):
        raise ValueError("a dim has several lengths")
    coordinates = [*container.coordinates, *coordinates]
    attrs = _apply_to_attrs(container.attrs, embedded.attrs)
    return replace(container, tensors=tuple(tensors), coordinates=tuple(coordinates), attrs=attrs)


def _apply_to_attrs(stored: Mapping[str, Any], embedded: Mapping[str, Any]) -> Mapping[str, Any]:
    # None marks the position of an attribute that the format stores.
    members = from_json(embedded)
    added = {n: value for n, value in members.items() if value is not None or n not in stored}
    return (members if len(added) < len(members) else {}) | {**stored} | added


def _apply_to_tensor(tensor: Tensor, variable: EmbeddedVariable, options: OpenOptions) -> Tensor:
    is_named = variable.name is not None and options.name == _DEFAULT_NAME
    name = str(variable.name) if is_named else tensor.name
    dims = tensor.dims if variable.dims is None else variable.dims
    if len(dims) != len(tensor.layout.shape):
        raise ValueError(f"{tensor.name!r} has {len(tensor.layout.shape)} dimensions")
    attrs = tensor.attrs if variable.attrs is None else dict(from_json(variable.attrs))
    return tensor._replace(name=name, dims=dims, attrs=attrs)


def _rename_dims(container: Container, requested: Names) -> Container:
    """Rename dimensions in all variables if the user renames them for one variable."""
    names: dict[str, str] = {}
    own_dims = {}
    for tensor in container.tensors:
        if find_names(requested, tensor.name, len(tensor.dims)) is not None:
            own_dims[tensor.name] = name_dims(requested, tensor.name, tensor.dims)
            names |= dict(zip(tensor.dims, own_dims[tensor.name], strict=True))

    def rename(tensor: Tensor, name: str) -> Tensor:
        dims = tuple(names.get(dim, dim) for dim in tensor.dims)
        return tensor._replace(name=name, dims=own_dims.get(name, dims))

    tensors = [rename(tensor, tensor.name) for tensor in container.tensors]
    # An index coordinate has the name of its dimension.
    coordinates = [rename(item, names.get(item.name, item.name)) for item in container.coordinates]
    try:
        _check_names([*tensors, *coordinates])  # lengths may differ between the groups of a tree
    except ValueError as error:
        raise ValueError(f"dims={shorten(requested)} does not fit: {error}") from None
    return replace(container, tensors=tuple(tensors), coordinates=tuple(coordinates))


def _check_names(tensors: Sequence[Tensor]) -> None:
    dims = {dim for tensor in tensors for dim in tensor.dims}
    for tensor in tensors:
        if len({*tensor.dims}) < len(tensor.dims) or (tensor.name in dims and not tensor.dims):
            raise ValueError(f"{tensor.name!r} has repeated dims, or is a scalar and a dimension")
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise ValueError("two variables have the same name")


def encode_attrs(checked: CheckedInput, attrs: Mapping[Any, Any], owner: str) -> dict[str, Any]:
    """Encode attributes. Raise ValueError if one is unsupported and not dropped."""
    encodable: dict[str, Any] = {}
    for name, value in attrs.items():
        with _drop_unsupported(checked, "attrs"):
            encodable |= to_json({name: value}, f"the attribute {name!r} of {owner}")
    return encodable


def embed_variable(checked: CheckedInput, name: str, variable: Variable) -> EmbeddedVariable:
    """Return the dims and attributes of a variable. Raises like `encode_attrs`."""
    attrs = encode_attrs(checked, variable.attrs, repr(name))
    return EmbeddedVariable(dims=tuple(map(str, variable.dims)), attrs=attrs)


def embed_coordinates(
    checked: CheckedInput, coordinates: Mapping[str, Variable]
) -> dict[str, EmbeddedVariable]:
    """Return coordinates with values. Raise ValueError if one is unsupported and not dropped."""
    embedded = {}
    for name, variable in coordinates.items():
        subject = f"the coordinate {name!r}"
        with _drop_unsupported(checked, "coords"):
            if variable.size * max(1, variable.dtype.itemsize) > MAX_EMBEDDED_BYTES:
                large = f"{subject} of {variable.size} labels is too large for a header"
                raise TypeError(f"{large}; call drop_vars({name!r})")
            values = checked.compute_values(name, variable, subject, _NUMBERS)
            data = array_to_json(values, subject)
            embedded[name] = replace(embed_variable(checked, name, variable), values=data)
    return embedded


@contextmanager
def _drop_unsupported(checked: CheckedInput, part: DroppablePart) -> Iterator[None]:
    """Ignore a TypeError about a part that may be dropped. Raise ValueError otherwise."""
    try:
        yield
    except TypeError as error:
        if part not in checked.drop:
            raise ValueError(
                f"{checked.path}: {error}, or pass drop=[{part!r}] or --drop {part} to leave it out"
            ) from None


def embed_tensor(checked: CheckedInput) -> bytes:
    """Return JSON of all but the values of one variable, which ``Container.embedded`` takes."""
    name, variable = checked.single_variable
    embedded = replace(embed_variable(checked, name, variable), name=name)
    metadata = EmbeddedMetadata(
        tensors={OpenOptions.name: embedded},
        coordinates=embed_coordinates(checked, checked.coordinates),
        attrs=encode_attrs(checked, checked.attrs, "the Dataset"),
    )
    return encode_metadata(checked, metadata)


def encode_metadata(checked: CheckedInput, embedded: EmbeddedMetadata) -> bytes:
    """Encode embedded metadata as JSON. Raise ValueError if it exceeds the limit of readers."""
    content = dumps(embedded.to_dict(), separators=(",", ":"), ensure_ascii=False).encode()
    return check_header_size(checked, content, MAX_EMBEDDED_BYTES)


def check_header_size(checked: CheckedInput, content: bytes, limit: int) -> bytes:
    """Return a part of a header. Raise ValueError if it exceeds the limit of readers."""
    if len(content) > limit:
        raise ValueError(
            f"{checked.path}: attributes and coordinates take {len(content)} bytes, and "
            f"{checked.format} allows at most {limit} in its header; drop or shorten some"
        )
    return content


DTYPE_TAG = "__numpy__"
"""Key of a JSON object that encodes a numpy array or number."""

MAX_LEVELS = 32
"""Limit on nested lists and dicts in an attribute. dask allows less than 100."""

_DTYPE_KINDS = "biufcmMS"
_CODES = "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]
_NUMBERS = build_elements(np.dtype(code).name for code in _CODES)
_DTYPE_NAME = re.compile(r"[<>|]([biufcSU]\d{1,8}|[mM]8(\[\w{1,8}\])?)|\|O|T")
# Limit on an array of strings, each of which takes the memory of the longest one.
_MAX_STRING_BYTES = 64 << 20


def to_json(value: Any, subject: str, level: int = 0) -> Any:
    """Encode a value. Raise TypeError, with the name `subject`, if JSON does not support it."""
    if level > MAX_LEVELS:
        raise TypeError(f"{subject} is nested deeper than {MAX_LEVELS} levels; flatten it")
    if isinstance(value, np.ndarray | np.generic | complex) and not isinstance(value, str):
        return {DTYPE_TAG: array_to_json(np.asanyarray(value), subject)}
    if isinstance(value, int | float | None):
        return value
    if isinstance(value, str):
        return _check_string(value, subject)
    if isinstance(value, list | tuple):
        return [to_json(item, subject, level + 1) for item in value]
    if isinstance(value, Mapping) and DTYPE_TAG not in value:
        return {
            _check_string(key, subject): to_json(item, subject, level + 1)
            for key, item in value.items()
        }
    raise TypeError(
        f"{subject} contains a {type(value).__name__}, which JSON does not support; convert it to "
        f"a str, a number, an array, or a list or dict of these (without the key {DTYPE_TAG!r})"
    )


def from_json(value: Any) -> Any:
    """Decode JSON that `to_json` encoded. The nesting must be limited."""
    if isinstance(value, Mapping):
        if set(value) == {DTYPE_TAG}:
            return array_from_json(value[DTYPE_TAG])[()]
        return {key: from_json(item) for key, item in value.items()}
    return [from_json(item) for item in value] if isinstance(value, list) else value


def array_to_json(array: Array, subject: str) -> dict[str, Any]:
    """Encode an array: strings as a list, other values in base64."""
    data = {"dtype": array.dtype.str, "shape": list(array.shape)}
    items: list[Any] = array.ravel().tolist() if array.dtype.kind in "OUT" else [None]
    if all(isinstance(item, str) for item in items):
        # A StringDType may have options, such as na_object.
        name = "T" if array.dtype.kind == "T" else array.dtype.str
        return data | {"dtype": name, "strings": [_check_string(item, subject) for item in items]}
    if array.dtype.kind not in _DTYPE_KINDS or np.ma.isMaskedArray(array):
        kind = "masked values" if np.ma.isMaskedArray(array) else f"dtype {array.dtype}"
        raise TypeError(
            f"{subject} has {kind}, which JSON does not support; convert it to numbers or strings"
        )
    return data | {"base64": b64encode(array.tobytes()).decode()}


def array_from_json(data: Mapping[str, Any]) -> Array:
    """Decode an array of `array_to_json`. Raise TypeError or ValueError if it is invalid."""
    name, shape = data["dtype"], tuple(data["shape"])
    if not _DTYPE_NAME.fullmatch(name):
        raise ValueError(f"the dtype {shorten(repr(name))} is invalid")
    dtype: np.dtype[Any] = np.dtypes.StringDType() if name == "T" else np.dtype(name)
    if "strings" in data:
        return _parse_strings(data["strings"], dtype).reshape(shape)
    raw = b64decode(data["base64"], validate=True)
    nbytes = prod(shape) * dtype.itemsize
    if dtype.kind not in _DTYPE_KINDS or nbytes != len(raw) or not dtype.itemsize:
        raise ValueError("the bytes of an array do not fit its shape")
    return np.frombuffer(raw, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _parse_strings(strings: Sequence[str], dtype: np.dtype[Any]) -> Array:
    is_valid = isinstance(strings, list) and all(isinstance(string, str) for string in strings)
    if dtype.kind not in "OUT" or not is_valid:
        raise TypeError(f"an array of dtype {dtype} needs a list of strings")
    if dtype.kind == "U":
        width = max(dtype.itemsize // 4, *map(len, strings), 0)
        is_small = 4 * width * len(strings) <= _MAX_STRING_BYTES
        dtype = np.dtype(f"U{width}" if is_small else object)
    return np.array(strings, dtype=dtype)


def _check_string(string: object, subject: str) -> str:
    if not isinstance(string, str):
        raise TypeError(f"{subject} has the key {string!r}, expected a str; use {str(string)!r}")
    try:
        string.encode()
    except UnicodeEncodeError:
        raise TypeError(
            f"{subject} contains {string!a}, which UTF-8 cannot encode; change it"
        ) from None
    return str(string)
