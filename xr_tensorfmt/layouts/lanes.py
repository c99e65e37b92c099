"""Stepping over many blocks at once, although each block says where the next one begins.

A window of the file is cut into lanes. Where the first block of a lane begins is guessed, from what
lengths of labels look like; then numpy steps along all lanes at the same time. A lane that ends
where the next one began proves that guess, so that the result is exact: lanes whose guess was wrong
are walked one block at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xr_tensorfmt.extents import Bytes, Integers
from xr_tensorfmt.layouts.labelled import LONG, BlockForm, label_at, walk

# Blocks looked at one by one, to learn how long labels are and how far blocks are apart.
_SAMPLE = 128
_MOST_SAMPLES = 8
# Steps of one lane; more lanes make steps cheaper, and guesses dearer.
_BLOCKS_A_LANE = 128
_MOST_LANES = 4096
# Below this many lanes, steps along all of them cost more than single ones.
_FEWEST_LANES = 16
# Blocks that must follow each other from a guess on.
_CHAIN = 12
# A lane that takes so many times more steps than expected was a wrong guess.
_PATIENCE = 4


@dataclass(frozen=True)
class _Expected:
    """What lengths of labels probably are, a lowest and a highest for each label of a block."""

    bounds: tuple[tuple[int, int], ...]
    stride: float

    @property
    def reach(self) -> int:
        """Most bytes of the labels of a block, their lengths included."""
        return sum(high + (4 if high >= LONG else 1) for _, high in self.bounds)


def block_starts(window: Bytes, form: BlockForm, most: int) -> tuple[Integers, int]:
    """Find where the blocks of a window begin, the first of which begins it.

    Parameters
    ----------
    window : ndarray of uint8
        Bytes of the file.
    form : BlockForm
        What the blocks are.
    most : int
        Most blocks that are wanted; more may be found.

    Returns
    -------
    starts : ndarray of int64
        Where the blocks begin whose lengths are all in the window.
    stop : int
        The byte after the last of them, which may be beyond the window.
    """
    parts: list[Integers] = []
    stop, wanted = 0, most
    # Where labels of another kind begin, another sample is needed.
    for _ in range(_MOST_SAMPLES):
        sample, stop = walk(window, stop, window.size, form, min(wanted, _SAMPLE))
        parts.append(np.array(sample, dtype=np.int64))
        wanted -= len(sample)
        if len(sample) < _SAMPLE or not wanted:
            break
        expected = _expected(window, parts[-1], stop, form)
        # With no more in the window than is wanted, no lane has anything else to step over.
        size = min(window.size, int(stop + 2 * expected.stride * wanted))
        lanes = _lanes(window[:size], stop, form, expected)
        if lanes.size < _FEWEST_LANES:
            break
        more, stop = _along_lanes(window[:size], lanes, form, expected)
        parts += more
        wanted -= sum(map(len, more))
        if wanted <= 0 or stop >= window.size:
            break
    if wanted > 0:
        rest, stop = walk(window, stop, window.size, form, wanted)
        parts.append(np.array(rest, dtype=np.int64))
    return np.concatenate(parts), stop


def _expected(window: Bytes, starts: Integers, stop: int, form: BlockForm) -> _Expected:
    stride = (stop - int(starts[0])) / starts.size
    bounds = []
    for _ in range(form.labels):
        texts, lengths = label_at(window, starts)
        # A little more on both sides: numbers get more digits as they grow.
        bounds.append((max(0, int(lengths.min()) - 2), int(lengths.max()) + 4))
        starts = texts + lengths
    return _Expected(tuple(bounds), stride)


def _lanes(window: Bytes, start: int, form: BlockForm, expected: _Expected) -> Integers:
    """Where each lane begins: `start`, then guesses."""
    reach = expected.reach + form.cell_bytes
    room = window.size - start - (_CHAIN + 2) * reach
    # The stretches looked at are a small part of the window, whatever the labels of the sample.
    most = min(_MOST_LANES, room // (8 * reach))
    count = min(most, int(room / (expected.stride * _BLOCKS_A_LANE)))
    if count < _FEWEST_LANES:
        return np.array([start])
    spacing = room // count
    # At least one block begins in each of these stretches.
    stretches: Bytes = np.ndarray(
        (count - 1, reach), np.uint8, window.data, start + spacing, (spacing, 1)
    )
    low, high = expected.bounds[0]
    if high >= LONG:
        plausible = (stretches >= low) | (stretches >= LONG)
    else:
        plausible = stretches - np.uint8(low) <= np.uint8(high - low)
    lane, offset = np.nonzero(plausible)
    position = start + (lane + 1) * spacing + offset
    for _ in range(_CHAIN):
        position, plausible = _plausible_step(window, position, form, expected)
        lane, position = lane[plausible], position[plausible]
    # All chains that met the right one are at the same place by now.
    is_first = np.diff(lane, prepend=-1) > 0
    starts = np.concatenate(([start], position[is_first]))
    rising = np.diff(np.maximum.accumulate(starts), prepend=-1) > 0
    return starts[rising & (starts < window.size)]


def _plausible_step(
    window: Bytes, position: Integers, form: BlockForm, expected: _Expected
) -> tuple[Integers, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    plausible = position < window.size
    for low, high in expected.bounds:
        texts, lengths = label_at(window, position)
        plausible &= (lengths >= low) & (lengths <= high)
        position = texts + lengths
    return position + form.cell_bytes, plausible & (position < window.size)


def _along_lanes(
    window: Bytes, lanes: Integers, form: BlockForm, expected: _Expected
) -> tuple[list[Integers], int]:
    """Blocks lane by lane, and the byte after the last; single steps where guesses were wrong."""
    table, counts, stops = _step_together(window, lanes, form, expected)
    parts: list[Integers] = []
    wrong = np.flatnonzero(stops[:-1] != lanes[1:])
    first = 0
    for lane in [*wrong.tolist(), lanes.size - 1]:
        if lane < first:
            continue
        parts.append(_columns(table, counts, first, lane + 1))
        stop, first = int(stops[lane]), lane + 1
        # The next lane began at a wrong place: go on until some lane began at a right one.
        while first < lanes.size and stop != lanes[first]:
            first += 1
            end = int(lanes[first]) if first < lanes.size else window.size
            singly, stop = walk(window, stop, end, form, window.size)
            parts.append(np.array(singly, dtype=np.int64))
    return parts, stop


def _columns(table: Integers, counts: Integers, first: int, last: int) -> Integers:
    part, steps = table[:, first:last].T, np.arange(len(table))
    return part[steps < counts[first:last, np.newaxis]]


def _step_together(
    window: Bytes, lanes: Integers, form: BlockForm, expected: _Expected
) -> tuple[Integers, Integers, Integers]:
    """Blocks by step and lane, how many of each lane count, and where each lane stops."""
    ends = np.append(lanes[1:], window.size)
    position, counts = lanes, np.zeros(lanes.shape, dtype=np.int64)
    rows: list[Integers] = []
    # By the mean, so that all rows together have a few numbers for each block of the window.
    patience = _PATIENCE * int((window.size - lanes[0]) / lanes.size / expected.stride + 1)
    active = position < ends
    while active.any() and len(rows) < patience:
        following, within = form.after(window, position)
        active &= within
        rows.append(position)
        counts += active
        position = np.where(active, following, position)
        active &= position < ends
    return np.array(rows), counts, position
