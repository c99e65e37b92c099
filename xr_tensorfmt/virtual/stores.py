"""The store of references that the parser returns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from posixpath import basename, dirname
from typing import Any

from obspec_utils.registry import ObjectStoreRegistry
from virtualizarr.manifests import ManifestArray, ManifestGroup, ManifestStore
from xarray import Dataset, DataTree
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest
from zarr.storage import MemoryStore


@dataclass(frozen=True)
class Node:
    """A group: arrays that refer to a file, variables in memory, and attributes."""

    arrays: Mapping[str, ManifestArray]
    in_memory: Dataset
    attrs: Mapping[str, Any]


class VirtualStore(ManifestStore):
    """A `ManifestStore` of groups by path, with some variables in memory."""

    def __init__(self, nodes: Mapping[str, Node], registry: ObjectStoreRegistry[Any]) -> None:
        super().__init__(_build_group("/", nodes), registry=registry)
        self._nodes, self._stores, self._in_memory = nodes, registry, MemoryStore()
        keys = []
        for path, node in nodes.items():
            keys += [f"{path}/{name}/".lstrip("/") for name in node.in_memory.variables]
            if node.in_memory.variables:
                options: dict[str, Any] = {"zarr_format": 3, "consolidated": False}
                node.in_memory.to_zarr(self._in_memory, group=path, mode="a", **options)
        self._memory_keys = tuple(keys)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return metadata and chunks by key."""
        if key.startswith(self._memory_keys):
            return await self._in_memory.get(key, prototype, byte_range)
        return await super().get(key, prototype, byte_range)

    async def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
        """Yield the names in a group."""
        async for name in super().list_dir(prefix):
            yield name
        node = self._nodes.get(f"/{prefix.strip('/')}")
        for variable in node.in_memory.variables if node else ():
            yield str(variable)

    def to_virtual_dataset(
        self,
        group: str = "",
        loadable_variables: Iterable[str] | None = None,
        decode_times: bool | None = None,
    ) -> Dataset:
        """Return the Dataset of the root. Variables in memory are loaded."""
        node = self._nodes["/"]
        if loadable_variables is None:
            dims = {name: array.metadata.dimension_names for name, array in node.arrays.items()}
            loadable_variables = [name for name in dims if dims[name] == (name,)]
        loaded = [*loadable_variables, *map(str, node.in_memory.variables)]
        return super().to_virtual_dataset(group, loaded, decode_times)

    def to_virtual_datatree(
        self,
        group: str = "",
        *,
        loadable_variables: Iterable[str] | None = None,
        decode_times: bool | None = None,
    ) -> DataTree:
        """Return the tree of all groups, or of one group."""
        datasets = {}
        for path, node in self._nodes.items():
            store = VirtualStore({"/": node}, self._stores)
            datasets[path] = store.to_virtual_dataset("", loadable_variables, decode_times)
        tree: Any = DataTree.from_dict(datasets)
        return tree[f"/{group}"]  # type: ignore[no-any-return]


def _build_group(path: str, nodes: Mapping[str, Node]) -> ManifestGroup:
    """Build the group of a path, with its subgroups."""
    children = [child for child in nodes if child != path and dirname(child) == path]
    groups = {basename(child): _build_group(child, nodes) for child in children}
    node = nodes[path]
    return ManifestGroup(arrays=node.arrays, groups=groups, attributes=dict(node.attrs))
