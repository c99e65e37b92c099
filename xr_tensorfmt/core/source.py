"""Sources of bytes, and plans of reads from them."""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import inf
from numbers import Real
from typing import Any, Literal, TypeVar
from urllib.parse import unquote

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import PAGE, Bytes, Extents
from xr_tensorfmt.errors import TensorFormatError

Item = TypeVar("Item")
Result = TypeVar("Result")

InputOutput = Literal["auto", "mmap", "read"]
"""How to read a local file."""

DEFAULT_TIMEOUT = 60.0
"""Seconds that one attempt of a request to a store may take, plus 1 s per 5000 requested bytes."""

# A system call costs about as much as reading this many bytes, so smaller gaps are read.
GAP = 16 << 10
# Limit on the memory of a fetch.
SCRATCH = 8 << 20


class Source(ABC):
    """A file or its equivalent: name, size and bytes.

    Sources of paths, URLs and bytes pickle. A source of a file object shares its position.
    """

    size: int
    io: InputOutput = "read"
    """Whether values may be views of memory maps (mmap), copies from them (auto), or neither."""
    high_latency: bool = False
    """Whether requests have a high latency. Few large requests are best then."""
    batch_bytes: int = 4 << 20
    """Bytes of values to read and decode at a time."""
    short_gap: int = 512
    """Mean bytes of the gaps between ranges up to which it is faster to read the gaps, too."""
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

    def open(self) -> AbstractContextManager[Any]:
        """Open a binary file object for a batch of requests, unless it overrides `read`."""
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
        return extents.merge(gap=GAP, limit=SCRATCH)

    def allow_windows(self) -> Source:
        """Return the file for readers that copy bytes or drop them soon, so it may be mapped."""
        return self

    def plan_windows(self, extents: Extents) -> Extents | None:
        """Return the ranges that `read` maps into memory, or None if it makes requests."""
        return None

    def explain_read(self, extents: Extents) -> tuple[Extents, int]:
        """Return the requests or memory maps of `read`, and the bytes that they transfer."""
        windows = self.plan_windows(extents)
        if windows is None:
            requests = self.plan_requests(extents)
            return requests, requests.nbytes
        if len(extents) < 2:
            return windows, extents.nbytes
        first, last = extents.starts // PAGE, (extents.starts + extents.lengths - 1) // PAGE
        pages = int((last - first + 1).sum()) - int(np.count_nonzero(first[1:] == last[:-1]))
        return windows, pages * PAGE

    def read(self, extents: Extents) -> Bytes:
        """Fetch at least one byte range, and return the concatenated bytes, owned by the caller."""
        packed = np.empty(extents.nbytes, dtype=np.uint8)
        with self.open() as file:
            requests = self.plan_requests(extents)
            for start, stop, ranges, out in extents.iterate_transfers(requests, packed):
                buffer = out if out.size == stop - start else np.empty(stop - start, dtype=np.uint8)
                self._fill(file, start, buffer)
                if buffer is not out:
                    ranges.gather(buffer, start, out)
        return packed

    def read_bytes(self, start: int, stop: int) -> bytes:
        """Fetch one short range. Raises like `read`."""
        return self.read(Extents.single(start, stop)).tobytes()

    def _fill(self, file: Any, start: int, target: Bytes) -> None:
        done = 0
        while done < target.size:
            count = read_into(file, start + done, target.data[done:])
            if not count:
                end, expected = start + done, f"{target.size} bytes from byte {start} on"
                hint = "the file was truncated while it was open; fetch it again"
                raise TensorFormatError(
                    self.name, "the file's end", end, expected, hint, offset=end
                )
            done += count


def read_into(file: Any, start: int, buffer: memoryview) -> int:
    """Read bytes from an offset into a buffer, and return their number."""
    file.seek(start)
    if hasattr(file, "readinto"):
        return int(file.readinto(buffer))
    piece = memoryview(file.read(len(buffer)))  # obstore returns a buffer that is not bytes
    buffer[: len(piece)] = piece
    return len(piece)


@dataclass(frozen=True, eq=False)
class Plan:
    """A read: byte ranges to fetch at once, and the function that makes values of their bytes.

    There are no ranges for values in memory, or of parts. The values hold no more memory than their
    own.
    """

    source: Source
    extents: Extents
    decode: Callable[[Bytes], Array]
    # Bytes of the values among the bytes of the ranges, or -1 for all.
    needed_bytes: int = -1
    # Yields the plans of the parts that `decode` reads, one by one, since a list might be large.
    parts: Callable[[], Iterable[Plan]] = tuple

    def read(self) -> Array:
        """Fetch and decode."""
        has_bytes = len(self.extents) > 0
        return self.decode(self.source.read(self.extents) if has_bytes else np.empty(0, np.uint8))

    def convert(self, convert: Callable[[Array], Array]) -> Plan:
        """Return the plan of values that are computed from those of this plan."""
        return replace(self, decode=lambda packed: convert(self.decode(packed)))

    def iterate_fetches(self) -> Iterator[Plan]:
        """Yield this plan and its parts if they have byte ranges, without reading."""
        if len(self.extents):
            yield self
        for part in self.parts():
            yield from part.iterate_fetches()


Step = tuple[Plan, Callable[[Array, Array], object]]
"""The plan of a part, and the function that puts its values into the array of all values."""


def put_at(index: Any) -> Callable[[Array, Array], None]:
    """Return a function that sets the elements at an index."""

    def put(values: Array, stored: Array) -> None:
        values[index] = stored

    return put


def plan_steps(
    source: Source,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    steps: Callable[[], Iterable[Step]],
    fill_value: float | None = None,
    *,
    is_concurrent: bool = False,
) -> Plan:
    """Plan to read parts into an array, with a fill value elsewhere. Steps are made one by one."""

    def decode(_: Bytes) -> Array:
        # Pages of zeros that are not written to take no time. Others are larger without zeros.
        values = (np.empty if fill_value is None else np.zeros)(shape, dtype)
        if fill_value:
            values[...] = fill_value

        def read_step(step: Step) -> None:
            plan, put = step
            put(values, plan.read())

        list((source.run if is_concurrent else map)(read_step, steps()))
        return values

    return Plan(source, Extents.empty(), decode, parts=lambda: (plan for plan, _ in steps()))


def check_timeout(timeout: object) -> float | None:
    """Return a timeout in seconds, or None for no limit; raise ValueError if it is neither."""
    if timeout is None:
        return None
    if not isinstance(timeout, bool) and isinstance(timeout, Real) and 0 < float(timeout) < inf:
        return float(timeout)
    raise ValueError(f"timeout={timeout!r} must be a positive number of seconds, or None")


_MAX_NAME_BYTES = 255
# Limit of Git LFS on the size of a pointer.
_MAX_POINTER_BYTES = 1024


def is_file_name(part: object) -> bool:
    """Return whether a value can be a file name without a directory."""
    if not isinstance(part, str) or part in ("", ".", "..") or set("/\\:") & set(part):
        return False
    # JSON can contain lone surrogates, which UTF-8 cannot encode, and which are not printable.
    return part.isprintable() and len(part.encode()) <= _MAX_NAME_BYTES


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
        source.check_unchanged()  # a writer may have replaced both files
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
