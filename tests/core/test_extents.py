from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recording import RecordingSource
from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.errors import TensorFormatError


def make_extents(*ranges: tuple[int, int]) -> Extents:
    starts, lengths = np.array(ranges, dtype=np.int64).T
    return Extents(starts, lengths)


@st.composite
def any_extents(draw: st.DrawFn) -> Extents:
    steps = draw(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1))
    ranges, position = [], 0
    for gap, length in steps:
        ranges.append((position + gap, length))
        position += gap + length
    return make_extents(*ranges)


def gather(extents: Extents, window: Bytes, origin: int) -> Bytes:
    packed = np.zeros(extents.nbytes, dtype=np.uint8)
    extents.gather(window, origin, packed)
    return packed


@given(any_extents(), st.integers(0, 40), st.integers(1, 60), st.integers(0, 60) | st.none())
def test_merged_ranges_hold_all_bytes_within_the_limits(
    given_extents: Extents, gap: int, limit: int, more: int | None
) -> None:
    max_length = None if more is None else limit + more
    merged = given_extents.merge(gap=gap, limit=limit, max_length=max_length)
    content = np.arange(given_extents.bounds[1]).astype(np.uint8)
    packed = np.zeros(given_extents.nbytes, dtype=np.uint8)
    fetches = list(given_extents.iterate_transfers(merged, packed))
    for start, stop, extents, out in fetches:
        extents.gather(content[start:stop], start, out)
        assert (extents.starts[1:] - (extents.starts + extents.lengths)[:-1] <= gap).all()
        assert max_length is None or stop - start <= max_length
    assert np.array_equal(packed, gather(given_extents, content, 0))
    assert [(start, stop - start) for start, stop, _, _ in fetches] == list(
        zip(merged.starts.tolist(), merged.lengths.tolist(), strict=True)
    )
    assert (merged.starts[1:] >= (merged.starts + merged.lengths)[:-1]).all()


@given(any_extents(), st.integers(0, 5))
def test_gathering_copies_exactly_ranges(given_extents: Extents, origin: int) -> None:
    first, last = given_extents.bounds
    origin = min(origin, first)
    content = np.arange(last, dtype=np.uint8)
    expected = [
        content[s : s + n] for s, n in zip(given_extents.starts, given_extents.lengths, strict=True)
    ]
    packed = gather(given_extents, content[origin:], origin)
    assert np.array_equal(packed, np.concatenate(expected))


def test_gathering_many_short_ranges() -> None:
    content = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    starts, lengths = 20 * np.arange(40_000), 1 + np.arange(40_000) % 19
    packed = gather(Extents(starts, lengths), content, 0)
    pairs = zip(starts, lengths, strict=True)
    assert np.array_equal(packed, np.concatenate([content[s : s + n] for s, n in pairs]))


@pytest.mark.parametrize(("length", "count"), [(8, 3), (8, 70_000), (1 << 14, 3)])
def test_gathering_ranges_of_one_length(length: int, count: int) -> None:
    content = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    starts = 3 + (content.size - length) // count * np.arange(count)
    packed = gather(Extents.uniform(starts, length), content, 0)
    assert np.array_equal(packed, np.concatenate([content[s : s + length] for s in starts]))


@given(any_extents())
def test_source_reads_what_is_requested(given_extents: Extents) -> None:
    content = bytes(i % 251 for i in range(given_extents.bounds[1]))
    packed = RecordingSource(content).read(given_extents)
    expected = b"".join(
        content[s : s + n] for s, n in zip(given_extents.starts, given_extents.lengths, strict=True)
    )
    assert packed.tobytes() == expected
    assert packed.flags.writeable


def test_near_ranges_are_one_request_and_far_ones_are_not() -> None:
    source = RecordingSource(bytes(1 << 20))
    source.read(make_extents((0, 8), (1000, 8), (500_000, 8)))
    assert source.requests == [(0, 1008), (500_000, 8)]


def test_error_of_reading_past_end_names_the_end() -> None:
    with pytest.raises(TensorFormatError, match=r"<recording>: the file's end at byte 10: 10"):
        RecordingSource(bytes(10)).read(make_extents((4, 20)))
