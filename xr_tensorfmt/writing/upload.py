"""Upload of complete local files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.callbacks import Callback

from xr_tensorfmt.sources.locations import Location, exists, is_cache
from xr_tensorfmt.sources.requests import Version
from xr_tensorfmt.sources.store_errors import call_store
from xr_tensorfmt.sources.threads import start_in_thread, wait_for_first
from xr_tensorfmt.writing.atomic_file import (
    AtomicFile,
    build_exists_error,
    open_descriptor,
    write_at,
)
from xr_tensorfmt.writing.unfinished import build_suffix
from xr_tensorfmt.writing.write_target import Piece

Result = TypeVar("Result")

# Packages whose `put_file` creates the object after it has uploaded all bytes.
_ATOMIC_PACKAGES = {"s3fs", "gcsfs", "adlfs"}

MIB = 1 << 20
PART_SIZE = 16 * MIB
"""Bytes of a part of an upload to S3. s3fs keeps ten parts in memory."""

MAX_PARTS = 10_000
"""Limit of S3 on the parts of an object."""

MAX_STALL = 300.0
"""Seconds that an upload may take without progress."""

CLEANUP_TIMEOUT = 5.0
"""Seconds that a cleanup request may take after a failed upload."""

_UNCHANGED = "; the target is unchanged"
_UNKNOWN = "; the object may have been replaced; check it before you write it again"


def get_part_size(size: int) -> int:
    """Return the size of the parts of an upload to S3."""
    return max(PART_SIZE, -(-size // (MAX_PARTS * MIB)) * MIB)


@dataclass(frozen=True, kw_only=True)
class UploadedFile(AtomicFile):
    """A temporary file that is uploaded when it is complete.

    All processes share `directory`.
    """

    location: Location
    directory: str

    @property
    def _named_path(self) -> str:
        # The URL is redacted, so the name has no secrets.
        return os.path.join(self.directory, os.path.basename(self.target))

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Write the pieces."""
        with self._add_hint(discard=True), open_descriptor(self.path) as descriptor:
            for piece in pieces:
                write_at(descriptor, memoryview(piece.data), piece.offset)

    def publish(self) -> None:
        """Upload the file, and remove it."""
        try:
            Upload(self.location, replace=self.replace).upload(self.path)
        finally:
            self.discard()

    def _build_error(self, error: OSError) -> OSError:
        problem, needed = f"{error.strerror} in {self.directory}", "with more space"
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            needed = "with write permission"
        if isinstance(error, FileNotFoundError):
            problem, needed = f"this process cannot find {self.path}", "that all workers share"
        reason = (
            f"{problem}, which is needed to write the {self.size} bytes of {self.target} before "
            f"the upload; set dask's 'temporary-directory' to a directory {needed}{_UNCHANGED}"
        )
        return OSError(error.errno, reason, self.directory)


class _Progress(Callback):  # type: ignore[misc]
    """Watch the progress of an upload, and stop an upload that was cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self._is_cancelled = False
        self._progress = Event()

    def call(self, *_: Any, **__: Any) -> None:
        """Record progress; raise InterruptedError if the upload was cancelled."""
        if self._is_cancelled:
            raise InterruptedError(errno.EINTR, "the upload was cancelled")
        self._progress.set()

    def cancel(self) -> None:
        """Make the next call raise InterruptedError."""
        self._is_cancelled = True
        self._progress.set()

    def wait_for_stall(self) -> None:
        """Return if the upload makes no progress for MAX_STALL seconds, or is cancelled."""
        while self._progress.wait(MAX_STALL) and not self._is_cancelled:
            self._progress.clear()


def _find_permission_error(error: BaseException | None) -> PermissionError | None:
    """Return the PermissionError that an error of the abort by s3fs hides."""
    while error is not None and not isinstance(error, PermissionError):
        error = error.__context__
    return error


class Upload:
    """The upload of a file to a store."""

    def __init__(self, location: Location, *, replace: bool) -> None:
        self.url = location.url
        self._fs, self._target = location.renew_after_fork().fs, location.path
        self._packages, self._replace = _get_packages(self._fs), replace
        self._is_atomic = not self._packages.isdisjoint(_ATOMIC_PACKAGES)
        directory, slash, name = location.path.rpartition("/")
        temporary = f"{directory}{slash}.{name}{build_suffix()}"
        self._path = self._target if self._is_atomic else temporary
        self._is_moving = False

    def check(self) -> None:
        """Raise if the target cannot be an object, or exists and must not be replaced."""
        path = self._target.strip("/")
        if self.url.endswith("/") or not path or (self._is_atomic and "/" not in path):
            raise IsADirectoryError(f"{self.url} is a directory; give the name of an object in it")
        if is_cache(self._fs):
            reason = "the cache would keep the previous object; write to the URL after '::'"
            raise ValueError(f"{self.url}: {reason}")
        if not {"http", "https"}.isdisjoint(_get_protocols(self._fs)):
            raise self._build_read_only_error()
        self._call_store(self._check_absent, _UNCHANGED)

    def upload(self, path: str) -> None:
        """Upload a local file. Errors say whether the target is unchanged."""
        size = os.path.getsize(path)
        before = self._get_info()
        others = self._list_uploads() if size >= 2 * get_part_size(size) else None
        progress = _Progress()
        put = start_in_thread(self._put, path, size, progress)
        try:
            self._call_store(lambda: _wait(put, progress), "")
        except BaseException as error:  # noqa: BLE001  # Ctrl-C needs the same cleanup
            failure = error
        else:
            return
        finally:
            progress.cancel()
        is_stopped = self._clean_up(others) or put.done()
        is_unchanged = self._is_unchanged(failure, before, size, is_stopped=is_stopped)
        context = _UNCHANGED if is_unchanged else _UNKNOWN
        # Raising outside of the except clause leaves out the original error as context.
        if isinstance(failure, OSError):
            raise OSError(failure.errno, f"{failure.strerror}{context}", self.url)
        failure.add_note(f"The upload to {self.url} was cancelled{context}")
        raise failure

    def _is_unchanged(
        self,
        failure: BaseException,
        before: tuple[int | None, Version] | None,
        size: int,
        *,
        is_stopped: bool,
    ) -> bool:
        """Return whether the target is certainly unchanged after a failed upload."""
        if self._is_atomic and isinstance(failure, PermissionError):
            return True
        if not self._is_atomic and not self._is_moving:
            return True
        # An object of the same size without an entity tag could be the new object.
        is_comparable = before is not None and (before[0] != size or bool(before[1].etag))
        if not (is_stopped and is_comparable):
            return False
        return _call_within(CLEANUP_TIMEOUT, self._get_info) == before

    def _put(self, path: str, size: int, progress: _Progress) -> None:
        options: dict[str, Any] = {"callback": progress}
        if self._is_atomic and not self._replace:
            options["mode"] = "create"
        if "s3fs" in self._packages:
            options["chunksize"] = get_part_size(size)
        try:
            self._fs.put_file(path, self._path, **options)
        except NotImplementedError:
            raise self._build_read_only_error() from None
        except OSError as error:
            self._check_absent()
            raise _find_permission_error(error) or error from None
        if not self._is_atomic:
            self._check_absent()
            self._is_moving = True
            progress.call()
            self._fs.mv(self._path, self._target)
        self._fs.invalidate_cache(self._target)

    def _get_info(self) -> tuple[int | None, Version] | None:
        """Return size and version of the object, (None, Version()) if missing, None if unknown."""
        try:
            self._fs.invalidate_cache(self._target)
            info = self._fs.info(self._target)
        except FileNotFoundError:
            return None, Version()
        except Exception:  # noqa: BLE001  # libraries do not share a base class
            return None
        return info.get("size"), Version.from_info(info)

    def _check_absent(self) -> None:
        if self._replace:
            return
        self._fs.invalidate_cache(self._target)
        if exists(self._fs, self._target):
            raise build_exists_error(self.url)

    def _clean_up(self, others: set[str] | None) -> bool:
        """Clean up after a failed upload; return whether its object can no longer appear."""
        if not self._is_atomic:
            _call_within(CLEANUP_TIMEOUT, self._fs.rm, self._path)
            return False
        return bool(others is not None and _call_within(CLEANUP_TIMEOUT, self._abort, others))

    def _abort(self, others: set[str]) -> bool:
        """Abort the uploads to S3 except `others`; return whether there were any."""
        own = (self._list_uploads() or set()) - others
        bucket, key, _ = self._fs.split_path(self._target)
        for upload in own:
            self._fs.abort_mpu(bucket, key, upload)
        return bool(own)

    def _list_uploads(self) -> set[str] | None:
        """Return the unfinished multipart uploads of the object; None if unknown."""
        if "s3fs" not in self._packages:
            return None
        bucket, key, _ = self._fs.split_path(self._target)
        try:
            page = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
        except Exception:  # noqa: BLE001  # the permission to list may be missing
            return None
        return {upload["UploadId"] for upload in page.get("Uploads", ()) if upload["Key"] == key}

    def _build_read_only_error(self) -> OSError:
        reason = "its file system is read-only; write to a local path, or to another store"
        return OSError(errno.EROFS, reason, self.url)

    def _call_store(self, call: Callable[[], None], context: str) -> None:
        call_store(call, url=self.url, path=self._target, options=self._fs, context=context)


def _wait(put: Future[None], progress: _Progress) -> None:
    """Wait for an upload; raise TimeoutError if it makes no progress."""
    stall = start_in_thread(progress.wait_for_stall)
    wait_for_first([put, stall])
    if not put.done():
        reason = f"the store accepted no bytes for {MAX_STALL:.0f} s"
        raise TimeoutError(errno.ETIMEDOUT, reason)
    put.result()


def _call_within(seconds: float, call: Callable[..., Result], *arguments: Any) -> Result | None:
    """Return the result of a call, or None if it fails or takes too long."""
    with suppress(Exception):
        return start_in_thread(call, *arguments).result(seconds)
    return None


def _get_packages(fs: AbstractFileSystem) -> set[str]:
    """Return the packages of the base classes of a file system."""
    return {base.__module__.partition(".")[0] for base in type(fs).__mro__}


def _get_protocols(fs: AbstractFileSystem) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
