"""Groups: variable names with a separator, such as a dot, as paths in a tree.

Paths escape ``%`` as ``%25``. Four other cases:

- An empty part: ``a..b`` is ``/a/%/b``.
- A variable with the name of a group: ``a`` and ``a.b`` are ``/a%`` and ``/a/b``. A
  coordinate with the name of a group that inherits it gets the same mark.
- A slash: ``a/b.c`` is ``/a%2Fb/c``.
- The parts ``.`` and ``..``: ``a:.:b`` with the separator ``:`` is ``/a/%2E/b``.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from xarray import Coordinates, Dataset, DataTree, Variable

from xr_tensorfmt.core.file_format import Container, Tensor
from xr_tensorfmt.core.layout import InMemory
from xr_tensorfmt.datasets.building import check_separator, get_file_dims, get_info
from xr_tensorfmt.errors import did_you_mean, shorten

EMPTY_PART = "%"
"""Path component of an empty part of a name."""

GROUP_NAME_MARK = "%"
"""Appended to the name of a variable that is also the name of a group."""

MAX_GROUP_LEVELS = 64
"""Limit on the depth of groups, because the total length of paths is quadratic in the depth."""


def select_group(container: Container, group: str | None, separator: str) -> Container:
    """Return the tensors of a group, without its prefix in their names."""
    prefixes = list_prefixes(group, separator)
    if not prefixes:
        return container
    names = [*container.omitted, *(tensor.name for tensor in container.tensors)]
    used = (prefix for prefix in prefixes if any(name.startswith(prefix) for name in names))
    prefix = next(used, prefixes[-1])
    scope = _Scope(_list_parent_prefixes(prefix, separator)[:-1])
    tensors = tuple(
        scope.rename(tensor, tensor.name[len(prefix) :])
        for tensor in container.tensors
        if tensor.name.startswith(prefix)
    )
    omitted = {x[len(prefix) :]: y for x, y in container.omitted.items() if x.startswith(prefix)}
    owners = _list_owners(container, separator)
    if not tensors:
        missing = _build_missing_group_error(group, prefixes[0], owners, separator)
        raise next(iter(omitted.values()), missing)
    coordinates, own_names = [], {tensor.name for tensor in tensors}
    for coordinate in container.coordinates:
        owner = _find_owner(coordinate, owners, separator)
        if owner.startswith(prefix):
            coordinates.append(scope.rename_coordinate(coordinate))
        elif prefix.startswith(owner) and coordinate.dims == (coordinate.name,):
            # As in a DataTree, groups inherit the indexes of their parents.
            inherited = scope.rename_coordinate(coordinate)
            coordinates += [inherited] if inherited.name not in own_names else []
    return replace(_build_node(tensors, coordinates, container, prefix), omitted=omitted)


def _build_missing_group_error(
    group: str | None, prefix: str, owners: Iterable[str], separator: str
) -> ValueError:
    names = [name.removesuffix(separator) for name in sorted(owners, key=len) if name]
    listed = f"the groups are {', '.join(map(repr, names))}" if names else "it has no groups"
    return ValueError(
        f"group={shorten(repr(group))}{did_you_mean(prefix.removesuffix(separator), names)} is not "
        f"in the file: no name begins with {shorten(repr(prefix))}; {shorten(listed)}"
    )


def list_prefixes(group: str | None, separator: str) -> tuple[str, ...]:
    """Return what the names in a group begin with: a path may also be a name with slashes."""
    if group is None or not group.strip("/"):
        return ()
    prefix = group + separator
    if "/" not in group:
        return (prefix,)
    parts = [unquote(part) for part in group.strip("/").split("/")]
    return (separator.join(parts) + separator, prefix)


def get_group_path(group: str | None, separator: str) -> str | None:
    """Return the path of a group for a Zarr store, or None for the root."""
    prefixes = list_prefixes(group, separator)
    return "/".join(map(quote, prefixes[0].split(separator)[:-1])) if prefixes else None


@dataclass
class _Scope:
    """The names in use in a group and its parents, without the prefixes of the groups."""

    # Prefixes of the group and its parents except the root, the longest first.
    prefixes: Sequence[str]
    # Names in the file by names in the group. Names of parent groups are visible.
    names: ChainMap[str, str] = field(default_factory=ChainMap)
    # Names in the file that must be escaped, and what to append to them.
    marks: Mapping[str, str] = field(default_factory=dict)

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
        dims = (short_names.get(dim) or self.reserve_short_name(dim) for dim in tensor.dims)
        return tensor._replace(name=name, dims=tuple(dims))

    def rename_coordinate(self, tensor: Tensor) -> Tensor:
        """Rename a coordinate. An index coordinate keeps the name of its dimension."""
        return self.rename(tensor, self.reserve_short_name(tensor.name))

    def reserve_short_name(self, name: str) -> str:
        """Remove the prefix from a name and reserve the result, unless it is in use."""
        prefix = next((prefix for prefix in self.prefixes if name.startswith(prefix)), "")
        short, full = self._escape(name, name[len(prefix) :]), self._escape(name, name)
        return short if self.names.setdefault(short, name) == name else full

    def _escape(self, name: str, part: str) -> str:
        mark = self.marks.get(name)
        return part or name if mark is None else f"{quote(part)}{mark}"


def _list_parent_prefixes(name: str, separator: str) -> list[str]:
    """Return the prefixes of all groups that contain a name, the longest first."""
    parts = name.split(separator)[: MAX_GROUP_LEVELS + 1]
    return [*accumulate((f"{part}{separator}" for part in parts[:-1]), initial="")][::-1]


def _list_owners(container: Container, separator: str) -> dict[str, None]:
    """Return the prefixes of all groups. Parents precede children."""
    prefixes: dict[str, None] = {"": None}
    for tensor in container.tensors:
        prefixes |= dict.fromkeys(reversed(_list_parent_prefixes(tensor.name, separator)))
    return prefixes


def _find_owner(tensor: Tensor, prefixes: Collection[str], separator: str) -> str:
    """Return the prefix of the group that a tensor or coordinate belongs to."""
    parents = _list_parent_prefixes(tensor.name, separator)
    return next(prefix for prefix in parents if prefix in prefixes)


def split_groups(container: Container, separator: str) -> dict[str, Container]:
    """Return all groups by path, without the coordinates of their parents."""
    for tensor in container.tensors:
        if tensor.name.count(separator) >= MAX_GROUP_LEVELS:
            raise ValueError(
                f"the name {shorten(repr(tensor.name))} has more than {MAX_GROUP_LEVELS} parts "
                f"between {separator!r}; choose another separator=, or open the file as a Dataset"
            )
    prefixes = _list_owners(container, separator)
    members: dict[str, tuple[list[Tensor], list[Tensor]]] = {name: ([], []) for name in prefixes}
    for kind, found in enumerate((container.tensors, container.coordinates)):
        for tensor in found:
            members[_find_owner(tensor, prefixes, separator)][kind].append(tensor)
    # Child groups inherit coordinates, which must not have the name of any group in them.
    group_names = {quote(prefix.split(separator)[-2]) for prefix in prefixes if prefix}
    marks = {
        coordinate.name: GROUP_NAME_MARK * (quote(coordinate.name[len(prefix) :]) in group_names)
        for prefix, (_, coordinates) in members.items()
        for coordinate in coordinates
    }
    names: dict[str, ChainMap[str, str]] = {}
    nodes: dict[str, Container] = {}
    for prefix, (tensors, coordinates) in members.items():
        parents = _list_parent_prefixes(prefix, separator)[1:]
        names[prefix] = names[parents[0]].new_child() if parents else ChainMap()
        scope = _Scope([prefix, *parents][:-1], names[prefix], marks)
        own_coordinates = [scope.rename_coordinate(coordinate) for coordinate in coordinates]
        own_tensors = []
        for tensor in tensors:
            is_group = f"{tensor.name}{separator}" in prefixes
            name = quote(tensor.name[len(prefix) :]) + (GROUP_NAME_MARK if is_group else "")
            own_tensors.append(scope.rename(tensor, name))
        path = "/" + "/".join(map(quote, prefix.split(separator)[:-1]))
        nodes[path] = _build_node(tuple(own_tensors), own_coordinates, container, prefix)
    return nodes


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
    coordinates: Sequence[Tensor],
    container: Container,
    prefix: str,
) -> Container:
    """Build a group. Raise ValueError if a variable has the name of a dimension."""
    dims = {dim for tensor in tensors for dim in tensor.dims}
    names = {tensor.name for tensor in tensors}
    for clash in names & dims:
        group = f"the group with the prefix {prefix!r}" if prefix else "the root group"
        raise ValueError(
            f"{clash!r} would be both a variable and a dimension of {group}; "
            "open the file without groups, or choose another separator= or other names in dims="
        )
    if not prefix:
        return replace(container, tensors=tensors, coordinates=tuple(coordinates))
    return Container(tensors, tuple(coordinates), ends=container.ends)


_NO_VALUES = InMemory(np.zeros(()))


class _Member(NamedTuple):
    """A variable of a tree: path and dims in the tree, key and variable in the file."""

    path: str
    name: str
    is_coordinate: bool
    dims: tuple[Any, ...]
    key: str
    variable: Variable


def flatten_tree(
    path: str, tree: DataTree | Dataset, separator: str, drop: Collection[str]
) -> Dataset:
    """Convert a tree to a Dataset. Raise ValueError if the file would open as another tree."""
    if isinstance(tree, Dataset):
        return tree
    check_separator(separator)
    for node in tree.subtree:
        if node is not tree and node.attrs and "attrs" not in drop:
            raise ValueError(
                f"{path}: the group {node.path!r} has attributes, but files store attributes only "
                "for the root; move them to the root or to variables, or pass drop=['attrs'] or "
                "--drop attrs to leave them out"
            )
    members = list(_collect_members(tree, separator))
    _check(path, tree, members, separator)
    data = {member.key: member.variable for member in members if not member.is_coordinate}
    coordinates = {member.key: member.variable for member in members if member.is_coordinate}
    return Dataset(data, Coordinates(coordinates, indexes={}), tree.attrs)


def flatten_encoding(encoding: Any, tree: DataTree, separator: str) -> Any:
    """Return the encoding of variables in groups, as in `DataTree.to_netcdf`, by their keys."""
    if not isinstance(encoding, Mapping):
        return encoding
    flat = dict(encoding)
    for path in flat.keys() & {"/", *(f"/{path}" for path, _ in tree.subtree_with_keys)}:
        start, members = _get_prefix(path, separator), flat.pop(path).items()
        flat |= {f"{start}{_convert_name(name)}": given for name, given in members}
    return flat


def _get_prefix(path: str, separator: str) -> str:
    return "".join(f"{unquote(part)}{separator}" for part in path.split("/") if part)


def _collect_members(tree: DataTree, separator: str) -> Iterator[_Member]:
    """Yield the variables of all groups. Parents precede children."""
    dims: dict[str, dict[Any, str]] = {}
    for relative, node in tree.subtree_with_keys:
        path = "/" if node is tree else f"/{relative}"
        start = _get_prefix(path, separator)
        dataset = node.to_dataset(inherit=node is tree)
        inherited = {} if node is tree else dims[path.rpartition("/")[0] or "/"]
        own = {dim: _convert_dim(str(dim), start, dataset) for dim in dataset.dims}
        dims[path] = own | inherited
        for name, variable in dataset.variables.items():
            is_coordinate = name in dataset.coords
            renamed = variable.to_base_variable()
            renamed.dims = tuple(dims[path][dim] for dim in variable.dims)
            file_dims = get_file_dims(str(name), variable, dataset.encoding)
            info = {"dims": tuple(dims[path].get(dim, dim) for dim in file_dims)}
            renamed.encoding["tensorfmt"] = {**get_info(variable.encoding), **info}
            key = f"{start}{_convert_name(str(name))}"
            yield _Member(path, str(name), is_coordinate, variable.dims, key, renamed)


def _convert_name(name: str) -> str:
    """Return the last part of the key of a variable."""
    is_prefix = name.endswith(GROUP_NAME_MARK) and name != GROUP_NAME_MARK
    return unquote(name.removesuffix(GROUP_NAME_MARK) if is_prefix else name)


def _convert_dim(dim: str, start: str, dataset: Dataset) -> str:
    """Return the name in the file of a dimension that parent groups do not have."""
    if dim in dataset.coords:
        return f"{start}{_convert_name(dim)}"
    variable, _, axis = dim.rpartition("_dim_")
    is_default = axis and variable in dataset.data_vars
    return f"{start}{_convert_name(variable)}_dim_{axis}" if is_default else f"{start}{dim}"


def _check(path: str, tree: DataTree, members: list[_Member], separator: str) -> None:
    """Raise ValueError if the file would open as another tree."""
    tensors: dict[bool, list[Tensor]] = {False: [], True: []}
    for member in members:
        dims = tuple(map(str, member.variable.dims))
        tensor = Tensor(member.key, dims, _NO_VALUES, {"key": member.key})
        tensors[member.is_coordinate].append(tensor)
    nodes = split_groups(Container(tuple(tensors[False]), tuple(tensors[True])), separator)
    opened = {
        tensor.attrs["key"]: (group, tensor.name, tensor.dims)
        for group, node in nodes.items()
        for tensor in (*node.tensors, *node.coordinates)
    }
    for member in members:
        group, name, dims = opened[member.key]
        if (group, name, dims) != (member.path, member.name, member.dims):
            raise ValueError(
                f"{path}: '{member.path.rstrip('/')}/{member.name}' with dims {member.dims} would "
                f"open as '{group.rstrip('/')}/{name}' with dims {dims}, because its key is "
                f"{member.key!r}; rename it, or choose another separator="
            )
    for key, node in tree.subtree_with_keys:
        if node is not tree and f"/{key}" not in nodes:
            raise ValueError(
                f"{path}: the group '/{key}' is empty, which no format supports; remove it"
            )
