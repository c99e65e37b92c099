"""Upload of complete local files."""

from __future__ import annotations

import errno
import logging
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from time import monotonic
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.callbacks import Callback

from xr_tensorfmt.core.header import UNFINISHED_MARK
from xr_tensorfmt.sources import ARCHIVES
from xr_tensorfmt.sources.locations import Location, exists, is_cache
from xr_tensorfmt.sources.requests import Version, start_in_thread, wait_for_result
from xr_tensorfmt.sources.stores import get_packages
from xr_tensorfmt.writing.atomic_file import (
    UNCHANGED,
    AtomicFile,
    Replacement,
    build_exists_error,
    build_suffix,
)

_logger = logging.getLogger(__name__)

# Packages whose `put_file` creates the object after it has uploaded all bytes.
_ATOMIC_PACKAGES = {"s3fs", "gcsfs", "adlfs", "obstore"}

# Seconds that an upload may take without progress, and its end after a failure.
MAX_STALL, CLEANUP_TIMEOUT = 300.0, 5.0

# Bytes at both ends of a file to compare with an object after a failure.
_COMPARED_BYTES = 1 << 20

_UNCHANGED = f"; {UNCHANGED}"
_UNCERTAIN = f"{_UNCHANGED} unless the upload was complete"


@dataclass(frozen=True, kw_only=True)
class UploadedFile(AtomicFile):
    """A temporary file in a directory of all processes, uploaded when it is complete."""

    location: Location

    def publish(self) -> None:
        """Upload the file."""
        Upload(self.location, overwrite=self.overwrite).upload(self.path)

    def explain(self, error: OSError, outcome: str) -> OSError:
        """Return the error with the local directory, if the error comes from there."""
        directory = os.path.dirname(self.base)
        if error.errno is None or error.filename not in (None, self.path, directory):
            return error
        reason = (
            f"{error.strerror} in {directory}, where the {self.size} bytes of {self.target} "
            "are written before the upload; set dask's 'temporary-directory' to a directory that "
            f"all workers share, with write permission and enough space; {outcome}"
        )
        return OSError(error.errno, reason, directory)


class _Progress(Callback):  # type: ignore[misc]
    """Watch the progress of an upload, and stop an upload that stalls or was cancelled."""

    def __init__(self, max_stall: float) -> None:
        super().__init__()
        self.is_cancelled = False
        self._time = monotonic()
        self._max_stall = max_stall

    def call(self, *_: Any, **__: Any) -> None:
        """Record progress; raise InterruptedError if the upload was cancelled."""
        self._time = monotonic()
        self.check()

    def check(self) -> None:
        """Raise an error if the upload was cancelled, or had no progress for too long."""
        if self.is_cancelled:
            raise InterruptedError(errno.EINTR, "the upload was cancelled")
        if monotonic() - self._time > self._max_stall:
            reason = f"the store accepted no bytes for {self._max_stall:.0f} s"
            raise TimeoutError(errno.ETIMEDOUT, reason)


class Upload:
    """The upload of a file to a store."""

    def __init__(self, location: Location, *, overwrite: bool) -> None:
        self._location = location.renew_after_fork()
        self._fs, self._target = self._location.fs, location.path
        self._overwrite = overwrite
        self._packages = get_packages(self._fs)
        self._is_atomic = not self._packages.isdisjoint(_ATOMIC_PACKAGES)
        directory, slash, name = location.path.rpartition("/")
        temporary = f"{directory}{slash}.{name}{build_suffix()}"
        self._path = self._target if self._is_atomic else temporary

    def check(self) -> None:
        """Raise if the target cannot be an object, or exists and must not be replaced."""
        url, path = self._location.name, self._target.strip("/")
        if not path or (self._is_atomic and "/" not in path):
            raise IsADirectoryError(f"{url} is a directory, expected a file; append a name")
        if is_cache(self._fs):
            reason = "the cache would keep the previous object; write to the URL after '::'"
            raise ValueError(f"{url}: {reason}")
        protocols = [self._fs.protocol] if isinstance(self._fs.protocol, str) else self._fs.protocol
        if not {"http", "https", *ARCHIVES}.isdisjoint(protocols):
            raise self._build_read_only_error()
        self._location.call(self._check_absent, context=_UNCHANGED)

    def upload(self, path: str) -> None:
        """Upload a local file."""
        # obstore reports no progress, and limits its requests itself.
        progress = _Progress(math.inf if "obstore" in self._packages else MAX_STALL)
        put = start_in_thread(self._put, path, progress)
        try:
            self._location.call(wait_for_result, put, progress.check, context=_UNCERTAIN)
        except BaseException as error:
            _logger.info("%s: not uploaded: %r", self._location.name, error)
            progress.is_cancelled = True
            with suppress(Exception):  # libraries do not share a base class
                put.exception(CLEANUP_TIMEOUT)
                if not self._is_atomic:
                    start_in_thread(self._fs.rm_file, self._path).result(CLEANUP_TIMEOUT)
            if not isinstance(error, Exception):
                error.add_note(f"The upload to {self._location.name} was cancelled{_UNCERTAIN}")
            raise
        _logger.info("%s: uploaded %d bytes", self._location.name, os.path.getsize(path))

    def _put(self, path: str, progress: _Progress) -> None:
        options = {"mode": "create"} if self._is_atomic and not self._overwrite else {}
        if "obstore" in self._packages:
            self._check_absent()  # it ignores `mode`
        try:
            self._fs.put_file(path, self._path, callback=progress, **options)
        except NotImplementedError:
            raise self._build_read_only_error() from None
        except FileExistsError:
            raise build_exists_error(self._location.name) from None
        if not self._is_atomic:
            self._check_absent()
            progress.call()
            self._move()
        self._fs.invalidate_cache(self._target)

    def _move(self) -> None:
        """Rename the temporary object. The `mv` of most file systems would take patterns."""
        if type(self._fs).mv is not AbstractFileSystem.mv:  # a store that can rename
            self._fs.mv(self._path, self._target)
            return
        self._fs.cp_file(self._path, self._target)
        self._fs.rm_file(self._path)

    def _check_absent(self) -> None:
        if self._overwrite:
            return
        self._fs.invalidate_cache(self._target)
        if exists(self._fs, self._target):
            raise build_exists_error(self._location.name)

    def _build_read_only_error(self) -> OSError:
        reason = "its file system is read-only; write to a local path, or to another store"
        return OSError(errno.EROFS, reason, self._location.name)


class ObjectReplacement(Replacement):
    """The replacement of an object of a set. A store cannot keep the previous object.

    With `siblings`, it is the index: meanwhile, a mark of the writer is in its place.
    """

    def __init__(
        self, file: UploadedFile, siblings: Sequence[ObjectReplacement] | None = None
    ) -> None:
        super().__init__(file)
        self.kept = ""
        self._siblings = siblings or ()
        self._has_mark = siblings is not None and file.overwrite
        self._mark = UNFINISHED_MARK + f" {token_hex(8)}\n".encode()
        self._content: bytes | None = None
        self._version: Version | None = None
        self._was_uploaded = False
        self._location = file.location.renew_after_fork()

    def prepare(self) -> None:
        """Remember the version, or put the mark in the place of the previous index."""
        if self._has_mark:
            self._content = self._read()
            self.is_prepared = True
            self._request("pipe_file", self._mark)
            return
        self._version = self.find_version()
        if self._version is not None and not self.file.overwrite:
            raise build_exists_error(self.file.target)
        self.is_prepared = True

    def install(self) -> None:
        """Upload the object, an index only if no other writer has changed the objects."""
        versions = [sibling.find_version() for sibling in self._siblings]
        is_alone = not self._has_mark or self._read() == self._mark
        if is_alone:
            self.file.publish()
            self._was_uploaded = True
            is_alone = versions == [sibling.find_version() for sibling in self._siblings]
        if not is_alone:
            reason = "another writer replaced some of its files meanwhile"
            raise OSError(errno.EBUSY, reason, self.file.target)

    def is_installed(self) -> bool:
        """Return whether the object has the size of the new file, and its first and last bytes."""
        size = os.path.getsize(self.file.path)
        version = self.find_version()
        if version is None or version.size not in (None, size):
            return False
        with open(self.file.path, "rb") as file:
            for start in {0, max(0, size - _COMPARED_BYTES)}:
                file.seek(start)
                stop = min(size, start + _COMPARED_BYTES)
                if bytes(self._request("cat_file", start, stop)) != file.read(stop - start):
                    return False
        return True

    def withdraw(self) -> None:
        """Remove the new object, or put the mark in the place of a new index."""
        if not self._has_mark:
            if self.is_installed():
                self._request("rm_file")
        elif self.is_prepared and self._read() not in (self._content, self._mark):
            self._request("pipe_file", self._mark)

    def restore(self) -> None:
        """Restore the index, or remove a new object. Raise OSError if another one was replaced."""
        if not self.is_prepared:
            return
        if self._has_mark and self._content is None:
            self._request("rm_file")
        elif self._has_mark:
            if self._read() != self._content:
                self._request("pipe_file", self._content)
        elif (version := self.find_version()) != self._version or (version and self._was_uploaded):
            if self._version is None:
                self.withdraw()
            if self._version is not None or self.find_version() is not None:
                raise FileExistsError(f"{self.file.target} was replaced")

    def forget(self) -> None:
        """Do nothing: no previous object is kept."""

    def _request(self, method: str, *arguments: Any) -> Any:
        """Call a method of the file system for the object."""
        fs, path = self._location.fs, self._location.path
        fs.invalidate_cache(path)
        return self._location.call(getattr(fs, method), path, *arguments)

    def find_version(self) -> Version | None:
        """Request the version of the object; return None if there is none."""
        with suppress(FileNotFoundError):
            return Version.from_info(self._request("info"))
        return None

    def _read(self) -> bytes | None:
        with suppress(FileNotFoundError):
            return bytes(self._request("cat_file"))
        return None
