"""One pass over the blocks of a file, which have to be found one after the other."""

from __future__ import annotations

import numpy as np

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.layouts.labelled import LONG, BlockForm
from xr_tensorfmt.layouts.lanes import block_starts
from xr_tensorfmt.sources.base import Source

WINDOW = 32 << 20
"""Bytes of the file that a pass over its blocks looks at together."""

LARGE_BLOCK = 64 << 10
"""Cells of so many bytes are worth a read of their own, and a window over several is not."""

_LABELS_AT_ONCE = 4 << 10


def block_edges(source: Source, form: BlockForm, offset: int, count: int) -> Integers:
    """Find where all blocks begin.

    Parameters
    ----------
    source : Source
        The file.
    form : BlockForm
        What the blocks are.
    offset : int
        Where the first block begins.
    count : int
        Number of blocks.

    Returns
    -------
    ndarray of int64
        Where each block begins, and where the last one ends.

    Raises
    ------
    TensorFormatError
        The file ends before the last block does.
    """
    edges = np.empty(count + 1, dtype=np.int64)
    edges[0], known = offset, 0
    # One request after the other costs more than the cells between, unless those are very large.
    large = WINDOW // 4 if source.distant else LARGE_BLOCK
    ahead = _LABELS_AT_ONCE if form.cell_bytes > large else WINDOW
    while known < count:
        start, wanted = int(edges[known]), count - known
        if start >= source.size:
            raise _cut_off(source, start, known, "its labels")
        window = source.read(Extents.single(start, min(start + ahead, source.size)))
        found, stop = block_starts(window, form, wanted)
        if not found.size:
            # The labels are longer than the window, or the file is shorter.
            found, stop = np.zeros(1, np.int64), _stepped(source, form, start, known) - start
        stops = np.append(found[1:], stop)[:wanted] + start
        edges[known + 1 : known + 1 + stops.size] = stops
        known += stops.size
        if stops[-1] > source.size:
            raise _cut_off(source, int(edges[known - 1]), known - 1, "its cells")
    return edges


def _stepped(source: Source, form: BlockForm, start: int, number: int) -> int:
    for label in range(form.labels):
        _, start = length_at(source, start, number, label)
    return start + form.cell_bytes


def length_at(source: Source, start: int, block: int, label: int) -> tuple[bytes, int]:
    """Read the length of one label.

    Parameters
    ----------
    source : Source
        The file.
    start : int
        Where the length is.
    block, label : int
        Their numbers, for the error.

    Returns
    -------
    length : bytes
        The length as it is stored.
    stop : int
        The byte after the label's text.

    Raises
    ------
    TensorFormatError
        The file ends before the text does.
    """
    stop = min(start + 4, source.size)
    stored = source.read(Extents.single(start, stop)).tobytes() if start < stop else b""
    size = 4 if stored and stored[0] >= LONG else 1
    length = int.from_bytes(stored[:size], "big") & (0x7FFFFFFF if size == 4 else 0x7F)
    text = start + size + length
    if len(stored) < size or text > source.size:
        raise _cut_off(source, start, block, f"its label {label}")
    return stored[:size], text


def _cut_off(source: Source, start: int, block: int, part: str) -> TensorFormatError:
    return TensorFormatError(
        source.name,
        f"block {block}",
        f"cut off by the end of the file at byte {source.size}",
        f"{part} within the file",
        "the file is incomplete, or the length of a label damaged; fetch it again",
        offset=start,
    )
