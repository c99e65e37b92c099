"""A parser for VirtualiZarr. Zarr reads the references without this package."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import takewhile
from math import isqrt, prod
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from xarray import Dataset, DataTree, Variable

from xr_tensorfmt.core.elements import Boolean, Element, Plain
from xr_tensorfmt.core.extents import DEFAULT_CHUNK_BYTES, ceil_div, contiguous_chunk
from xr_tensorfmt.core.file_format import Container, Names, Tensor
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Dense, InMemory, Transposed, read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets.building import Keywords, check_keywords, find_dropped, parse_size
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.opening import parse_group
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.sources.local import FileObject
from xr_tensorfmt.sources.locations import Location, build_sibling_path

try:
    from obspec_utils.readers import BufferedStoreReader
    from obspec_utils.registry import ObjectStoreRegistry
    from virtualizarr.manifests import ChunkManifest, ManifestArray, ManifestGroup, ManifestStore
    from virtualizarr.manifests.utils import create_v3_array_metadata
    from zarr.abc.buffer import Buffer, BufferPrototype
    from zarr.abc.store import ByteRequest
    from zarr.storage import MemoryStore
except ModuleNotFoundError as error:
    raise ImportError(
        f"xr_tensorfmt.virtual needs VirtualiZarr: pip install 'xr-tensorfmt[virtual]' ({error})"
    ) from error

__all__ = ["TensorFormatParser", "parser"]

# Minimum of equal chunks in bytes unless the target is smaller, and maximum relative to it.
_MIN_CHUNK_BYTES, _MAX_TIMES_TARGET = 64 << 10, 16
# Finding all divisors of a larger length takes seconds.
_MAX_DIVIDED_LENGTH = 1 << 44


@dataclass(frozen=True)
class TensorFormatParser:
    """A VirtualiZarr parser for the files of all formats.

    Dense tensors of numbers, bools and times become arrays that refer to the bytes of the file.

    Parameters
    ----------
    skip_variables : iterable of str, optional
        Variables to drop, such as variables that cannot be virtual.
    chunk_bytes : int or str
        Approximate size of chunks, which divide the axes.
    group, separator, format, name, dims, verify
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
    chunk_bytes: int | str = DEFAULT_CHUNK_BYTES
    format: str | None = None
    name: str = "tensor"
    dims: Names = None
    verify: bool = True

    def __call__(self, url: str, registry: ObjectStoreRegistry[Any]) -> ManifestStore:
        """Parse the header of a file, and return a Zarr store that refers to the file."""
        keywords = dict(vars(self))
        keywords["drop_variables"] = keywords.pop("skip_variables")
        keywords["format_options"] = {"verify": keywords.pop("verify")}
        check_keywords(keywords)
        url = url if is_url(url) else Path(url).absolute().as_uri()
        # VirtualiZarr quotes local paths, but does not unquote them.
        url = unquote(url) if url.startswith("file:") else url
        if url.startswith("file:") and set("?#") & set(url):
            raise ValueError(f"{url}: VirtualiZarr cannot read names with ? or #; rename the file")
        source = _RegistryFile(url, registry)
        return _build_store(source, keywords, parse_group(HeaderReader(source, b""), keywords))


class _RegistryFile(FileObject):
    """An object in the stores of a registry, which also have its sibling files."""

    def __init__(self, url: str, registry: ObjectStoreRegistry[Any]) -> None:
        self.url, self.registry = url, registry
        store, path = registry.resolve(url)
        location = Location(url, store, path)
        location.call(super().__init__, BufferedStoreReader(store, path), "", location.name)

    def sibling(self, path: str) -> tuple[_RegistryFile, bytes]:
        """Open another object by its path relative to the directory."""
        return _RegistryFile(build_sibling_path(self.url, path), self.registry), b""


def _build_store(source: _RegistryFile, keywords: Keywords, container: Container) -> VirtualStore:
    """Build a Zarr store. Raise ValueError if a variable cannot be virtual."""
    arrays: dict[str, ManifestArray] = {}
    in_memory: dict[str, Variable] = {}
    refused: dict[str, str] = {}
    dropped, target = find_dropped(keywords), parse_size("chunk_bytes", keywords["chunk_bytes"])
    for tensor in (*container.tensors, *container.coordinates):
        if tensor.name in dropped:
            continue
        if "/" in tensor.name or tensor.name in ("", ".", "..", "zarr.json"):
            refused[tensor.name] = "its name is invalid in Zarr"
            continue
        try:
            if isinstance(tensor.layout, InMemory) or 0 in tensor.layout.shape:
                in_memory[tensor.name] = _load_variable(source, tensor)
            else:
                arrays[tensor.name] = _build_manifest_array(tensor, source, target)
        except NotImplementedError as reason:
            refused[tensor.name] = str(reason)
    if refused:
        reasons = "; ".join(f"{name!r}, because {reason}" for name, reason in refused.items())
        raise ValueError(
            f"{source.name}: these cannot be virtual: {shorten(reasons, 400)}; drop them "
            f"with skip_variables={shorten(list(refused))}, or open the file with "
            "engine='tensorfmt'"
        )
    attrs = _build_attrs(source, container, arrays.keys() | in_memory)
    group = ManifestGroup(arrays=arrays, attributes=attrs)
    return VirtualStore(group, source.registry, Dataset(coords=in_memory))


def _load_variable(source: Source, tensor: Tensor) -> Variable:
    values = read(tensor.layout, source, Selection.everything(tensor.layout.shape))
    # Zarr specifies no data type for numpy's fixed-length str.
    values = values.astype(object) if values.dtype.kind == "U" else values
    if values.dtype == object and "_FillValue" in tensor.attrs:
        raise NotImplementedError("it has str values and an attribute '_FillValue', unlike in Zarr")
    return Variable(tensor.dims, values, _convert_attrs(tensor.attrs))


def _build_attrs(source: Source, container: Container, names: Collection[str]) -> dict[str, Any]:
    """Return the attributes of a group, including xarray's list of coordinates."""
    tensors = [tensor for tensor in container.coordinates if tensor.name in names]
    coordinates = [tensor.name for tensor in tensors if tensor.dims != (tensor.name,)]
    try:
        attrs = _convert_attrs(container.attrs)
    except NotImplementedError as reason:
        raise ValueError(f"{source.name}: the file cannot be virtual: {reason}") from None
    if not coordinates:
        return attrs
    if "coordinates" in attrs or " " in "".join(coordinates):
        raise ValueError(
            f"{source.name}: coordinates {coordinates} cannot be listed in the attribute "
            "'coordinates'; drop them with skip_variables="
        )
    return {**attrs, "coordinates": " ".join(coordinates)}


class VirtualStore(ManifestStore):
    """A `ManifestStore` with some variables in memory."""

    def __init__(
        self, group: ManifestGroup, registry: ObjectStoreRegistry[Any], in_memory: Dataset
    ) -> None:
        super().__init__(group, registry=registry)
        self._arrays, self._in_memory, self._memory_store = group.arrays, in_memory, MemoryStore()
        in_memory.to_zarr(self._memory_store, zarr_format=3, consolidated=False)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return metadata and chunks by key."""
        if key.partition("/")[0] in self._in_memory.variables:
            return await self._memory_store.get(key, prototype, byte_range)
        return await super().get(key, prototype, byte_range)

    async def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
        """Yield the names of variables."""
        async for name in super().list_dir(prefix):
            yield name
        for variable in () if prefix.strip("/") else self._in_memory.variables:
            yield str(variable)

    def to_virtual_dataset(
        self,
        group: str = "",
        loadable_variables: Iterable[str] | None = None,
        decode_times: bool | None = None,
    ) -> Dataset:
        """Return the Dataset. Variables in memory are loaded."""
        if loadable_variables is None:
            dims = {name: array.metadata.dimension_names for name, array in self._arrays.items()}
            loadable_variables = [name for name in dims if dims[name] == (name,)]
        loaded = [*loadable_variables, *map(str, self._in_memory.variables)]
        return super().to_virtual_dataset(group, loaded, decode_times)

    def to_virtual_datatree(self, *_: Any, **__: Any) -> DataTree:
        """Raise an error, because VirtualiZarr would leave out variables in memory."""
        raise NotImplementedError("files have no groups; use open_virtual_dataset")


def _build_manifest_array(tensor: Tensor, source: _RegistryFile, target: int) -> ManifestArray:
    """Build the array of a tensor, in chunks of about `target` bytes."""
    layout, attrs, file = tensor.layout, _convert_attrs(tensor.attrs), tensor.source or source
    dense, axes = layout, tuple(range(len(layout.shape)))
    if isinstance(layout, Transposed):
        dense, axes = layout.inner, layout.axes
    if not isinstance(dense, Dense) or not isinstance(file, _RegistryFile):
        raise NotImplementedError(f"its values are not one stored array ({type(dense).__name__})")
    dtype, more = _choose_data_type(dense.element)
    if more.keys() & attrs.keys():
        raise NotImplementedError("it has an attribute 'dtype', which xarray reserves for bools")
    if "_FillValue" in attrs:
        raise NotImplementedError("of its attribute '_FillValue', whose form depends on the store")
    chunk = find_dividing_chunk(dense.shape, dtype.itemsize, target)
    if chunk is None:
        raise NotImplementedError(
            f"Zarr needs equal chunks, but no divisors of {dense.shape} give chunks of about "
            f"{target} bytes; chunk_bytes={dense.stop - dense.offset} makes it a single chunk"
        )
    grid = tuple(length // part for length, part in zip(dense.shape, chunk, strict=True))
    nbytes = dtype.itemsize * prod(chunk)
    offsets = dense.offset + nbytes * np.arange(prod(grid), dtype=np.uint64).reshape(grid)
    offsets = offsets.transpose(axes)
    codecs: list[dict[str, Any]] = []
    if axes != tuple(sorted(axes)) or dtype.kind not in "fc":
        # VirtualiZarr's Kerchunk writer refuses the codec. Its readers treat zeros as missing.
        order = tuple(axes.index(axis) for axis in range(len(axes)))
        codecs = [{"name": "transpose", "configuration": {"order": order}}]
    metadata = create_v3_array_metadata(
        shape=layout.shape,
        data_type=dtype,
        chunk_shape=tuple(chunk[axis] for axis in axes),
        chunk_key_encoding={"name": "default", "separator": "."},
        fill_value=dtype.type(np.nan) if dtype.kind in "fc" else None,
        codecs=codecs,
        dimension_names=tensor.dims,
        attributes={**attrs, **more},
    )
    manifest = ChunkManifest.from_arrays(
        paths=np.full(offsets.shape, file.url, dtype=np.dtypes.StringDType()),
        offsets=np.ascontiguousarray(offsets, dtype=np.uint64).reshape(offsets.shape),
        lengths=np.full(offsets.shape, nbytes, dtype=np.uint64),
        validate_paths=False,
    )
    array_class = TransposedArray if codecs else ManifestArray
    return array_class(metadata=metadata, chunkmanifest=manifest)


def find_dividing_chunk(shape: tuple[int, ...], item: int, target: int) -> tuple[int, ...] | None:
    """Return a shape of equal contiguous chunks, up to 16 times the target, or None."""
    chunk = contiguous_chunk(shape, item, target)
    divided = [axis for axis, length in enumerate(shape) if chunk[axis] < length]
    if not divided:
        return chunk
    axis = divided[-1]
    length, row = shape[axis], item * prod(shape[axis + 1 :])
    candidates = np.arange(1, isqrt(min(length, _MAX_DIVIDED_LENGTH)) + 1)
    small = candidates[length % candidates == 0]
    divisors = np.union1d(small, length // small)
    most = max(1, target // row)
    least = min(most, ceil_div(_MIN_CHUNK_BYTES, row))
    fitting = divisors[(least <= divisors) & (divisors <= most)]
    larger = divisors[(most < divisors) & (divisors <= _MAX_TIMES_TARGET * most)]
    rows = int(max(fitting, default=min(larger, default=0)))
    return (*chunk[:axis], rows, *chunk[axis + 1 :]) if rows else None


def _choose_data_type(element: Element) -> tuple[np.dtype[Any], dict[str, str]]:
    """Return the dtype of the bytes, and the attributes that make xarray decode them."""
    if isinstance(element, Boolean):
        # All nonzero bytes are True. Zarr's bool would use the bytes as numpy bools.
        return element.stored, {"dtype": "bool"}
    stored = element.stored
    is_specified = stored.itemsize <= (16 if stored.kind == "c" else 8)
    if isinstance(element, Plain) and stored.kind in "iufcmM" and is_specified:
        return stored, {}
    raise NotImplementedError(f"Zarr has no specified data type for {element.name}")


def _convert_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert attributes to JSON."""
    try:
        return json.loads(json.dumps(dict(attrs), default=_to_list))  # type: ignore[no-any-return]
    except (TypeError, ValueError, RecursionError) as error:
        raise NotImplementedError(f"Zarr does not support an attribute: {error}") from None


def _to_list(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufUS":
        return value.tolist()
    raise TypeError(f"{value!r} is of type {type(value).__name__}")


class TransposedArray(ManifestArray):
    """An array whose first codec is transpose, which VirtualiZarr cannot extend by a dimension."""

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of numpy, as xarray does to combine arrays."""
        if func is np.broadcast_to:
            return _broadcast(*args, **kwargs)
        result = super().__array_function__(func, types, args, kwargs)
        return _wrap(result) if isinstance(result, ManifestArray) else result

    def __getitem__(self, key: Any, /) -> ManifestArray:
        """Add a dimension for each None at the beginning."""
        keys = key if isinstance(key, tuple) else (key,)
        added = len([*takewhile(lambda item: item is None, keys)])
        return _broadcast(super().__getitem__(keys[added:]), (1,) * added + self.shape)

    def rename_paths(self, new: str | Callable[[str], str]) -> ManifestArray:
        """Replace the URLs of the files."""
        return _wrap(super().rename_paths(new))

    def to_virtual_variable(self) -> Variable:
        """Return a variable of this array."""
        variable = super().to_virtual_variable()
        variable.data = _wrap(variable.data)
        return variable


def _wrap(array: ManifestArray) -> TransposedArray:
    return TransposedArray(array.metadata, array.manifest)


def _broadcast(array: ManifestArray, shape: tuple[int, ...]) -> TransposedArray:
    """Add axes at the beginning, which become the slowest of the file."""
    from_dict = type(array.metadata).from_dict
    document: dict[str, Any] = array.metadata.to_dict()
    transpose, *others = document["codecs"]
    plain: Any = ManifestArray(from_dict({**document, "codecs": others}), array.manifest)
    plain = np.broadcast_to(plain, shape)
    added = len(shape) - array.ndim
    order = (*range(added), *(axis + added for axis in transpose["configuration"]["order"]))
    codecs = ({**transpose, "configuration": {"order": order}}, *others)
    metadata = from_dict({**plain.metadata.to_dict(), "codecs": codecs})
    return TransposedArray(metadata, plain.manifest)


parser = TensorFormatParser()
"""The parser without options, for ``open_virtual_dataset(url, registry, parser=parser)``."""
