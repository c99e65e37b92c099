"""From a Blueprint to an object in a store: one dask graph that fills one upload."""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from glob import escape, glob
from weakref import WeakValueDictionary

import dask
from dask.delayed import Delayed
from dask.system import CPU_COUNT
from fsspec.implementations.memory import MemoryFileSystem

from xr_tensorfmt.sources.locate import Place
from xr_tensorfmt.write.blocks import cut_all
from xr_tensorfmt.write.blueprint import Blueprint, Placed, Survey
from xr_tensorfmt.write.comparing import compare_written
from xr_tensorfmt.write.draft import Draft, Piece
from xr_tensorfmt.write.saving import after_survey, unchanged
from xr_tensorfmt.write.stores.segments import Contents, arranged
from xr_tensorfmt.write.stores.spool import Spool
from xr_tensorfmt.write.stores.store import check_place, upload_to
from xr_tensorfmt.write.stores.stream import Stream
from xr_tensorfmt.write.stores.upload import Upload
from xr_tensorfmt.write.targets import unfinished
from xr_tensorfmt.write.tasks import writing

LEAST_ROOM = 64 << 20
CHUNKS_A_THREAD = 1
"""What may wait in memory for its turn, in chunks for each thread."""

_RUNNING: WeakValueDictionary[str, Stream] = WeakValueDictionary()


@dataclass(frozen=True)
class Parcel:
    """An object to be sent.

    Parameters
    ----------
    place : Place
        Where to.
    contents : Contents
        What it will be.
    folder : str
        Where on the disk bytes may wait until they are sent.
    unique : str
        What tells it from others.
    process : int
        The process that has planned it.
    replace : bool
        Whether it may take the place of another.
    compared : tuple of Placed
        Variables of which one half is stored, and the other compared with it.
    """

    place: Place
    contents: Contents
    folder: str
    unique: str
    process: int
    replace: bool
    compared: tuple[Placed, ...] = ()

    def begin(self) -> Stream | Spool:
        """Begin to send it, where all of its chunks will come in this process.

        Returns
        -------
        Stream or Spool
            What takes the chunks. Where they may come in other processes as well, or are looked at
            once more, the file is put together on the disk before it is sent.

        Raises
        ------
        OSError
            The store, or the disk, refuses.
        """
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
        """Make the object appear, once all chunks have come.

        Parameters
        ----------
        pieces : tuple of Piece
            What is in no chunk.
        begun : Stream or Spool
            What has taken the chunks.
        """
        if isinstance(begun, Stream):
            begun.finish()
            return
        if self.compared:
            compare_written(self.compared, begun.draft)
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
        return Spool(Draft(self.place.url, path, self.contents.size, self.replace))

    @property
    def _stem(self) -> str:
        """How the names of its files begin, one of each computation."""
        return os.path.join(self.folder, f"tensorfmt-{self.unique}")


def send(
    blueprint: Blueprint | Survey, place: Place, *, replace: bool, compute: bool
) -> Delayed | None:
    """Write an object into a store.

    Parameters
    ----------
    blueprint : Blueprint or Survey
        What it will be.
    place : Place
        Where.
    replace : bool
        Whether it may take the place of another.
    compute : bool
        Whether to do it now.

    Returns
    -------
    Delayed or None
        What writes the object when it is computed, or None if that is done.

    Raises
    ------
    OSError
        The store refuses; what was there before is unchanged.
    """
    check_place(place, replace=replace)
    if isinstance(blueprint, Survey):
        write = partial(send, place=place, replace=replace, compute=True)
        return after_survey(blueprint, write, compute=compute)
    cuts = cut_all(blueprint.placed)
    ranges = [blocks.bounds(number) for _, blocks in cuts for number in range(blocks.count)]
    contents = arranged(blueprint.size, blueprint.pieces, filter(None, ranges))
    folder = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    unique = uuid.uuid4().hex[:8]
    parcel = Parcel(
        place, contents, os.path.abspath(folder), unique, os.getpid(), replace, blueprint.compared
    )
    finish = partial(parcel.finish, blueprint.pieces)
    tasks = writing(cuts, parcel.begin, finish, in_turn=True)
    if not compute:
        return tasks
    with unchanged(place.url, parcel.discard):
        tasks.compute()  # type: ignore[no-untyped-call]
    return None
