"""Names, dims, attributes and coordinates that a format has no place for, embedded as JSON.

Writers put the JSON where other programs ignore it. A file that has it opens as the Dataset that
was written. Nothing in it is trusted: where it does not fit the file, it is not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from json import dumps
from typing import Any, Self

from xr_tensorfmt.core.container import Container, Names, OpenOptions, Tensor, name_dims
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.json_text import parse_json, reject_repeated
from xr_tensorfmt.core.json_values import array_from_json, from_json, strip_dtypes
from xr_tensorfmt.core.views import InMemory
from xr_tensorfmt.errors import shorten

EMBEDDED_KEY = "xr_tensorfmt"
"""Name of the embedded metadata in formats that have metadata under names."""

VERSION = 1

MAX_EMBEDDED_BYTES = 16 << 20
"""Limit on the embedded metadata, which are read whenever a file is opened."""

_DEFAULT_NAME = OpenOptions.name


@dataclass(frozen=True)
class EmbeddedVariable:
    """What is embedded of one variable, as JSON; None where the format itself says it."""

    name: str | None = None
    dims: tuple[str, ...] | None = None
    attrs: Mapping[str, Any] | None = None
    values: Mapping[str, Any] | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Check the types; several errors where it is not what `to_dict` makes."""
        members = _members(data, cls)
        if "name" in data:
            (members["name"],) = _strings([data["name"]])
        if "dims" in data:
            members["dims"] = _strings(data["dims"])
        return cls(**members)

    def to_dict(self) -> dict[str, Any]:
        """The members of the JSON object."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class EmbeddedMetadata:
    """What is embedded of a Dataset; attributes are as `to_json` encodes them."""

    # The tensors of the file, by the names that its format gives them.
    tensors: Mapping[str, EmbeddedVariable] = field(default_factory=dict)
    # Which of them are coordinates.
    stored_coordinates: tuple[str, ...] = ()
    # Coordinates whose values are embedded.
    coordinates: Mapping[str, EmbeddedVariable] = field(default_factory=dict)
    # Whether the attributes that the format stores have to be decoded by `from_json`.
    tagged_attrs: bool = False
    # Attributes that the format stores without their dtypes.
    numpy_attrs: Mapping[str, Any] = field(default_factory=dict)
    # Attributes that the format does not store.
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Check the version and the types; several errors where it is not what `to_dict` makes."""
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']!r}, expected {VERSION}")
        members = _members(data, cls)
        for name in {"tensors", "coordinates"} & set(data):
            variables = data[name].items()
            members[name] = {key: EmbeddedVariable.from_dict(value) for key, value in variables}
        members["stored_coordinates"] = _strings(data.get("stored_coordinates", ()))
        return cls(**members)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object, without members that say nothing."""
        members = {"version": VERSION, **vars(self)}
        for name in ("tensors", "coordinates"):
            members[name] = {key: each.to_dict() for key, each in members[name].items()}
        return {name: value for name, value in members.items() if value}

    @property
    def is_empty(self) -> bool:
        """Whether the format says everything itself."""
        return self == EmbeddedMetadata()


def apply_embedded_metadata(path: str, container: Container, options: OpenOptions) -> Container:
    """Apply the embedded metadata of a container to what its format says."""
    try:
        embedded = EmbeddedMetadata.from_dict(_decoded(container.embedded))
        applied = _applied(container, embedded, options)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        message = (
            "what xr_tensorfmt has embedded of names, dims, attributes and coordinates does not "
            f"fit the file and is not used ({shorten(f'{type(error).__name__}: {error}')})"
        )
        finding = Finding(path, None, "the embedded metadata", message, "warning")
        return replace(container, embedded=None, findings=(*container.findings, finding))
    return applied if options.dims is None else _renamed(applied, options.dims)


def _decoded(embedded: Any) -> Any:
    """The JSON object, which some formats keep as a string or as bytes."""
    if isinstance(embedded, bytes):
        embedded = embedded.decode()
    if not isinstance(embedded, str):
        return embedded
    if len(embedded) > MAX_EMBEDDED_BYTES:
        raise ValueError(f"they have {len(embedded)} characters, more than {MAX_EMBEDDED_BYTES}")
    return parse_json(embedded, reject_repeated)


def _members(data: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The members of a JSON object, but for its version; what was never written is an error."""
    known = {"version", *(each.name for each in fields(kind))}
    for name, value in data.items():
        if name not in known or value is None:
            raise ValueError(f"the key {name!r} with {shorten(repr(value))} is unknown")
    return {name: value for name, value in data.items() if name != "version"}


def _strings(values: Sequence[Any]) -> tuple[str, ...]:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{values!r} is not a list of str")
    "".join(values).encode()  # raises where no name that was written could be the same
    return tuple(values)


def _applied(container: Container, embedded: EmbeddedMetadata, options: OpenOptions) -> Container:
    tensors: list[Tensor] = []
    coordinates: list[Tensor] = []
    for tensor in container.tensors:
        # The only tensor of a file is embedded under one name, whatever the file is called.
        is_only = len(container.tensors) == 1 and tensor.name not in embedded.tensors
        key = _DEFAULT_NAME if is_only else tensor.name
        variable = _described(tensor, embedded.tensors.get(key, EmbeddedVariable()), options)
        if container.keep_attrs:
            variable = replace(variable, attrs={**tensor.attrs, **variable.attrs})
        is_coordinate = tensor.name in embedded.stored_coordinates
        (coordinates if is_coordinate else tensors).append(variable)
    coordinates += [_coordinate(name, labels) for name, labels in embedded.coordinates.items()]
    _check_variables(container, tensors, embedded, options)
    _check_dims([*tensors, *coordinates])
    return replace(
        container,
        tensors=tuple(tensors),
        coordinates=(*container.coordinates, *coordinates),
        attrs=_attrs(container.attrs, embedded),
        decoded=True,
    )


def _attrs(stored: Mapping[str, Any], embedded: EmbeddedMetadata) -> Mapping[str, Any]:
    """The attributes of the Dataset, from those that the format stores."""
    attrs = dict(from_json(stored) if embedded.tagged_attrs else stored)
    for name, value in embedded.numpy_attrs.items():
        # The dtype is that of a number which another program may have changed since.
        if name in stored and dumps(strip_dtypes(value)) == dumps(stored[name]):
            attrs[name] = from_json(value)
    return attrs | dict(from_json(embedded.attrs))


def _described(tensor: Tensor, variable: EmbeddedVariable, options: OpenOptions) -> Tensor:
    name, dims = tensor.name, tensor.dims
    if variable.name is not None and options.name == _DEFAULT_NAME:
        name = variable.name
    if variable.dims is not None:
        dims = variable.dims
    if len(dims) != len(tensor.layout.shape):
        raise ValueError(f"{tensor.name!r} has {len(tensor.layout.shape)} dimensions")
    attrs = dict(tensor.attrs)
    encoding = dict(tensor.encoding)
    if variable.attrs is not None:
        # What the format says of the tensor is not an attribute of the Dataset that was written.
        encoding["tensorfmt"] = attrs | dict(encoding.get("tensorfmt", {}))
        attrs = dict(from_json(variable.attrs))
    return replace(tensor, name=name, dims=dims, attrs=attrs, encoding=encoding)


def _coordinate(name: str, variable: EmbeddedVariable) -> Tensor:
    if variable.dims is None or variable.attrs is None or variable.values is None:
        raise ValueError(f"{name!r} has no dims, no attributes or no values")
    values = array_from_json(variable.values)
    if len(variable.dims) != values.ndim:
        raise ValueError(f"{name!r} has {values.ndim} dimensions")
    return Tensor(name, variable.dims, InMemory(values), dict(from_json(variable.attrs)))


def _renamed(container: Container, requested: Names) -> Container:
    """Rename the dimensions that the user names for one variable in all variables."""
    names: dict[str, str] = {}
    own = {}
    for tensor in container.tensors:
        if not isinstance(requested, Mapping) or tensor.name in requested:
            own[tensor.name] = name_dims(requested, tensor.name, tensor.dims)
            names |= dict(zip(tensor.dims, own[tensor.name], strict=True))

    def renamed(tensor: Tensor, name: str) -> Tensor:
        dims = tuple(names.get(dim, dim) for dim in tensor.dims)
        return replace(tensor, name=name, dims=own.get(name, dims))

    tensors = tuple(renamed(tensor, tensor.name) for tensor in container.tensors)
    # A coordinate that labels a dimension has the name of the dimension.
    coordinates = tuple(
        renamed(tensor, names.get(tensor.name, tensor.name)) for tensor in container.coordinates
    )
    try:
        _check_dims([*tensors, *coordinates])
    except ValueError as error:
        raise ValueError(f"dims={shorten(requested)} does not fit: {error}") from None
    return replace(container, tensors=tensors, coordinates=coordinates)


def _check_variables(
    container: Container,
    variables: Sequence[Tensor],
    embedded: EmbeddedMetadata,
    options: OpenOptions,
) -> None:
    if any(tensor.dims == (tensor.name,) for tensor in variables):
        raise ValueError("a variable labels a dimension and is not a coordinate")
    # Only files with any number of tensors have facts of the file as a whole.
    names = [tensor.name for tensor in container.tensors]
    is_only = names == [options.name] and not container.encoding
    if is_only and not variables:
        raise ValueError("the only tensor of the file is a coordinate")
    if is_only and set(embedded.tensors) - {_DEFAULT_NAME}:
        raise ValueError(f"the only tensor of the file is not {min(embedded.tensors)!r}")


def _check_dims(tensors: Sequence[Tensor]) -> None:
    lengths: dict[str, int] = {}
    for tensor in tensors:
        if len(set(tensor.dims)) != len(tensor.dims):
            raise ValueError(f"two dims of {tensor.name!r} have one name in {tensor.dims}")
        for dim, length in zip(tensor.dims, tensor.layout.shape, strict=True):
            if lengths.setdefault(dim, length) != length:
                raise ValueError(f"dim {dim!r} has lengths {lengths[dim]} and {length}")
    for tensor in tensors:
        if tensor.name in lengths and not tensor.dims:
            raise ValueError(f"{tensor.name!r} is a scalar and a dimension")
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        raise ValueError("two variables have one name")
