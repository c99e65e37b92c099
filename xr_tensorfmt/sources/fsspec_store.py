"""Requests to file systems of fsspec.

A store makes one attempt of a request. It neither repeats the request nor converts errors.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import numpy as np
from fsspec.asyn import get_loop, reset_lock

from xr_tensorfmt.core.locks import call_in_children
from xr_tensorfmt.sources.requests import Answer, RangeRequest, Version, changed
from xr_tensorfmt.sources.threads import in_thread

_PIECE = 1 << 20

# fsspec resets its loop in a child process, but not the lock for making a loop.
call_in_children(reset_lock)


class FsspecStore:
    """A file system of fsspec without conditions on the version of an object."""

    is_conditional = False
    """Whether a request for a range fails if the object was replaced."""

    def __init__(self, fs: Any, timeout: float | None) -> None:
        self.fs = fs
        self.timeout = timeout

    @property
    def retries(self) -> bool:
        """Whether the library itself repeats a request after an error status."""
        return type(self.fs).__module__.partition(".")[0] == "adlfs"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop for requests; it runs in a thread of fsspec."""
        loop: asyncio.AbstractEventLoop = getattr(self.fs, "loop", None) or get_loop()
        return loop

    async def connect(self) -> None:
        """Make the client. The client of S3 reads the models of botocore, but sends nothing."""
        if hasattr(self.fs, "set_session"):
            await self.fs.set_session()

    async def info(self, path: str) -> dict[str, Any]:
        """Request size and version of an object, once."""
        if self.fs.async_impl:
            info: dict[str, Any] = await _get_coroutine(self.fs, "info")(path)
            return info
        return dict(await asyncio.wrap_future(in_thread(self.fs.info, path)))

    async def fetch(self, request: RangeRequest, into: memoryview) -> Answer:
        """Request a range of an object, once, and put it into memory of its length."""
        options = {"start": request.start, "end": request.stop}
        if self.fs.async_impl:
            data = await _get_coroutine(self.fs, "cat_file")(request.path, **options)
        else:
            cat_file = partial(self.fs.cat_file, request.path, **options)
            data = await asyncio.wrap_future(in_thread(cat_file))
        return Answer(put(data, into))


def _get_coroutine(fs: Any, method: str) -> Any:
    """Return the coroutine function of a method; fsspec documents its name with an underscore."""
    return getattr(fs, f"_{method}")


def put(data: Any, into: memoryview) -> int:
    """Copy bytes as far as they fit into memory, and return how many there were."""
    source, target = np.frombuffer(data, np.uint8), np.frombuffer(into, np.uint8)
    length = min(source.size, target.size)
    # numpy lets other threads run meanwhile, a memoryview does not.
    target[:length] = source[:length]
    return source.size


async def _receive(pieces: AsyncIterator[bytes], into: memoryview) -> int:
    """Receive a body until it ends or is too long, and return the number of bytes."""
    count = 0
    async for piece in pieces:
        count += put(piece, into[count:])
        if count > len(into):
            break
    return count


class HttpStore(FsspecStore):
    """HTTP servers, by aiohttp.

    ``_cat_file`` would receive the whole file from a server without byte ranges.
    """

    is_conditional = True

    async def fetch(self, request: RangeRequest, into: memoryview) -> Answer:
        """Request a range, with a condition on the version."""
        headers = {
            **self.fs.kwargs.get("headers", {}),
            "Accept-Encoding": "identity",
            "Range": f"bytes={request.start}-{request.stop - 1}",
        }
        if request.version.strong_etag:
            headers["If-Match"] = request.version.strong_etag
        elif request.version.modified:
            headers["If-Unmodified-Since"] = request.version.modified
        options = {**self.fs.kwargs, "headers": headers}
        if "timeout" not in self.fs.client_kwargs:
            # aiohttp would limit the whole request to 300 s.
            limits = {"sock_connect": self.timeout, "sock_read": self.timeout}
            options.setdefault("timeout", sys.modules["aiohttp"].ClientTimeout(None, **limits))
        session = await self.fs.set_session()
        async with session.get(self.fs.encode_url(request.path), **options) as response:
            response.raise_for_status()
            content_range = response.headers.get("Content-Range", "")
            size = request.check_range(response.status, content_range, response.content_length)
            count = await _receive(response.content.iter_any(), into)
            return Answer(count, Version.of(response.headers), size)


class S3Store(FsspecStore):
    """S3, by the client of s3fs: ``_cat_file`` has no conditions."""

    is_conditional = True

    @property
    def retries(self) -> bool:
        """Whether botocore repeats requests; it does so four times by default."""
        retries = self.fs.config_kwargs.get("retries") or {}
        return bool(retries.get("total_max_attempts", 1 + retries.get("max_attempts", 4)) > 1)

    async def fetch(self, request: RangeRequest, into: memoryview) -> Answer:
        """Request a range, with a condition on the version."""
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
        names = client.meta.service_model.operation_model("GetObject").input_shape.members
        given = {name: value for name, value in options.items() if name in names and value}
        response = await client.get_object(**given)
        try:
            status = response["ResponseMetadata"]["HTTPStatusCode"]
            length = response.get("ContentLength")
            size = request.check_range(status, response.get("ContentRange", ""), length)
            count = await _receive(response["Body"].iter_chunks(_PIECE), into)
            return Answer(count, Version.of(response), size)
        finally:
            response["Body"].close()


class GoogleStore(FsspecStore):
    """Google Cloud Storage, by gcsfs."""

    is_conditional = True
    retries = True

    async def fetch(self, request: RangeRequest, into: memoryview) -> Answer:
        """Request a range of a generation; only buckets with object versioning keep old ones."""
        cat_file = partial(_get_coroutine(self.fs, "cat_file"), request.path)
        generation = request.version.etag or None
        try:
            data = await cat_file(start=request.start, end=request.stop, generation=generation)
        except FileNotFoundError:
            self.fs.invalidate_cache(request.path)
            version = Version.of(await self.info(request.path))
            if request.version.differs(version):
                raise changed(request.url, version, request.version) from None
            raise
        return Answer(put(data, into))


_STORES: dict[str, type[FsspecStore]] = {
    "fsspec.implementations.http.HTTPFileSystem": HttpStore,
    "s3fs.core.S3FileSystem": S3Store,
    "gcsfs.core.GCSFileSystem": GoogleStore,
}


def get_fsspec_store(fs: Any, timeout: float | None) -> FsspecStore:
    """Return the store for a file system. Its class is known by name, without an import."""
    names = (f"{base.__module__}.{base.__qualname__}" for base in type(fs).__mro__)
    return next((_STORES[name] for name in names if name in _STORES), FsspecStore)(fs, timeout)
