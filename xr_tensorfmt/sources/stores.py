"""Requests to the stores of fsspec and obstore: one attempt, whose errors are not translated."""

from __future__ import annotations

import logging
import os
import pickle
from asyncio import wrap_future
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

import numpy as np
from fsspec.asyn import reset_lock

from xr_tensorfmt.core.locks import call_in_children, share_lock
from xr_tensorfmt.core.source import Result
from xr_tensorfmt.sources import get_class_names
from xr_tensorfmt.sources.requests import RangeRequest, RangeResponse, Version, start_in_thread

_PIECE = 1 << 20
_MAX_OPENINGS = 10

# fsspec renews its event loop in a forked process, but not the lock that protects it.
call_in_children(reset_lock)

_logger = logging.getLogger(__name__)


class FsspecStore:
    """Any fsspec file system, without conditions on the version of an object."""

    is_conditional = False
    """Whether a range request fails if the object was replaced."""

    def __init__(self, fs: Any, timeout: float | None) -> None:
        self.fs = fs
        self.timeout = timeout

    @property
    def retries_statuses(self) -> bool:
        """Whether the library itself retries error statuses."""
        return not get_packages(self.fs).isdisjoint(("adlfs", "gcsfs", "huggingface_hub"))

    async def prepare(self) -> None:
        """Create the client of the library, which is not a part of a request."""

    async def info(self, path: str) -> dict[str, Any]:
        """Request size and version of an object."""
        return dict(await self.call("info", path))

    async def request_range(self, request: RangeRequest, buffer: memoryview) -> RangeResponse:
        """Request a byte range of an object, and copy it into a buffer of its length."""
        data = await self.call("cat_file", request.path, start=request.start, end=request.stop)
        return RangeResponse(copy_bytes(data, buffer))

    async def call(self, method: str, path: str, **options: Any) -> Any:
        """Call a method of the file system."""
        if self.fs.async_impl:
            # fsspec documents this prefix of the coroutine functions.
            return await getattr(self.fs, f"_{method}")(path, **options)
        call = partial(getattr(self.fs, method), path, **options)
        return await wrap_future(start_in_thread(call))


def copy_bytes(data: Any, buffer: memoryview) -> int:
    """Copy bytes into a buffer up to its length, and return the number of bytes in `data`."""
    source, target = np.frombuffer(data, np.uint8), np.frombuffer(buffer, np.uint8)
    length = min(source.size, target.size)
    target[:length] = source[:length]  # numpy releases the GIL
    return source.size


async def _receive(pieces: AsyncIterator[bytes], buffer: memoryview) -> int:
    """Receive a body until it ends or is too long, and return the number of bytes."""
    count = 0
    async for piece in pieces:
        count += copy_bytes(piece, buffer[count:])
        if count > len(buffer):
            break
    return count


class HttpStore(FsspecStore):
    """HTTP servers. `_cat_file` would download a whole file from servers without byte ranges."""

    is_conditional = True

    async def request_range(self, request: RangeRequest, buffer: memoryview) -> RangeResponse:
        """Request a byte range of a version."""
        from aiohttp import ClientTimeout  # noqa: PLC0415  # not installed with fsspec

        headers = {
            **self.fs.kwargs.get("headers", {}),
            "Accept-Encoding": "identity",
            "Range": f"bytes={request.start}-{request.stop - 1}",
        }
        if request.version.strong_etag:
            headers["If-Match"] = request.version.strong_etag
        options = {**self.fs.kwargs, "headers": headers}
        if "timeout" not in self.fs.client_kwargs:
            # By default, aiohttp limits the whole request to 300 s.
            limit = ClientTimeout(None, sock_connect=self.timeout, sock_read=self.timeout)
            options.setdefault("timeout", limit)
        session = await self.fs.set_session()
        async with session.get(self.fs.encode_url(request.path), **options) as response:
            response.raise_for_status()
            count = await _receive(response.content.iter_any(), buffer)
            return RangeResponse.from_headers(count, response.headers)


class S3Store(FsspecStore):
    """S3, through the client of s3fs; `_cat_file` has no conditions."""

    is_conditional = True

    @property
    def retries_statuses(self) -> bool:
        """Whether botocore retries error statuses, as it does by default."""
        retries = self.fs.config_kwargs.get("retries") or {}
        return bool(retries.get("total_max_attempts") != 1)

    async def prepare(self) -> None:
        """Create the client, which reads the models of botocore and takes long."""
        await self.fs.set_session()

    async def request_range(self, request: RangeRequest, buffer: memoryview) -> RangeResponse:
        """Request a byte range of a version."""
        bucket, key, version_id = self.fs.split_path(request.path)
        client = await self.fs.get_s3(bucket)
        options = {
            **self.fs.s3_additional_kwargs,
            **self.fs.req_kw,
            "Bucket": bucket,
            "Key": key,
            "Range": f"bytes={request.start}-{request.stop - 1}",
            "VersionId": version_id,
            "IfMatch": request.version.strong_etag,
        }
        if getattr(self.fs, "local_expiry_check", False):  # the store knows no conditions
            options["IfMatch"] = ""  # the tag in the response is compared
        # The options of the user may be for other operations, such as ServerSideEncryption.
        names = client.meta.service_model.operation_model("GetObject").input_shape.members
        arguments = {name: value for name, value in options.items() if name in names and value}
        response = await client.get_object(**arguments)
        try:
            count = await _receive(response["Body"].iter_chunks(_PIECE), buffer)
            return RangeResponse.from_headers(count, response)
        finally:
            response["Body"].close()


class GoogleStore(FsspecStore):
    """Google Cloud Storage, where a request can name the generation of an object."""

    is_conditional = True

    async def request_range(self, request: RangeRequest, buffer: memoryview) -> RangeResponse:
        """Request a byte range of a version. A replaced version is missing, unless it is kept."""
        span = {"start": request.start, "end": request.stop}
        generation = request.version.etag or None
        try:
            data = await self.call("cat_file", request.path, **span, generation=generation)
        except FileNotFoundError:
            if generation is None:
                raise
            self.fs.invalidate_cache(request.path)
            return RangeResponse(0, Version.from_info(await self.info(request.path)))
        return RangeResponse(copy_bytes(data, buffer))


class AzureStore(FsspecStore):
    """Azure, through the client of adlfs; `_cat_file` has no conditions."""

    is_conditional = True

    async def request_range(self, request: RangeRequest, buffer: memoryview) -> RangeResponse:
        """Request a byte range of a version."""
        from azure.core import MatchConditions  # noqa: PLC0415  # not installed with fsspec
        from azure.core.exceptions import ResourceModifiedError  # noqa: PLC0415

        container, name, version_id = self.fs.split_path(request.path)
        options: dict[str, Any] = {"version_id": version_id} if version_id else {}
        if request.version.strong_etag:
            condition = MatchConditions.IfNotModified
            options |= {"etag": request.version.strong_etag, "match_condition": condition}
        client = self.fs.service_client.get_blob_client(container=container, blob=name)
        try:
            async with client:
                span = {"offset": request.start, "length": request.length}
                stream = await client.download_blob(**span, **options)
                count = await _receive(stream.chunks(), buffer)
                return RangeResponse(count, Version(etag=stream.properties.etag or ""))
        except ResourceModifiedError:  # replaced or removed
            self.fs.invalidate_cache(request.path)
            return RangeResponse(0, Version.from_info(await self.info(request.path)))


class CachedStore(FsspecStore):
    """Local copies of fsspec, whose age may differ between processes. Only sizes are compared."""

    is_conditional = True

    async def info(self, path: str) -> dict[str, Any]:
        """Return size and version of the copy."""

        def get_info(file: Any) -> dict[str, Any]:
            # A block cache knows the info of the object. Other copies are local files.
            details = getattr(file, "details", None)
            details = details or {"mtime": os.fstat(file.fileno()).st_mtime_ns}
            return {**details, "size": file.seek(0, os.SEEK_END)}

        return await wrap_future(start_in_thread(self._use, path, get_info))

    async def request_range(self, request: RangeRequest, buffer: memoryview) -> RangeResponse:
        """Read a byte range of the copy."""

        def read(file: Any) -> RangeResponse:
            version = Version(file.seek(0, os.SEEK_END))
            file.seek(request.start)
            return RangeResponse(copy_bytes(file.read(len(buffer)), buffer), version)

        return await wrap_future(start_in_thread(self._use, request.path, read))

    def _use(self, path: str, call: Callable[[Any], Result]) -> Result:
        # fsspec downloads a file without a lock when it is first opened.
        lock = share_lock(("cache", hash(self.fs), path))
        with lock.current, self._open(path) as file:
            _logger.debug("%s: read from the copy of a cache", path)
            return call(file)

    def _open(self, path: str) -> Any:
        for _ in range(_MAX_OPENINGS):
            try:
                return self.fs.open(path, "rb")
            except FileNotFoundError:
                # fsspec raises it for all failures. This call raises the actual error.
                self.fs.fs.info(path)
                raise
            except RuntimeError as error:
                # Another thread has changed the dict of all files while fsspec saved it.
                failure = error
        raise failure


_STORES: dict[str, type[FsspecStore]] = {
    "adlfs.spec.AzureBlobFileSystem": AzureStore,
    "fsspec.implementations.cached.CachingFileSystem": CachedStore,
    "fsspec.implementations.http.HTTPFileSystem": HttpStore,
    "gcsfs.core.GCSFileSystem": GoogleStore,
    "s3fs.core.S3FileSystem": S3Store,
}


def get_packages(fs: object) -> set[str]:
    """Return the packages of the classes of a file system."""
    return {base.__module__.partition(".")[0] for base in type(fs).__mro__}


def get_fsspec_store(fs: Any, timeout: float | None = None) -> FsspecStore:
    """Return the store of a file system, whose class is known by name and not imported."""
    known = filter(None, map(_STORES.get, get_class_names(fs)))
    return next(known, FsspecStore)(fs, timeout)


_ROOTS = {
    "AzureStore": "az://",
    "GCSStore": "gs://",
    "HTTPStore": "",
    "LocalStore": "file:///",
    "MemoryStore": "memory://",
    "S3Store": "s3://",
}

_processes: set[int] = set()
"""Processes that have used obstore. A process forked from one of them lacks its threads."""


def is_obstore(store: object) -> bool:
    """Return whether an object has the methods of a store of obstore."""
    return hasattr(store, "head_async") and hasattr(store, "get_async")


class ObstoreStore:
    """A store of obstore, with the attributes of an fsspec file system that locations use."""

    is_conditional = True
    retries_statuses = True
    storage_args = ()

    def __init__(self, store: Any, pickled: bytes | None = None) -> None:
        _processes.add(os.getpid())
        self.store = store
        self._pickled = pickled
        names = "url", "prefix", "config", "client_options"
        self.storage_options = {name: getattr(store, name, None) for name in names}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the store. A process unpickles equal stores once and shares the connections."""
        return _unpickle, (self._pickled or pickle.dumps(self.store),)

    async def prepare(self) -> None:
        """Do nothing. The store has its client."""

    def check_process(self) -> None:
        """Raise RuntimeError if the process was forked after obstore was used."""
        if _processes - {os.getpid()}:
            raise RuntimeError(
                "a store of obstore cannot be used in a forked process; start the process with "
                "'spawn' or 'forkserver', or pass an fsspec file system"
            )

    def invalidate_cache(self, path: str) -> None:
        """Do nothing. obstore does not cache."""

    def unstrip_protocol(self, path: str) -> str:
        """Return the URL of an object."""
        options = self.storage_options
        config = options["config"] or {}
        bucket = config.get("bucket") or config.get("container_name")
        parts = options["url"], bucket, options["prefix"], path
        joined = "/".join(str(part).strip("/") for part in parts if part)
        names = [base.__name__ for base in type(self.store).__mro__]
        root = next((_ROOTS[name] for name in names if name in _ROOTS), f"{names[0]}://")
        return f"{root}{joined}"

    async def info(self, path: str) -> dict[str, Any]:
        """Request size and version of an object."""
        return _convert_meta(await self.store.head_async(path))

    async def call(self, method: str, path: str, **_: Any) -> Any:
        """Raise ValueError, because directories are not listed."""
        raise ValueError(f"a store of obstore has no {method!r} for {path!r}; pass an fsspec one")

    async def request_range(self, request: RangeRequest, buffer: memoryview) -> RangeResponse:
        """Request a byte range of a version, and copy it into a buffer of its length."""
        options: dict[str, Any] = {"range": (request.start, request.stop)}
        if request.version.strong_etag:
            options["if_match"] = request.version.strong_etag
        response = await self.store.get_async(request.path, options=options)
        count = copy_bytes(await response.bytes_async(), buffer)
        return RangeResponse(count, Version.from_info(_convert_meta(response.meta)))


@lru_cache(maxsize=32)
def _unpickle(pickled: bytes) -> ObstoreStore:
    return ObstoreStore(pickle.loads(pickled), pickled)  # noqa: S301  # pickled by this module


def adapt_obstore(store: Any) -> ObstoreStore:
    """Return the adapter of a store. Equal stores have one adapter and one limit on requests."""
    with suppress(TypeError):  # a MemoryStore cannot be pickled
        return _unpickle(pickle.dumps(store))
    return ObstoreStore(store)


def _convert_meta(meta: Any) -> dict[str, Any]:
    """Return size and version under the names of fsspec."""
    info = {"size": meta["size"], "ETag": meta["e_tag"]}
    modified = meta["last_modified"]
    if modified != datetime.fromtimestamp(0, UTC):  # 1970 means an unknown time
        info["LastModified"] = modified.isoformat()
    return info
