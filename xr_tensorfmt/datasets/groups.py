"""Groups: variable names with a separator, such as a dot, as paths in a tree.

Paths escape ``%`` as ``%25``. Four other cases:

- An empty part: ``a..b`` is ``/a/%/b``.
- A variable with the name of a group: ``a`` and ``a.b`` are ``/a%`` and ``/a/b``. An index
  with the name of a group or variable that inherits it, or of another index, gets the same mark.
- A slash: ``a/b.c`` is ``/a%2Fb/c``.
- The parts ``.`` and ``..``: ``a:.:b`` with the separator ``:`` is ``/a/%2E/b``.

Dimensions without an index get underscores until no other dimension or variable has the name.
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
from xr_tensorfmt.datasets.building import check_separator, get_info
from xr_tensorfmt.errors import did_you_mean, shorten

MARK = "%"
"""Appended to an empty name, and to the name of a variable that is also the name of a group."""

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
    tensors = [tensor for tensor in container.tensors if tensor.name.startswith(prefix)]
    omitted = {x[len(prefix) :]: y for x, y in container.omitted.items() if x.startswith(prefix)}
    owners, members = _find_members(container, separator)
    if not tensors:
        missing = _build_missing_group_error(group, prefixes[0], members, separator)
        raise next(iter(omitted.values()), missing)
    coordinates = [
        x
        for x in container.coordinates
        # As in a DataTree, groups inherit the indexes of their parents.
        if owners[x.name].startswith(prefix) or (prefix.startswith(owners[x.name]) and _is_index(x))
    ]
    indexes = [coordinate.name for coordinate in container.coordinates if _is_index(coordinate)]
    scope = _Scope(owners.keys() - {*indexes}, dict.fromkeys(indexes, ""))
    parents = [prefix, *_list_parent_prefixes(prefix, separator)[1:]]
    for depth, parent in reversed([*enumerate(parents)]):
        scope.name_dims(parents[depth:], members.get(parent, ()))
    scope.name_dims(parents, [*tensors, *coordinates])
    data, labels = (
        tuple([scope.rename(tensor, tensor.name[len(prefix) :]) for tensor in found])
        for found in (tensors, coordinates)
    )
    return Container(data, labels, omitted=omitted, ends=container.ends)


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


def find_requested(
    prefixes: tuple[str, ...], separator: str, names: Collection[str]
) -> Collection[str]:
    """Return the names in a group and directly in its parents, or all if there is no group."""
    parents = {x for prefix in prefixes for x in _list_parent_prefixes(prefix, separator)}
    direct = {x for x in names if "".join(x.rpartition(separator)[:2]) in parents}
    inner = {x for x in names if x.startswith(prefixes)}
    return inner | direct if inner else names


@dataclass(frozen=True)
class _Scope:
    """The names of dimensions in a group and its parents. Different dimensions stay different."""

    # Names of variables that are no indexes, and those in a tree with the prefixes of groups.
    variables: Collection[str]
    # Names of indexes in their groups by names in the file, or empty to remove the prefix.
    indexes: Mapping[str, str]
    # Names in the group by names in the file, and the reverse. Those of parents are visible.
    short: ChainMap[str, str] = field(default_factory=ChainMap)
    full: ChainMap[str, str] = field(default_factory=ChainMap)

    def name_dims(self, prefixes: Sequence[str], tensors: Iterable[Tensor]) -> None:
        """Name dimensions. `prefixes` are those of the group and its parents, the longest first."""
        dims = {dim for tensor in tensors for dim in tensor.dims}
        for dim in sorted(dims, key=lambda dim: (len(dim), dim)):  # not in the order of the file
            prefix = next(prefix for prefix in prefixes if dim.startswith(prefix))
            index = self.indexes.get(dim)
            short = self.short.get(dim) or index or dim[len(prefix) :] or dim
            while (
                # In a tree, no variable has the name of an index.
                (not index and f"{prefixes[0]}{short}" in self.variables)
                or self.full.setdefault(short, dim) != dim
            ):
                short += MARK if dim in self.indexes else "_"
            self.short[dim] = short

    def rename(self, tensor: Tensor, name: str) -> Tensor:
        """Rename a tensor and its dimensions. An index has the name of its dimension."""
        dims = tuple([self.short[dim] for dim in tensor.dims])
        return tensor._replace(name=dims[0] if _is_index(tensor) else name, dims=dims)


def _is_index(tensor: Tensor) -> bool:
    return tensor.dims == (tensor.name,)


def _list_parent_prefixes(name: str, separator: str) -> list[str]:
    """Return the prefixes of all groups that contain a name, the longest first."""
    parts = name.split(separator)[: MAX_GROUP_LEVELS + 1]
    return [*accumulate((f"{part}{separator}" for part in parts[:-1]), initial="")][::-1]


def _find_members(
    container: Container, separator: str
) -> tuple[dict[str, str], dict[str, list[Tensor]]]:
    """Return the prefixes of the groups of all variables, and the variables of all groups."""
    members: dict[str, list[Tensor]] = {"": []}
    owners = {}
    for tensor in container.tensors:
        parents = _list_parent_prefixes(tensor.name, separator)
        owners[tensor.name] = parents[0]
        if parents[0] not in members:
            members |= {prefix: members.get(prefix, []) for prefix in reversed(parents)}
    for coordinate in container.coordinates:
        parents = _list_parent_prefixes(coordinate.name, separator)
        owners[coordinate.name] = next(prefix for prefix in parents if prefix in members)
    indexes = {coordinate.name for coordinate in container.coordinates if _is_index(coordinate)}
    tensors = (*container.tensors, *container.coordinates)
    for tensor in tensors if indexes else ():
        for dim in indexes.intersection(tensor.dims):
            # An index belongs to a group that contains all variables along its dimension.
            while not owners[tensor.name].startswith(owners[dim]):
                owners[dim] = _list_parent_prefixes(owners[dim], separator)[1]
    for tensor in tensors:
        members[owners[tensor.name]].append(tensor)
    return owners, members


def _escape_names(members: Mapping[str, Iterable[Tensor]], separator: str) -> dict[str, str]:
    """Return the names of variables in their groups of a tree, without dimension names."""
    names, below = {}, set()
    for prefix, tensors in members.items():
        parts = {quote(prefix.split(separator)[-2])} if prefix else set()
        for tensor in tensors:
            mark = MARK if f"{tensor.name}{separator}" in members else ""
            names[tensor.name] = quote(tensor.name[len(prefix) :]) + mark
            if not _is_index(tensor):
                parts.add(names[tensor.name])
        for parent in _list_parent_prefixes(prefix, separator)[1:]:
            below |= {f"{parent}{part}" for part in parts}
    # Subgroups inherit indexes, which must not have the names of their groups and variables.
    for prefix, tensors in members.items():
        for index in filter(_is_index, tensors):
            while f"{prefix}{names[index.name]}" in below:
                names[index.name] += MARK
    return names


def split_groups(container: Container, separator: str) -> dict[str, Container]:
    """Return all groups by path, without the coordinates of their parents."""
    for tensor in container.tensors:
        if tensor.name.count(separator) >= MAX_GROUP_LEVELS:
            raise ValueError(
                f"the name {shorten(repr(tensor.name))} has more than {MAX_GROUP_LEVELS} parts "
                f"between {separator!r}; choose another separator=, or open the file as a Dataset"
            )
    owners, members = _find_members(container, separator)
    names = _escape_names(members, separator)
    keys = {tensor.name for tensor in container.tensors}
    indexes = {x.name: names[x.name] for x in container.coordinates if _is_index(x)}
    variables = names.keys() - indexes.keys()
    variables |= {f"{owners[key]}{names[key]}" for key in variables}
    scopes: dict[str, _Scope] = {}
    nodes: dict[str, Container] = {}
    for prefix, tensors in members.items():
        parents = _list_parent_prefixes(prefix, separator)
        above = scopes[parents[1]] if prefix else _Scope(variables, indexes)
        scope = replace(above, short=above.short.new_child(), full=above.full.new_child())
        scope.name_dims(parents, tensors)
        scopes[prefix] = scope
        data, coordinates = (
            tuple([scope.rename(x, names[x.name]) for x in tensors if (x.name in keys) is is_data])
            for is_data in (True, False)
        )
        node = Container((), ends=container.ends) if prefix else container
        nodes[join_path(prefix, separator)] = replace(node, tensors=data, coordinates=coordinates)
    return nodes


def join_path(prefix: str, separator: str) -> str:
    """Return the path of the group whose names begin with a prefix."""
    return "/" + "/".join(map(quote, prefix.split(separator)[:-1]))


def quote(part: str) -> str:
    """Escape a part of a name for a path."""
    if part in (".", ".."):
        return part.replace(".", "%2E")
    return part.replace("%", "%25").replace("/", "%2F") or MARK


def unquote(part: str) -> str:
    """Reverse `quote`."""
    text = part.replace("%2E", ".").replace("%2F", "/").replace("%25", "%")
    return "" if part == MARK else text


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
        flat |= {f"{start}{unquote(name.rstrip(MARK))}": given for name, given in members}
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
        own = {
            dim: f"{start}{unquote(str(dim).rstrip(MARK)) if dim in dataset.coords else dim}"
            for dim in dataset.dims
        }
        dims[path] = own | inherited
        for name, variable in dataset.variables.items():
            is_coordinate = name in dataset.coords
            renamed = variable.to_base_variable()
            renamed.dims = tuple(dims[path][dim] for dim in variable.dims)
            replaced = {"dims": get_info(dataset.encoding).get("dims", {}).get(name, ())}
            info = {**replaced, **get_info(variable.encoding)}
            info["dims"] = tuple(dims[path].get(dim, dim) for dim in info["dims"])
            renamed.encoding["tensorfmt"] = info
            key = f"{start}{unquote(str(name).rstrip(MARK))}"
            yield _Member(path, str(name), is_coordinate, variable.dims, key, renamed)


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
                f"{member.key!r}; rename it, or choose another separator= or one --group"
            )
    for key, node in tree.subtree_with_keys:
        if node is not tree and f"/{key}" not in nodes:
            raise ValueError(
                f"{path}: the group '/{key}' is empty, which no format supports; remove it"
            )
