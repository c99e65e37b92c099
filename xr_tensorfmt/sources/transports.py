"""How single requests are sent: a class for each library, and one for all other file systems.

A transport makes one attempt of a request, and says what it received. It neither repeats a request
nor limits its time, which `retries` does for all of them; nor does it convert errors of libraries.
"""

from __future__ import annotations

import asyncio
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from fsspec import AbstractFileSystem
from fsspec.asyn import get_loop, reset_lock

from xr_tensorfmt.core.locks import call_in_children
from xr_tensorfmt.sources.object_store import ObjectStore, described
from xr_tensorfmt.sources.requests import Answer, Asked, Progress, Version, changed
from xr_tensorfmt.sources.threads import MOST_AT_ONCE, in_thread

_PIECE = 1 << 20

# fsspec resets its loop in such a process, but not the lock under which it makes one.
call_in_children(reset_lock)


class Transport(ABC):
    """A library that sends requests to a store."""

    most = MOST_AT_ONCE
    """Limit on the concurrent requests to a store."""
    repeats = False
    """Whether the library itself repeats what a server answers with 503 and the like."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop in which requests are made; it runs in a thread of fsspec."""
        loop: asyncio.AbstractEventLoop = getattr(self.fs, "loop", None) or get_loop()
        return loop

    async def connect(self) -> None:
        """Make the client; that of S3 reads the models of botocore, but waits for no server."""
        set_session = getattr(self.fs, "set_session", None)
        if set_session is not None:
            await set_session()

    @abstractmethod
    async def get(self, asked: Asked, into: memoryview, progress: Progress) -> Answer:
        """Request a range of an object, once, and put it into memory of its length."""

    async def info(self, path: str, progress: Progress) -> dict[str, Any]:
        """Request size and version of an object, once."""
        info: dict[str, Any] = await _coroutine(self.fs, "info")(path)
        return info


class Http(Transport):
    """Servers of HTTP, by aiohttp."""

    async def get(self, asked: Asked, into: memoryview, progress: Progress) -> Answer:
        """Request a range, with a condition on the version."""
        headers = {
            **self.fs.kwargs.get("headers", {}),
            "Accept-Encoding": "identity",
            "Range": f"bytes={asked.start}-{asked.stop - 1}",
        }
        if asked.version.strong_etag:
            headers["If-Match"] = asked.version.strong_etag
        elif asked.version.modified:
            headers["If-Unmodified-Since"] = asked.version.modified
        options = {**self.fs.kwargs, "headers": headers}
        if "timeout" not in self.fs.client_kwargs:
            # None of aiohttp on the whole request, which is 300 s.
            options.setdefault("timeout", sys.modules["aiohttp"].ClientTimeout(total=None))
        session = await self.fs.set_session()
        async with session.get(self.fs.encode_url(asked.place.path), **options) as response:
            progress.begin()
            response.raise_for_status()
            content_range = response.headers.get("Content-Range", "")
            size = asked.check_range(response.status, content_range, response.content_length)
            count = await _received(response.content.iter_any(), into, progress)
            return Answer(count, Version.of(response.headers), size)


class S3(Transport):
    """S3, by the client of s3fs; its `cat_file` has no conditions, and repeats what fails."""

    def __init__(self, fs: Any) -> None:
        super().__init__(fs)
        # By default botocore opens ten connections, and repeats a request four times.
        self.most = min(MOST_AT_ONCE, fs.config_kwargs.get("max_pool_connections", 10))
        retries = fs.config_kwargs.get("retries") or {}
        attempts = retries.get("total_max_attempts", 1 + retries.get("max_attempts", 4))
        self.repeats = attempts > 1

    async def get(self, asked: Asked, into: memoryview, progress: Progress) -> Answer:
        """Request a range, with a condition on the version."""
        bucket, key, version_id = self.fs.split_path(asked.place.path)
        request = {
            "Bucket": bucket,
            "Key": key,
            "Range": f"bytes={asked.start}-{asked.stop - 1}",
            "VersionId": version_id,
            "IfMatch": asked.version.etag,
        }
        client = await self.fs.get_s3(bucket)
        options = {**self.fs.s3_additional_kwargs, **self.fs.req_kw, **request}
        known = client.meta.service_model.operation_model("GetObject").input_shape.members
        given = {name: value for name, value in options.items() if name in known and value}
        response = await client.get_object(**given)
        progress.begin()
        try:
            status = response["ResponseMetadata"]["HTTPStatusCode"]
            length = response.get("ContentLength")
            size = asked.check_range(status, response.get("ContentRange", ""), length)
            count = await _received(response["Body"].iter_chunks(_PIECE), into, progress)
            return Answer(count, Version.of(response), size)
        finally:
            response["Body"].close()


async def _received(pieces: AsyncIterator[bytes], into: memoryview, progress: Progress) -> int:
    """Receive a body, of which no more is received when it is too long; the bytes received."""
    count = 0
    async for piece in pieces:
        count += _put(piece, into[count:])
        progress.advance(len(piece))
        if count > len(into):
            break
    return count


def _put(data: Any, into: memoryview) -> int:
    """Copy bytes as far as there is memory for them; how many there were."""
    found, target = np.frombuffer(data, np.uint8), np.frombuffer(into, np.uint8)
    length = min(found.size, target.size)
    # Other threads run meanwhile, as with a memoryview they do not.
    target[:length] = found[:length]
    return found.size


class Google(Transport):
    """Google Cloud Storage, by gcsfs, which itself repeats what fails."""

    repeats = True

    async def get(self, asked: Asked, into: memoryview, progress: Progress) -> Answer:
        """Request a range of a generation; only buckets with object versioning keep old ones."""
        progress.hide(asked.stop - asked.start)
        cat_file = partial(_coroutine(self.fs, "cat_file"), asked.place.path)
        generation = asked.version.etag or None
        try:
            data = await cat_file(start=asked.start, end=asked.stop, generation=generation)
            return Answer(_put(data, into))
        except FileNotFoundError:
            self.fs.invalidate_cache(asked.place.path)
            found = Version.of(await self.info(asked.place.path, progress))
            if asked.version.differs(found):
                raise changed(asked.place.url, found, asked.version) from None
            raise


class Azure(Transport):
    """Azure Blob Storage, by the client of adlfs, which itself repeats what fails."""

    repeats = True

    async def get(self, asked: Asked, into: memoryview, progress: Progress) -> Answer:
        """Request a range, with a condition on the version, which `cat_file` has not."""
        progress.hide(asked.stop - asked.start)
        container, blob, version_id = self.fs.split_path(asked.place.path)
        options: dict[str, Any] = {"version_id": version_id} if version_id else {}
        if asked.version.etag:
            unchanged = sys.modules["azure.core"].MatchConditions.IfNotModified
            options |= {"etag": asked.version.etag, "match_condition": unchanged}
        async with self.fs.service_client.get_blob_client(container, blob) as client:
            length = asked.stop - asked.start
            stream = await client.download_blob(offset=asked.start, length=length, **options)
            return Answer(_put(await stream.readall(), into))


# What errors of obstore say of a response that is not the requested range.
_OTHER_RANGE = re.compile("source: (NotPartial|UnexpectedRange)|RangeNotSupported")


class Obstore(Transport):
    """Stores of obstore."""

    def __init__(self, fs: ObjectStore) -> None:
        super().__init__(fs)
        self.repeats = fs.repeats

    async def get(self, asked: Asked, into: memoryview, progress: Progress) -> Answer:
        """Request a range, with a condition on the version."""
        options: dict[str, Any] = {"range": (asked.start, asked.stop)}
        if asked.version.strong_etag:
            options["if_match"] = asked.version.strong_etag
        try:
            response = await self.fs.store.get_async(asked.place.path, options=options)
        except Exception as error:
            if _OTHER_RANGE.search(str(error)):
                raise asked.refused("another range, or the whole file,") from None
            raise
        # Its stream would show progress, but takes half as much time again of the processor.
        progress.hide(asked.stop - asked.start)
        size = response.meta["size"]
        if asked.size is not None and size != asked.size:
            raise changed(asked.place.url, f"{size} bytes", f"{asked.size} bytes")
        count = _put(await response.bytes_async(), into)
        return Answer(count, Version.of(described(response.meta)), size)

    async def info(self, path: str, progress: Progress) -> dict[str, Any]:
        """Request size and version of an object, once."""
        return described(await self.fs.store.head_async(path))


class Blocking(Transport):
    """Other file systems, each of whose calls takes a thread."""

    async def get(self, asked: Asked, into: memoryview, progress: Progress) -> Answer:
        """Request a range by `cat_file`."""
        progress.hide(asked.stop - asked.start)
        cat_file = partial(self.fs.cat_file, asked.place.path, start=asked.start, end=asked.stop)
        return Answer(_put(await asyncio.wrap_future(in_thread(cat_file)), into))

    async def info(self, path: str, progress: Progress) -> dict[str, Any]:
        """Request size and version."""
        info: dict[str, Any] = await asyncio.wrap_future(in_thread(self.fs.info, path))
        return info


def _coroutine(fs: AbstractFileSystem, method: str) -> Any:
    """The coroutine function of a method; fsspec names it with an underscore."""
    return getattr(fs, f"_{method}")


_KNOWN: dict[tuple[str, str], type[Transport]] = {
    ("fsspec.implementations.http", "HTTPFileSystem"): Http,
    ("s3fs.core", "S3FileSystem"): S3,
    ("gcsfs.core", "GCSFileSystem"): Google,
    ("adlfs.spec", "AzureBlobFileSystem"): Azure,
}


def transport_of(fs: Any) -> Transport:
    """The transport for a file system, whose class is not imported for it."""
    if isinstance(fs, ObjectStore):
        return Obstore(fs)
    for (module, name), transport in _KNOWN.items():
        if module in sys.modules and isinstance(fs, getattr(sys.modules[module], name)):
            return transport(fs)
    return Blocking(fs)


def store_of(fs: AbstractFileSystem, path: str) -> tuple[int, str]:
    """What shares a limit on concurrent requests: a file system, and over HTTP a server."""
    return hash(fs), urlsplit(path).netloc if "://" in path else ""
