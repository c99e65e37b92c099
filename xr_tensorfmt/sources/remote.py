"""Objects in stores: divide a read into concurrent requests, and check the responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Extents, Transfer
from xr_tensorfmt.core.source import Item, Result, Source
from xr_tensorfmt.errors import build_directory_error
from xr_tensorfmt.sources.locations import Location
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

    @property
    def name(self) -> str:
        """The URL without secrets."""
        return self.location.name

    @property
    def file_name(self) -> str:
        """The name in the directory."""
        return self.location.file_name

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
        if not location.store.is_conditional and location.verify_unchanged:
            self.check_unchanged()
        return packed

    @property
    def expected_version(self) -> Version:
        """The version that responses must have."""
        return self.version if self.location.verify_unchanged else Version(self.size)

    def _start_transfer(self, location: Location, transfer: Transfer) -> Future[None]:
        start, stop, ranges, out = transfer
        version = self.expected_version
        request = RangeRequest(location.name, location.path, start, stop, version)

        async def attempt() -> None:
            buffer = out if out.size == stop - start else np.empty(stop - start, dtype=np.uint8)
            await _request_range(location, request, buffer.data)
            if buffer is not out:
                ranges.gather(buffer, start, out)

        return start_request(location, attempt, request)

    def check_unchanged(self) -> None:
        """Raise OSError or SourceChangedError if the object was replaced or removed."""
        info = wait_for_result(_start_info(self.location.renew_after_fork()))
        old, new = self.expected_version, Version.from_info(info)
        # The entity tag of an object depends only on its content in many stores.
        is_later = bool(old.modified and new.modified) and old.modified != new.modified
        if is_later or old.differs(new):
            raise build_changed_error(self.name, new, old)


def open_remote(location: Location) -> tuple[RemoteFile, bytes]:
    """Request size and version of an object, and concurrently its first bytes."""
    location = location.renew_after_fork()
    head = bytearray(HEAD_BYTES)
    request = RangeRequest(location.name, location.path, 0, HEAD_BYTES)
    future_info = _start_info(location)
    request_head = partial(_request_range, location, request, memoryview(head))
    future_response = start_request(location, request_head, request)
    try:
        info = wait_for_result(future_info)
        if info.get("type") == "directory":
            raise build_directory_error(location.name)
        if info.get("size") is None:
            raise ValueError(
                f"{location.name}: the store does not report the size of the object, so it cannot "
                "be read by byte ranges; put 'simplecache::' before the URL to open a local copy"
            )
        source = RemoteFile(location, int(info["size"]), Version.from_info(info))
        if source.size == 0:
            return source, b""
        response = wait_for_result(future_response)
    finally:
        future_info.cancel()
        future_response.cancel()
    stop = min(source.size, HEAD_BYTES)
    replace(request, stop=stop, version=source.expected_version).check_response(response)
    return source, bytes(head[:stop])


async def _request_range(
    location: Location, request: RangeRequest, buffer: memoryview
) -> RangeResponse:
    """Make a range request once, and check its response."""
    try:
        response = await location.store.request_range(request, buffer)
    except Exception as error:
        response_to_error = find_response(error)
        status = response_to_error.status if response_to_error else 0
        is_outside = status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
        is_known = request.version.size is not None
        if status == HTTPStatus.PRECONDITION_FAILED or (is_outside and is_known):
            raise build_changed_error(request.url, NO_VERSION, request.version) from None
        raise
    request.check_response(response)
    return response


def _start_info(location: Location) -> Future[dict[str, Any]]:
    """Start a request for size and version of an object."""
    location.fs.invalidate_cache(location.path)  # a cached listing may have an older version
    return start_request(location, partial(location.store.info, location.path))


def call_store(location: Location, method: str, path: str, **options: Any) -> Any:
    """Call a method of a file system, such as ``ls``, with retries and time limits."""
    location = location.renew_after_fork()
    call = partial(location.store.call, method, path, **options)
    return wait_for_result(start_request(location, call))
