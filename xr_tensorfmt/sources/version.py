"""Which of the contents that an object has had over time: its version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# What file systems of fsspec call the two, best first.
_ETAGS = ("ETag", "etag", "generation", "VersionId", "version_id", "md5Hash", "Content-MD5")
_TIMES = ("Last-Modified", "LastModified", "last_modified", "mtime", "updated", "created")


@dataclass(frozen=True)
class Version:
    """What a store says of the content of an object; empty texts where it says nothing.

    Parameters
    ----------
    etag : str
        A word that changes with the content.
    modified : str
        The time of modification, in the store's own form.
    """

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
