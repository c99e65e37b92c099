"""What a Dataset has and a format does not: names, dims, attributes and labels, noted in JSON.

The writers put a note into a place that other programs skip. A file with such a note opens as the
Dataset that was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from json import dumps, loads
from typing import Any

from xr_tensorfmt.core.container import Container, Names, Tensor, named_dims
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.json_values import array_from_json, from_json, without_dtypes
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.core.views import InMemory
from xr_tensorfmt.errors import shortened

KEY = "xr_tensorfmt"
"""Name of the note, where it needs one."""

VERSION = 1

MOST_BYTES = 16 << 20
"""Limit on a note, which is read whenever a file is opened."""

_DEFAULT_NAME = OpenOptions.name
_KEYS = {
    "version",
    "tensors",
    "stored_coordinates",
    "coordinates",
    "tagged_attrs",
    "numpy_attrs",
    "attrs",
}
_KEYS_OF_VARIABLE = {"name", "dims", "attrs", "values"}


def with_embedded_metadata(path: str, container: Container, options: OpenOptions) -> Container:
    """Apply the note of a container to what its format knows of it."""
    try:
        noted = _applied(container, _decoded(container.embedded), options)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        message = (
            "what xr_tensorfmt has noted of names, dims, attributes and coordinates does "
            f"not fit the file and is not used ({shortened(f'{type(error).__name__}: {error}')})"
        )
        finding = Finding(path, None, "the embedded metadata", message, "warning")
        return replace(container, embedded=None, findings=(*container.findings, finding))
    return noted if options.dims is None else _renamed(noted, options.dims)


def _decoded(embedded: Any) -> Any:
    """A note, which its format may keep as text."""
    if not isinstance(embedded, str):
        return embedded
    if len(embedded) > MOST_BYTES:
        raise ValueError(f"a text of {len(embedded)} characters, more than {MOST_BYTES}")
    return loads(embedded)


def _applied(container: Container, embedded: Any, options: OpenOptions) -> Container:
    if embedded["version"] != VERSION:
        raise ValueError(f"version {embedded['version']!r}")
    known = {each.name: each for each in container.tensors}
    stored = set(embedded.get("stored_coordinates", ()))
    entries = embedded.get("tensors", {})
    _check_keys(embedded, [*entries.values(), *embedded.get("coordinates", {}).values()])
    tensors: list[Tensor] = []
    coordinates: list[Tensor] = []
    for name, tensor in known.items():
        # The note knows the one tensor of a file by the name that it has without a request.
        facts = entries.get(_DEFAULT_NAME if name == options.name else name, {})
        each = _described(tensor, facts, options)
        (coordinates if name in stored else tensors).append(each)
    for name, facts in embedded.get("coordinates", {}).items():
        coordinates.append(_held(name, facts))
    if any(each.dims == (each.name,) for each in tensors):
        raise ValueError("a variable labels a dimension and is no coordinate")
    # Only files that hold any number of tensors have facts of their own.
    is_sole = set(known) == {options.name} and not container.encoding
    if is_sole and (not tensors or set(entries) - {_DEFAULT_NAME}):
        raise ValueError("its one tensor is another, or no variable")
    _check_dims([*tensors, *coordinates])
    attrs = from_json(container.attrs) if embedded.get("tagged_attrs") else container.attrs
    attrs = {**attrs, **_with_dtypes(container.attrs, embedded.get("numpy_attrs", {}))}
    if "attrs" in embedded:
        attrs = dict(from_json(embedded["attrs"]))
    return replace(
        container,
        tensors=tuple(tensors),
        coordinates=(*container.coordinates, *coordinates),
        attrs=attrs,
        decoded=True,
    )


def _with_dtypes(attrs: Mapping[str, Any], noted: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes with dtypes, unless another program has changed their numbers since."""
    return {
        name: from_json(value)
        for name, value in noted.items()
        if name in attrs and dumps(without_dtypes(value)) == dumps(attrs[name])
    }


def _check_keys(embedded: Mapping[str, Any], variables: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what was never written: a damaged key would lose what it stands for in silence."""
    unknown = set(embedded) - _KEYS
    unknown |= {key for each in variables for key in each} - _KEYS_OF_VARIABLE
    if unknown:
        raise ValueError(f"the key {min(unknown)!r}")


def _described(tensor: Tensor, facts: Mapping[str, Any], options: OpenOptions) -> Tensor:
    name = facts.get("name", tensor.name) if options.name == _DEFAULT_NAME else tensor.name
    dims = _names(facts.get("dims", tensor.dims))
    if len(dims) != len(tensor.layout.shape):
        raise ValueError(f"{tensor.name!r} has {len(tensor.layout.shape)} dimensions")
    attrs = dict(tensor.attrs)
    encoding = dict(tensor.encoding)
    if "attrs" in facts:
        # What the format says of the tensor is no attribute of the Dataset that was written.
        encoding["tensorfmt"] = attrs | dict(encoding.get("tensorfmt", {}))
        attrs = dict(from_json(facts["attrs"]))
    return Tensor(_text(name), dims, tensor.layout, attrs, encoding)


def _held(name: str, facts: Mapping[str, Any]) -> Tensor:
    values, dims = array_from_json(facts["values"]), _names(facts["dims"])
    if len(dims) != values.ndim:
        raise ValueError(f"{name!r} has {values.ndim} dimensions")
    return Tensor(name, dims, InMemory(values), dict(from_json(facts["attrs"])))


def _renamed(container: Container, requested: Names) -> Container:
    """A dimension that the user names for one variable has that name in the others too."""
    names: dict[str, str] = {}
    own = {}
    for each in container.tensors:
        if not isinstance(requested, Mapping) or each.name in requested:
            own[each.name] = named_dims(requested, each.name, each.dims)
            names |= dict(zip(each.dims, own[each.name], strict=True))

    def renamed(each: Tensor, name: str) -> Tensor:
        dims = tuple(names.get(dim, dim) for dim in each.dims)
        return replace(each, name=name, dims=own.get(name, dims))

    tensors = tuple(renamed(each, each.name) for each in container.tensors)
    # A coordinate that labels a dimension is called as it is.
    coordinates = tuple(
        renamed(each, names.get(each.name, each.name)) for each in container.coordinates
    )
    try:
        _check_dims([*tensors, *coordinates])
    except ValueError as error:
        raise ValueError(f"dims={shortened(requested)} does not fit: {error}") from None
    return replace(container, tensors=tensors, coordinates=coordinates)


def _names(dims: Sequence[Any]) -> tuple[str, ...]:
    if isinstance(dims, str):
        raise TypeError(f"the dims {dims!r} are no list")
    return tuple(map(_text, dims))


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name {name!r} is no text")
    name.encode()  # raises where no text of a file could have been so
    return name


def _check_dims(tensors: Sequence[Tensor]) -> None:
    lengths: dict[str, int] = {}
    for each in tensors:
        if len(set(each.dims)) != len(each.dims):
            raise ValueError(f"two dims of {each.name!r} have one name in {each.dims}")
        for dim, length in zip(each.dims, each.layout.shape, strict=True):
            if lengths.setdefault(dim, length) != length:
                raise ValueError(f"dim {dim!r} has lengths {lengths[dim]} and {length}")
    for each in tensors:
        if each.name in lengths and not each.dims:
            raise ValueError(f"{each.name!r} is a scalar and a dimension")
    names = [each.name for each in tensors]
    if len(set(names)) != len(names):
        raise ValueError("two variables have one name")
