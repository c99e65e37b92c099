"""Objects in stores: concurrent requests for byte ranges."""

from __future__ import annotations

import logging
import os
from asyncio import wrap_future
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from errno import ECONNABORTED
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from fsspec.asyn import reset_lock

from xr_tensorfmt.core.extents import Bytes, Extents, Transfer
from xr_tensorfmt.core.locks import call_in_children, share_lock
from xr_tensorfmt.core.source import Item, Result, Source
from xr_tensorfmt.errors import build_directory_error
from xr_tensorfmt.sources import get_class_names
from xr_tensorfmt.sources.locations import CACHE, Location, is_cache
from xr_tensorfmt.sources.requests import (
    NO_VERSION,
    RangeRequest,
    RangeResponse,
    Version,
    build_changed_error,
    run_all,
    start_in_thread,
    start_request,
    wait_for_result,
)
from xr_tensorfmt.sources.store_errors import find_response

_logger = logging.getLogger(__name__)

# fsspec renews its event loop in a forked process, but not the lock that protects it.
call_in_children(reset_lock)

HEAD_BYTES = 64 << 10
"""Bytes fetched when an object is opened."""

# Fetching a gap of this size takes as long as another request, given 24 concurrent requests with
# 20 ms of latency and 315 MB/s.
MAX_GAP = 256 << 10

# With 20 ms of latency and 100 MB/s per connection, 8 MiB take 105 ms in one part and 47 ms in
# four. A part costs about 1 ms of CPU time.
MIN_PART, MAX_PART, TARGET_PARTS = 2 << 20, 4 << 20, 10


@dataclass(frozen=True)
class RemoteFile(Source):
    """An object, read by byte ranges."""

    location: Location
    size: int
    version: Version

    high_latency = True
    batch_bytes = 256 << 20  # enough for concurrent requests
    read_ahead = 1 << 20

    name = property(attrgetter("location.name"))
    file_name = property(attrgetter("location.file_name"))

    def __dask_tokenize__(self) -> tuple[object, ...]:
        """URL, options and version. A replaced object has other names in dask."""
        url, fs, path = self.location.url, self.location.fs, self.location.path
        options = type(fs).__name__, fs.storage_args, fs.storage_options
        return (type(self).__name__, url, path, str(self.version), *options)

    def sibling(self, path: str) -> tuple[RemoteFile, bytes]:
        """Open another object in the same directory, with its first bytes."""
        return open_remote(self.location.sibling(path))

    def run(self, read: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Make reads concurrently."""
        return run_all(partial(start_in_thread, read), items)

    def plan_requests(self, extents: Extents) -> Extents:
        """Divide ranges into parts of 2 to 4 MiB, including gaps of up to 256 KiB."""
        fetched = extents.merge(gap=MAX_GAP, limit=self.size).nbytes
        part = min(max(fetched // TARGET_PARTS, MIN_PART), MAX_PART)
        return extents.merge(gap=MAX_GAP, limit=part, max_length=MAX_PART)

    def read(self, extents: Extents) -> Bytes:
        """Fetch byte ranges with concurrent requests."""
        packed = np.empty(extents.nbytes, dtype=np.uint8)
        location = self.location.renew_after_fork()
        transfers = extents.iterate_transfers(self.plan_requests(extents), packed)
        run_all(partial(self._start_transfer, location), transfers)
        if _find_range_function(location.fs) is _request_from_any and location.verify_unchanged:
            self.check_unchanged()
        return packed

    @property
    def expected_version(self) -> Version:
        """The version that responses must have."""
        return self.version if self.location.verify_unchanged else Version(self.size)

    def _start_transfer(self, location: Location, transfer: Transfer) -> Future[None]:
        start, stop, ranges, out = transfer
        request = RangeRequest(location, start, stop, self.expected_version)

        async def attempt() -> None:
            buffer = out if out.size == stop - start else np.empty(stop - start, dtype=np.uint8)
            await _request_range(request, buffer.data)
            if buffer is not out:
                ranges.gather(buffer, start, out)

        return start_request(request, attempt)

    def check_unchanged(self) -> None:
        """Raise OSError or SourceChangedError if the object was replaced or removed."""
        version = Version.from_info(call_fresh(self.location, "info"))
        if self.expected_version.differs(version):
            raise build_changed_error(self.name, version, self.expected_version)


def open_remote(location: Location) -> tuple[RemoteFile, bytes]:
    """Request size and version of an object, and concurrently its first bytes."""
    location = location.renew_after_fork()
    head = bytearray(HEAD_BYTES)
    request = RangeRequest(location, 0, HEAD_BYTES)
    future_info = _start_call(location, "info")
    attempt = partial(_request_range, request, memoryview(head))
    future_response = start_request(request, attempt)
    try:
        info = wait_for_result(future_info)
        if info.get("type") == "directory":
            raise build_directory_error(location.name)
        if info.get("size") is None:
            raise ValueError(
                f"{location.name}: the store does not report the size of the object; put "
                "'simplecache::' before the URL to open a local copy"
            )
        source = RemoteFile(location, int(info["size"]), Version.from_info(info))
        if source.size == 0:
            return source, b""
        response = wait_for_result(future_response)
    finally:
        future_response.cancel()
    stop = min(source.size, HEAD_BYTES)
    replace(request, stop=stop, version=source.expected_version).check_response(response)
    return source, bytes(head[:stop])


async def _request_range(request: RangeRequest, buffer: memoryview) -> RangeResponse:
    """Make a range request once, and check its response."""
    try:
        response = await _find_range_function(request.location.fs)(request, buffer)
    except Exception as error:
        status = find_response(error).status
        # The condition fails, or the object is shorter than it was.
        if status == 412 or (status == 416 and request.version.size is not None):
            raise build_changed_error(request.location.name, NO_VERSION, request.version) from None
        raise
    request.check_response(response)
    return response


def call_fresh(location: Location, method: str, *arguments: Any, **options: Any) -> Any:
    """Call a method for a file or object that may have changed, with retries if in a store."""
    if location.is_local:
        call = partial(getattr(location.fs, method), location.path, *arguments, **options)
        return location.call(call)
    return wait_for_result(_start_call(location.renew_after_fork(), method, *arguments, **options))


def read_fresh(location: Location, **bounds: int) -> bytes | None:
    """Return bytes of a file or object that may have changed, or None if there is none."""
    with suppress(FileNotFoundError):
        return bytes(call_fresh(location, "cat_file", **bounds))
    return None


def _start_call(location: Location, method: str, *arguments: Any, **options: Any) -> Future[Any]:
    fs, path = location.fs, location.path
    fs.invalidate_cache(path)  # a cached listing may have an older version
    call = partial(_call, fs, method, path, *arguments, **options)
    return start_request(RangeRequest(location), call)


async def _call(fs: Any, method: str, path: str, *arguments: Any, **options: Any) -> Any:
    """Call a method of a file system. The info of a cache is of the copy."""
    if method == "info" and is_cache(fs):
        return (await wrap_future(start_in_thread(_read_copy, fs, path, 0, 0)))[0]
    # fsspec documents this prefix of the coroutine functions.
    function = getattr(fs, f"_{method}" if fs.async_impl else method)
    call = partial(function, path, *arguments, **options)
    return await (call() if fs.async_impl else wrap_future(start_in_thread(call)))


async def _request_from_any(
    request: RangeRequest, buffer: memoryview, **options: Any
) -> RangeResponse:
    span = {"start": request.start, "end": request.stop}
    location = request.location
    data = await _call(location.fs, "cat_file", location.path, **span, **options)
    return RangeResponse(_copy_bytes(data, buffer))


def _copy_bytes(data: Any, buffer: memoryview) -> int:
    """Copy bytes into a buffer up to its length, and return the number of bytes in `data`."""
    source, target = np.frombuffer(data, np.uint8), np.frombuffer(buffer, np.uint8)
    length = min(source.size, target.size)
    target[:length] = source[:length]  # numpy releases the GIL
    return source.size


async def _receive(pieces: AsyncIterator[bytes], buffer: memoryview) -> int:
    """Receive a body until it ends or is too long, and return the number of bytes."""
    count = 0
    async for piece in pieces:
        count += _copy_bytes(piece, buffer[count:])
        if count > len(buffer):
            break
    return count


async def _request_from_http(request: RangeRequest, buffer: memoryview) -> RangeResponse:
    """Request a range, since `_cat_file` downloads a whole file from servers without ranges."""
    from aiohttp import ClientTimeout  # noqa: PLC0415  # not installed with fsspec

    fs, timeout = request.location.fs, request.location.timeout
    headers = {
        **fs.kwargs.get("headers", {}),
        "Accept-Encoding": "identity",
        "Range": f"bytes={request.start}-{request.stop - 1}",
    }
    if request.version.strong_etag:
        headers["If-Match"] = request.version.strong_etag
    # By default, aiohttp limits the whole request to 300 s.
    limit = ClientTimeout(None, sock_connect=timeout, sock_read=timeout)
    options = {"timeout": limit, **fs.kwargs, "headers": headers}
    session = await fs.set_session()
    async with session.get(fs.encode_url(request.location.path), **options) as response:
        response.raise_for_status()
        count = await _receive(response.content.iter_any(), buffer)
        return RangeResponse.from_headers(count, response.headers)


async def _request_from_s3(request: RangeRequest, buffer: memoryview) -> RangeResponse:
    """Request a range through the client of s3fs, whose `_cat_file` has no conditions."""
    fs: Any = request.location.fs
    bucket, key, version_id = fs.split_path(request.location.path)
    await fs.set_session()  # creates the client of a file system that was unpickled
    client = await fs.get_s3(bucket)
    options = {
        **fs.s3_additional_kwargs,
        **fs.req_kw,
        "Bucket": bucket,
        "Key": key,
        "Range": f"bytes={request.start}-{request.stop - 1}",
        "VersionId": version_id,
        "IfMatch": request.version.strong_etag,
    }
    if getattr(fs, "local_expiry_check", False):
        options["IfMatch"] = ""  # the store knows none: the tag in the response is compared
    # The options of the user may be for other operations, such as ServerSideEncryption.
    names = client.meta.service_model.operation_model("GetObject").input_shape.members
    arguments = {name: value for name, value in options.items() if name in names and value}
    response = await client.get_object(**arguments)
    try:
        count = await _receive(response["Body"].iter_chunks(1 << 20), buffer)
        return RangeResponse.from_headers(count, response)
    finally:
        response["Body"].close()


async def _request_from_google(request: RangeRequest, buffer: memoryview) -> RangeResponse:
    """Request a range of a generation. A replaced one is missing, unless the bucket keeps it."""
    generation = request.version.etag or None
    try:
        return await _request_from_any(request, buffer, generation=generation)
    except FileNotFoundError:
        if generation is None:
            raise
        return await _build_changed_response(request)


async def _request_from_azure(request: RangeRequest, buffer: memoryview) -> RangeResponse:
    """Request a range through the client of adlfs, whose `_cat_file` has no conditions."""
    from azure.core import MatchConditions  # noqa: PLC0415  # not installed with fsspec
    from azure.core.exceptions import ResourceModifiedError  # noqa: PLC0415

    fs: Any = request.location.fs
    container, name, version_id = fs.split_path(request.location.path)
    options: dict[str, Any] = {"version_id": version_id} if version_id else {}
    if request.version.strong_etag:
        condition = MatchConditions.IfNotModified
        options |= {"etag": request.version.strong_etag, "match_condition": condition}
    try:
        async with fs.service_client.get_blob_client(container=container, blob=name) as client:
            span = {"offset": request.start, "length": request.length}
            stream = await client.download_blob(**span, **options)
            count = await _receive(stream.chunks(), buffer)
            return RangeResponse(count, Version(etag=stream.properties.etag or ""))
    except ResourceModifiedError:  # replaced or removed
        return await _build_changed_response(request)


async def _build_changed_response(request: RangeRequest) -> RangeResponse:
    """Return a response with the present version. Raise FileNotFoundError if there is none."""
    fs, path = request.location.fs, request.location.path
    fs.invalidate_cache(path)
    return RangeResponse(0, Version.from_info(await _call(fs, "info", path)))


async def _request_from_copy(request: RangeRequest, buffer: memoryview) -> RangeResponse:
    """Read a range of a local copy. Copies of processes differ in age: only sizes are compared."""
    fs, path = request.location.fs, request.location.path
    reading = start_in_thread(_read_copy, fs, path, request.start, request.stop)
    info, data = await wrap_future(reading)
    return RangeResponse(_copy_bytes(data, buffer), Version(info["size"]))


def _read_copy(fs: Any, path: str, start: int, stop: int) -> tuple[dict[str, Any], bytes]:
    """Return info and bytes of a local copy. fsspec downloads it, without a lock, at first."""
    lock = share_lock(("cache", hash(fs), path))  # shared as long as somebody holds it
    try:
        with lock.current, fs.open(path, "rb") as file:
            _logger.debug("%s: read from the copy of a cache", path)
            # A block cache knows the info of the object. Other copies are local files.
            info = getattr(file, "details", None) or {"mtime": os.fstat(file.fileno()).st_mtime_ns}
            size = file.seek(0, os.SEEK_END)
            file.seek(start)
            return {**info, "size": size}, file.read(stop - start)
    except FileNotFoundError:
        # fsspec raises it for all failures. This call raises the actual error.
        fs.fs.info(path)
        raise
    except RuntimeError as error:
        # Another thread changed the dict of all files while fsspec saved it: retry.
        raise ConnectionAbortedError(ECONNABORTED, str(error)) from None


RangeFunction = Callable[[RangeRequest, memoryview], Awaitable[RangeResponse]]

_RANGE_FUNCTIONS: dict[str, RangeFunction] = {
    CACHE: _request_from_copy,
    "adlfs.spec.AzureBlobFileSystem": _request_from_azure,
    "fsspec.implementations.http.HTTPFileSystem": _request_from_http,
    "gcsfs.core.GCSFileSystem": _request_from_google,
    "s3fs.core.S3FileSystem": _request_from_s3,
    "builtins.object": _request_from_any,
}
"""Functions that request a byte range, by classes of file systems that may not be imported.

All but the last fail if the object was replaced.
"""


def _find_range_function(fs: Any) -> RangeFunction:
    return next(filter(None, map(_RANGE_FUNCTIONS.get, get_class_names(fs))))
