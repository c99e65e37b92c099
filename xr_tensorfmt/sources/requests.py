"""Byte-range requests and the checks of their responses, without I/O."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from xr_tensorfmt.errors import SourceChangedError, TensorFormatError

# Names in infos of file systems and in headers of responses, in order of preference. Checksums such
# as Content-MD5 are not entity tags: a server does not compare them with If-Match.
_ETAGS = "ETag", "etag", "generation"
_TIMES = "Last-Modified", "LastModified", "last_modified", "mtime", "updated", "created"


@dataclass(frozen=True)
class Version:
    """Entity tag and modification time of an object, or empty strings if they are unknown."""

    etag: str = ""
    modified: str = ""

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> Version:
        """Return the version in the info of a file system, or in the headers of a response."""
        return cls(_get_first(info, _ETAGS), _get_first(info, _TIMES))

    @property
    def strong_etag(self) -> str:
        """The entity tag, or an empty str if it is weak (RFC 9110, section 8.8.1)."""
        return "" if self.etag.startswith("W/") else self.etag

    def differs(self, other: Version) -> bool:
        """Return whether two versions differ; False if they cannot be compared."""
        if self.etag and other.etag:
            return self.etag.removeprefix("W/") != other.etag.removeprefix("W/")
        return bool(self.modified and other.modified) and self.modified != other.modified

    def __str__(self) -> str:
        """Describe the version for messages."""
        parts = ("entity tag", self.etag), ("modified", self.modified)
        return ", ".join(f"{name} {value}" for name, value in parts if value) or "no version"


def _get_first(info: Mapping[str, Any], names: Iterable[str]) -> str:
    return next((str(info[name]) for name in names if info.get(name)), "")


NO_VERSION = Version()
_OK, _PRECONDITION_FAILED, _NOT_SATISFIABLE = 200, 412, 416
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


@dataclass(frozen=True)
class RangeResponse:
    """Number of received bytes, and version and size of the object if the response has them."""

    count: int
    version: Version = NO_VERSION
    size: int | None = None


@dataclass(frozen=True)
class RangeRequest:
    """A request for the bytes ``[start, stop)`` of an object.

    `version` and `size` are those of the opened object, unless it is being opened.
    """

    url: str
    path: str
    start: int
    stop: int
    version: Version = NO_VERSION
    size: int | None = None

    @property
    def length(self) -> int:
        """Number of requested bytes."""
        return self.stop - self.start

    @property
    def context(self) -> str:
        """The requested bytes, for messages."""
        return f", while bytes {self.start} to {self.stop - 1} were fetched"

    def check_content_range(
        self, status: int, content_range: str, length: int | None
    ) -> int | None:
        """Raise if a response has other bytes than requested; return the size of the object."""
        is_short = length is None or length <= self.length
        if status == _OK:
            size, actual = length, "the whole file"
            is_valid = self.start == 0 and length is not None
        else:
            match = _CONTENT_RANGE.fullmatch(content_range)
            size = int(match[3]) if match and match[3] != "*" else None
            is_valid = bool(match and int(match[1]) == self.start and int(match[2]) < self.stop)
            actual = f"{length} bytes" if is_valid else f"the range {content_range!r}"
        self.check_size(size)
        if not (is_valid and is_short):
            raise self.build_range_error(actual)
        return size

    def build_range_error(self, actual: str) -> OSError:
        """Return the error for a response with other bytes than requested."""
        return OSError(
            errno.EIO,
            f"the server sent {actual} instead of bytes {self.start} to {self.stop - 1}; it "
            "does not serve byte ranges; put 'simplecache::' before the URL to open a local copy",
            self.url,
        )

    def check_size(self, size: int | None) -> None:
        """Raise SourceChangedError if the object has another size."""
        if size is not None and self.size not in (None, size):
            raise build_changed_error(self.url, f"{size} bytes", f"{self.size} bytes")

    def check_status(self, status: int) -> None:
        """Raise SourceChangedError if a status means that the object was replaced."""
        if status == _PRECONDITION_FAILED:
            raise build_changed_error(self.url, "another version", self.version)
        if status == _NOT_SATISFIABLE and self.size is not None:
            raise build_changed_error(self.url, f"no byte {self.start}", f"{self.size} bytes")

    def check_response(self, response: RangeResponse) -> None:
        """Raise if a response has another version, size or number of bytes."""
        if self.version.differs(response.version):
            raise build_changed_error(self.url, response.version, self.version)
        self.check_size(response.size)
        if self.size is not None and response.count != self.length:
            raise TensorFormatError(
                self.url,
                f"bytes {self.start} to {self.stop - 1}",
                f"{response.count} bytes",
                f"{self.length} bytes",
                "the store sent another number of bytes than were requested; "
                "the object has changed, or its server does not serve byte ranges",
                offset=self.start,
            )


def build_changed_error(path: str, actual: object, expected: object) -> SourceChangedError:
    """Return the error for an object that was replaced after it was opened."""
    return SourceChangedError(
        path,
        "the object",
        actual,
        str(expected),
        "it has been replaced since it was opened; open it again",
    )
