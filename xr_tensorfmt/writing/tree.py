"""A DataTree as the Dataset of a file, whose keys are the paths of the tree with a separator."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from xarray import Coordinates, Dataset, DataTree, Variable

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.views import InMemory
from xr_tensorfmt.datasets.groups import LEAF_AND_PREFIX, split_groups, unquote

_NO_VALUES = InMemory(np.zeros(()))


@dataclass(frozen=True, eq=False)
class _Member:
    """A variable of a tree with its place and dims there, and as it will be in a file."""

    path: str
    name: str
    is_coordinate: bool
    dims: tuple[Any, ...]
    key: str
    variable: Variable

    @property
    def place(self) -> str:
        """The path of the variable in the tree."""
        return f"{self.path.rstrip('/')}/{self.name}"

    @property
    def tensor(self) -> Tensor:
        """As a file has it, without values."""
        dims = tuple(map(str, self.variable.dims))
        return Tensor(self.key, dims, _NO_VALUES, attrs={"key": self.key})


def flattened(path: str, tree: DataTree, separator: str, drop: Collection[str]) -> Dataset:
    """The Dataset that, written to a file, opens as a tree; ValueError where there is none.

    ``/layers/0/weight`` is ``layers.0.weight``; dimensions and coordinates of a group have its
    prefix as well. Attributes are those of the root; with ``"attrs"`` among `drop`, those of other
    groups may be left out.
    """
    if not isinstance(separator, str) or not separator:
        raise TypeError(f"separator={separator!r} must be a non-empty str such as '.'")
    for node in tree.subtree:
        if node is not tree and node.attrs and "attrs" not in drop:
            raise ValueError(
                f"{path}: the group {node.path!r} has attributes, and only those of the root have "
                "a place in a file; move them there or to variables, or pass drop=['attrs'] to "
                "leave them out"
            )
    members = list(_members(tree, separator))
    _check(path, tree, members, separator)
    data = {each.key: each.variable for each in members if not each.is_coordinate}
    coordinates = {each.key: each.variable for each in members if each.is_coordinate}
    return Dataset(data, Coordinates(coordinates, indexes={}), tree.attrs)


def iterate_keys(tree: DataTree, separator: str) -> Iterator[tuple[str, str, str]]:
    """The group and name of each variable of a tree, and the name that it has in a file."""
    return ((each.path, each.name, each.key) for each in _members(tree, separator))


def _members(tree: DataTree, separator: str) -> Iterator[_Member]:
    """The variables of all groups; parents come before children."""
    dims: dict[str, dict[Any, str]] = {}
    for relative, node in tree.subtree_with_keys:
        path = "/" if node is tree else f"/{relative}"
        parts = [] if node is tree else [unquote(part) for part in relative.split("/")]
        start = "".join(f"{part}{separator}" for part in parts)
        dataset = node.to_dataset(inherit=node is tree)
        above = {} if node is tree else dims[path.rpartition("/")[0] or "/"]
        dims[path] = {dim: _dim(str(dim), start, dataset) for dim in dataset.dims} | above
        for name, variable in dataset.variables.items():
            is_coordinate = name in dataset.coords
            renamed = variable.to_base_variable()
            renamed.dims = tuple(dims[path][dim] for dim in variable.dims)
            key = f"{start}{name if is_coordinate else _leaf(str(name))}"
            yield _Member(path, str(name), is_coordinate, variable.dims, key, renamed)


def _leaf(name: str) -> str:
    """The last part of the key of a variable."""
    is_prefix = name.endswith(LEAF_AND_PREFIX) and name != LEAF_AND_PREFIX
    return unquote(name.removesuffix(LEAF_AND_PREFIX) if is_prefix else name)


def _dim(dim: str, start: str, dataset: Dataset) -> str:
    """The name in the file of a dimension that no group above has."""
    variable, _, axis = dim.rpartition("_dim_")
    is_default = axis and variable in dataset.data_vars
    return f"{start}{_leaf(variable)}_dim_{axis}" if is_default else f"{start}{dim}"


def _check(path: str, tree: DataTree, members: list[_Member], separator: str) -> None:
    """Refuse a tree that the file would not open as."""
    tensors = tuple(each.tensor for each in members if not each.is_coordinate)
    coordinates = tuple(each.tensor for each in members if each.is_coordinate)
    nodes = split_groups(Container(tensors, coordinates), separator, is_tree=True)
    opened = {
        each.attrs["key"]: (group, each.name, each.dims)
        for group, node in nodes.items()
        for each in (*node.tensors, *node.coordinates)
    }
    for each in members:
        group, name, dims = opened[each.key]
        if (group, name, dims) != (each.path, each.name, each.dims):
            raise ValueError(
                f"{path}: {each.place!r} with dims {each.dims} would open as "
                f"{group.rstrip('/') + '/' + name!r} with dims {dims}, as its key is {each.key!r}; "
                "rename it, or choose another separator="
            )
    groups = ["/", *(f"/{key}" for key, node in tree.subtree_with_keys if node is not tree)]
    empty = next((group for group in groups if group not in nodes), None)
    if empty is not None:
        raise ValueError(
            f"{path}: the group {empty!r} has no variables, in it or below, and no file has a "
            "place for it; remove it"
        )
