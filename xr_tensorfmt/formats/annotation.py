"""What a Dataset has and a format does not: names, dims, attributes and labels, noted in JSON.

The writers put a note into a place that other programs skip. A file with such a note opens as the
Dataset that was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xr_tensorfmt.formats.base import OpenOptions
from xr_tensorfmt.jsonvalues import array_from_json, from_json
from xr_tensorfmt.layouts import Held
from xr_tensorfmt.tensor import Container, Tensor

KEY = "xr_tensorfmt"
"""Name of the note, where it needs one."""

VERSION = 1

MOST_BYTES = 16 << 20
"""Limit on a note, which is read whenever a file is opened."""

_DEFAULT_NAME = OpenOptions.name


def annotated(path: str, container: Container, options: OpenOptions) -> Container:
    """Apply the note of a container to what its format knows of it.

    Parameters
    ----------
    path : str
        The file, for the warning.
    container : Container
        What the format knows.
    options : OpenOptions
        What the user asked for, which comes before the note.

    Returns
    -------
    Container
        With a warning where the note does not fit the file, as after another program has changed
        it; then the note is not used.
    """
    try:
        return _applied(container, container.note, options)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        warning = (
            f"{path}: what xr_tensorfmt has noted of names, dims, attributes and coordinates does "
            f"not fit the file and is not used ({type(error).__name__}: {error})"
        )
        return replace(container, note=None, warnings=(*container.warnings, warning))


def _applied(container: Container, note: Any, options: OpenOptions) -> Container:
    if note["version"] != VERSION:
        raise ValueError(f"version {note['version']!r}")
    requested = options.dims is not None
    known = {each.name: each for each in container.tensors}
    stored = set(note.get("stored_coordinates", ()))
    entries = note.get("tensors", {})
    tensors: list[Tensor] = []
    coordinates: list[Tensor] = []
    renamed: dict[str, str] = {}
    for name, tensor in known.items():
        # The one tensor of a file is called as the user wants.
        stored_name = _DEFAULT_NAME if name == options.name else name
        facts = entries.get(stored_name, {})
        each = _described(tensor, facts, options, renamed, requested=requested)
        (coordinates if name in stored else tensors).append(each)
    for name, facts in note.get("coordinates", {}).items():
        coordinates.append(_held(name, facts, renamed))
    _check_dims([*tensors, *coordinates])
    attrs = from_json(note["attrs"]) if "attrs" in note else container.attrs
    if note.get("tagged_attrs"):
        attrs = from_json(container.attrs)
    return replace(
        container,
        tensors=tuple(tensors),
        coordinates=(*container.coordinates, *coordinates),
        attrs=attrs,
        decoded=True,
    )


def _described(
    tensor: Tensor,
    facts: Mapping[str, Any],
    options: OpenOptions,
    renamed: dict[str, str],
    *,
    requested: bool,
) -> Tensor:
    name = facts.get("name", tensor.name) if options.name == _DEFAULT_NAME else tensor.name
    dims = _names(facts.get("dims", tensor.dims))
    if len(dims) != len(tensor.layout.shape):
        raise ValueError(f"{tensor.name!r} has {len(tensor.layout.shape)} dimensions")
    if requested:
        renamed |= dict(zip(dims, tensor.dims, strict=True))
        dims = tensor.dims
    attrs = dict(tensor.attrs)
    encoding = dict(tensor.encoding)
    if "attrs" in facts:
        # What the format says of the tensor is no attribute of the Dataset that was written.
        encoding["tensorfmt"] = attrs | dict(encoding.get("tensorfmt", {}))
        attrs = dict(from_json(facts["attrs"]))
    return Tensor(_text(name), dims, tensor.layout, attrs, encoding)


def _held(name: str, facts: Mapping[str, Any], renamed: Mapping[str, str]) -> Tensor:
    values = array_from_json(facts["values"])
    dims = tuple(renamed.get(dim, dim) for dim in _names(facts["dims"]))
    if len(dims) != values.ndim:
        raise ValueError(f"{name!r} has {values.ndim} dimensions")
    # A coordinate that labels a dimension is called as it is.
    return Tensor(renamed.get(name, name), dims, Held(values), dict(from_json(facts["attrs"])))


def _names(dims: Sequence[Any]) -> tuple[str, ...]:
    names = tuple(map(_text, dims))
    if len(set(names)) != len(names):
        raise ValueError(f"dims {names} are not all different")
    return names


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name {name!r} is no text")
    return name


def _check_dims(tensors: Sequence[Tensor]) -> None:
    lengths: dict[str, int] = {}
    for each in tensors:
        for dim, length in zip(each.dims, each.layout.shape, strict=True):
            if lengths.setdefault(dim, length) != length:
                raise ValueError(f"dim {dim!r} has lengths {lengths[dim]} and {length}")
    names = [each.name for each in tensors]
    if len(set(names)) != len(names):
        raise ValueError("two variables have one name")
