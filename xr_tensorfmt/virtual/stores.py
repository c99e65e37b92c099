"""The source of the parser, and the store of references that it returns."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from posixpath import basename, dirname
from typing import Any
from urllib.parse import unquote

from obspec_utils.registry import ObjectStoreRegistry
from virtualizarr.manifests import ManifestArray, ManifestGroup, ManifestStore
from xarray import Dataset, DataTree
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest
from zarr.storage import MemoryStore

from xr_tensorfmt.core.source import Fill, Source
from xr_tensorfmt.sources.locations import build_sibling_path, get_file_name
from xr_tensorfmt.sources.store_errors import redact


@dataclass(frozen=True)
class StoredObject(Source):
    """An object of a store, read by byte ranges."""

    url: str
    registry: ObjectStoreRegistry[Any] = field(repr=False)
    size: int

    high_latency = True
    read_ahead = 1 << 20

    @classmethod
    def from_url(cls, url: str, registry: ObjectStoreRegistry[Any]) -> StoredObject:
        """Find the object of a URL. Raise FileNotFoundError if it does not exist."""
        # VirtualiZarr quotes local paths, but does not unquote them.
        url = unquote(url) if url.startswith("file:") else url
        store, path = registry.resolve(url)
        try:
            size = int(store.head(path)["size"])
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), redact(url)) from None
        return cls(url, registry, size)

    @property
    def name(self) -> str:
        """The URL."""
        return redact(self.url)

    @property
    def file_name(self) -> str:
        """The name in the directory."""
        return get_file_name(self.url)

    @contextmanager
    def open(self) -> Iterator[Fill]:
        """Open the object for sequential requests."""
        store, path = self.registry.resolve(self.url)

        def fill(start: int, buffer: memoryview) -> int:
            piece = memoryview(store.get_range(path, start=start, end=start + len(buffer)))
            buffer[: len(piece)] = piece
            return len(piece)

        yield fill

    def sibling(self, path: str) -> tuple[StoredObject, bytes]:
        """Open another object in the same directory."""
        return StoredObject.from_url(build_sibling_path(self.url, path), self.registry), b""


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
        for path, node in nodes.items():
            if node.in_memory.variables:
                node.in_memory.to_zarr(
                    self._in_memory, group=path, mode="a", zarr_format=3, consolidated=False
                )
        self._memory_keys = tuple(
            f"{path}/{name}/".lstrip("/")
            for path, node in nodes.items()
            for name in node.in_memory.variables
        )

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
        loaded = [str(name) for name in node.in_memory.variables]
        if loadable_variables is None:
            dims = {name: array.metadata.dimension_names for name, array in node.arrays.items()}
            loadable_variables = [name for name in dims if dims[name] == (name,)]
        virtual = super().to_virtual_dataset(group, [*loadable_variables, *loaded], decode_times)
        for name in loaded:
            virtual.variables[name].load()
        return virtual

    def to_virtual_datatree(
        self,
        group: str = "",
        *,
        loadable_variables: Iterable[str] | None = None,
        decode_times: bool | None = None,
    ) -> DataTree:
        """Return the tree of all groups, or of one group."""
        root = f"/{group.strip('/')}".rstrip("/")
        return DataTree.from_dict(
            {
                path.removeprefix(root) or "/": VirtualStore(
                    {"/": node}, self._stores
                ).to_virtual_dataset("", loadable_variables, decode_times)
                for path, node in self._nodes.items()
                if f"{path.rstrip('/')}/".startswith(f"{root}/")
            }
        )


def _build_group(path: str, nodes: Mapping[str, Node]) -> ManifestGroup:
    """Build the group of a path, with its subgroups."""
    children = [child for child in nodes if child != path and dirname(child) == path]
    groups = {basename(child): _build_group(child, nodes) for child in children}
    node = nodes[path]
    return ManifestGroup(arrays=node.arrays, groups=groups, attributes=dict(node.attrs))
