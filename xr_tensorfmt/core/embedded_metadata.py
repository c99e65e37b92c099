"""Names, dims, attributes and coordinates that a format does not support, embedded as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from json import dumps
from typing import Any, Self

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import parse_json
from xr_tensorfmt.core.json_values import array_from_json, from_json, strip_dtypes
from xr_tensorfmt.core.layout import InMemory
from xr_tensorfmt.core.open_options import Names, OpenOptions, find_names, name_dims
from xr_tensorfmt.errors import shorten

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
        """Parse the result of `to_dict`. Invalid data raise one of `_ERRORS`."""
        _to_strings([data.get("name", "")])
        members = dict(data)
        if "dims" in data:
            members["dims"] = _to_strings(data["dims"])
        return cls(**members)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class EmbeddedMetadata:
    """Embedded metadata of a Dataset. Attributes and values are encoded by `to_json`."""

    tensors: Mapping[str, EmbeddedVariable] = field(default_factory=dict)
    stored_coordinates: tuple[str, ...] = ()  # names of tensors
    coordinates: Mapping[str, EmbeddedVariable] = field(default_factory=dict)
    # Whether `from_json` must decode the attributes that the format stores.
    tagged_attrs: bool = False
    # Attributes that the format stores without dtypes.
    numpy_attrs: Mapping[str, Any] = field(default_factory=dict)
    # Attributes that the format does not store, and None for a stored one in its position.
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Parse the result of `to_dict`. Invalid data raise one of `_ERRORS`."""
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']!r}, expected {VERSION}")
        members = {name: value for name, value in data.items() if name != "version"}
        for name in {"tensors", "coordinates"} & set(data):
            variables = data[name].items()
            members[name] = {key: EmbeddedVariable.from_dict(value) for key, value in variables}
        members["stored_coordinates"] = _to_strings(data.get("stored_coordinates", ()))
        return cls(**members)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object without empty members."""
        members = {"version": VERSION, **vars(self)}
        for name in ("tensors", "coordinates"):
            members[name] = {key: variable.to_dict() for key, variable in members[name].items()}
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
        finding = Finding(path, None, "the embedded metadata", message, "warning")
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
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{values!r} is not a list of str")
    "".join(values).encode()  # raises if a name is not valid UTF-8
    return tuple(values)


def _apply(container: Container, embedded: EmbeddedMetadata, options: OpenOptions) -> Container:
    tensors: list[Tensor] = []
    coordinates: list[Tensor] = []
    # The only tensor of a format without names is embedded under the default name.
    is_unnamed = len(container.tensors) == 1 and list(embedded.tensors) == [_DEFAULT_NAME]
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
    lengths: dict[str, int] = {}
    for tensor in [*tensors, *coordinates]:
        for dim, length in zip(tensor.dims, tensor.layout.shape, strict=True):
            if lengths.setdefault(dim, length) != length:
                raise ValueError(f"dim {dim!r} has lengths {lengths[dim]} and {length}")
    return replace(
        container,
        tensors=tuple(tensors),
        coordinates=(*container.coordinates, *coordinates),
        attrs=_apply_to_attrs(container.attrs, embedded),
    )


def _apply_to_attrs(stored: Mapping[str, Any], embedded: EmbeddedMetadata) -> Mapping[str, Any]:
    attrs = dict(from_json(stored) if embedded.tagged_attrs else stored)
    for name, value in embedded.numpy_attrs.items():
        # Use the dtype only if another program has not changed the number.
        if name in stored and dumps(strip_dtypes(value)) == dumps(stored[name]):
            attrs[name] = from_json(value)
    # None marks the position of an attribute that the format stores.
    members = from_json(embedded.attrs)
    added = {n: value for n, value in members.items() if value is not None or n not in attrs}
    return (members if len(added) < len(members) else {}) | attrs | added


def _apply_to_tensor(tensor: Tensor, variable: EmbeddedVariable, options: OpenOptions) -> Tensor:
    name = tensor.name
    if variable.name is not None and options.name == _DEFAULT_NAME:
        name = variable.name
    dims = tensor.dims if variable.dims is None else variable.dims
    if len(dims) != len(tensor.layout.shape):
        raise ValueError(f"{tensor.name!r} has {len(tensor.layout.shape)} dimensions")
    attrs = tensor.attrs if variable.attrs is None else dict(from_json(variable.attrs))
    return tensor._replace(name=name, dims=dims, attrs=attrs)


def _rename_dims(container: Container, requested: Names) -> Container:
    """Rename dimensions in all variables if the user renames them for one variable."""
    names: dict[str, str] = {}
    dims_by_variable = {}
    for tensor in container.tensors:
        if find_names(requested, tensor.name, len(tensor.dims)) is not None:
            dims = name_dims(requested, tensor.name, tensor.dims)
            dims_by_variable[tensor.name] = dims
            names |= dict(zip(tensor.dims, dims, strict=True))

    def rename(tensor: Tensor, name: str) -> Tensor:
        dims = tuple(names.get(dim, dim) for dim in tensor.dims)
        return tensor._replace(name=name, dims=dims_by_variable.get(name, dims))

    tensors = tuple(rename(tensor, tensor.name) for tensor in container.tensors)
    # An index coordinate has the name of its dimension.
    coordinates = tuple(
        rename(tensor, names.get(tensor.name, tensor.name)) for tensor in container.coordinates
    )
    try:
        _check_names([*tensors, *coordinates])  # lengths may differ between the groups of a tree
    except ValueError as error:
        raise ValueError(f"dims={shorten(requested)} does not fit: {error}") from None
    return replace(container, tensors=tensors, coordinates=coordinates)


def _check_names(tensors: Sequence[Tensor]) -> None:
    dims = {dim for tensor in tensors for dim in tensor.dims}
    for tensor in tensors:
        if len(set(tensor.dims)) != len(tensor.dims):
            raise ValueError(f"{tensor.name!r} has repeated dims {tensor.dims}")
        if tensor.name in dims and not tensor.dims:
            raise ValueError(f"{tensor.name!r} is a scalar and a dimension")
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        raise ValueError("two variables have the same name")
