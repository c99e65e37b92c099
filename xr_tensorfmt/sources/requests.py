"""Byte-range requests and the checks of their responses, without I/O."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from xr_tensorfmt.errors import SAME_BYTES, SourceChangedError

_logger = logging.getLogger(__name__)

# Names in infos of file systems and in headers of responses, in order of preference. Checksums such
# as Content-MD5 are not entity tags: a server does not compare them with If-Match.
_ETAGS = "generation", "ETag", "etag", "e_tag"
_TIMES = "Last-Modified", "LastModified", "last_modified", "mtime", "updated", "created"


@dataclass(frozen=True)
class Version:
    """Size, entity tag and modification time of an object, as far as they are known."""

    size: int | None = None
    etag: str = ""
    modified: str = ""

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> Version:
        """Return the version in the info of a file system."""
        return cls(info.get("size"), _get_first(info, _ETAGS), _get_first(info, _TIMES))

    @property
    def strong_etag(self) -> str:
        """The entity tag, or an empty str if it is weak (RFC 9110, section 8.8.1)."""
        return "" if self.etag.startswith("W/") else self.etag

    def differs(self, other: Version) -> bool:
        """Return whether two versions differ; False if they cannot be compared."""
        if None not in (self.size, other.size) and self.size != other.size:
            return True
        if self.etag and other.etag:
            return self.etag.removeprefix("W/") != other.etag.removeprefix("W/")
        return bool(self.modified and other.modified) and self.modified != other.modified

    def __str__(self) -> str:
        """Describe the version for messages."""
        names = f"{self.size} bytes", f"entity tag {self.etag}", f"modified {self.modified}"
        is_known = self.size is not None, self.etag, self.modified
        return ", ".join(compress(names, is_known)) or "another version"


def _get_first(info: Mapping[str, Any], names: Iterable[str]) -> str:
    return next((str(info[name]) for name in names if info.get(name)), "")


NO_VERSION = Version()
# Statuses of stores that do not know If-Match.
_REFUSALS = {400, 403, 501}
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@dataclass(frozen=True)
class RangeResponse:
    """The answer to a `RangeRequest`."""

    count: int  # received bytes
    version: Version = NO_VERSION
    start: int | None = None  # offset in the object, if the response contains it

    @classmethod
    def from_headers(cls, count: int, headers: Mapping[str, Any]) -> RangeResponse:
        """Return a response of HTTP or S3. Without Content-Range, it is the whole file."""
        content_range = headers.get("Content-Range") or headers.get("ContentRange") or ""
        match = _CONTENT_RANGE.fullmatch(content_range)
        size = int(match[2]) if match and match[2] != "*" else None
        version = replace(Version.from_info(headers), size=size)
        return cls(count, version, int(match[1]) if match else 0)


@dataclass(frozen=True)
class RangeRequest:
    """A request for bytes of an object, with the version it was opened with, if it is known."""

    url: str
    path: str
    start: int
    stop: int
    version: Version = NO_VERSION

    @property
    def length(self) -> int:
        """Number of requested bytes."""
        return self.stop - self.start

    def describe(self, status: int) -> str:
        """Return the requested bytes, and the condition that the store may have refused."""
        text = f", while bytes {self.start} to {self.stop - 1} were fetched"
        if self.version.strong_etag and status in _REFUSALS:
            text += "; if the store refuses conditions (If-Match), pass verify_unchanged=False"
        return text

    def check_response(self, response: RangeResponse) -> None:
        """Raise if a response has another version, or other bytes than requested."""
        if self.version.differs(response.version):
            raise build_changed_error(self.url, response.version, self.version)
        # The size is unknown before the first response, so its range may pass the end.
        is_short = self.version.size is not None and response.count < self.length
        is_long = response.count > self.length
        offset = self.start if response.start is None else response.start
        if offset != self.start or is_short or is_long:
            count = f"more than {self.length}" if is_long else response.count
            reason = (
                f"the server sent {count} bytes from byte {offset}, expected {self.length} from "
                f"byte {self.start}; the object has changed, or its server does not serve byte "
                "ranges; put 'simplecache::' before the URL to open a local copy"
            )
            raise OSError(errno.EIO, reason, self.url)


def build_changed_error(path: str, actual: Version, expected: Version) -> SourceChangedError:
    """Return the error for an object that was replaced after it was opened."""
    _logger.info("%s: replaced since it was opened, it is %s, not %s", path, actual, expected)
    return SourceChangedError(
        path,
        field="the object",
        actual=actual,
        expected=str(expected),
        hint=f"it has been replaced since it was opened; open it again, {SAME_BYTES}",
    )
