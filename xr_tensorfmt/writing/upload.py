"""Which way an object goes into a store."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import uuid
import weakref
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from glob import escape, glob
from io import BytesIO
from threading import Condition, Lock
from typing import Any, NoReturn, TypeVar
from weakref import WeakValueDictionary

import dask
import numpy as np
from dask.delayed import Delayed
from dask.system import CPU_COUNT
from fsspec import AbstractFileSystem
from fsspec.implementations.cached import CachingFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.layout import Encoded
from xr_tensorfmt.sources.remote import Place, of_this_process
from xr_tensorfmt.sources.store_errors import ask_store
from xr_tensorfmt.sources.threads import MOST_AT_ONCE, REQUESTS
from xr_tensorfmt.writing.atomic_file import AtomicFile, Piece, exists_already, unfinished
from xr_tensorfmt.writing.file_io import opened, write_at, write_extents
from xr_tensorfmt.writing.file_plan import FilePlan, FirstPass, Placed, cut_all
from xr_tensorfmt.writing.graph import writing
from xr_tensorfmt.writing.saving import after_first_pass, compare_written, unchanged

# Of these fsspec's files appear when they are closed, and never if they are not.
_APPEARING_AT_ONCE = {"gs", "gcs", "abfs", "abfss", "az"}


def check_place(place: Place, *, replace: bool) -> None:
    """Refuse what can be no object, or must not be replaced."""
    if place.url.endswith("/") or not place.path.strip("/"):
        raise IsADirectoryError(f"{place.url} is a folder; give the name of an object in it")
    cached = isinstance(place.fs, CachingFileSystem)
    if cached:
        raise ValueError(
            f"{place.url}: a cache goes on to hold what was there before; "
            "write to the URL after '::'"
        )
    if not replace:
        fs, path = of_this_process(place.fs), place.path
        ask_to_write(refuse_existing, place.url, fs, path, url=place.url, fs=fs, path=path)


def upload_to(place: Place, size: int, *, replace: bool) -> Upload:
    """How an object goes to its place."""
    fs, path, url, part = of_this_process(place.fs), place.path, place.url, part_size(size)
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if hasattr(fs, "call_s3"):
        return Multipart(url, fs, path, size, part, replace=replace)
    folder, slash, name = path.rpartition("/")
    aside = f"{folder}{slash}.{name}{unfinished()}"
    where = path if protocols & _APPEARING_AT_ONCE else aside
    return StreamedFile(url, fs, where, path, part, replace=replace)


@dataclass(frozen=True)
class Spool:
    """A file that becomes an object once it is complete."""

    atomic_file: AtomicFile

    @property
    def target(self) -> str:
        """What it is to become."""
        return self.atomic_file.target

    @property
    def identity(self) -> str:
        """As that of its draft."""
        return self.atomic_file.identity

    def begin(self) -> Spool:
        """Make the file; as `AtomicFile.begin`."""
        self._check(os.path.dirname(self.atomic_file.path))
        self.atomic_file.begin()
        return self

    def write(self, batches: Iterator[Encoded]) -> None:
        """Put bytes into their places; as `AtomicFile.write`."""
        self._check(self.atomic_file.path)
        self.atomic_file.write(batches)

    def send(self, pieces: Sequence[Piece], upload: Upload) -> None:
        """Send all of it, and make the object appear."""
        try:
            with opened(self.atomic_file.path) as descriptor:
                for piece in pieces:
                    write_at(descriptor, memoryview(piece.data), piece.offset)
                for block in read_blocks(descriptor, 0, self.atomic_file.size):
                    upload.write(block)
            upload.finish()
        except BaseException:
            upload.discard()
            raise
        finally:
            self.atomic_file.discard()

    def _check(self, path: str) -> None:
        if not os.path.exists(path):
            reason = (
                f"this worker sees no {path}, where the workers put the object together before it "
                "is sent; set dask's 'temporary-directory' to a folder that they share"
            )
            raise FileNotFoundError(errno.ENOENT, reason, self.atomic_file.target)


@dataclass(frozen=True)
class Segment:
    """Bytes of a file that are sent at once."""

    start: int
    stop: int
    chunks: int
    pieces: tuple[Piece, ...] = ()

    @property
    def nbytes(self) -> int:
        """Its length."""
        return self.stop - self.start


@dataclass(frozen=True)
class Contents:
    """A whole file in the order in which it is sent; bytes of no segment are zero."""

    size: int
    segments: tuple[Segment, ...]

    @property
    def largest_chunk(self) -> int:
        """About the bytes of the largest chunk."""
        return max((each.nbytes // each.chunks for each in self.segments if each.chunks), default=0)


def arranged(size: int, pieces: Sequence[Piece], ranges: Iterable[tuple[int, int]]) -> Contents:
    """Arrange a file for sending."""
    parts = [Segment(start, stop, 1) for start, stop in ranges]
    parts += [
        Segment(each.offset, each.offset + len(each.data), 0, (each,))
        for each in pieces
        if each.data
    ]
    joined: list[Segment] = []
    run: list[Segment] = []
    stop = 0
    for part in sorted(parts, key=lambda each: each.start):
        if run and part.start >= stop:
            joined.append(_join(run))
            run = []
        run.append(part)
        stop = max(stop, part.stop)
    if run:
        joined.append(_join(run))
    return Contents(size, tuple(joined))


def _join(run: Sequence[Segment]) -> Segment:
    if len(run) == 1:
        return run[0]
    pieces = tuple(piece for each in run for piece in each.pieces)
    stop = max(each.stop for each in run)
    return Segment(run[0].start, stop, sum(each.chunks for each in run), pieces)


BLOCK = 8 << 20
"""Bytes that are read of a file at a time, to be sent."""


class Waiting(ABC):
    """The bytes of a segment, as they come."""

    held = 0
    """Bytes of memory that it takes."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment

    @abstractmethod
    def put(self, packed: Sequence[Encoded]) -> None:
        """Take the bytes of a chunk; several threads may do so at once."""

    @abstractmethod
    def blocks(self) -> Iterator[Bytes]:
        """All bytes in order, once they are complete."""


class WaitingInMemory(Waiting):
    """Bytes of one chunk as they are, of several chunks put together."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self.held = segment.nbytes
        self._lock = Lock()
        self._blocks: list[Bytes] = []

    def put(self, packed: Sequence[Encoded]) -> None:
        """Keep them, or copy them to their places where something lies between."""
        if _is_whole(packed, self.segment):
            self._blocks = [data for _, data in packed]
            return
        for extents, data in packed:
            _scatter(self._assembled(), self.segment.start, extents, data)

    def blocks(self) -> Iterator[Bytes]:
        """Those of the chunk, or one."""
        yield from self._blocks or [self._assembled()]

    def _assembled(self) -> Bytes:
        with self._lock:
            if not self._blocks:
                whole: Bytes = np.zeros(self.segment.nbytes, dtype=np.uint8)
                for piece in self.segment.pieces:
                    begin = piece.offset - self.segment.start
                    whole[begin : begin + len(piece.data)] = np.frombuffer(piece.data, np.uint8)
                self._blocks = [whole]
            return self._blocks[0]


def _is_whole(packed: Sequence[Encoded], segment: Segment) -> bool:
    """Whether these are all bytes of a segment, one after the other."""
    position = segment.start
    for extents, data in packed:
        start, stop = extents.bounds
        if start != position or stop - start != data.size:
            return False
        position = stop
    return position == segment.stop


def _scatter(whole: Bytes, origin: int, extents: Extents, data: Bytes) -> None:
    position = 0
    starts = (extents.starts - origin).tolist()
    for start, length in zip(starts, extents.lengths.tolist(), strict=True):
        whole[start : start + length] = data[position : position + length]
        position += length


class OnDisk(Waiting):
    """Bytes in a file, at the places that they will have."""

    def __init__(self, segment: Segment, scratch: Scratch) -> None:
        super().__init__(segment)
        self._scratch = scratch
        for piece in segment.pieces:
            extents = Extents.single(piece.offset, piece.offset + len(piece.data))
            self.put([(extents, np.frombuffer(piece.data, np.uint8))])

    def put(self, packed: Sequence[Encoded]) -> None:
        """Write them."""
        for extents, data in packed:
            self._scratch.write(extents, data)

    def blocks(self) -> Iterator[Bytes]:
        """Read them, a few at a time."""
        yield from read_blocks(self._scratch.descriptor, self.segment.start, self.segment.stop)


class Scratch:
    """A file of this machine that has no name, so that it goes with the process at the latest."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.descriptor, path = tempfile.mkstemp(prefix="tensorfmt-", dir=folder)
        weakref.finalize(self, os.close, self.descriptor)
        os.unlink(path)

    def write(self, extents: Extents, data: Bytes) -> None:
        """Put bytes into their places."""
        try:
            write_extents(self.descriptor, extents, data)
        except OSError as error:
            reason = (
                f"{error.strerror}, where bytes wait until those before them are sent; "
                "set dask's 'temporary-directory' to a folder with more space"
            )
            raise OSError(error.errno, reason, self._folder) from error


def read_blocks(descriptor: int, start: int, stop: int) -> Iterator[Bytes]:
    """Read a part of an open file."""
    while start < stop:
        wanted = min(BLOCK, stop - start)
        # The file may end before: nothing is written at the end of a segment that is zero there.
        data = os.pread(descriptor, wanted, start).ljust(wanted, b"\0")
        yield np.frombuffer(data, dtype=np.uint8)
        start += wanted


MIB = 1 << 20
SMALLEST_PART = 8 * MIB
MOST_PARTS = 10_000
"""Parts of an object in S3; Google's and Azure's stores take more."""

_AT_ONCE = 4
_UNCHANGED = "; what was there before is unchanged"

Result = TypeVar("Result")


def part_size(size: int) -> int:
    """Bytes of the parts in which an object is uploaded: 8 MiB, or more where it has too many."""
    return max(SMALLEST_PART, -(-size // (MOST_PARTS * MIB)) * MIB)


class Upload(ABC):
    """An object that is being uploaded, from the first byte that is written."""

    def __init__(self, url: str, fs: AbstractFileSystem, target: str) -> None:
        self.url = url
        self._fs, self._target = fs, target

    def write(self, data: Bytes) -> None:
        """Send the bytes that follow."""
        ask_to_write(self._write, data, url=self.url, fs=self._fs, path=self._target)

    def finish(self) -> None:
        """Make the object appear."""
        ask_to_write(self._finish, url=self.url, fs=self._fs, path=self._target)

    @abstractmethod
    def discard(self) -> None:
        """Leave nothing behind; what was there before is unchanged."""

    @abstractmethod
    def _write(self, data: Bytes) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...


class StreamedFile(Upload):
    """An object that its file system lets write as a file."""

    def __init__(
        self, url: str, fs: AbstractFileSystem, path: str, target: str, part: int, *, replace: bool
    ) -> None:
        super().__init__(url, fs, target)
        self._path = path
        self._part = part
        self._replace = replace
        self._file: Any = None

    def discard(self) -> None:
        """Abort, without ever closing a file that would appear by it."""
        if self._file is None:
            return
        if self._path == self._target:
            self._file.closed = True  # or else the file closes itself when it is forgotten
            with suppress(Exception):
                self._file.discard()
            return
        with suppress(Exception):
            self._file.close()
        with suppress(Exception):
            self._fs.rm(self._path)

    def _write(self, data: Bytes) -> None:
        if self._file is None:
            mode = "wb" if self._replace or self._path != self._target else "xb"
            self._file = self._fs.open(self._path, mode, block_size=self._part)
        # Some file systems send several parts of what they are given at the same time.
        step = _AT_ONCE * self._part
        for begin in range(0, data.size, step):
            self._file.write(data[begin : begin + step].tobytes())

    def _finish(self) -> None:
        self._file.close()
        if self._path != self._target:
            if not self._replace:
                refuse_existing(self.url, self._fs, self._target)
            self._fs.mv(self._path, self._target)
        self._fs.invalidate_cache(self._target)


def refuse_existing(url: str, fs: AbstractFileSystem, path: str) -> None:
    """Refuse to write over an object."""
    fs.invalidate_cache(path)
    if fs.exists(path):
        raise exists_already(url)


def ask_to_write(
    call: Callable[..., Result], *arguments: Any, url: str, fs: AbstractFileSystem, path: str
) -> Result:
    """Call a file system, and say of its errors which object they are about."""

    def unless_read_only() -> Result:
        try:
            return call(*arguments)
        except NotImplementedError:
            reason = "its file system only reads; write to a local path, or to a store"
            raise OSError(errno.EROFS, f"{reason}{_UNCHANGED}", url) from None

    return ask_store(unless_read_only, url=url, path=path, options=fs, context=_UNCHANGED)


MOST_IN_FLIGHT = 64 << 20
"""Bytes of the parts that are on their way, or two parts where these are larger."""


class Multipart(Upload):
    """An object of S3; one that is no larger than a part is put by a single request."""

    def __init__(
        self, url: str, fs: AbstractFileSystem, path: str, size: int, part: int, *, replace: bool
    ) -> None:
        super().__init__(url, fs, path)
        bucket, key, _ = fs.split_path(path)
        if not key:
            raise IsADirectoryError(f"{url} is a bucket; give the name of an object in it")
        self._object = {"Bucket": bucket, "Key": key}
        # What the store checks in the moment in which the object appears.
        self._condition = {} if replace else {"IfNoneMatch": "*"}
        self._part = part
        self._most = max(2, min(fs.max_concurrency, MOST_AT_ONCE, MOST_IN_FLIGHT // part))
        self._buffer = BytesIO()
        self._sent: list[dict[str, Any]] = []
        self._pending: deque[Future[dict[str, Any]]] = deque()
        self._in_parts = size > part
        self._upload: dict[str, Any] = {}

    def discard(self) -> None:
        """Abort, after the last part has arrived: one that arrives later would stay for ever."""
        wait([each for each in self._pending if not each.cancel()])
        if self._upload:
            with suppress(Exception):
                self._fs.call_s3("abort_multipart_upload", **self._upload)

    def _write(self, data: Bytes) -> None:
        rest = data.data
        while rest:
            count = self._buffer.write(rest[: self._part - self._buffer.tell()])
            rest = rest[count:]
            if self._buffer.tell() == self._part and self._in_parts:
                self._send()

    def _finish(self) -> None:
        try:
            if self._in_parts:
                self._send()
                self._await(0)
                parts = {"Parts": self._sent}
                options = {"MultipartUpload": parts, **self._upload, **self._condition}
                self._fs.call_s3("complete_multipart_upload", **options)
            else:
                body = self._buffer.getvalue()
                self._fs.call_s3("put_object", Body=body, **self._object, **self._condition)
        except OSError as error:
            if self._condition and "PreconditionFailed" in repr(error.__cause__):
                raise exists_already(self.url) from error
            raise
        self._fs.invalidate_cache(self._target)

    def _send(self) -> None:
        """Send the part that is full, or the last one."""
        if not self._buffer.tell():
            return
        if not self._upload:
            begun = self._fs.call_s3("create_multipart_upload", **self._object)
            self._upload = {**self._object, "UploadId": begun["UploadId"]}
        self._await(self._most - 1)
        number = len(self._sent) + len(self._pending) + 1
        body, self._buffer = self._buffer.getvalue(), BytesIO()
        self._pending.append(REQUESTS.submit(self._send_part, number, body))

    def _send_part(self, number: int, body: bytes) -> dict[str, Any]:
        answer = self._fs.call_s3("upload_part", Body=body, PartNumber=number, **self._upload)
        checksum = {key: answer[key] for key in ("ChecksumSHA256",) if key in answer}
        return {"PartNumber": number, "ETag": answer["ETag"], **checksum}

    def _await(self, most: int) -> None:
        """Wait until no more than so many parts are on their way."""
        while len(self._pending) > most:
            self._sent.append(self._pending.popleft().result())


_ZEROS: Bytes = np.zeros(1 << 20, dtype=np.uint8)


class Stream:
    """A file that takes chunks from any thread and sends them in order."""

    def __init__(self, contents: Contents, upload: Upload, room: int, folder: str) -> None:
        self._contents = contents
        self._upload = upload
        self._room = room
        self._folder = folder
        self._starts = [each.start for each in contents.segments]
        self._missing = [each.chunks for each in contents.segments]
        self._waiting: dict[int, Waiting] = {}
        self._held = 0
        self._next = 0
        self._position = 0
        self._sending = False
        self._failure: BaseException | None = None
        self._changed = Condition()
        self._give_up = weakref.finalize(self, upload.discard)

    @property
    def target(self) -> str:
        """What it is to become."""
        return self._upload.url

    @property
    def identity(self) -> int:
        """That of the object, which stays in its process."""
        return id(self)

    def __reduce__(self) -> NoReturn:
        """Stay in this process, which has the connection."""
        raise TypeError(
            "an upload cannot move to another process; compute with dask's threads, with its "
            "processes or on a cluster of dask.distributed"
        )

    def write(self, batches: Iterator[Encoded]) -> None:
        """Take the bytes of a chunk, and send what can be sent."""
        packed = [each for each in batches if len(each[0])]
        if not packed:
            return
        number = bisect_right(self._starts, packed[0][0].bounds[0]) - 1
        self._place(number).put(packed)
        with self._changed:
            self._missing[number] -= 1
        self._send()

    def finish(self) -> None:
        """Send what is left, once every chunk was brought, and make the object appear."""
        self._send()
        with self._changed:
            self._check()
            assert self._next == len(self._starts), "a chunk was not brought"
        try:
            self._send_zeros(self._contents.size)
            self._upload.finish()
        except BaseException as error:
            self._fail(error)
            raise
        self._give_up.detach()

    def discard(self) -> None:
        """Give the upload up."""
        self._fail(OSError(errno.ECANCELED, "the upload was given up", self._upload.url))

    def _place(self, number: int) -> Waiting:
        """Where bytes of a segment wait for their turn; this may have to wait itself."""
        with self._changed:
            while number not in self._waiting:
                self._check()
                place = self._offered(number)
                if place is None:
                    self._changed.wait()
                else:
                    self._waiting[number] = place
                    self._held += place.held
            return self._waiting[number]

    def _offered(self, number: int) -> Waiting | None:
        segment = self._contents.segments[number]
        # The chunk that is next is sent at once, and is in memory anyway.
        is_next = number == self._next and segment.chunks == 1
        if is_next or self._held + segment.nbytes <= self._room:
            return WaitingInMemory(segment)
        if self._sending and segment.nbytes <= self._room:
            return None
        return OnDisk(segment, self._scratch)

    @cached_property
    def _scratch(self) -> Scratch:
        return Scratch(self._folder)

    def _send(self) -> None:
        """Send all that is complete, unless another thread does."""
        with self._changed:
            if self._sending:
                return
            self._sending = True
        try:
            while (number := self._taken()) is not None:
                self._send_segment(number)
        except BaseException as error:
            self._fail(error, sending=True)
            raise

    def _taken(self) -> int | None:
        """The segment that is next, if it is complete; else the thread has nothing to send."""
        with self._changed:
            self._changed.notify_all()
            self._check()
            if self._next < len(self._starts) and not self._missing[self._next]:
                self._next += 1
                return self._next - 1
            self._sending = False
            return None

    def _send_segment(self, number: int) -> None:
        segment = self._contents.segments[number]
        self._send_zeros(segment.start)
        with self._changed:
            # What is made of pieces alone was put nowhere.
            place = self._waiting.pop(number, None) or WaitingInMemory(segment)
        for block in place.blocks():
            self._upload.write(block)
        self._position = segment.stop
        if segment.chunks:
            with self._changed:
                self._held -= place.held
                self._changed.notify_all()

    def _send_zeros(self, stop: int) -> None:
        while self._position < stop:
            block = _ZEROS[: stop - self._position]
            self._upload.write(block)
            self._position += block.size

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException, *, sending: bool = False) -> None:
        """Let no thread go on, and give up what is uploaded; `sending` says who it is."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            if sending:
                self._sending = False
            self._changed.notify_all()
            while self._sending:
                self._changed.wait()
        self._give_up()


LEAST_ROOM = 64 << 20
CHUNKS_A_THREAD = 1
"""What may wait in memory for its turn, in chunks for each thread."""

_RUNNING: WeakValueDictionary[str, Stream] = WeakValueDictionary()


@dataclass(frozen=True)
class Parcel:
    """An object to be sent."""

    place: Place
    contents: Contents
    folder: str
    unique: str
    process: int
    replace: bool
    compared: tuple[Placed, ...] = ()

    def begin(self) -> Stream | Spool:
        """Begin to send it, where all of its chunks will come in this process."""
        if not (self.compared or self._elsewhere()):
            stream = self._stream()
            _RUNNING[self.unique] = stream
            return stream
        if isinstance(self.place.fs, MemoryFileSystem) and os.getpid() != self.process:
            raise ValueError(
                f"{self.place.url}: the memory of another process is out of reach; "
                "compute with dask's threads"
            )
        return self._spool().begin()

    def finish(self, pieces: tuple[Piece, ...], begun: Stream | Spool) -> None:
        """Make the object appear, once all chunks have come."""
        if isinstance(begun, Stream):
            begun.finish()
            return
        if self.compared:
            compare_written(self.compared, begun.atomic_file)
        begun.send(pieces, self._upload())

    def discard(self) -> bool:
        """Give up what was begun, and leave nothing behind; True, as nothing had appeared."""
        stream = _RUNNING.get(self.unique)
        if stream is not None:
            stream.discard()
        for path in glob(f"{escape(self._stem)}*"):
            with suppress(OSError):
                os.unlink(path)
        return True

    def _elsewhere(self) -> bool:
        """Whether tasks may run in other processes."""
        distributed = sys.modules.get("distributed")
        if distributed is None or os.getpid() != self.process:
            return os.getpid() != self.process
        try:
            distributed.get_worker()
        except ValueError:
            return False
        return True

    def _upload(self) -> Upload:
        size = self.contents.size
        return upload_to(self.place, size, replace=self.replace)

    def _stream(self) -> Stream:
        threads = dask.config.get("num_workers", None) or CPU_COUNT
        room = max(LEAST_ROOM, CHUNKS_A_THREAD * threads * self.contents.largest_chunk)
        return Stream(self.contents, self._upload(), room, self.folder)

    def _spool(self) -> Spool:
        path = f"{self._stem}{unfinished()}"
        return Spool(AtomicFile(self.place.url, path, self.contents.size, self.replace))

    @property
    def _stem(self) -> str:
        """How the names of its files begin, one of each computation."""
        return os.path.join(self.folder, f"tensorfmt-{self.unique}")


def send(
    file_plan: FilePlan | FirstPass, place: Place, *, replace: bool, compute: bool
) -> Delayed | None:
    """Write an object into a store."""
    check_place(place, replace=replace)
    if isinstance(file_plan, FirstPass):
        write = partial(send, place=place, replace=replace, compute=True)
        return after_first_pass(file_plan, write, compute=compute)
    cuts = cut_all(file_plan.placed)
    ranges = [blocks.bounds(number) for _, blocks in cuts for number in range(blocks.count)]
    contents = arranged(file_plan.size, file_plan.pieces, filter(None, ranges))
    folder = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    unique = uuid.uuid4().hex[:8]
    parcel = Parcel(
        place, contents, os.path.abspath(folder), unique, os.getpid(), replace, file_plan.compared
    )
    finish = partial(parcel.finish, file_plan.pieces)
    tasks = writing(cuts, parcel.begin, finish, in_turn=True)
    if not compute:
        return tasks
    with unchanged(place.url, parcel.discard):
        tasks.compute()  # type: ignore[no-untyped-call]
    return None
