"""An object of a store, written in order through a file of its file system."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from hashlib import md5
from typing import Any

from fsspec import AbstractFileSystem

from xr_tensorfmt.core.extents import Bytes
from xr_tensorfmt.sources.caches import is_cache
from xr_tensorfmt.sources.remote import Place, of_this_process
from xr_tensorfmt.sources.requests import Version
from xr_tensorfmt.sources.store_errors import ask_store
from xr_tensorfmt.sources.threads import in_thread
from xr_tensorfmt.writing.atomic_file import exists_already, target_of
from xr_tensorfmt.writing.unfinished import suffix_of_unfinished

# Packages whose files become an object when they are closed, and not before.
_ATOMIC = {"s3fs", "gcsfs", "adlfs"}

MIB = 1 << 20
SMALLEST_PART = 16 * MIB
"""Bytes of a part: it is sent by one request at a time, so that short ones would mostly wait."""

MOST_PARTS = 10_000
"""Parts of an object in S3; Google's and Azure's stores take more."""

LONGEST_WAIT = 300.0
"""Seconds for a request and its repetitions, beyond those that its bytes take on a slow line."""

_SLOW_LINE = 100_000
"""Bytes per second of a slow line."""

_UNCHANGED = "; what was there before is unchanged"
_UNKNOWN = (
    "; whether the object has been replaced is not known, as the store cannot be asked; look at it "
    "before you write it again"
)


def part_size(size: int) -> int:
    """Bytes of the parts in which an object of some size is uploaded."""
    return max(SMALLEST_PART, -(-size // (MOST_PARTS * MIB)) * MIB)


class Upload:
    """An object that is written from its first byte to its last."""

    def __init__(self, place: Place, size: int, *, replace: bool) -> None:
        self.url = place.url
        self._fs, self._target = of_this_process(place.fs), place.path
        self._size, self._part, self._replace = size, part_size(size), replace
        self._file: Any = None
        self.is_atomic = not packages_of(self._fs).isdisjoint(_ATOMIC)
        directory, slash, name = place.path.rpartition("/")
        aside = f"{directory}{slash}.{name}{suffix_of_unfinished()}"
        self._path = self._target if self.is_atomic else aside

    @property
    def token(self) -> str:
        """What names the unfinished upload in S3; empty before its first part, and elsewhere."""
        return str((getattr(self._file, "mpu", None) or {}).get("UploadId", ""))

    def write(self, data: Bytes) -> None:
        """Send the bytes that follow."""
        self._ask(self._write, data, size=data.size + self._part)

    def finish(self) -> None:
        """Make the object appear, and look whether it has where the store reports an error."""
        before = self._look()
        try:
            self._ask(self._finish, context="")
        except OSError as error:
            failure, etag = error, self._etag()
        else:
            return
        self.discard()  # after this, nothing appears any more
        outcome = self._outcome(failure, before, etag)
        if outcome:
            # Not in the except clause, so that the error has no other one as its context.
            raise OSError(failure.errno, f"{failure.strerror}{outcome}", self.url)

    def refuse_existing(self) -> None:
        """Refuse to write over an object, unless it is to be replaced."""
        self._ask(self._refuse_existing)

    def discard(self) -> None:
        """Leave nothing behind, and what was there before unchanged."""
        if self._file is None:
            return
        with suppress(Exception):
            if self.is_atomic:
                self._file.closed = True  # or else the object appears when the file is forgotten
                self._file.discard()
            else:
                self._file.close()
        if not self.is_atomic:
            with suppress(Exception):
                self._fs.rm(self._path)

    def _look(self) -> tuple[int | None, Version] | None:
        """Size and version of what is there, without a size if there is none; None if unknown."""
        try:
            self._fs.invalidate_cache(self._target)
            info = self._fs.info(self._target)
        except FileNotFoundError:
            return None, Version()
        except Exception:  # noqa: BLE001  # each library has its own exceptions
            return None
        return info.get("size"), Version.of(info)

    def _etag(self) -> str:
        """The entity tag that S3 gives the object, unless it encrypts it by keys of others."""
        try:
            if not self._file.parts:
                return md5(self._file.buffer.getvalue(), usedforsecurity=False).hexdigest()
            tags = b"".join(bytes.fromhex(part["ETag"].strip('"')) for part in self._file.parts)
        except (AttributeError, TypeError, ValueError):  # of another store
            return ""
        return f"{md5(tags, usedforsecurity=False).hexdigest()}-{len(self._file.parts)}"

    def _outcome(
        self, failure: OSError, before: tuple[int | None, Version] | None, etag: str
    ) -> str:
        """What an error says of the object; nothing where the object is the one that was sent."""
        after = self._look()
        if after is None or before is None:
            return _UNCHANGED if isinstance(failure, PermissionError) else _UNKNOWN
        (size, version), (size_before, version_before) = after, before
        # Times may be whole seconds, within which an object of the same size can replace another.
        is_identified = size != self._size or (version.etag and version_before.etag)
        if size == size_before and not version.differs(version_before) and is_identified:
            return _UNCHANGED
        if etag and version.etag.strip('"') == etag:
            return ""
        if size == self._size:
            return (
                f"; an object of its {size} bytes is there since, which is probably this one; "
                "look at it before you write it again"
            )
        return (
            _UNCHANGED
            if isinstance(failure, FileExistsError)
            else "; another object is there since"
        )

    def _write(self, data: Bytes) -> None:
        if self._file is None:
            mode = "xb" if self.is_atomic and not self._replace else "wb"
            try:
                self._file = self._fs.open(self._path, mode, block_size=self._part)
            except NotImplementedError:
                reason = "its file system only reads; write to a local path, or to a store"
                raise OSError(errno.EROFS, reason) from None
        for first in range(0, data.size, self._part):
            self._file.write(data[first : first + self._part].tobytes())

    def _finish(self) -> None:
        try:
            self._file.close()
        except OSError:
            self._refuse_existing()
            raise
        if not self.is_atomic:
            self._refuse_existing()
            self._fs.mv(self._path, self._target)
        self._fs.invalidate_cache(self._target)

    def _refuse_existing(self) -> None:
        if self._replace:
            return
        self._fs.invalidate_cache(self._target)
        if self._fs.exists(self._target):
            raise exists_already(self.url)

    def _ask(
        self, call: Callable[..., None], *arguments: Any, size: int = 0, context: str = _UNCHANGED
    ) -> None:
        """Call the file system, and say of its errors which object they are about."""
        limited = partial(_in_time, LONGEST_WAIT + size / _SLOW_LINE, call)
        url, path, fs = self.url, self._target, self._fs
        ask_store(limited, *arguments, url=url, path=path, options=fs, context=context)


def _in_time(seconds: float, call: Callable[..., None], *arguments: Any) -> None:
    """Call, and wait no longer than some time.

    Limits of packages are about answers: a store that takes no bytes would be waited for for ever.
    """
    called = in_thread(call, *arguments)
    if not wait([called], seconds).done:
        reason = f"the store has taken longer than {seconds:.0f} s for a request"
        raise TimeoutError(errno.ETIMEDOUT, reason)
    called.result()


def packages_of(fs: AbstractFileSystem) -> set[str]:
    """The packages of the classes of a file system."""
    return {base.__module__.partition(".")[0] for base in type(fs).__mro__}


def check_place(place: Place, *, replace: bool) -> None:
    """Refuse what cannot be written there, or must not be replaced."""
    if place.is_local:
        target_of(place.path, replace=replace)
        return
    upload = Upload(place, 0, replace=replace)
    path = place.path.strip("/")
    if place.url.endswith("/") or not path or (upload.is_atomic and "/" not in path):
        raise IsADirectoryError(f"{place.url} is a directory; give the name of an object in it")
    if is_cache(place.fs):
        raise ValueError(
            f"{place.url}: the cache would keep what was there before; write to the URL after '::'"
        )
    upload.refuse_existing()


def content_of(place: Place) -> bytes:
    """What a small object has; nothing if it is missing or cannot be read."""
    fs = of_this_process(place.fs)
    fs.invalidate_cache(place.path)
    try:
        content: bytes = fs.cat_file(place.path)
    except Exception:  # noqa: BLE001  # stores raise many, and it is then written anew
        return b""
    return content
