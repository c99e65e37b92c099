"""Conversion of a DataTree to a Dataset whose variable names are paths with a separator."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from xarray import Coordinates, Dataset, DataTree, Variable

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.layout import InMemory
from xr_tensorfmt.datasets.building import get_file_dims
from xr_tensorfmt.datasets.groups import GROUP_NAME_MARK, split_groups, unquote

_NO_VALUES = InMemory(np.zeros(()))


@dataclass(frozen=True, eq=False)
class TreeMember:
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
    if not isinstance(separator, str) or not separator:
        raise TypeError(f"separator={separator!r} must be a non-empty str such as '.'")
    for node in tree.subtree:
        if node is not tree and node.attrs and "attrs" not in drop:
            raise ValueError(
                f"{path}: the group {node.path!r} has attributes, but files store attributes only "
                "for the root; move them to the root or to variables, or pass drop=['attrs'] or "
                "--drop attrs to leave them out"
            )
    members = list(collect_members(tree, separator))
    _check(path, tree, members, separator)
    data = {member.key: member.variable for member in members if not member.is_coordinate}
    coordinates = {member.key: member.variable for member in members if member.is_coordinate}
    return Dataset(data, Coordinates(coordinates, indexes={}), tree.attrs)


def flatten_encoding(tree: DataTree, separator: str, encoding: Any) -> Any:
    """Replace groups and paths, as in ``{"/layers/0": {"w": ...}}``, by keys of the file."""
    if not isinstance(encoding, Mapping):
        return encoding  # `resolve_encoding` raises the error
    keys: dict[Any, str] = {}
    groups: set[Any] = set()
    for member in collect_members(tree, separator):
        groups.add(member.path)
        keys |= {member.key: member.key, f"{member.path.rstrip('/')}/{member.name}": member.key}
    flat: dict[Any, Any] = {}
    for group, requested in encoding.items():
        named = {group: requested}  # a variable or a pattern
        if group in groups and isinstance(requested, Mapping):
            named = {f"{group.rstrip('/')}/{name}": item for name, item in requested.items()}
        flat |= {keys.get(name, name): item for name, item in named.items()}
    return flat


def collect_members(tree: DataTree, separator: str) -> Iterator[TreeMember]:
    """Yield the variables of all groups. Parents precede children."""
    dims: dict[str, dict[Any, str]] = {}
    for relative, node in tree.subtree_with_keys:
        path = "/" if node is tree else f"/{relative}"
        parts = [] if node is tree else [unquote(part) for part in relative.split("/")]
        start = "".join(f"{part}{separator}" for part in parts)
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
            renamed.encoding["tensorfmt"] = {**variable.encoding.get("tensorfmt", {}), **info}
            key = f"{start}{_convert_name(str(name))}"
            yield TreeMember(path, str(name), is_coordinate, variable.dims, key, renamed)


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


def _check(path: str, tree: DataTree, members: list[TreeMember], separator: str) -> None:
    """Raise ValueError if the file would open as another tree."""
    tensors: dict[bool, list[Tensor]] = {False: [], True: []}
    for member in members:
        dims = tuple(map(str, member.variable.dims))
        tensor = Tensor(member.key, dims, _NO_VALUES, {"key": member.key})
        tensors[member.is_coordinate].append(tensor)
    container = Container(tuple(tensors[False]), tuple(tensors[True]))
    nodes = split_groups(container, separator)
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
    groups = ["/", *(f"/{key}" for key, node in tree.subtree_with_keys if node is not tree)]
    empty = next((group for group in groups if group not in nodes), None)
    if empty is not None:
        raise ValueError(
            f"{path}: the group {empty!r} is empty, which no format supports; remove it"
        )
