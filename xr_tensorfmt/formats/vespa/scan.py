"""Find the blocks of a file. A block has no length, so its labels must be read to find the next."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.selection import Indices
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.vespa.integers import LONG_BIT, MAX_INTEGER
from xr_tensorfmt.formats.vespa.spec import VespaHeader

WINDOW_BYTES = 32 << 20
"""Bytes of the file to scan at a time."""

# Bytes to read at a time if the window should only contain the labels of one block.
_LABEL_WINDOW_BYTES = 4 << 10
# Cells of a local file that are larger than this are skipped rather than read.
_LARGE_BLOCK_BYTES = 64 << 10

_LONG = struct.Struct(">I")

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


def find_blocks(source: Source, header: VespaHeader) -> Iterator[tuple[Window, int]]:
    """Scan a file. Yield windows of consecutive blocks, and the end of their last block.

    Raises
    ------
    TensorFormatError
        The file is truncated.
    """
    # Downloading many cells is faster than another request.
    large = WINDOW_BYTES // 4 if source.high_latency else _LARGE_BLOCK_BYTES
    size = _LABEL_WINDOW_BYTES if header.block_bytes > large else WINDOW_BYTES
    first, offset = 0, header.stop
    while first < header.blocks:
        content = source.read(Extents.single(offset, min(offset + size, source.size)))
        starts, stop = scan_window(content, header, header.blocks - first)
        if starts.size:
            blocks = range(first, first + starts.size)
            if offset + stop > source.size:
                start = offset + int(starts[-1])
                raise _build_truncation_error(source, start, blocks.stop - 1, "its cells")
            yield Window(content, blocks, offset + starts, starts), offset + stop
            first, offset = blocks.stop, offset + stop
        elif offset + size >= source.size:
            raise _build_truncation_error(source, offset, first, "its labels")
        else:
            size *= 2


def scan_window(content: Bytes, header: VespaHeader, limit: int) -> tuple[Integers, int]:
    """Return the offsets of the blocks whose labels are in a window, and the end of the last one.

    The window starts with a block. The cells of the last block may end after the window.
    """
    starts, start, stop = array("q"), 0, 0
    while len(starts) < limit:
        count = min(limit - len(starts), _MIN_RUN)
        found, start, stop = _scan_blocks(content, header, stop, count)
        starts.extend(found)
        if len(found) < count:
            break
        if len(header.mapped) == 1:
            run = _find_run(content, start, stop, limit - len(starts))
            starts.extend(run)
            stop += len(run) * (stop - start)
    return np.frombuffer(starts, dtype=np.int64), stop


def _scan_blocks(
    content: Bytes, header: VespaHeader, stop: int, limit: int
) -> tuple[list[int], int, int]:
    """Return the offsets of blocks after `stop`, and the start and end of the last one."""
    view = content.data
    dimensions, block_bytes = range(len(header.mapped)), header.block_bytes
    starts: list[int] = []
    start = stop
    with suppress(IndexError, struct.error):  # a length after the end of the window
        for _ in range(limit):
            end = stop
            for _ in dimensions:
                length = view[end]
                if length < LONG_BIT:
                    end += 1 + length
                else:
                    end += 4 + (_LONG.unpack_from(view, end)[0] & MAX_INTEGER)
            if end > content.size:
                break
            start, stop = stop, end + block_bytes
            starts.append(start)
    return starts, start, stop


def _find_run(content: Bytes, start: int, stop: int, limit: int) -> range:
    """Return the offsets of the blocks after a block whose labels have the same length.

    `start` and `stop` are the bounds of the block. The last block is left out, because its label
    may not be in the window.
    """
    step = stop - start
    lengths = content[stop : stop + limit * step : step]
    count, size = 0, _MIN_RUN
    while content[start] < LONG_BIT and count < lengths.size:
        differ = np.flatnonzero(lengths[count : count + size] != content[start])
        if differ.size:
            count += int(differ[0])
            break
        count = min(count + size, lengths.size)
        size *= 2  # the cost is in proportion to the run
    return range(stop, stop + max(0, count - 1) * step, step)


def _build_truncation_error(source: Source, start: int, block: int, part: str) -> TensorFormatError:
    return TensorFormatError(
        source.name,
        field=f"block {block}",
        actual=f"truncated by the end of the file at byte {source.size}",
        expected=f"{part} within the file",
        hint="the file is incomplete, or the length of a label is corrupt; fetch the file again",
        offset=start,
    )
