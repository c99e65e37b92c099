"""Groups: names of variables with a separator, such as a dot, as paths in a tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.errors import did_you_mean, shorten

EMPTY = "%"
"""Replaces an empty part of a name, which cannot be the name of a group."""

LEAF_AND_PREFIX = "%"
"""Appended to the name of a variable that is also the name of a group beside it."""

MOST_LEVELS = 64
"""Limit on the depth of groups, as the paths of a branch have a quadratic total length."""


def branch(container: Container, group: str | None, separator: str) -> Container:
    """The tensors of a group, with the prefix of the group removed from their names."""
    start = prefix(group, separator)
    if not start:
        return container
    if not any(tensor.name.startswith(start) for tensor in container.tensors):
        start = f"{group}{separator}"  # the slash may be one of the names
    tensors = tuple(
        _renamed(tensor, tensor.name[len(start) :])
        for tensor in container.tensors
        if tensor.name.startswith(start)
    )
    if not tensors:
        start = prefix(group, separator)
        names = [tensor.name.split(separator) for tensor in container.tensors]
        first = dict.fromkeys(parts[0] for parts in names)
        known = dict.fromkeys(
            separator.join(parts[:length]) for parts in names for length in range(1, len(parts))
        )
        hint = did_you_mean(start.removesuffix(separator), known)
        raise ValueError(
            f"group={shorten(repr(group))}{hint} is not in the file: no name begins with "
            f"{shorten(repr(start))}; names begin with "
            f"{shorten(', '.join(map(repr, first))) or 'nothing'}"
        )
    return _node(tensors, container, start, is_root=False)


def prefix(group: str | None, separator: str) -> str:
    """The prefix of the names in a group, which may be a path; empty for the root."""
    if group is None or not group.strip("/"):
        return ""
    if "/" in group:
        parts = [unquoted(part) for part in group.strip("/").split("/")]
        return separator.join(parts) + separator
    return group + separator


def _renamed(tensor: Tensor, name: str, suffix: str = "") -> Tensor:
    """A renamed tensor; dimensions that contain its name are renamed too."""
    dims = tuple(
        name + dim[len(tensor.name) :] + suffix if dim.startswith(f"{tensor.name}_dim_") else dim
        for dim in tensor.dims
    )
    return replace(tensor, name=name, dims=dims)


def split(container: Container, separator: str) -> dict[str, Container]:
    """The groups of a tree, by path."""
    for tensor in container.tensors:
        if tensor.name.count(separator) >= MOST_LEVELS:
            raise ValueError(
                f"the name {shorten(repr(tensor.name))} has more than {MOST_LEVELS} parts "
                f"between {separator!r}; choose another separator=, or open the file as a Dataset"
            )
    nodes: dict[str, Container] = {}
    dims: dict[str, set[str]] = {}
    for path, members in _members(container, separator).items():
        above = [dims[str(parent)] for parent in PurePosixPath(path).parents]
        tensors = tuple(_without_shared_dims(tensor, name, above) for tensor, name in members)
        dims[path] = {dim for tensor in tensors for dim in tensor.dims}
        nodes[path] = _node(tensors, container, path, is_root=path == "/")
    return nodes


def _members(container: Container, separator: str) -> dict[str, list[tuple[Tensor, str]]]:
    """The tensors of each group with their names in it; parents come before children."""
    members: dict[str, list[tuple[Tensor, str]]] = {"/": []}
    split_names = [tensor.name.split(separator) for tensor in container.tensors]
    prefixes = {separator.join(parts[:i]) for parts in split_names for i in range(1, len(parts))}
    for tensor, (*groups, leaf) in zip(container.tensors, split_names, strict=True):
        path = ""
        for part in groups:
            path = f"{path}/{quoted(part)}"
            members.setdefault(path, [])
        name = quoted(leaf) + (LEAF_AND_PREFIX if tensor.name in prefixes else "")
        members[path or "/"].append((tensor, name))
    return members


def _without_shared_dims(tensor: Tensor, name: str, above: list[set[str]]) -> Tensor:
    """A renamed tensor whose own dimensions differ from those of the groups above it."""
    renamed, suffix = _renamed(tensor, name), ""
    while renamed.dims != tensor.dims and not all(map(set(renamed.dims).isdisjoint, above)):
        suffix += "_"
        renamed = _renamed(tensor, name, suffix)
    return renamed


def quoted(part: str) -> str:
    """A part of a name, escaped for a path."""
    if part in (".", ".."):
        return part.replace(".", "%2E")
    return part.replace("%", "%25").replace("/", "%2F") or EMPTY


def unquoted(part: str) -> str:
    """The inverse of `quoted`."""
    if part == EMPTY:
        return ""
    return part.replace("%2E", ".").replace("%2F", "/").replace("%25", "%")


def _node(
    tensors: tuple[Tensor, ...], container: Container, path: str, *, is_root: bool
) -> Container:
    dims = {name for tensor in tensors for name in tensor.dims}
    clash = next((tensor.name for tensor in tensors if tensor.name in dims), None)
    if clash is not None:
        raise ValueError(
            f"{clash!r} would be both a variable and a dimension of the group {path!r}; "
            "open the file without groups, choose another separator=, or name dimensions with dims="
        )
    coordinates = tuple(tensor for tensor in container.coordinates if dims.issuperset(tensor.dims))
    if is_root:
        return replace(container, tensors=tensors, coordinates=coordinates)
    return Container(tensors, coordinates, decoded=container.decoded)
