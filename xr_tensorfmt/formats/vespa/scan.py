"""Find the blocks of a file. A block has no length, so its labels must be read to find the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from xr_tensorfmt.core.elements import ElementError
from xr_tensorfmt.core.extents import Bytes, Extents, Integers, gather_uniform
from xr_tensorfmt.core.open_options import TextErrors
from xr_tensorfmt.core.selection import Indices
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.vespa.spec import LONG_BIT, VespaHeader, unpack, unpack_many

WINDOW_BYTES = 32 << 20
"""Bytes of a remote or mapped file to scan at a time."""

LOCAL_WINDOW_BYTES = 4 << 20
"""Bytes of other files to scan at a time. Reusing this memory is far faster than allocating it."""

# Bytes to read at a time if the window should only contain the labels of one block.
_LABEL_WINDOW_BYTES = 4 << 10
# Cells of a local file that are larger than this are skipped rather than read.
_LARGE_BLOCK_BYTES = 64 << 10

# Number of blocks after which a run of labels of the same length is searched.
_MIN_RUN = 64


@dataclass(frozen=True, eq=False)
class Window:
    """Bytes of a file that contain all labels of some blocks."""

    content: Bytes
    # Indices of the blocks, and their offsets in the file and in `content`.
    blocks: Indices
    offsets: Integers
    starts: Integers

    def decode_labels(self, dimension: int, text_errors: TextErrors) -> list[str]:
        """Return the label of every block for a mapped dimension."""
        lengths, begins = unpack_many(self.content, self.starts)
        for _ in range(dimension):
            lengths, begins = unpack_many(self.content, begins + lengths)
        # One call decodes all labels, if NUL can separate them. A byte of a length precedes each.
        sizes = lengths + 1
        positions = np.cumsum(sizes) - sizes
        if (sizes == sizes[0]).all():
            joined = gather_uniform(self.content, begins - 1, int(sizes[0]))
        else:
            joined = self.content[np.arange(sizes.sum()) + np.repeat(begins - 1 - positions, sizes)]
        joined[positions] = 0
        if np.count_nonzero(joined) == lengths.sum():
            with suppress(UnicodeDecodeError):
                return str(joined[1:].tobytes(), "utf-8", text_errors).split("\0")
        content = self.content.tobytes()
        labels: list[str] = []
        try:
            for begin, stop in zip(begins.tolist(), (begins + lengths).tolist(), strict=True):
                labels.append(content[begin:stop].decode("utf-8", text_errors))
        except UnicodeDecodeError as error:
            block = len(labels)
            raise ElementError(
                block,
                actual=repr(error.object[:40]),
                expected="UTF-8",
                hint="open with text_errors='surrogateescape' to keep such bytes",
                field=f"label {dimension} of block {self.blocks[block]}",
                offset=int(self.offsets[block] + begins[block] - self.starts[block]),
            ) from None
        return labels


def find_blocks(source: Source, header: VespaHeader) -> Iterator[tuple[Window, int]]:
    """Scan a file. Yield windows of consecutive blocks, and the end of their last block."""
    # Downloading many cells is faster than another request.
    large = WINDOW_BYTES // 4 if source.high_latency else _LARGE_BLOCK_BYTES
    size = WINDOW_BYTES if source.high_latency or source.io == "mmap" else LOCAL_WINDOW_BYTES
    if header.block_bytes > large:
        size = _LABEL_WINDOW_BYTES
    first, offset = 0, header.stop
    while first < header.blocks:
        content = source.read(Extents.single(offset, min(offset + size, source.size)))
        starts, stop = scan_window(content, header, header.blocks - first)
        blocks = range(first, first + starts.size)
        if starts.size and offset + stop <= source.size:
            yield Window(content, blocks, offset + starts, starts), offset + stop
            first, offset = blocks.stop, offset + stop
        elif starts.size or offset + size >= source.size:
            raise TensorFormatError(
                source.name,
                field=f"block {blocks.stop - 1 if starts.size else first}",
                actual=f"truncated by the end of the file at byte {source.size}",
                expected=f"its {'cells' if starts.size else 'labels'} within the file",
                hint="the file is incomplete, or the length of a label is corrupt; fetch the file "
                "again",
                offset=offset + (int(starts[-1]) if starts.size else 0),
            )
        else:
            size *= 2


def scan_window(content: Bytes, header: VespaHeader, limit: int) -> tuple[Integers, int]:
    """Return the offsets of blocks whose labels are in a window, and the end of the last one."""
    parts, found, start, stop = [np.empty(0, dtype=np.int64)], 0, 0, 0
    rank, block_bytes, is_run = len(header.mapped), header.block_bytes, True
    while found < limit:
        count = 1 if is_run else min(limit - found, _MIN_RUN)
        starts, start, stop = _scan_blocks(content, rank, block_bytes, stop, count)
        parts.append(np.array(starts, dtype=np.int64))
        found += len(starts)
        if len(starts) < count:
            break
        is_run = False
        run = _find_run(content, rank, start, stop, limit - found)
        parts.append(run)
        found += run.size
        stop += run.size * (stop - start)
        is_run = run.size > 0
    return np.concatenate(parts), stop


def _scan_blocks(
    content: Bytes, rank: int, block_bytes: int, stop: int, limit: int
) -> tuple[list[int], int, int]:
    """Return the offsets of blocks after `stop`, and the start and end of the last one."""
    view = content.data
    dimensions = range(rank)
    starts: list[int] = []
    start = stop
    with suppress(IndexError):  # a length after the end of the window
        for _ in range(limit):
            end = stop
            for _ in dimensions:
                length = view[end]
                if length < LONG_BIT:
                    end += 1 + length
                else:
                    end += 4 + unpack(view[end : end + 4])
            if end > content.size:
                break
            start, stop = stop, end + block_bytes
            starts.append(start)
    return starts, start, stop


def _find_run(content: Bytes, rank: int, start: int, stop: int, limit: int) -> Integers:
    """Return the offsets of the next blocks whose labels have the lengths of those at `start`."""
    step, found, size, marks = stop - start, 0, _MIN_RUN, [start]
    while len(marks) < rank and content[marks[-1]] < LONG_BIT:
        marks.append(marks[-1] + 1 + int(content[marks[-1]]))
    same = 0 if content[marks].max() >= LONG_BIT else size
    while same == size:
        size *= 8  # little is compared in vain
        first, same = (found + 1) * step, min(size, limit - found)
        for mark in marks:
            lengths = content[mark + first : mark + first + same * step : step]
            is_same = lengths == content[mark]
            same = is_same.size if is_same.all() else int(is_same.argmin())
        found += same
    # The labels of the last one may end after the window.
    return stop + step * np.arange(max(0, found - 1))
