"""Which of the contents that an object has had over time: its version."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.asyn import sync

from xr_tensorfmt.errors import SourceChangedError
from xr_tensorfmt.sources.store_errors import ask_store

# What file systems of fsspec call the two, best first.
_ETAGS = ("ETag", "etag", "generation", "VersionId", "version_id", "md5Hash", "Content-MD5")
_TIMES = ("Last-Modified", "LastModified", "last_modified", "mtime", "updated", "created")


@dataclass(frozen=True)
class Version:
    """What a store says of the content of an object; empty texts where it says nothing."""

    etag: str = ""
    modified: str = ""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Version:
        """Find it in what a file system knows of an object, or in the headers of an answer."""
        return cls(_first(info, _ETAGS), _first(info, _TIMES))

    @property
    def strong(self) -> bool:
        """Whether the word tells contents apart byte by byte (RFC 9110, section 8.8.1)."""
        return bool(self.etag) and not self.etag.startswith("W/")

    def differs(self, other: Version) -> bool:
        """Whether the two cannot be of one content; False where nothing can be compared."""
        if self.etag and other.etag:
            return self.etag.removeprefix("W/") != other.etag.removeprefix("W/")
        return bool(self.modified and other.modified) and self.modified != other.modified

    def __str__(self) -> str:
        """In words, for messages."""
        words = ("entity tag", self.etag), ("modified", self.modified)
        return ", ".join(f"{name} {value}" for name, value in words if value) or "no version"


def _first(info: Mapping[str, Any], names: Iterable[str]) -> str:
    return next((str(info[name]) for name in names if info.get(name)), "")


_NOTHING_KNOWN = Version()
_PARTIAL, _PRECONDITION_FAILED, _NOT_SATISFIABLE = 206, 412, 416
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")

# File systems that keep whole files download at the first read, and must not do so in many threads.
_one_download = Lock()


@dataclass(frozen=True)
class Answer:
    """What a store sent."""

    data: bytes
    version: Version = _NOTHING_KNOWN
    size: int | None = None


@dataclass(frozen=True)
class Asked:
    """A range of an object, and what is known of the object."""

    url: str
    path: str = field(repr=False)
    start: int
    stop: int
    version: Version = _NOTHING_KNOWN
    size: int | None = None

    def check_range(self, status: int, content_range: str, length: int | None) -> int | None:
        """Refuse an answer that is not the range, before its body is received."""
        found = _CONTENT_RANGE.fullmatch(content_range) if status == _PARTIAL else None
        if status == _PARTIAL:
            total = None if found is None or found[3] == "*" else int(found[3])
            sent = f"the range {content_range!r}"
            is_it = found and int(found[1]) == self.start and int(found[2]) < self.stop
            if is_it and length is not None and length > self.stop - self.start:
                is_it, sent = False, f"{length} bytes"
        else:
            total, sent = length, "the whole file"
            is_it = self.start == 0 and length is not None and length <= self.stop
        if self.size is not None and total is not None and total != self.size:
            raise changed(self.url, f"{total} bytes", f"{self.size} bytes")
        if not is_it:
            raise OSError(
                errno.EIO,
                f"the server sent {sent} in place of bytes {self.start} to {self.stop - 1}; it "
                "does not serve byte ranges, so open a copy of the file: 'simplecache::' before "
                "the URL makes one",
                self.url,
            )
        return total

    def check_status(self, status: int) -> None:
        """Refuse an answer that says that another object is there now."""
        if status == _PRECONDITION_FAILED:
            raise changed(self.url, "another version", self.version)
        if status == _NOT_SATISFIABLE and self.size is not None:
            raise changed(self.url, f"no byte {self.start}", f"{self.size} bytes")


def fetch(fs: AbstractFileSystem, asked: Asked) -> Answer:
    """Send one request."""
    context = f", while bytes {asked.start} to {asked.stop - 1} were fetched"
    answer = ask_store(
        _fetch, fs, asked, url=asked.url, path=asked.path, options=fs, context=context
    )
    if asked.version.differs(answer.version):
        raise changed(asked.url, answer.version, asked.version)
    return answer


def _fetch(fs: AbstractFileSystem, asked: Asked) -> Answer:
    path, start, stop = asked.path, asked.start, asked.stop
    if _is(fs, "fsspec.implementations.http", "HTTPFileSystem"):
        answer: Answer = sync(fs.loop, _fetch_http, fs, asked)
    elif _is(fs, "s3fs.core", "S3FileSystem"):
        answer = sync(fs.loop, _fetch_s3, fs, asked)
    elif _is(fs, "fsspec.implementations.cached", "CachingFileSystem"):
        with _one_download:
            answer = Answer(fs.cat_file(path, start=start, end=stop))
    else:
        answer = Answer(fs.cat_file(path, start=start, end=stop))
    return answer


def changed(path: str, found: object, expected: object) -> SourceChangedError:
    """The error for an object that is not the one that was opened."""
    return SourceChangedError(
        path,
        "the object",
        found,
        str(expected),
        "it has been replaced since it was opened; open it again",
    )


def _is(fs: AbstractFileSystem, module: str, name: str) -> bool:
    """Whether a file system is of a class, which is not imported for the question."""
    return module in sys.modules and isinstance(fs, getattr(sys.modules[module], name))


async def _fetch_http(fs: Any, asked: Asked) -> Answer:
    options = dict(fs.kwargs)
    headers = {
        **options.pop("headers", {}),
        "Accept-Encoding": "identity",
        "Range": f"bytes={asked.start}-{asked.stop - 1}",
        **_condition(asked.version),
    }
    session = await fs.set_session()
    async with session.get(fs.encode_url(asked.path), headers=headers, **options) as response:
        asked.check_status(response.status)
        response.raise_for_status()
        content_range = response.headers.get("Content-Range", "")
        size = asked.check_range(response.status, content_range, response.content_length)
        return Answer(await response.read(), Version.of(response.headers), size)


def _condition(version: Version) -> dict[str, str]:
    if version.strong:
        return {"If-Match": version.etag}
    return {"If-Unmodified-Since": version.modified} if version.modified else {}


async def _fetch_s3(fs: Any, asked: Asked) -> Answer:
    bucket, key, version_id = fs.split_path(asked.path)
    span = f"bytes={asked.start}-{asked.stop - 1}"
    request = {"Bucket": bucket, "Key": key, "Range": span}
    if version_id:
        request["VersionId"] = version_id
    if asked.version.etag:
        request["IfMatch"] = asked.version.etag
    for attempt in range(1, fs.retries + 1):
        response = await _ask_s3(fs, request, asked)
        try:
            status = response["ResponseMetadata"]["HTTPStatusCode"]
            length = response.get("ContentLength")
            size = asked.check_range(status, response.get("ContentRange", ""), length)
            return Answer(await response["Body"].read(), Version.of(response), size)
        except sys.modules["s3fs.core"].S3_RETRYABLE_ERRORS:
            if attempt == fs.retries:
                raise
        finally:
            response["Body"].close()
    raise AssertionError("s3fs tries at least once")


async def _ask_s3(fs: Any, request: Mapping[str, str], asked: Asked) -> Any:
    try:
        # The coroutine beneath fs.call_s3, which also sends it again where that may help.
        return await fs._call_s3("get_object", **request)  # noqa: SLF001
    except OSError as error:
        asked.check_status(_status(error.__cause__))
        raise


def _status(error: object) -> int:
    """The HTTP status that botocore keeps in its errors."""
    response = getattr(error, "response", {})
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
