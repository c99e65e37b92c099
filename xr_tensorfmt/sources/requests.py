"""What is asked of a store, what it must answer, and how slowly; nothing here sends a request."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.errors import SourceChangedError, TensorFormatError

if TYPE_CHECKING:
    from xr_tensorfmt.sources.places import Place

# Names that fsspec's file systems use for the two, in order of preference. Google's store has
# conditions on the generation alone.
_ETAGS = ("generation", "ETag", "etag", "VersionId", "version_id", "md5Hash", "Content-MD5")
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
    def strong_etag(self) -> str:
        """The entity tag, for a condition; empty if it is a weak one (RFC 9110, section 8.8.1)."""
        return "" if self.etag.startswith("W/") else self.etag

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


@dataclass(frozen=True)
class Answer:
    """The response of a store: how many bytes it sent, of which object."""

    count: int
    version: Version = _NO_VERSION
    size: int | None = None


@dataclass(frozen=True)
class Asked:
    """A request for a range of an object, with the version and size that are expected."""

    place: Place
    start: int
    stop: int
    version: Version = _NO_VERSION
    size: int | None = None

    @property
    def context(self) -> str:
        """For messages."""
        return f", while bytes {self.start} to {self.stop - 1} were fetched"

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
            raise changed(self.place.url, f"{total} bytes", f"{self.size} bytes")
        if not is_it:
            raise self.refused(sent)
        return total

    def refused(self, sent: str) -> OSError:
        """The error for a response that is not the requested range."""
        return OSError(
            errno.EIO,
            f"the server sent {sent} instead of bytes {self.start} to {self.stop - 1}; it "
            "does not serve byte ranges; put 'simplecache::' before the URL to open a local copy",
            self.place.url,
        )

    def check_status(self, status: int) -> None:
        """Refuse a status that means that the object was replaced."""
        if status == _PRECONDITION_FAILED:
            raise changed(self.place.url, "another version", self.version)
        if status == _NOT_SATISFIABLE and self.size is not None:
            raise changed(self.place.url, f"no byte {self.start}", f"{self.size} bytes")

    def check_count(self, count: int) -> None:
        """Refuse another number of bytes than was asked for."""
        if count != self.stop - self.start:
            raise TensorFormatError(
                self.place.url,
                f"bytes {self.start} to {self.stop - 1}",
                f"{count} bytes",
                f"{self.stop - self.start} bytes",
                "the store sent another number of bytes than were requested; "
                "the object has changed, or its server does not serve byte ranges",
                offset=self.start,
            )


def changed(path: str, found: object, expected: object) -> SourceChangedError:
    """The error for an object that was replaced after it had been opened."""
    return SourceChangedError(
        path,
        "the object",
        found,
        str(expected),
        "it has been replaced since it was opened; open it again",
    )


LEAST_RATE = 1000
"""Bytes a second that count as progress.

A line of 200 kB/s gives each of 24 concurrent requests eight times as much.
"""

LEAST_HIDDEN_RATE = 10_000
"""Bytes a second of a request whose progress cannot be seen."""


class Progress:
    """The window of time in which a request must make progress."""

    def __init__(self, window: asyncio.Timeout, timeout: float | None) -> None:
        self._window, self._timeout, self._said = window, timeout, ""
        self.begin()

    def begin(self) -> None:
        """Note that a response has begun."""
        self._received = 0
        if self._timeout is not None:
            self._allow(self._timeout, f"nothing was received for {self._timeout:.3g} s")

    def advance(self, count: int) -> None:
        """Note that bytes of a response were received."""
        self._received += count
        if self._timeout is not None and self._received >= LEAST_RATE * self._timeout:
            self.begin()
        else:
            self._said = f"only {self._received} bytes were received within {self._timeout} s"

    def hide(self, count: int) -> None:
        """Allow time for bytes whose arrival cannot be seen."""
        if self._timeout is not None:
            seconds = self._timeout + count / LEAST_HIDDEN_RATE
            self._allow(seconds, f"there was no answer within {seconds:.3g} s")

    def _allow(self, seconds: float, otherwise: str) -> None:
        self._said = otherwise
        self._window.reschedule(asyncio.get_running_loop().time() + seconds)

    def __str__(self) -> str:
        """What was received too little of."""
        return self._said
