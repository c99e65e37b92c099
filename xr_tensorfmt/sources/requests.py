"""Single requests for a byte range of an object, and the version of what they return."""

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

# Names that fsspec's file systems use for the two, in order of preference.
_ETAGS = ("ETag", "etag", "generation", "VersionId", "version_id", "md5Hash", "Content-MD5")
_TIMES = ("Last-Modified", "LastModified", "last_modified", "mtime", "updated", "created")


@dataclass(frozen=True)
class Version:
    """Entity tag and time of modification of an object; empty where the store gives none."""

    etag: str = ""
    modified: str = ""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Version:
        """The version in the info of a file system, or in the headers of a response."""
        return cls(_first(info, _ETAGS), _first(info, _TIMES))

    @property
    def strong(self) -> bool:
        """Whether the entity tag is a strong one (RFC 9110, section 8.8.1)."""
        return bool(self.etag) and not self.etag.startswith("W/")

    def differs(self, other: Version) -> bool:
        """Whether two versions are known to differ; False where they cannot be compared."""
        if self.etag and other.etag:
            return self.etag.removeprefix("W/") != other.etag.removeprefix("W/")
        return bool(self.modified and other.modified) and self.modified != other.modified

    def __str__(self) -> str:
        """For messages."""
        parts = ("entity tag", self.etag), ("modified", self.modified)
        return ", ".join(f"{name} {value}" for name, value in parts if value) or "no version"


def _first(info: Mapping[str, Any], names: Iterable[str]) -> str:
    return next((str(info[name]) for name in names if info.get(name)), "")


_NO_VERSION = Version()
_PARTIAL, _PRECONDITION_FAILED, _NOT_SATISFIABLE = 206, 412, 416
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")

# Caching file systems download a whole file at its first read, which one thread at a time must do.
_one_download = Lock()


@dataclass(frozen=True)
class Answer:
    """The response of a store."""

    data: bytes
    version: Version = _NO_VERSION
    size: int | None = None


@dataclass(frozen=True)
class Asked:
    """A request for a range of an object, with the version and size that are expected."""

    url: str
    path: str = field(repr=False)
    start: int
    stop: int
    version: Version = _NO_VERSION
    size: int | None = None

    def check_range(self, status: int, content_range: str, length: int | None) -> int | None:
        """Refuse a response that is not the requested range, before its body is received."""
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
                f"the server sent {sent} instead of bytes {self.start} to {self.stop - 1}; it "
                "does not serve byte ranges; put 'simplecache::' before the URL to open a local "
                "copy",
                self.url,
            )
        return total

    def check_status(self, status: int) -> None:
        """Refuse a status that means that the object was replaced."""
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
        answer = _fetch_s3(fs, asked)
    elif _is(fs, "fsspec.implementations.cached", "CachingFileSystem"):
        with _one_download:
            answer = Answer(fs.cat_file(path, start=start, end=stop))
    else:
        answer = Answer(fs.cat_file(path, start=start, end=stop))
    return answer


def changed(path: str, found: object, expected: object) -> SourceChangedError:
    """The error for an object that was replaced after it had been opened."""
    return SourceChangedError(
        path,
        "the object",
        found,
        str(expected),
        "it has been replaced since it was opened; open it again",
    )


def _is(fs: AbstractFileSystem, module: str, name: str) -> bool:
    """Whether a file system is an instance of a class, without importing the class."""
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


def _fetch_s3(fs: Any, asked: Asked) -> Answer:
    bucket, key, version_id = fs.split_path(asked.path)
    span = f"bytes={asked.start}-{asked.stop - 1}"
    request = {"Bucket": bucket, "Key": key, "Range": span}
    if version_id:
        request["VersionId"] = version_id
    if asked.version.etag:
        request["IfMatch"] = asked.version.etag
    for attempt in range(1, fs.retries + 1):
        try:
            response = fs.call_s3("get_object", **request)
        except OSError as error:
            asked.check_status(_status(error.__cause__))
            raise
        try:
            answer: Answer = sync(fs.loop, _receive_s3, response, asked)
        except sys.modules["s3fs.core"].S3_RETRYABLE_ERRORS:
            if attempt == fs.retries:
                raise
        else:
            return answer
    raise AssertionError("s3fs tries at least once")


async def _receive_s3(response: Mapping[str, Any], asked: Asked) -> Answer:
    """Receive the body of a response; s3fs itself repeats only what fails before it."""
    try:
        status = response["ResponseMetadata"]["HTTPStatusCode"]
        length = response.get("ContentLength")
        size = asked.check_range(status, response.get("ContentRange", ""), length)
        return Answer(await response["Body"].read(), Version.of(response), size)
    finally:
        response["Body"].close()


def _status(error: object) -> int:
    """The HTTP status in an error of botocore."""
    response = getattr(error, "response", {})
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
