"""Upload of complete local files, so that an object appears at once."""

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

from xr_tensorfmt.sources.places import Place, exists, is_cache
from xr_tensorfmt.sources.requests import Version
from xr_tensorfmt.sources.store_errors import ask_store
from xr_tensorfmt.sources.threads import first_done, in_thread
from xr_tensorfmt.writing.atomic_file import AtomicFile, exists_already, opened, write_at
from xr_tensorfmt.writing.unfinished import suffix_of_unfinished
from xr_tensorfmt.writing.write_target import Piece

Result = TypeVar("Result")

# Packages whose `put_file` makes an object appear when all bytes have arrived, and not before.
_ATOMIC = {"s3fs", "gcsfs", "adlfs"}

MIB = 1 << 20
PART_SIZE = 16 * MIB
"""Bytes of a part of an upload to S3. s3fs holds ten parts in memory."""

MAX_PARTS = 10_000
"""Parts of an object in S3."""

MAX_STALL = 300.0
"""Seconds that an upload may take without progress."""

CLEANUP_TIMEOUT = 5.0
"""Seconds for each request that cleans up after a failed upload."""

_UNCHANGED = "; what was there before is unchanged"
_UNKNOWN = (
    "; whether the object has been replaced is not known; look at it before you write it again"
)


def get_part_size(size: int) -> int:
    """Return the bytes of a part of an object in S3."""
    return max(PART_SIZE, -(-size // (MAX_PARTS * MIB)) * MIB)


@dataclass(frozen=True, kw_only=True)
class UploadedFile(AtomicFile):
    """A local temporary file that is uploaded when it is complete.

    `directory` is a local directory that all processes share.
    """

    place: Place
    directory: str

    @property
    def _final(self) -> str:
        # The URL is without its query, which may be secret.
        return os.path.join(self.directory, os.path.basename(self.target))

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Write the pieces."""
        with self._explained(discards=True), opened(self.path) as descriptor:
            for piece in pieces:
                write_at(descriptor, memoryview(piece.data), piece.offset)

    def publish(self) -> None:
        """Upload the file, and remove it."""
        try:
            Upload(self.place, replace=self.replace).send(self.path)
        finally:
            self.discard()

    def _explain(self, error: OSError) -> OSError:
        what, where = f"{error.strerror} in {self.directory}", "with more space"
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            where = "that can be written to"
        if isinstance(error, FileNotFoundError):
            what, where = f"this process sees no {self.path}", "that all workers share"
        reason = (
            f"{what}, where the {self.size} bytes of {self.target} are written before they are "
            f"uploaded; set dask's 'temporary-directory' to a directory {where}{_UNCHANGED}"
        )
        return OSError(error.errno, reason, self.directory)


class _Progress(Callback):  # type: ignore[misc]
    """Notice the progress of an upload, and end an upload that was given up."""

    def __init__(self) -> None:
        super().__init__()
        self._is_given_up = False
        self._news = Event()

    def call(self, *_: Any, **__: Any) -> None:
        """Note progress; raise an error if the upload was given up."""
        if self._is_given_up:
            raise InterruptedError(errno.EINTR, "the upload was given up")
        self._news.set()

    def give_up(self) -> None:
        """Let the next call raise an error."""
        self._is_given_up = True
        self._news.set()

    def wait_for_stall(self) -> None:
        """Return when there was no progress for some time, or the upload was given up."""
        while self._news.wait(MAX_STALL) and not self._is_given_up:
            self._news.clear()


def _find_refusal(error: BaseException | None) -> PermissionError | None:
    """Return the refusal behind an error: s3fs aborts an upload, and that can fail as well."""
    while error is not None and not isinstance(error, PermissionError):
        error = error.__context__
    return error


class Upload:
    """The upload of a file to a store."""

    def __init__(self, place: Place, *, replace: bool) -> None:
        self.url = place.url
        self._fs, self._target = place.for_this_process().fs, place.path
        self._packages, self._replace = _get_packages(self._fs), replace
        self._is_atomic = not self._packages.isdisjoint(_ATOMIC)
        directory, slash, name = place.path.rpartition("/")
        temporary = f"{directory}{slash}.{name}{suffix_of_unfinished()}"
        self._path = self._target if self._is_atomic else temporary
        self._is_moving = False

    def check(self) -> None:
        """Raise an error if the target cannot be an object, or must not be replaced."""
        path = self._target.strip("/")
        if self.url.endswith("/") or not path or (self._is_atomic and "/" not in path):
            raise IsADirectoryError(f"{self.url} is a directory; give the name of an object in it")
        if is_cache(self._fs):
            reason = "the cache would keep what was there before; write to the URL after '::'"
            raise ValueError(f"{self.url}: {reason}")
        if not {"http", "https"}.isdisjoint(_get_protocols(self._fs)):
            raise self._only_reads()
        self._ask(self._check_absent, _UNCHANGED)

    def send(self, path: str) -> None:
        """Upload a local file; an error says whether the object before it is unchanged."""
        size = os.path.getsize(path)
        before = self._look()
        others = self._list_uploads() if size >= 2 * get_part_size(size) else None
        progress = _Progress()
        put = in_thread(self._put, path, size, progress)
        try:
            self._ask(lambda: _wait(put, progress), "")
        except BaseException as error:  # noqa: BLE001  # Ctrl-C needs the same clean-up
            failure = error
        else:
            return
        finally:
            progress.give_up()
        is_aborted = self._clean_up(others)
        can_appear = not (put.done() or is_aborted)
        is_proof = before and (before[0] != size or before[1].etag)
        is_refused = self._is_atomic and isinstance(failure, PermissionError)
        is_untouched = not (self._is_atomic or self._is_moving)
        is_unchanged = (
            is_refused
            or is_untouched
            or (
                bool(is_proof) and not can_appear and _within(CLEANUP_TIMEOUT, self._look) == before
            )
        )
        context = _UNCHANGED if is_unchanged else _UNKNOWN
        # Outside of the except clause, so that the error has no other one as its context.
        if isinstance(failure, OSError):
            raise OSError(failure.errno, f"{failure.strerror}{context}", self.url)
        failure.add_note(f"The upload to {self.url} was given up{context}")
        raise failure

    def _put(self, path: str, size: int, progress: _Progress) -> None:
        options: dict[str, Any] = {"callback": progress}
        if self._is_atomic and not self._replace:
            options["mode"] = "create"
        if "s3fs" in self._packages:
            options["chunksize"] = get_part_size(size)
        try:
            self._fs.put_file(path, self._path, **options)
        except NotImplementedError:
            raise self._only_reads() from None
        except OSError as error:
            self._check_absent()
            raise _find_refusal(error) or error from None
        if not self._is_atomic:
            self._check_absent()
            self._is_moving = True
            progress.call()
            self._fs.mv(self._path, self._target)
        self._fs.invalidate_cache(self._target)

    def _look(self) -> tuple[int | None, Version] | None:
        """Return size and version of the object, no size if there is none, None if unknown."""
        try:
            self._fs.invalidate_cache(self._target)
            info = self._fs.info(self._target)
        except FileNotFoundError:
            return None, Version()
        except Exception:  # noqa: BLE001  # each library has its own exceptions
            return None
        return info.get("size"), Version.of(info)

    def _check_absent(self) -> None:
        if self._replace:
            return
        self._fs.invalidate_cache(self._target)
        if exists(self._fs, self._target):
            raise exists_already(self.url)

    def _clean_up(self, others: set[str] | None) -> bool:
        """Remove what a failed upload left; return whether its object cannot appear any more."""
        if not self._is_atomic:
            _within(CLEANUP_TIMEOUT, self._fs.rm, self._path)
            return False
        return bool(others is not None and _within(CLEANUP_TIMEOUT, self._abort, others))

    def _abort(self, others: set[str]) -> bool:
        """Abort the uploads to S3 that were begun since those in `others`."""
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

    def _only_reads(self) -> OSError:
        reason = "its file system only reads; write to a local path, or to a store"
        return OSError(errno.EROFS, reason, self.url)

    def _ask(self, call: Callable[[], None], context: str) -> None:
        ask_store(call, url=self.url, path=self._target, options=self._fs, context=context)


def _wait(put: Future[None], progress: _Progress) -> None:
    """Wait until an upload has ended; TimeoutError if it makes no progress."""
    stall = in_thread(progress.wait_for_stall)
    first_done([put, stall])
    if not put.done():
        reason = f"the store has taken no bytes for {MAX_STALL:.0f} s"
        raise TimeoutError(errno.ETIMEDOUT, reason)
    put.result()


def _within(seconds: float, call: Callable[..., Result], *arguments: Any) -> Result | None:
    """Return a result; None if the call fails or takes too long."""
    with suppress(Exception):
        return in_thread(call, *arguments).result(seconds)
    return None


def _get_packages(fs: AbstractFileSystem) -> set[str]:
    """Return the packages of the classes of a file system."""
    return {base.__module__.partition(".")[0] for base in type(fs).__mro__}


def _get_protocols(fs: AbstractFileSystem) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
