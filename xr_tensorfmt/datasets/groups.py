"""Groups: variable names with a separator, such as a dot, as paths in a tree.

In a path, ``%`` is written as ``%25``. Four kinds of names are changed too:

- An empty part: ``a..b`` is ``/a/%/b``.
- A variable with the name of a group: ``a`` and ``a.b`` are ``/a%`` and ``/a/b``.
- A slash: ``a/b.c`` is ``/a%2Fb/c``.
- The parts ``.`` and ``..``: ``a:.:b`` with the separator ``:`` is ``/a/%2E/b``.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.errors import did_you_mean, shorten

EMPTY_PART = "%"
"""Replaces an empty part of a name."""

GROUP_NAME_MARK = "%"
"""Appended to the name of a variable that is also the name of a group."""

MAX_GROUP_LEVELS = 64
"""Limit on the depth of groups, because the total length of paths is quadratic in the depth."""


def select_group(container: Container, group: str | None, separator: str) -> Container:
    """Return the tensors of a group, without its prefix in their names."""
    start = get_prefix(group, separator)
    if not start:
        return container
    if not any(tensor.name.startswith(start) for tensor in container.tensors):
        start = f"{group}{separator}"  # the slash may be part of a name
    scope = _Scope(tuple(_find_starts(start, separator)[:-1]))
    tensors = tuple(
        scope.rename(tensor, tensor.name[len(start) :])
        for tensor in container.tensors
        if tensor.name.startswith(start)
    )
    if not tensors:
        raise _build_missing_group_error(container, group, separator)
    own, inherited = [], []
    groups = _list_prefixes(container, separator)
    for coordinate in container.coordinates:
        owner = _find_owner(coordinate, groups, separator)
        if owner.startswith(start):
            own.append(scope.rename_coordinate(coordinate))
        elif start.startswith(owner):
            inherited.append(scope.rename_coordinate(coordinate))
    return _build_node(tensors, own, inherited, container, start)


def _build_missing_group_error(
    container: Container, group: str | None, separator: str
) -> ValueError:
    start = get_prefix(group, separator)
    names = [tensor.name.split(separator) for tensor in container.tensors]
    first = dict.fromkeys(parts[0] for parts in names)
    groups = dict.fromkeys(
        separator.join(parts[:length]) for parts in names for length in range(1, len(parts))
    )
    suggestion = did_you_mean(start.removesuffix(separator), groups)
    actual = f"names begin with {shorten(', '.join(map(repr, first)))}" if first else "no names"
    return ValueError(
        f"group={shorten(repr(group))}{suggestion} is not in the file: no name begins with "
        f"{shorten(repr(start))}; {actual}"
    )


def get_prefix(group: str | None, separator: str) -> str:
    """Return the prefix of the names in a group, or an empty string for the root."""
    if group is None or not group.strip("/"):
        return ""
    if "/" in group:
        parts = [unquote(part) for part in group.strip("/").split("/")]
        return separator.join(parts) + separator
    return group + separator


def get_group_path(group: str | None, separator: str) -> str | None:
    """Return the path of a group for a Zarr store, or None for the root."""
    prefix = get_prefix(group, separator).removesuffix(separator)
    return "/".join(map(quote, prefix.split(separator))) if prefix else None


@dataclass(frozen=True)
class _Scope:
    """Names of dimensions and coordinates in a group, without the prefix of the group."""

    # Prefixes of the group and its parents, the longest first.
    prefixes: tuple[str, ...] = ()
    # Names in the file by names in the group. Names of parent groups are visible.
    names: ChainMap[str, str] = field(default_factory=ChainMap)

    def create_child(self, start: str) -> _Scope:
        """Return the scope of a group in this group."""
        return _Scope((start, *self.prefixes), self.names.new_child())

    def rename(self, tensor: Tensor, name: str) -> Tensor:
        """Rename a tensor, and its dimensions if they contain its name."""
        short_names = {
            dim: f"{name}{dim[len(tensor.name) :]}"
            for dim in tensor.dims
            if dim.startswith(f"{tensor.name}_dim_")
        }
        # All dimensions get the same suffix if a short name is in use.
        while any(self.names.get(short, dim) != dim for dim, short in short_names.items()):
            short_names = {dim: f"{short}_" for dim, short in short_names.items()}
        self.names.update((short, dim) for dim, short in short_names.items())
        dims = (short_names.get(dim) or self.claim_short_name(dim) for dim in tensor.dims)
        return replace(tensor, name=name, dims=tuple(dims))

    def rename_coordinate(self, tensor: Tensor) -> Tensor:
        """Rename a coordinate. An index coordinate keeps the name of its dimension."""
        return self.rename(tensor, self.claim_short_name(tensor.name))

    def claim_short_name(self, name: str) -> str:
        """Remove the prefix from a name and reserve the result, unless it is in use."""
        start = next((start for start in self.prefixes if name.startswith(start)), "")
        short = name[len(start) :] or name
        return short if self.names.setdefault(short, name) == name else name


def _find_starts(name: str, separator: str) -> list[str]:
    """Return the prefixes of all groups that contain a name, the longest first."""
    parts = name.split(separator)[: MAX_GROUP_LEVELS + 1]
    levels = reversed(range(len(parts)))
    return ["".join(f"{part}{separator}" for part in parts[:level]) for level in levels]


def _list_prefixes(container: Container, separator: str) -> set[str]:
    """Return the prefixes of all groups."""
    names = (tensor.name for tensor in container.tensors)
    return {"", *(start for name in names for start in _find_starts(name, separator))}


def _find_owner(coordinate: Tensor, groups: set[str], separator: str) -> str:
    """Return the prefix of the group that a coordinate belongs to."""
    return next(start for start in _find_starts(coordinate.name, separator) if start in groups)


def split_groups(container: Container, separator: str, *, is_tree: bool) -> dict[str, Container]:
    """Return all groups by path.

    In a tree, a coordinate is in one group, because xarray lets child groups inherit it.
    Otherwise, it is also in the child groups that have its dimensions.
    """
    for tensor in container.tensors:
        if tensor.name.count(separator) >= MAX_GROUP_LEVELS:
            raise ValueError(
                f"the name {shorten(repr(tensor.name))} has more than {MAX_GROUP_LEVELS} parts "
                f"between {separator!r}; choose another separator=, or open the file as a Dataset"
            )
    groups = _collect_members(container, separator)
    starts = {start for start, _ in groups.values()}
    owned: dict[str, list[Tensor]] = {start: [] for start in starts}
    for coordinate in container.coordinates:
        owned[_find_owner(coordinate, starts, separator)].append(coordinate)
    scopes: dict[str, _Scope] = {}
    nodes: dict[str, Container] = {}
    for path, (start, members) in groups.items():
        parent = str(PurePosixPath(path).parent)
        scope = scopes[path] = scopes[parent].create_child(start) if start else _Scope()
        own = [scope.rename_coordinate(coordinate) for coordinate in owned[start]]
        tensors = tuple(scope.rename(tensor, name) for tensor, name in members)
        parents = [] if is_tree or not start else ["", *reversed(scope.prefixes[1:])]
        inherited = [
            scope.rename_coordinate(coordinate)
            for ancestor in parents
            for coordinate in owned[ancestor]
        ]
        nodes[path] = _build_node(tensors, own, inherited, container, start)
    return nodes


_Members = list[tuple[Tensor, str]]


def _collect_members(container: Container, separator: str) -> dict[str, tuple[str, _Members]]:
    """Return prefix and tensors, with their names, of every group. Parents precede children."""
    members: dict[str, tuple[str, _Members]] = {"/": ("", [])}
    prefixes = _list_prefixes(container, separator)
    for tensor in container.tensors:
        *parts, leaf = tensor.name.split(separator)
        path = start = ""
        for part in parts:
            path, start = f"{path}/{quote(part)}", f"{start}{part}{separator}"
            members.setdefault(path, (start, []))
        is_prefix = f"{tensor.name}{separator}" in prefixes
        name = quote(leaf) + (GROUP_NAME_MARK if is_prefix else "")
        members[path or "/"][1].append((tensor, name))
    return members


def quote(part: str) -> str:
    """Escape a part of a name for a path."""
    if part in (".", ".."):
        return part.replace(".", "%2E")
    return part.replace("%", "%25").replace("/", "%2F") or EMPTY_PART


def unquote(part: str) -> str:
    """Reverse `quote`."""
    if part == EMPTY_PART:
        return ""
    return part.replace("%2E", ".").replace("%2F", "/").replace("%25", "%")


def _build_node(
    tensors: tuple[Tensor, ...],
    own: Sequence[Tensor],
    inherited: Sequence[Tensor],
    container: Container,
    start: str,
) -> Container:
    """Build a group with its coordinates, and the inherited ones that fit its dimensions."""
    dims = {name for tensor in tensors for name in tensor.dims}
    clash = next((tensor.name for tensor in tensors if tensor.name in dims), None)
    if clash is not None:
        group = f"the group with the prefix {start!r}" if start else "the root group"
        raise ValueError(
            f"{clash!r} would be both a variable and a dimension of {group}; "
            "open the file without groups, or choose another separator= or other names in dims="
        )
    names = {tensor.name for tensor in tensors}
    fitting = (
        coordinate
        for coordinate in inherited
        if dims.issuperset(coordinate.dims) and coordinate.name not in names
    )
    coordinates = (*own, *fitting)
    if not start:
        return replace(container, tensors=tensors, coordinates=coordinates)
    return Container(tensors, coordinates)
