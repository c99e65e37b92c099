"""The parser for VirtualiZarr."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from posixpath import basename, dirname
from typing import Any
from urllib.parse import unquote

from obspec_utils.registry import ObjectStoreRegistry
from virtualizarr.manifests import ManifestArray, ManifestGroup, ManifestStore
from xarray import Dataset, DataTree, Variable
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest
from zarr.storage import MemoryStore

from xr_tensorfmt.core.chunk_grid import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.open_options import Names
from xr_tensorfmt.core.reading import read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import InMemory
from xr_tensorfmt.datasets import groups
from xr_tensorfmt.datasets.options import EngineKeywords, parse_size
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.opening import parse_file
from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.sources.obstore_store import adapt_obstore
from xr_tensorfmt.sources.remote import RemoteFile, open_remote
from xr_tensorfmt.virtual.arrays import NotVirtualError, attrs_to_json, build_manifest_array


@dataclass(frozen=True)
class Node:
    """A group: arrays that refer to a file, variables in memory, and attributes."""

    arrays: Mapping[str, ManifestArray]
    in_memory: Dataset
    attrs: Mapping[str, Any]


@dataclass(frozen=True)
class TensorFormatParser:
    """A VirtualiZarr parser for the files of all formats.

    Dense tensors of numbers, bools and times become arrays that refer to the bytes of the file.
    Coordinates in the header are loaded.

    Parameters
    ----------
    group : str, optional
        Only the variables of a group, as in `TensorFormatBackend.open_dataset`.
    skip_variables : iterable of str, optional
        Variables to drop, such as variables that cannot be virtual.
    separator : str
        Separator of name parts, for `group` and `nested`.
    nested : bool
        Whether parts of names become groups, for `virtualizarr.open_virtual_datatree`.
    chunk_bytes : int or str
        Approximate size of chunks in bytes, such as ``"8MiB"``. Chunks have equal sizes, so the
        length of a chunk is a divisor of the length of an axis.
    format, name, dims, verify
        As in `TensorFormatBackend.open_dataset`.

    Examples
    --------
    >>> import numpy as np
    >>> from obspec_utils.registry import ObjectStoreRegistry
    >>> from obstore.store import LocalStore
    >>> from virtualizarr import open_virtual_dataset
    >>> from xr_tensorfmt.virtual import TensorFormatParser
    >>> np.save("numbers.npy", np.arange(6.0))
    >>> registry = ObjectStoreRegistry({"file://": LocalStore()})
    >>> options = TensorFormatParser(dims=["x"])
    >>> virtual = open_virtual_dataset("numbers.npy", registry, options)
    >>> virtual.sizes
    Frozen({'x': 6})
    """

    group: str | None = None
    skip_variables: Iterable[str] | None = None
    _: KW_ONLY
    separator: str = "."
    nested: bool = False
    chunk_bytes: int | str = DEFAULT_CHUNK_BYTES
    format: str | None = None
    name: str = "tensor"
    dims: Names = None
    verify: bool = True

    def __call__(self, url: str, registry: ObjectStoreRegistry[Any]) -> ManifestStore:
        """Parse the header of a file, and return a Zarr store that refers to the file."""
        options = dict(vars(self))
        dropped, is_nested = options.pop("skip_variables"), options.pop("nested")
        keywords = EngineKeywords(drop_variables=dropped, **options)
        # VirtualiZarr quotes local paths, but does not unquote them.
        url = unquote(url) if url.startswith("file:") else url
        store, path = registry.resolve(url)
        source, head = open_remote(Location(url, adapt_obstore(store), path))
        container = parse_file(HeaderReader(source, head), keywords)
        root = groups.select_group(container, keywords.group, keywords.separator)
        containers = {"/": root}
        if is_nested:
            containers = groups.split_groups(root, keywords.separator, is_tree=True)
        nodes = {path: _build_node(source, keywords, group) for path, group in containers.items()}
        return VirtualStore(nodes, registry)


def _find_file(tensor: Tensor, source: RemoteFile) -> RemoteFile:
    """Return the file with the values. Raise NotVirtualError if there is none."""
    if "/" in tensor.name or tensor.name in ("", ".", "..", "zarr.json"):
        raise NotVirtualError(
            "its name is invalid in Zarr; separator='/' converts a path to groups"
        )
    file = tensor.source or source
    if not isinstance(file, RemoteFile):
        raise NotVirtualError("its values are not in the file, but computed from it")
    return file


def _build_node(source: RemoteFile, keywords: EngineKeywords, container: Container) -> Node:
    """Build a Zarr group. Raise ValueError if a variable cannot be virtual."""
    arrays: dict[str, ManifestArray] = {}
    in_memory: dict[str, Variable] = {}
    refused: dict[str, str] = {}
    target = parse_size("chunk_bytes", keywords.chunk_bytes)
    for tensor in (*container.tensors, *container.coordinates):
        if tensor.name in keywords.dropped:
            continue
        try:
            file = _find_file(tensor, source)
            if isinstance(tensor.layout, InMemory) or 0 in tensor.layout.shape:
                in_memory[tensor.name] = _load_variable(source, tensor)
            else:
                arrays[tensor.name] = build_manifest_array(tensor, file.location.url, target)
        except NotVirtualError as reason:
            refused[tensor.name] = str(reason)
    if refused:
        reasons = "; ".join(f"{name!r}, because {reason}" for name, reason in refused.items())
        raise ValueError(
            f"{source.name}: these cannot be virtual: {shorten(reasons, 400)}; drop them "
            f"with skip_variables={shorten(list(refused))}, or open the file with "
            "engine='tensorfmt'"
        )
    attrs = _build_attrs(source, container, arrays.keys() | in_memory)
    return Node(arrays, Dataset(coords=in_memory), attrs)


def _load_variable(source: Source, tensor: Tensor) -> Variable:
    values = read(tensor.layout, source, Selection.everything(tensor.layout.shape))
    # Zarr specifies no data type for numpy's fixed-length str.
    values = values.astype(object) if values.dtype.kind == "U" else values
    if values.dtype == object and "_FillValue" in tensor.attrs:
        raise NotVirtualError("it has str values and an attribute '_FillValue', unlike in Zarr")
    return Variable(tensor.dims, values, attrs_to_json(tensor.attrs))


def _build_attrs(source: Source, container: Container, names: Collection[str]) -> dict[str, Any]:
    """Return the attributes of a group, including xarray's list of coordinates."""
    try:
        attrs = attrs_to_json(container.attrs)
    except NotVirtualError as reason:
        raise ValueError(f"{source.name}: the file cannot be virtual: {reason}") from None
    tensors = [tensor for tensor in container.coordinates if tensor.name in names]
    coordinates = [tensor.name for tensor in tensors if tensor.dims != (tensor.name,)]
    if not coordinates:
        return attrs
    if "coordinates" in attrs or any(" " in name for name in coordinates):
        raise ValueError(
            f"{source.name}: the coordinates {coordinates} cannot be listed in the attribute "
            "'coordinates' of Zarr, because the file has this attribute or a name contains a "
            "space; drop them with skip_variables="
        )
    return {**attrs, "coordinates": " ".join(coordinates)}


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
