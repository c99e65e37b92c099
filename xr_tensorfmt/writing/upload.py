"""Upload of complete local files."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from secrets import token_hex
from threading import Event
from typing import Any, ClassVar, Self

from fsspec import AbstractFileSystem
from fsspec.callbacks import Callback

from xr_tensorfmt.core.extents import ceil_div
from xr_tensorfmt.core.header import UNFINISHED_MARK
from xr_tensorfmt.sources import ARCHIVES, get_packages
from xr_tensorfmt.sources.locations import Location, exists, is_cache
from xr_tensorfmt.sources.requests import (
    MAX_TIMEOUTS,
    MIN_RATE,
    Version,
    start_in_thread,
    wait_for_result,
)
from xr_tensorfmt.sources.stores import call_fresh, read_fresh
from xr_tensorfmt.writing.atomic_file import (
    UNCHANGED,
    AtomicFile,
    Replacement,
    build_exists_error,
    get_temporary_path,
    publish_set,
)

_logger = logging.getLogger(__name__)

# Packages whose `put_file` creates the object after it has uploaded all bytes.
_ATOMIC_PACKAGES = {"s3fs", "gcsfs", "adlfs", "obstore"}

# Bytes of a part of an upload by s3fs, and the limit of S3 on the parts of an object.
_PART_BYTES, _MAX_PARTS = 8 << 20, 10_000

CLEANUP_TIMEOUT = 5.0
"""Seconds that an upload may take to end after a failure."""

# Bytes at both ends of a file to compare with an object after a failure.
_COMPARED_BYTES = 1 << 20

_UNCERTAIN = "; the object is as before, unless its upload was complete"


@dataclass(frozen=True, kw_only=True)
class UploadedFile(AtomicFile):
    """A temporary file in a directory of all processes, uploaded when it is complete."""

    is_uploaded: ClassVar[bool] = True
    location: Location

    @property
    def _is_atomic(self) -> bool:
        return not get_packages(self.location.fs).isdisjoint(_ATOMIC_PACKAGES)

    def explain(self, error: OSError, outcome: str) -> OSError:
        """Return the error with the local directory, if the error comes from there."""
        directory = os.path.dirname(self.path)
        if error.errno is None or error.filename not in (None, self.path, directory):
            return error
        reason = (
            f"{error.strerror} in {directory}, where the {self.size} bytes of {self.target} "
            "are written before the upload; set dask's 'temporary-directory' to a directory that "
            f"all workers share, with write permission and enough space; {outcome}"
        )
        return OSError(error.errno, reason, directory)

    def check(self) -> None:
        """Raise if the target cannot be an object, or exists and must not be replaced."""
        name, path, fs = self.location.name, self.location.path.strip("/"), self.location.fs
        if not path or (self._is_atomic and "/" not in path):
            raise IsADirectoryError(f"{name} is a directory, expected a file; append a name")
        protocols = [fs.protocol] if isinstance(fs.protocol, str) else fs.protocol
        if is_cache(fs) or not {"http", "https", *ARCHIVES}.isdisjoint(protocols):
            reason = "its file system is read-only; write to a local path, or to the store itself"
            raise OSError(errno.EROFS, reason, name)
        self.location.call(self._check_absent, context=f"; {UNCHANGED}")

    def publish(self, siblings: Sequence[Self] = ()) -> None:
        """Upload complete files, this one last."""
        if siblings:
            objects = list(map(ObjectReplacement, siblings))
            return publish_set(ObjectReplacement(self, objects), objects)
        return replace(self, location=self.location.renew_after_fork())._upload()  # noqa: SLF001

    def _upload(self) -> None:
        location, cancelled = self.location, Event()
        uploaded = location.path if self._is_atomic else get_temporary_path(location.path)
        put = start_in_thread(self._put, uploaded, cancelled)
        try:
            timeout = inf if location.timeout is None else location.timeout
            limit = MAX_TIMEOUTS * (timeout + self.size / MIN_RATE)
            location.call(wait_for_result, put, limit, context=_UNCERTAIN)
        except BaseException as error:
            _logger.info("%s: not uploaded: %r", location.name, error)
            cancelled.set()
            with suppress(Exception):  # libraries do not share a base class
                put.exception(CLEANUP_TIMEOUT)
                if not self._is_atomic:
                    start_in_thread(location.fs.rm_file, uploaded).result(CLEANUP_TIMEOUT)
            if not isinstance(error, Exception):
                error.add_note(f"The upload to {location.name} was cancelled{_UNCERTAIN}")
            raise
        _logger.info("%s: uploaded %d bytes", location.name, os.path.getsize(self.path))

    def _put(self, uploaded: str, cancelled: Event) -> None:
        def check(*_: Any) -> None:
            if cancelled.is_set():
                raise InterruptedError(errno.EINTR, "the upload was cancelled")

        fs, path = self.location.fs, self.location.path
        options: dict[str, Any] = {}
        if self._is_atomic and not self.overwrite:
            options["mode"] = "create"
        if "s3fs" in get_packages(fs):  # up to ten parts are in memory, by default of 50 MiB
            options["chunksize"] = max(_PART_BYTES, ceil_div(self.size, _MAX_PARTS))
        self._check_absent()  # obstore ignores `mode`
        try:
            fs.put_file(self.path, uploaded, callback=Callback(hooks={"check": check}), **options)
        except FileExistsError:
            raise build_exists_error(self.location.name) from None
        if not self._is_atomic:
            self._check_absent()
            check()
            if type(fs).mv is not AbstractFileSystem.mv:  # a store that can rename
                fs.mv(uploaded, path)
            else:  # the `mv` of other file systems would take patterns
                fs.cp_file(uploaded, path)
                fs.rm_file(uploaded)
        fs.invalidate_cache(path)

    def _check_absent(self) -> None:
        self.location.fs.invalidate_cache(self.location.path)
        if not self.overwrite and exists(self.location.fs, self.location.path):
            raise build_exists_error(self.location.name)


class ObjectReplacement(Replacement):
    """The replacement of an object of a set. A store cannot keep the previous object.

    With `siblings`, it is the index: meanwhile, a mark of the writer is in its place, unless the
    previous index does not list any of the siblings.
    """

    def __init__(
        self, file: UploadedFile, siblings: Sequence[ObjectReplacement] | None = None
    ) -> None:
        super().__init__(file)
        self._siblings = siblings or ()
        self._is_index, self._has_mark = siblings is not None and file.overwrite, False
        self._mark = UNFINISHED_MARK + f" {token_hex(8)}\n".encode()
        self.is_prepared = False
        self._versions: list[Version | None] = []
        self._content: bytes | None = None
        self._version: Version | None = None
        self._was_uploaded = self._may_appear = False
        self._location = file.location.renew_after_fork()

    def prepare(self) -> None:
        """Remember the version, or put the mark in the place of the previous index."""
        if self._is_index:
            self._content = read_fresh(self._location)
            is_shared = any(sibling.find_version() for sibling in self._siblings)
            self.is_prepared, self._has_mark = True, is_shared or self._content is None
            if self._has_mark:
                call_fresh(self._location, "pipe_file", self._mark)
            return
        self._version = self.find_version()
        if self._version is not None and not self.file.overwrite:
            raise build_exists_error(self.file.target)
        self.is_prepared = True

    def install(self) -> None:
        """Upload the object. Try twice, because other objects may be replaced already."""
        try:
            self._install()
        except OSError as error:
            self._may_appear = isinstance(error, TimeoutError)
            if self._may_appear or error.errno == errno.EBUSY or not self.file.overwrite:
                raise
            _logger.info("%s: tried again after %r", self._location.name, error)
            with suppress(OSError):
                self._install()
                return
            raise

    def _install(self) -> None:
        """Upload the object, an index only if no other writer has changed the objects."""
        self._versions = self._versions or [x.find_version() for x in self._siblings]
        is_alone = not self._has_mark or read_fresh(self._location) == self._mark
        if is_alone:
            self.file.publish()
            self._was_uploaded = True
            is_alone = self._versions == [x.find_version() for x in self._siblings]
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
                if read_fresh(self._location, start=start, end=stop) != file.read(stop - start):
                    return False
        return True

    def withdraw(self) -> None:
        """Remove the new object, or put the mark in the place of a new index."""
        if not self.is_prepared:
            return
        if self._may_appear and self._siblings:
            raise TimeoutError(f"the upload of {self.file.target} may continue")
        if not self._has_mark:
            if self.is_installed():
                self._put_back()
        elif read_fresh(self._location) not in (self._content, self._mark):
            call_fresh(self._location, "pipe_file", self._mark)

    def restore(self) -> None:
        """Restore the index, or remove a new object. Raise OSError if another one was replaced."""
        if not self.is_prepared:
            return
        if self._has_mark:
            if read_fresh(self._location) != self._content:  # the mark may not have been written
                self._put_back()
            return
        if self._version is None:
            self.withdraw()
        is_same = self._is_index or self.find_version() == self._version
        if not is_same or (self._version is not None and self._was_uploaded):
            raise FileExistsError(f"{self.file.target} was replaced")

    def _put_back(self) -> None:
        """Write the content of the previous index, or remove the object."""
        call = ("rm_file",) if self._content is None else ("pipe_file", self._content)
        call_fresh(self._location, *call)

    def find_version(self) -> Version | None:
        """Request the version of the object; return None if there is none."""
        with suppress(FileNotFoundError):
            return Version.from_info(call_fresh(self._location, "info"))
        return None
