"""Groups: names of variables with a separator, such as a dot, as paths in a tree."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.errors import did_you_mean, shorten

EMPTY = "%"
"""Replaces an empty part of a name, which cannot be the name of a group."""

LEAF_AND_PREFIX = "%"
"""Appended to the name of a variable that is also the name of a group beside it."""

MAX_LEVELS = 64
"""Limit on the depth of groups, as the paths of a branch have a quadratic total length."""


def branch(container: Container, group: str | None, separator: str) -> Container:
    """The tensors of a group, with the prefix of the group removed from their names."""
    start = prefix(group, separator)
    if not start:
        return container
    if not any(tensor.name.startswith(start) for tensor in container.tensors):
        start = f"{group}{separator}"  # the slash may be one of the names
    scope = _Scope(tuple(_starts(start, separator)[:-1]))
    tensors = tuple(
        scope.renamed(tensor, tensor.name[len(start) :])
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
    own, above = [], []
    groups = _prefixes(container, separator)
    for coordinate in container.coordinates:
        owner = _owner(coordinate, groups, separator)
        if owner.startswith(start):
            own.append(scope.coordinate(coordinate))
        elif start.startswith(owner):
            above.append(scope.coordinate(coordinate))
    return _node(tensors, own, above, container, start)


def prefix(group: str | None, separator: str) -> str:
    """The prefix of the names in a group, which may be a path; empty for the root."""
    if group is None or not group.strip("/"):
        return ""
    if "/" in group:
        parts = [unquoted(part) for part in group.strip("/").split("/")]
        return separator.join(parts) + separator
    return group + separator


def group_path(group: str | None, separator: str) -> str | None:
    """The path of a group in a store that has groups of its own; None for the root."""
    parts = prefix(group, separator).removesuffix(separator).split(separator)
    return "/".join(parts) or None


@dataclass(frozen=True)
class _Scope:
    """What dimensions and coordinates are called in a group: their names without its prefix."""

    # Prefixes of the group and of those above it, the longest first.
    prefixes: tuple[str, ...] = ()
    # The names in the file by the names in the group; those of the groups above are seen as well.
    names: ChainMap[str, str] = field(default_factory=ChainMap)

    def below(self, start: str) -> _Scope:
        """The scope of a group in this one."""
        return _Scope((start, *self.prefixes), self.names.new_child())

    def renamed(self, tensor: Tensor, name: str) -> Tensor:
        """A renamed tensor; dimensions that contain its name are renamed too."""
        own, suffix = f"{tensor.name}_dim_", ""
        named = {
            dim: f"{name}{dim[len(tensor.name) :]}" for dim in tensor.dims if dim.startswith(own)
        }
        while any(self.names.get(short + suffix, dim) != dim for dim, short in named.items()):
            suffix += "_"
        for dim, short in named.items():
            self.names[short + suffix] = dim
        dims = (named[dim] + suffix if dim in named else self.short(dim) for dim in tensor.dims)
        return replace(tensor, name=name, dims=tuple(dims))

    def coordinate(self, tensor: Tensor) -> Tensor:
        """A coordinate; one that labels a dimension keeps the name of the dimension."""
        return self.renamed(tensor, self.short(tensor.name))

    def short(self, name: str) -> str:
        """A name without the prefix, unless something else has that name."""
        start = next((start for start in self.prefixes if name.startswith(start)), "")
        short = name[len(start) :] or name
        if self.names.setdefault(short, name) != name:
            return name
        return short


def _starts(name: str, separator: str) -> list[str]:
    """The prefixes of the groups that a name is in, the longest first; the root's is empty."""
    parts = name.split(separator)[: MAX_LEVELS + 1]
    levels = reversed(range(len(parts)))
    return ["".join(f"{part}{separator}" for part in parts[:level]) for level in levels]


def _prefixes(container: Container, separator: str) -> set[str]:
    """The prefixes of all groups."""
    names = (tensor.name for tensor in container.tensors)
    return {"", *(start for name in names for start in _starts(name, separator))}


def _owner(coordinate: Tensor, groups: set[str], separator: str) -> str:
    """The prefix of the group that a coordinate belongs to."""
    return next(start for start in _starts(coordinate.name, separator) if start in groups)


def split(container: Container, separator: str, *, is_tree: bool) -> dict[str, Container]:
    """The groups of a tree, by path.

    In a tree each coordinate is in one group, as xarray hands it down; without one, also in the
    groups below that have its dimensions.
    """
    for tensor in container.tensors:
        if tensor.name.count(separator) >= MAX_LEVELS:
            raise ValueError(
                f"the name {shorten(repr(tensor.name))} has more than {MAX_LEVELS} parts "
                f"between {separator!r}; choose another separator=, or open the file as a Dataset"
            )
    groups = _members(container, separator)
    starts = {start for start, _ in groups.values()}
    owned: dict[str, list[Tensor]] = {start: [] for start in starts}
    for coordinate in container.coordinates:
        owned[_owner(coordinate, starts, separator)].append(coordinate)
    scopes: dict[str, _Scope] = {}
    nodes: dict[str, Container] = {}
    for path, (start, members) in groups.items():
        parent = str(PurePosixPath(path).parent)
        scope = scopes[path] = scopes[parent].below(start) if start else _Scope()
        own = [scope.coordinate(each) for each in owned[start]]
        tensors = tuple(scope.renamed(tensor, name) for tensor, name in members)
        over = [] if is_tree or not start else ["", *reversed(scope.prefixes[1:])]
        above = [scope.coordinate(each) for other in over for each in owned[other]]
        nodes[path] = _node(tensors, own, above, container, start)
    return nodes


_Members = list[tuple[Tensor, str]]


def _members(container: Container, separator: str) -> dict[str, tuple[str, _Members]]:
    """Prefix and tensors of each group, with their names in it; parents come before children."""
    members: dict[str, tuple[str, _Members]] = {"/": ("", [])}
    prefixes = _prefixes(container, separator)
    for tensor in container.tensors:
        *parts, leaf = tensor.name.split(separator)
        path = start = ""
        for part in parts:
            path, start = f"{path}/{quoted(part)}", f"{start}{part}{separator}"
            members.setdefault(path, (start, []))
        is_prefix = f"{tensor.name}{separator}" in prefixes
        name = quoted(leaf) + (LEAF_AND_PREFIX if is_prefix else "")
        members[path or "/"][1].append((tensor, name))
    return members


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
    tensors: tuple[Tensor, ...],
    own: Sequence[Tensor],
    above: Sequence[Tensor],
    container: Container,
    start: str,
) -> Container:
    """A group with its own coordinates, and with those from above that fit its dimensions."""
    dims = {name for tensor in tensors for name in tensor.dims}
    clash = next((tensor.name for tensor in tensors if tensor.name in dims), None)
    if clash is not None:
        raise ValueError(
            f"{clash!r} would be both a variable and a dimension of the group {start or '/'!r}; "
            "open the file without groups, choose another separator=, or name dimensions with dims="
        )
    names = {tensor.name for tensor in tensors}
    fitting = (each for each in above if dims.issuperset(each.dims) and each.name not in names)
    coordinates = (*own, *fitting)
    if not start:
        return replace(container, tensors=tensors, coordinates=coordinates)
    return Container(tensors, coordinates, decoded=container.decoded)
