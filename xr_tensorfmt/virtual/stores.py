"""Where the parser reads files, and the store of references that it gives to VirtualiZarr."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from posixpath import basename, dirname
from typing import Any
from urllib.parse import quote, unquote

from obspec_utils.registry import ObjectStoreRegistry
from virtualizarr.manifests import ManifestArray, ManifestGroup, ManifestStore
from xarray import Dataset, DataTree
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest
from zarr.storage import MemoryStore

from xr_tensorfmt.core.source import Fill, Source
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
    def at(cls, url: str, registry: ObjectStoreRegistry[Any]) -> StoredObject:
        """The object of a URL; FileNotFoundError where there is none."""
        # VirtualiZarr quotes local paths, and neither it nor its registry removes that again.
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

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        """Give access to the object by one request at a time."""
        store, path = self.registry.resolve(self.url)

        def fill(start: int, buffer: memoryview) -> int:
            piece = memoryview(store.get_range(path, start=start, end=start + len(buffer)))
            buffer[: len(piece)] = piece
            return len(piece)

        yield fill

    def sibling(self, path: str) -> tuple[StoredObject, bytes]:
        """Another object in the same directory."""
        directory = self.url.rpartition("/")[0]
        name = path if self.url.startswith("file:") else quote(path)
        return StoredObject.at(f"{directory}/{name}", self.registry), b""


@dataclass(frozen=True)
class Node:
    """A group: arrays that refer to a file, arrays that are in no file, and attributes."""

    arrays: Mapping[str, ManifestArray]
    in_memory: Dataset
    attrs: Mapping[str, Any]


class VirtualStore(ManifestStore):
    """A `ManifestStore` of groups by path, the root first, in which some arrays are in memory."""

    def __init__(self, nodes: Mapping[str, Node], registry: ObjectStoreRegistry[Any]) -> None:
        super().__init__(_group("/", nodes), registry=registry)
        self._nodes, self._stores, self._in_memory = nodes, registry, MemoryStore()
        for path, node in nodes.items():
            if node.in_memory.variables:
                node.in_memory.to_zarr(
                    self._in_memory, group=path, mode="a", zarr_format=3, consolidated=False
                )
        self._held = tuple(
            f"{path}/{name}/".lstrip("/")
            for path, node in nodes.items()
            for name in node.in_memory.variables
        )

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Metadata and chunks, by their keys."""
        if key.startswith(self._held):
            return await self._in_memory.get(key, prototype, byte_range)
        return await super().get(key, prototype, byte_range)

    async def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
        """The names in a group."""
        async for name in super().list_dir(prefix):
            yield name
        node = self._nodes.get(f"/{prefix.strip('/')}")
        for held in node.in_memory.variables if node else ():
            yield str(held)

    def to_virtual_dataset(
        self,
        group: str = "",
        loadable_variables: Iterable[str] | None = None,
        decode_times: bool | None = None,
    ) -> Dataset:
        """The Dataset of the root; what is in memory is loaded, as nothing can refer to it."""
        node = self._nodes["/"]
        held = [str(name) for name in node.in_memory.variables]
        if loadable_variables is None:
            dims = {name: array.metadata.dimension_names for name, array in node.arrays.items()}
            loadable_variables = [name for name in dims if dims[name] == (name,)]
        virtual = super().to_virtual_dataset(group, [*loadable_variables, *held], decode_times)
        for name in held:
            virtual[name].load()
        return virtual

    def to_virtual_datatree(
        self,
        group: str = "",
        *,
        loadable_variables: Iterable[str] | None = None,
        decode_times: bool | None = None,
    ) -> DataTree:
        """The tree of all groups, or of those below one."""
        above = f"/{group.strip('/')}".rstrip("/")
        return DataTree.from_dict(
            {
                path.removeprefix(above) or "/": VirtualStore(
                    {"/": node}, self._stores
                ).to_virtual_dataset("", loadable_variables, decode_times)
                for path, node in self._nodes.items()
                if f"{path.rstrip('/')}/".startswith(f"{above}/")
            }
        )


def _group(path: str, nodes: Mapping[str, Node]) -> ManifestGroup:
    """The group of a path, with those below it."""
    children = [each for each in nodes if each != path and dirname(each) == path]
    groups = {basename(each): _group(each, nodes) for each in children}
    node = nodes[path]
    return ManifestGroup(arrays=node.arrays, groups=groups, attributes=dict(node.attrs))
