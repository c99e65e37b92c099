"""What a store is asked for, and checks of its answer; nothing here sends a request."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from xr_tensorfmt.errors import SourceChangedError, TensorFormatError

# Names in the infos of file systems and in the headers of responses, in order of preference.
# Checksums such as Content-MD5 are no entity tags: a server compares If-Match with its ETag alone,
# and the checksum of a partial response may be that of the part.
_ETAGS = "generation", "ETag", "etag"
_TIMES = "Last-Modified", "LastModified", "last_modified", "mtime", "updated", "created"


@dataclass(frozen=True)
class Version:
    """Entity tag and time of modification of an object; empty if the store gives none.

    The entity tag of Google Cloud Storage is the generation.
    """

    etag: str = ""
    modified: str = ""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Version:
        """Return the version in the info of a file system, or in the headers of a response."""
        return cls(_get_first(info, _ETAGS), _get_first(info, _TIMES))

    @property
    def strong_etag(self) -> str:
        """The entity tag, for a condition; empty if it is a weak one (RFC 9110, section 8.8.1)."""
        return "" if self.etag.startswith("W/") else self.etag

    def differs(self, other: Version) -> bool:
        """Return whether two versions are known to differ; False if they cannot be compared."""
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
_PARTIAL, _PRECONDITION_FAILED, _NOT_SATISFIABLE = 206, 412, 416
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


@dataclass(frozen=True)
class Answer:
    """The number of bytes that a store sent, and the version and size of their object."""

    count: int
    version: Version = NO_VERSION
    size: int | None = None


@dataclass(frozen=True)
class RangeRequest:
    """A request for the bytes ``[start, stop)`` of an object.

    `version` and `size` are those of the object that was opened.
    """

    url: str
    path: str
    start: int
    stop: int
    version: Version = NO_VERSION
    size: int | None = None

    @property
    def length(self) -> int:
        """Requested bytes."""
        return self.stop - self.start

    @property
    def context(self) -> str:
        """The requested bytes, for messages."""
        return f", while bytes {self.start} to {self.stop - 1} were fetched"

    def check_range(self, status: int, content_range: str, length: int | None) -> int | None:
        """Refuse a response with other bytes before its body is received; return the size."""
        if status == _PARTIAL:
            parts = _CONTENT_RANGE.fullmatch(content_range)
            size = None if parts is None or parts[3] == "*" else int(parts[3])
            sent = f"the range {content_range!r}"
            is_valid = bool(parts and int(parts[1]) == self.start and int(parts[2]) < self.stop)
            if is_valid and length is not None and length > self.length:
                is_valid, sent = False, f"{length} bytes"
        else:
            size, sent = length, "the whole file"
            is_valid = self.start == 0 and length is not None and length <= self.stop
        if size is not None:
            self.check_size(size)
        if not is_valid:
            raise self.refuse(sent)
        return size

    def refuse(self, sent: str) -> OSError:
        """Return the error for a response that is not the requested range."""
        return OSError(
            errno.EIO,
            f"the server sent {sent} instead of bytes {self.start} to {self.stop - 1}; it "
            "does not serve byte ranges; put 'simplecache::' before the URL to open a local copy",
            self.url,
        )

    def check_size(self, size: int) -> None:
        """Refuse an object of another size."""
        if self.size not in (None, size):
            raise changed(self.url, f"{size} bytes", f"{self.size} bytes")

    def check_status(self, status: int) -> None:
        """Refuse a status that means that the object was replaced."""
        if status == _PRECONDITION_FAILED:
            raise changed(self.url, "another version", self.version)
        if status == _NOT_SATISFIABLE and self.size is not None:
            raise changed(self.url, f"no byte {self.start}", f"{self.size} bytes")

    def check_answer(self, answer: Answer) -> None:
        """Refuse another version, and another number of bytes than was requested."""
        if self.version.differs(answer.version):
            raise changed(self.url, answer.version, self.version)
        if self.size is not None and answer.count != self.length:
            raise TensorFormatError(
                self.url,
                f"bytes {self.start} to {self.stop - 1}",
                f"{answer.count} bytes",
                f"{self.length} bytes",
                "the store sent another number of bytes than were requested; "
                "the object has changed, or its server does not serve byte ranges",
                offset=self.start,
            )


def changed(path: str, actual: object, expected: object) -> SourceChangedError:
    """Return the error for an object that was replaced after it had been opened."""
    return SourceChangedError(
        path,
        "the object",
        actual,
        str(expected),
        "it has been replaced since it was opened; open it again",
    )
