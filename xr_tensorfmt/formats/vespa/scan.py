"""Finding where blocks begin, although each says only by its labels where the next one begins.

A window of the file is cut into segments. Where the first block of a segment begins is guessed,
from what lengths of labels look like; then numpy scans all segments in parallel. A segment whose
scan ends where the next one began confirms that guess, so that the result is exact: segments whose
guess was wrong are scanned again, one block at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.contract import Bytes, Extents, Integers, Source, TensorFormatError
from xr_tensorfmt.formats.vespa.spec import LONG_BIT, Header, pack, unpack, unpack_at

WINDOW = 32 << 20
"""Bytes of the file that are scanned together."""

LARGE_BLOCK = 64 << 10
"""Bytes of cells that are worth a read of their own, so that no read spans several blocks."""

LABELS_AT_ONCE = 4 << 10
"""Bytes that are read at once where only the labels of a block are."""

MAX_LISTED = 1 << 26
"""Limit on blocks with labels of different lengths, whose places are kept in memory."""

# Blocks scanned one by one, to learn how long labels are and how far apart blocks begin.
_SAMPLE = 128
_MAX_SAMPLES = 8
# More segments make the parallel scan cheaper, and the guesses dearer.
_BLOCKS_PER_SEGMENT = 128
_MAX_SEGMENTS = 4096
# With fewer segments the parallel scan costs more than a sequential one.
_FEWEST_SEGMENTS = 16
# Blocks that must plausibly follow each other from a guess on.
_PLAUSIBLE_BLOCKS = 12
# A segment that has so many times more blocks than expected began at a wrong guess.
_MAX_EXCESS = 4


Scanned = Callable[[int, int, Bytes, Integers], None]
"""Takes the number of a block, its offset in the file, bytes from there on, and where consecutive
blocks begin in these; all of their labels are there."""


def block_offsets(source: Source, header: Header, scanned: Scanned | None = None) -> Integers:
    """Where each block begins, and where the last one ends; `scanned` is called for each window."""
    count = header.blocks
    if count > MAX_LISTED:
        raise TensorFormatError(
            source.name,
            "the number of blocks with labels of different lengths",
            count,
            f"at most {MAX_LISTED}, as the place of each is kept in memory",
            "split the file, or give all labels of a dimension one length",
            offset=header.stop,
        )
    offsets = np.empty(count + 1, dtype=np.int64)
    offsets[0], known = header.stop, 0
    # One request after the other costs more than the cells between, unless those are very large.
    large = WINDOW // 4 if source.high_latency else LARGE_BLOCK
    ahead = LABELS_AT_ONCE if header.block_bytes > large else WINDOW
    while known < count:
        start, wanted = int(offsets[known]), count - known
        window = np.empty(0, np.uint8)
        if start < source.size:
            window = source.read(Extents.single(start, min(start + ahead, source.size)))
        found, stop = block_starts(window, header, wanted)
        stops = np.append(found, stop)[1 : wanted + 1]
        # The last block counts if the window has all of its labels.
        complete = np.count_nonzero(stops <= window.size + header.block_bytes)
        if not complete:
            if start + ahead >= source.size:
                raise _cut_off(source, start, known, "its labels")
            ahead *= 2
            continue
        stops = stops[:complete]
        if scanned is not None:
            scanned(known, start, window, found[:complete])
        stops += start
        offsets[known + 1 : known + 1 + stops.size] = stops
        known += stops.size
        if stops[-1] > source.size:
            raise _cut_off(source, int(offsets[known - 1]), known - 1, "its cells")
    return offsets


def _cut_off(source: Source, start: int, block: int, part: str) -> TensorFormatError:
    return TensorFormatError(
        source.name,
        f"block {block}",
        f"cut off by the end of the file at byte {source.size}",
        f"{part} within the file",
        "the file is incomplete, or the length of a label damaged; fetch it again",
        offset=start,
    )


def block_starts(window: Bytes, header: Header, most: int) -> tuple[Integers, int]:
    """Where at most `most` blocks begin in a window that begins with one, and where they end."""
    parts: list[Integers] = []
    stop, wanted = 0, most
    # Where the lengths of labels change, another sample is needed.
    for _ in range(_MAX_SAMPLES):
        sample, stop = scan_sequentially(window, stop, window.size, header, min(wanted, _SAMPLE))
        parts.append(sample)
        wanted -= sample.size
        if sample.size < _SAMPLE or not wanted:
            break
        expected = _Expected.of(window, sample, stop, header)
        # Nothing is scanned far beyond the last block that is wanted.
        size = min(window.size, int(stop + 2 * expected.stride * wanted))
        segments = _guess_segments(window[:size], stop, header, expected)
        if segments.size < _FEWEST_SEGMENTS:
            break
        more, stop = _scan_segments(window[:size], segments, header, expected)
        parts += more
        wanted -= sum(map(len, more))
        if wanted <= 0 or stop >= window.size:
            break
    if wanted > 0:
        rest, stop = scan_sequentially(window, stop, window.size, header, wanted)
        parts.append(rest)
    return np.concatenate(parts), stop


def scan_sequentially(
    window: Bytes, start: int, end: int, header: Header, most: int
) -> tuple[Integers, int]:
    """Blocks that begin before `end`, and where the last of them ends; a step for each label."""
    view, labels, cell_bytes = window.data, range(len(header.mapped)), header.block_bytes
    starts: list[int] = []
    with suppress(IndexError):  # of a label whose length is not in the window
        while start < end and len(starts) < most:
            position = start
            for _ in labels:
                length = view[position]
                position += 1
                if length >= LONG_BIT:
                    length = unpack(bytes(view[position + i] for i in range(-1, 3)))
                    position += 3
                position += length
            starts.append(start)
            start = position + cell_bytes
    return np.array(starts, dtype=np.int64), start


@dataclass(frozen=True)
class _Expected:
    """Probable lengths of labels, a lowest and a highest for each label, and bytes of a block."""

    lengths: tuple[tuple[int, int], ...]
    stride: float

    @classmethod
    def of(cls, window: Bytes, starts: Integers, stop: int, header: Header) -> _Expected:
        """What a sample of consecutive blocks shows."""
        stride = (stop - int(starts[0])) / starts.size
        bounds = []
        for _ in range(len(header.mapped)):
            lengths, begins = unpack_at(window, starts)
            # A little more on both sides: numbers get more digits as they grow.
            bounds.append((max(0, int(lengths.min()) - 2), int(lengths.max()) + 4))
            starts = begins + lengths
        return cls(tuple(bounds), stride)

    def plausible(self, read_head: Bytes) -> NDArray[np.bool_]:
        """Whether a block may begin with these bytes."""
        low, high = self.lengths[0]
        if high >= LONG_BIT:
            return (read_head >= low) | (read_head >= LONG_BIT)
        return read_head - np.uint8(low) <= np.uint8(high - low)


def _guess_segments(window: Bytes, start: int, header: Header, expected: _Expected) -> Integers:
    """Where the first block of each segment begins: `start`, then guesses."""
    longest = header.block_bytes + sum(high + len(pack(high)) for _, high in expected.lengths)
    room = window.size - start - (_PLAUSIBLE_BLOCKS + 2) * longest
    # What is searched is a small part of the window, however long labels are.
    most = min(_MAX_SEGMENTS, room // (8 * longest))
    count = min(most, int(room / (expected.stride * _BLOCKS_PER_SEGMENT)))
    if count < _FEWEST_SEGMENTS:
        return np.array([start])
    spacing = room // count
    # At least one block begins in each of these ranges, one a row.
    searched: Bytes = np.ndarray(
        (count - 1, longest), np.uint8, window.data, start + spacing, (spacing, 1)
    )
    segment, offset = np.nonzero(expected.plausible(searched))
    position = start + (segment + 1) * spacing + offset
    for _ in range(_PLAUSIBLE_BLOCKS):
        position, plausible = _next_blocks(window, position, header, expected)
        plausible &= position < window.size
        segment, position = segment[plausible], position[plausible]
    # All guesses from which the scan comes to a true block are at the same place by now.
    is_first = np.diff(segment, prepend=-1) > 0
    starts = np.concatenate(([start], position[is_first]))
    rising = np.diff(np.maximum.accumulate(starts), prepend=-1) > 0
    return starts[rising & (starts < window.size)]


def _next_blocks(
    window: Bytes, starts: Integers, header: Header, expected: _Expected | None = None
) -> tuple[Integers, NDArray[np.bool_]]:
    """Where blocks end, and whether their labels are in the window and of the expected lengths."""
    good = np.ones(starts.shape, dtype=np.bool_)
    for label in range(len(header.mapped)):
        lengths, begins = unpack_at(window, starts)
        good &= begins <= window.size
        if expected is not None:
            low, high = expected.lengths[label]
            good &= (lengths >= low) & (lengths <= high)
        starts = begins + lengths
    return starts + header.block_bytes, good


def _scan_segments(
    window: Bytes, segments: Integers, header: Header, expected: _Expected
) -> tuple[list[Integers], int]:
    """Blocks segment by segment, and the byte after the last; sequentially after wrong guesses."""
    table, counts, stops = _scan_in_parallel(window, segments, header, expected)
    parts, steps = [], np.arange(len(table))
    wrong = np.flatnonzero(stops[:-1] != segments[1:])
    first = 0
    for segment in [*wrong.tolist(), segments.size - 1]:
        if segment < first:
            continue
        rows = table[:, first : segment + 1].T
        parts.append(rows[steps < counts[first : segment + 1, np.newaxis]])
        stop, first = int(stops[segment]), segment + 1
        # The next segment began at a wrong guess: go on until one began at a right one.
        while first < segments.size and stop != segments[first]:
            first += 1
            end = int(segments[first]) if first < segments.size else window.size
            more, stop = scan_sequentially(window, stop, end, header, window.size)
            parts.append(more)
    return parts, stop


def _scan_in_parallel(
    window: Bytes, segments: Integers, header: Header, expected: _Expected
) -> tuple[Integers, Integers, Integers]:
    """A row for each step with a block of each segment, how many of these count, and the ends."""
    ends = np.append(segments[1:], window.size)
    position, counts = segments, np.zeros(segments.shape, dtype=np.int64)
    rows: list[Integers] = []
    # By the mean, so that all rows together have a few numbers for each block of the window.
    mean_blocks = (window.size - segments[0]) / segments.size / expected.stride
    most_rows = _MAX_EXCESS * int(mean_blocks + 1)
    active = position < ends
    while active.any() and len(rows) < most_rows:
        following, within = _next_blocks(window, position, header)
        active &= within
        rows.append(position)
        counts += active
        position = np.where(active, following, position)
        active &= position < ends
    return np.array(rows), counts, position
