"""Sources of bytes."""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Literal, TypeVar
from urllib.parse import unquote

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.errors import TensorFormatError

Item = TypeVar("Item")
Result = TypeVar("Result")

Fill = Callable[[int, memoryview], int]
"""Fills a buffer with bytes from an offset, and returns the number of bytes read."""

InputOutput = Literal["auto", "mmap", "read"]
"""How to read a local file."""

# A system call costs about as much as reading this many bytes, so smaller gaps are read.
_GAP = 16 << 10
# Limit on the memory of a fetch.
_SCRATCH = 8 << 20


class Source(ABC):
    """A file or its equivalent: name, size and bytes.

    Sources of paths, URLs and bytes pickle. A source of a file object shares its position.
    """

    size: int
    io: InputOutput = "read"
    """Whether values may be views of memory maps (mmap), copies from them (auto), or neither."""
    high_latency: bool = False
    """Whether requests have a high latency. Few large requests are best then."""
    read_ahead: int = 4096
    """Minimum number of bytes to fetch for a header: one page by default."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Path, URL or description, without secrets. Every error message begins with it."""

    @property
    def file_name(self) -> str:
        """Name in the directory. Its suffix selects a format, and it may name sibling files."""
        return os.path.basename(self.name)

    def open(self) -> AbstractContextManager[Fill]:
        """Open the source for a batch of requests, unless it overrides `read`."""
        raise NotImplementedError

    def sibling(self, path: str) -> tuple[Source, bytes] | None:
        """Open a file by its path relative to the directory, or return None without one."""
        return None

    def check_unchanged(self) -> None:  # noqa: B027  # bytes in memory do not change
        """Raise if the file was changed, replaced or removed after it was opened."""

    def run(self, read: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results of `read`, concurrently if the source has a high latency."""
        return [read(item) for item in items]

    def plan_requests(self, extents: Extents) -> Extents:
        """Return the ranges that `read` fetches at once."""
        return extents.merge(gap=_GAP, limit=_SCRATCH)

    def read(self, extents: Extents) -> Bytes:
        """Fetch at least one byte range, and return the concatenated bytes, owned by the caller."""
        packed = np.empty(extents.nbytes, dtype=np.uint8)
        self._read_into(packed, extents)
        return packed

    def _read_into(self, packed: Bytes, extents: Extents) -> None:
        with self.open() as fill:
            for fetch in extents.iterate_fetches(self.plan_requests(extents), packed):
                buffer = fetch.allocate()
                self._fill(fill, fetch.start, buffer)
                fetch.copy_ranges(buffer)

    def read_bytes(self, start: int, stop: int) -> bytes:
        """Fetch one short range. Raises like `read`."""
        return self.read(Extents.single(start, stop)).tobytes()

    def map(self, start: int, stop: int) -> Bytes | None:
        """Return a private memory map of a range, or None if the range must be read."""
        return None

    def _fill(self, fill: Fill, start: int, target: Bytes) -> None:
        view = target.data
        done = 0
        while done < target.size:
            count = fill(start + done, view[done:])
            if not count:
                end, expected = start + done, f"{target.size} bytes from byte {start} on"
                hint = "the file was truncated while it was open; fetch it again"
                raise TensorFormatError(
                    self.name, "the file's end", end, expected, hint, offset=end
                )
            done += count


_MAX_NAME_BYTES = 255
# Limit of Git LFS on the size of a pointer.
_MAX_POINTER_BYTES = 1024
_SURROGATE = re.compile("[\ud800-\udfff]")


def is_file_name(part: object) -> bool:
    """Return whether a value can be a file name without a directory."""
    if not isinstance(part, str) or part in ("", ".", "..") or set("/\\:\0") & set(part):
        return False
    # JSON can contain lone surrogates, which UTF-8 cannot encode.
    return len(part.encode(errors="replace")) <= _MAX_NAME_BYTES and not _SURROGATE.search(part)


def open_sibling(source: Source, file: str, reason: str) -> tuple[Source, bytes]:
    """Open a file at or below the directory of another one, which needs it for `reason`."""
    # A server may decode a percent-encoded path.
    paths = [form.replace("\\", "/") for form in (file, unquote(file))]
    if any(form.startswith("/") or ".." in form.split("/") for form in paths):
        raise ValueError(
            f"{source.name}: it names {file!r}, expected a file in its directory; correct the file"
        )
    try:
        sibling = source.sibling(file)
    except FileNotFoundError:
        path = re.sub(r"[^/\\]*\Z", lambda _: file, source.name, count=1)
        message = f"no such file; {reason}, so fetch it too"
        raise FileNotFoundError(errno.ENOENT, message, path) from None
    if sibling is None:
        raise ValueError(
            f"{source.name} has no directory with its sibling files; open it by its path or URL"
        )
    opened, head = sibling
    if opened.size <= _MAX_POINTER_BYTES:
        check_pointer(opened.name, head or opened.read_bytes(0, opened.size))
    return sibling


def check_pointer(path: str, head: bytes) -> None:
    """Raise an error about a Git LFS pointer in place of a file."""
    if head.startswith(b"version https://git-lfs"):
        field, actual, hint = "the magic number", "a Git LFS pointer", "fetch it with git lfs pull"
        raise TensorFormatError(path, field, actual, "the file itself", hint, offset=0)
