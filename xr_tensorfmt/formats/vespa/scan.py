"""Find the blocks of a file. A block has no length, so its labels must be read to find the next."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from xr_tensorfmt.contract import Bytes, Extents, Indices, Integers, Source, TensorFormatError
from xr_tensorfmt.formats.vespa.integers import LONG_BIT, MAX_INTEGER
from xr_tensorfmt.formats.vespa.spec import VespaHeader

WINDOW_BYTES = 32 << 20
"""Bytes of the file to scan at a time."""

# Bytes to read at a time if the window should only contain the labels of one block.
_LABEL_WINDOW_BYTES = 4 << 10
# Cells of a local file that are larger than this are skipped rather than read.
_LARGE_BLOCK_BYTES = 64 << 10

_LONG = struct.Struct(">I")


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
    view = content.data
    dimensions, block_bytes = range(len(header.mapped)), header.block_bytes
    starts, start = array("q"), 0
    with suppress(IndexError, struct.error):  # a length after the end of the window
        for _ in range(limit):
            end = start
            for _ in dimensions:
                length = view[end]
                if length < LONG_BIT:
                    end += 1 + length
                else:
                    end += 4 + (_LONG.unpack_from(view, end)[0] & MAX_INTEGER)
            if end > content.size:
                break
            starts.append(start)
            start = end + block_bytes
    return np.frombuffer(starts, dtype=np.int64), start


def _build_truncation_error(source: Source, start: int, block: int, part: str) -> TensorFormatError:
    return TensorFormatError(
        source.name,
        field=f"block {block}",
        actual=f"truncated by the end of the file at byte {source.size}",
        expected=f"{part} within the file",
        hint="the file is incomplete, or the length of a label is corrupt; fetch the file again",
        offset=start,
    )
