"""Find the blocks of a file. A block has no length, so its labels must be read to find the next."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from xr_tensorfmt.contract import Bytes, Extents, Integers, Source, TensorFormatError
from xr_tensorfmt.formats.vespa.spec import LARGEST, LONG_BIT, Header

WINDOW_BYTES = 32 << 20
"""Bytes of the file to scan at a time."""

LARGE_BLOCK_BYTES = 64 << 10
"""Cells of a local file that are larger than this are skipped rather than read."""

LABEL_WINDOW_BYTES = 4 << 10
"""Bytes to read at a time if the window should only contain the labels of one block."""

MAX_SCANNED_BLOCKS = 1 << 26
"""Limit on the blocks of a scan, which keeps their offsets in memory."""

_LONG = struct.Struct(">I")

WindowCallback = Callable[[int, int, Bytes, Integers], None]
"""A function that gets the number of the first block, its offset in the file, a window that starts
there, and the offsets of consecutive blocks in the window. The window contains all their labels."""


def scan_blocks(
    source: Source, header: Header, on_window: WindowCallback | None = None
) -> Integers:
    """Return the offset of every block, and the end of the last one.

    Parameters
    ----------
    source : Source
        The file.
    header : Header
        Its header.
    on_window : callable, optional
        A function to call with every window.

    Returns
    -------
    ndarray of int64
        One more than there are blocks.

    Raises
    ------
    TensorFormatError
        The file is truncated, or has too many blocks.
    """
    count = header.blocks
    if count > MAX_SCANNED_BLOCKS:
        raise TensorFormatError(
            source.name,
            "the number of blocks with labels of different lengths",
            count,
            f"at most {MAX_SCANNED_BLOCKS}, because their offsets are kept in memory",
            "split the file, or use labels of one length",
            offset=header.stop,
        )
    offsets = np.empty(count + 1, dtype=np.int64)
    offsets[0], scanned = header.stop, 0
    # Downloading many cells is faster than another request.
    large = WINDOW_BYTES // 4 if source.high_latency else LARGE_BLOCK_BYTES
    size = LABEL_WINDOW_BYTES if header.block_bytes > large else WINDOW_BYTES
    while scanned < count:
        start = int(offsets[scanned])
        window = source.read(Extents.single(start, min(start + size, source.size)))
        starts, stop = scan_window(window, header, count - scanned)
        if not starts.size:
            if start + size >= source.size:
                raise _truncated(source, start, scanned, "its labels")
            size *= 2
            continue
        if on_window is not None:
            on_window(scanned, start, window, starts)
        offsets[scanned : scanned + starts.size] = starts + start
        scanned += starts.size
        offsets[scanned] = start + stop
        if start + stop > source.size:
            raise _truncated(source, int(offsets[scanned - 1]), scanned - 1, "its cells")
    return offsets


def scan_window(window: Bytes, header: Header, limit: int) -> tuple[Integers, int]:
    """Return the offsets of the blocks whose labels are in a window, and the end of the last one.

    The window starts with a block. The cells of the last block may end after the window.
    """
    view, labels, cells = window.data, range(len(header.mapped)), header.block_bytes
    starts, start = array("q"), 0
    with suppress(IndexError, struct.error):  # a length after the end of the window
        while len(starts) < limit:
            position = start
            for _ in labels:
                length = view[position]
                position += 1
                if length >= LONG_BIT:
                    length = _LONG.unpack_from(view, position - 1)[0] & LARGEST
                    position += 3
                position += length
            if position > window.size:
                break
            starts.append(start)
            start = position + cells
    return np.frombuffer(starts, dtype=np.int64), start


def _truncated(source: Source, start: int, block: int, part: str) -> TensorFormatError:
    return TensorFormatError(
        source.name,
        f"block {block}",
        f"truncated by the end of the file at byte {source.size}",
        f"{part} within the file",
        "the file is incomplete, or the length of a label is corrupt; fetch the file again",
        offset=start,
    )
