"""An object on its way to a store, from its first byte to its last: it appears complete or not."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fsspec import AbstractFileSystem

from xr_tensorfmt.extents import Bytes
from xr_tensorfmt.write.absent import exists_already

MIB = 1 << 20
SMALLEST_PART = 8 * MIB
MOST_PARTS = 10_000
"""Parts of an object in S3; Google's and Azure's stores take more."""

_AT_ONCE = 4
_NUMBERS = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    FileExistsError: errno.EEXIST,
    IsADirectoryError: errno.EISDIR,
    TimeoutError: errno.ETIMEDOUT,
}


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
        What the user calls it.
    """

    def __init__(self, url: str) -> None:
        self.url = url

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
        with explained(self.url):
            self._write(data)

    def finish(self) -> None:
        """Make the object appear.

        Raises
        ------
        OSError
            The store refuses.
        """
        with explained(self.url):
            self._finish()

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
        super().__init__(url)
        self._fs, self._path, self._target = fs, path, target
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


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Say of an error of a store which object it is about; those of the system keep their kind.

    Parameters
    ----------
    url : str
        The object.

    Yields
    ------
    None
        While something is asked of the store.

    Raises
    ------
    OSError
        The store has raised something.
    """
    try:
        yield
    except OSError as error:
        if url in str(error):
            raise
        number = error.errno or _NUMBERS.get(type(error), errno.EIO)
        raise _unwritten(number, error.strerror or str(error), url) from error
    except NotImplementedError as error:
        reason = "its file system only reads; write to a local path, or to a store"
        raise _unwritten(errno.EROFS, reason, url) from error
    except Exception as error:
        raise _unwritten(errno.EIO, f"{type(error).__name__}: {error}", url) from error


def _unwritten(number: int, reason: str, url: str) -> OSError:
    return OSError(number, f"{reason}; what was there before is unchanged", url)
