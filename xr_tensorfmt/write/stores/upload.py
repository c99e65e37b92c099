"""An object on its way to a store, from its first byte to its last: it appears complete or not."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from fsspec import AbstractFileSystem

from xr_tensorfmt.extents import Bytes
from xr_tensorfmt.sources.storeerrors import ask_store
from xr_tensorfmt.write.absent import exists_already

MIB = 1 << 20
SMALLEST_PART = 8 * MIB
MOST_PARTS = 10_000
"""Parts of an object in S3; Google's and Azure's stores take more."""

_AT_ONCE = 4
_UNCHANGED = "; what was there before is unchanged"

Result = TypeVar("Result")


def part_size(size: int) -> int:
    """Bytes of the parts in which an object is uploaded: 8 MiB, or more where it has too many.

    Parameters
    ----------
    size : int
        Bytes of the object.

    Returns
    -------
    int
        Whole MiB.
    """
    return max(SMALLEST_PART, -(-size // (MOST_PARTS * MIB)) * MIB)


class Upload(ABC):
    """An object that is being uploaded, from the first byte that is written.

    Parameters
    ----------
    url : str
        What the user calls it, without secrets.
    fs : AbstractFileSystem
        The file system.
    target : str
        What `fs` calls it.
    """

    def __init__(self, url: str, fs: AbstractFileSystem, target: str) -> None:
        self.url = url
        self._fs, self._target = fs, target

    def write(self, data: Bytes) -> None:
        """Send the bytes that follow.

        Parameters
        ----------
        data : ndarray of uint8
            The bytes; they are no longer needed when this returns.

        Raises
        ------
        OSError
            The store does not take them.
        """
        ask_to_write(self._write, data, url=self.url, fs=self._fs, path=self._target)

    def finish(self) -> None:
        """Make the object appear.

        Raises
        ------
        OSError
            The store refuses.
        """
        ask_to_write(self._finish, url=self.url, fs=self._fs, path=self._target)

    @abstractmethod
    def discard(self) -> None:
        """Leave nothing behind; what was there before is unchanged."""

    @abstractmethod
    def _write(self, data: Bytes) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...


class StreamedFile(Upload):
    """An object that its file system lets write as a file.

    Parameters
    ----------
    url : str
        What the user calls it.
    fs : AbstractFileSystem
        The file system.
    path, target : str
        Where it is written, and where it is to be. They are the same where the store shows an
        object no sooner than its file is closed.
    part : int
        Bytes that are sent at once.
    replace : bool
        Whether it may take the place of another.
    """

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
    """Refuse to write over an object.

    Parameters
    ----------
    url : str
        What the user calls it.
    fs : AbstractFileSystem
        The file system.
    path : str
        What the file system calls it.

    Raises
    ------
    FileExistsError
        It exists.
    """
    fs.invalidate_cache(path)
    if fs.exists(path):
        raise exists_already(url)


def ask_to_write(
    call: Callable[..., Result], *arguments: Any, url: str, fs: AbstractFileSystem, path: str
) -> Result:
    """Call a file system, and say of its errors which object they are about.

    Parameters
    ----------
    call : callable
        What asks something of a store.
    *arguments
        What it is called with.
    url : str
        The object.
    fs : AbstractFileSystem
        The file system.
    path : str
        What the file system calls it.

    Returns
    -------
    object
        What the call returns.

    Raises
    ------
    OSError
        The store has raised something; errors of the system keep their kind.
    """

    def unless_read_only() -> Result:
        try:
            return call(*arguments)
        except NotImplementedError:
            reason = "its file system only reads; write to a local path, or to a store"
            raise OSError(errno.EROFS, f"{reason}{_UNCHANGED}", url) from None

    return ask_store(unless_read_only, url=url, path=path, options=fs, context=_UNCHANGED)
