"""Chunks in any order, from any threads, become the bytes of the file, in bounded memory."""

from __future__ import annotations

import errno
import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from fsspec import AbstractFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.sources.places import Place
from xr_tensorfmt.writing import sending
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.file_plan import FilePlan
from xr_tensorfmt.writing.sending import OrderedStream
from xr_tensorfmt.writing.upload import MIB, SMALLEST_PART, Upload, part_size

URL = "store://bucket/key"


class Slow(Upload):
    """Keeps what it is sent, and takes its time."""

    def __init__(self, delay: float = 0.0, fails_at: int | None = None) -> None:
        super().__init__(Place(URL, AbstractFileSystem(), "bucket/key"), 0, replace=True)
        self.sent = bytearray()
        self.delay, self.fails_at = delay, fails_at
        self.finished = self.discarded = 0

    def _write(self, data: np.ndarray) -> None:
        time.sleep(self.delay)
        if self.fails_at is not None and len(self.sent) + data.size > self.fails_at:
            raise ConnectionResetError(errno.ECONNRESET, "the line is dead")
        self.sent += data.tobytes()

    def _finish(self) -> None:
        self.finished += 1

    def discard(self) -> None:
        self.discarded += 1


class Watched(OrderedStream):
    """Notes how much memory it takes at most."""

    most = 0

    def _arrive(self, number: int, content: np.ndarray) -> None:
        super()._arrive(number, content)
        self.most = max(self.most, self._waiting)


File = tuple[FilePlan, list[tuple[int, int]]]
"""A plan, and the ranges of its chunks."""


def room(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let so many bytes wait in memory."""
    monkeypatch.setattr(sending, "MOST_WAITING", size)


def whole(chunks: int, length: int) -> tuple[File, list, bytes]:
    """A header, and chunks without gaps."""
    data = np.random.default_rng(0).integers(1, 256, chunks * length, dtype=np.uint8)
    ranges = [(100 + i * length, 100 + (i + 1) * length) for i in range(chunks)]
    batches = [
        [(Extents.single(start, stop), data[start - 100 : stop - 100])] for start, stop in ranges
    ]
    return (
        (FilePlan(100 + data.size, (Piece(0, b"head"),), ()), ranges),
        batches,
        b"head".ljust(100, b"\0") + data.tobytes(),
    )


def bring(stream: OrderedStream, batches: list, threads: int) -> None:
    stream.begin()
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(stream.write, iter(each)) for each in batches]:
            done.result(timeout=30)
    stream.complete(())
    stream.publish()


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("order", ["forward", "backward", "shuffled", "last first"])
def test_memory_stays_bounded_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, order: str
) -> None:
    length = 10_000
    file, batches, wanted = whole(40, length)
    if order == "backward":
        batches.reverse()
    elif order == "shuffled":
        random.Random(1).shuffle(batches)
    elif order == "last first":
        batches.insert(0, batches.pop())
    upload = Slow(delay=0.001)
    room(monkeypatch, 4 * length)
    stream = Watched(*file, upload, str(tmp_path))
    bring(stream, batches, threads)
    assert bytes(upload.sent) == wanted
    assert upload.finished == 1
    assert upload.discarded == 0
    # Two chunks need no room: the one that is being sent, and the next one.
    assert 0 < stream.most <= 6 * length
    assert list(tmp_path.iterdir()) == []


def test_while_another_sends_what_finds_no_room_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = 1000
    file, batches, wanted = whole(6, length)
    begun, go_on = Event(), Event()

    class Stuck(Slow):
        def _write(self, data: np.ndarray) -> None:
            if len(self.sent) == 100:  # the first chunk is what comes now
                begun.set()
                assert go_on.wait(30)
            super()._write(data)

    upload = Stuck()
    # Nothing can be put on the disk: the folder is missing.
    room(monkeypatch, 2 * length)
    stream = Watched(*file, upload, str(tmp_path / "missing")).begin()
    with ThreadPoolExecutor(6) as pool:
        stream.write(iter(batches[0]))
        assert begun.wait(30)
        for batch in batches[2:4]:
            stream.write(iter(batch))
        waits = [pool.submit(stream.write, iter(batch)) for batch in batches[4:]]
        done, _ = wait(waits, timeout=0.1)
        assert not done
        stream.write(iter(batches[1]))  # it is next, and so needs no room
        go_on.set()
        for each in waits:
            each.result(timeout=30)
    stream.complete(())
    assert bytes(upload.sent) == wanted
    assert stream.most <= 3 * length


@st.composite
def files(draw: st.DrawFn) -> tuple[int, list[list[tuple[int, int]]], list[tuple[int, int]]]:
    """Size of a file, byte ranges of its chunks, and pieces between the chunks and in them."""
    position, chunks, pieces = 0, [], []
    parts = st.tuples(
        st.integers(0, 3), st.integers(1, 40), st.sampled_from(["chunk", "more", "piece"])
    )
    for gap, length, owner in draw(st.lists(parts, max_size=30)):
        start = position + gap
        position = start + length
        if owner == "piece":
            pieces.append((start, position))
        elif owner == "more" and chunks:
            chunks[-1].append((start, position))
        else:
            chunks.append([(start, position)])
    return position + draw(st.integers(0, 20)), chunks, pieces


@settings(max_examples=150)
@given(
    file=files(),
    most=st.integers(0, 300),
    threads=st.sampled_from([1, 2, 8]),
    seed=st.integers(0, 9),
)
def test_chunks_with_pieces_in_them_arrive_complete(
    tmp_path_factory: pytest.TempPathFactory, file: tuple, most: int, threads: int, seed: int
) -> None:
    size, chunks, positions = file
    wanted = bytearray(size)
    pieces = [Piece(start, os.urandom(stop - start)) for start, stop in positions]
    for piece in pieces:
        wanted[piece.offset : piece.offset + len(piece.data)] = piece.data
    batches = []
    for ranges in chunks:
        batch = []
        for start, stop in ranges:
            data = np.frombuffer(os.urandom(stop - start), np.uint8)
            wanted[start:stop] = data.tobytes()
            batch.append((Extents.single(start, stop), data))
        batches.append(batch)
    bounds = [(each[0][0], each[-1][1]) for each in chunks]
    random.Random(seed).shuffle(batches)
    upload = Slow()
    directory = str(tmp_path_factory.getbasetemp())
    with pytest.MonkeyPatch.context() as patch:
        room(patch, most)
        plan = FilePlan(size, (*pieces, Piece(size, b"")), ())
        bring(OrderedStream(plan, bounds, upload, directory), batches, threads)
    assert bytes(upload.sent) == bytes(wanted)


def test_a_chunk_that_fills_no_byte_is_no_news(tmp_path: Path) -> None:
    file, batches, wanted = whole(2, 10)
    upload = Slow()
    bring(OrderedStream(*file, upload, str(tmp_path)), [[], *batches], 1)
    assert bytes(upload.sent) == wanted


@pytest.mark.parametrize("threads", [1, 8])
def test_an_upload_that_fails_ends_all_that_wait_and_is_given_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    file, batches, _ = whole(40, 1000)
    upload = Slow(delay=0.001, fails_at=5000)
    room(monkeypatch, 2000)
    stream = OrderedStream(*file, upload, str(tmp_path))
    with pytest.raises(ConnectionResetError, match=f"dead; what was .* unchanged: '{URL}'"):
        bring(stream, batches, threads)
    with pytest.raises(ConnectionResetError):
        stream.write(iter(batches[-1]))
    assert stream.discard()
    assert (upload.finished, upload.discarded) == (0, 1)


def test_a_stream_that_is_given_up_takes_nothing_more(tmp_path: Path) -> None:
    file, batches, _ = whole(4, 1000)
    upload = Slow()
    stream = OrderedStream(*file, upload, str(tmp_path)).begin()
    stream.write(iter(batches[0]))
    assert stream.discard()
    with pytest.raises(OSError, match="the upload was given up"):
        stream.write(iter(batches[1]))
    assert (upload.finished, upload.discarded) == (0, 1)


def test_what_is_finished_is_not_given_up(tmp_path: Path) -> None:
    file, batches, _ = whole(4, 1000)
    upload = Slow()
    stream = OrderedStream(*file, upload, str(tmp_path))
    bring(stream, batches, 1)
    assert not stream.discard()
    assert (upload.finished, upload.discarded) == (1, 0)


def test_a_full_disk_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file, batches, _ = whole(4, 1000)
    room(monkeypatch, 0)
    stream = OrderedStream(*file, Slow(), str(tmp_path)).begin()
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match=r"No space .*'temporary-directory' .*more space") as caught:
        stream.write(iter(batches[3]))
    assert caught.value.filename == str(tmp_path)
    stream.discard()


def test_parts_are_as_many_as_stores_take() -> None:
    assert part_size(1) == SMALLEST_PART
    assert part_size(10_000 * SMALLEST_PART) == SMALLEST_PART
    for size in (10_000 * SMALLEST_PART + 1, 10**12, 5 << 40):
        part = part_size(size)
        assert -(-size // part) <= 10_000
        assert part % MIB == 0
    assert part_size(10**12) == 96 * MIB


def test_an_upload_is_given_up_when_nothing_is_sent_any_more(tmp_path: Path) -> None:
    begun, go = Event(), Event()

    class Waiting(Slow):
        def _write(self, data: np.ndarray) -> None:
            begun.set()
            assert go.wait(30)

    file, batches, _ = whole(4, 1000)
    upload = Waiting()
    stream = OrderedStream(*file, upload, str(tmp_path)).begin()
    with ThreadPoolExecutor(1) as pool:
        stream.write(iter(batches[0]))
        assert begun.wait(30)
        gives_up = pool.submit(stream.discard)
        early, _ = wait([gives_up], timeout=0.2)
        assert not upload.discarded
        go.set()
        wait([gives_up])
    assert not early
    assert upload.discarded == 1
    with pytest.raises(OSError, match="the upload was given up"):
        stream.write(iter(batches[1]))
