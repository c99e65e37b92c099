"""Files in the stores of VirtualiZarr's registry, whose headers are parsed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from obspec_utils.registry import ObjectStoreRegistry

from xr_tensorfmt.core.source import Fill, Source
from xr_tensorfmt.sources.store_errors import redacted


@dataclass(frozen=True)
class StoredObject(Source):
    """An object of a store, read by byte ranges."""

    url: str
    registry: ObjectStoreRegistry[Any] = field(repr=False)
    size: int

    high_latency = True
    read_ahead = 1 << 20

    @classmethod
    def at(cls, url: str, registry: ObjectStoreRegistry[Any]) -> StoredObject:
        """The object of a URL; FileNotFoundError where there is none."""
        # VirtualiZarr quotes local paths, and neither it nor its registry removes that again.
        url = unquote(url) if url.startswith("file:") else url
        store, path = registry.resolve(url)
        try:
            size = int(store.head(path)["size"])
        except FileNotFoundError:
            raise FileNotFoundError(
                errno.ENOENT, os.strerror(errno.ENOENT), redacted(url)
            ) from None
        return cls(url, registry, size)

    @property
    def name(self) -> str:
        """The URL."""
        return redacted(self.url)

    @contextmanager
    def opened(self) -> Iterator[Fill]:
        """Give access to the object by one request at a time."""
        store, path = self.registry.resolve(self.url)

        def fill(start: int, buffer: memoryview) -> int:
            piece = memoryview(store.get_range(path, start=start, end=start + len(buffer)))
            buffer[: len(piece)] = piece
            return len(piece)

        yield fill

    def sibling(self, path: str) -> tuple[StoredObject, bytes]:
        """Another object in the same directory."""
        directory = self.url.rpartition("/")[0]
        name = path if self.url.startswith("file:") else quote(path)
        return StoredObject.at(f"{directory}/{name}", self.registry), b""
