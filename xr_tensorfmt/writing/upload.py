"""An object of a store, written in order through a file of its file system."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import Any

from fsspec import AbstractFileSystem

from xr_tensorfmt.core.extents import Bytes
from xr_tensorfmt.sources.caches import is_cache
from xr_tensorfmt.sources.places import Place
from xr_tensorfmt.sources.requests import Version
from xr_tensorfmt.sources.store_errors import ask_store
from xr_tensorfmt.sources.threads import in_thread
from xr_tensorfmt.writing.atomic_file import exists_already
from xr_tensorfmt.writing.unfinished import Unfinished, parts_of, suffix_of_unfinished

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
    "; whether the object has been replaced is not known; look at it before you write it again"
)


def part_size(size: int) -> int:
    """Bytes of the parts in which an object of some size is uploaded."""
    return max(SMALLEST_PART, -(-size // (MOST_PARTS * MIB)) * MIB)


class Upload:
    """An object that is written from its first byte to its last."""

    def __init__(self, place: Place, size: int, *, replace: bool) -> None:
        self.url = place.url
        self._fs, self._target = place.for_this_process().fs, place.path
        self._size, self._part, self._replace = size, part_size(size), replace
        self._file: Any = None
        self._is_atomic = not _packages_of(self._fs).isdisjoint(_ATOMIC)
        directory, slash, name = place.path.rpartition("/")
        aside = f"{directory}{slash}.{name}{suffix_of_unfinished()}"
        self._path = self._target if self._is_atomic else aside

    @property
    def token(self) -> str:
        """What names the unfinished upload in S3; empty before its first part, and elsewhere."""
        return str((getattr(self._file, "mpu", None) or {}).get("UploadId", ""))

    def write(self, data: Bytes) -> None:
        """Send the bytes that follow."""
        self._ask(self._write, data, size=data.size + self._part)

    def finish(self) -> None:
        """Make the object appear; an error says whether the one before is known to be unchanged."""
        before = self._look()
        try:
            self._ask(self._finish, context="")
        except OSError as error:
            failure = error
        else:
            return
        self.discard()  # after this, nothing appears any more
        size, version = before or (self._size, Version())
        # Times may be whole seconds, within which an object of the same size can replace another.
        is_proof = size != self._size or version.etag
        is_refused = self._is_atomic and isinstance(failure, PermissionError)
        is_unchanged = is_refused or (is_proof and self._look() == before)
        context = _UNCHANGED if is_unchanged else _UNKNOWN
        # Not in the except clause, so that the error has no other one as its context.
        raise OSError(failure.errno, f"{failure.strerror}{context}", self.url)

    def check(self) -> None:
        """Refuse a place that no object can have, and to replace an object without being asked."""
        path = self._target.strip("/")
        if self.url.endswith("/") or not path or (self._is_atomic and "/" not in path):
            raise IsADirectoryError(f"{self.url} is a directory; give the name of an object in it")
        if is_cache(self._fs):
            reason = "the cache would keep what was there before; write to the URL after '::'"
            raise ValueError(f"{self.url}: {reason}")
        self._ask(self._refuse_existing)

    def discard(self) -> None:
        """Leave nothing behind, and what was there before unchanged."""
        if self._file is None:
            return
        with suppress(Exception):
            if self._is_atomic:
                self._file.closed = True  # or else the object appears when the file is forgotten
                self._file.discard()
            else:
                self._file.close()
        if not self._is_atomic:
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

    def _write(self, data: Bytes) -> None:
        if self._file is None:
            mode = "xb" if self._is_atomic and not self._replace else "wb"
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
        if not self._is_atomic:
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
        seconds = LONGEST_WAIT + size / _SLOW_LINE
        called = in_thread(call, *arguments)

        def result() -> None:
            # Limits of packages are about answers, and not about a store that takes no bytes.
            if not wait([called], seconds).done:
                reason = f"the store has taken longer than {seconds:.0f} s for a request"
                raise TimeoutError(errno.ETIMEDOUT, reason)
            called.result()

        ask_store(result, url=self.url, path=self._target, options=self._fs, context=context)


def _packages_of(fs: AbstractFileSystem) -> set[str]:
    """The packages of the classes of a file system."""
    return {base.__module__.partition(".")[0] for base in type(fs).__mro__}


def unfinished_at(place: Place, *, recursive: bool) -> Iterator[Unfinished]:
    """What is unfinished in a directory of a store, or of one object."""
    fs = place.for_this_process().fs
    if is_cache(fs):
        raise ValueError(f"{place.url}: nothing is written into a cache; give the URL after '::'")
    packages = _packages_of(fs)
    if packages & {"gcsfs", "adlfs"}:
        reason = "its store does not list unfinished uploads, and removes them after a week"
        raise ValueError(f"{place.url}: {reason}")
    ask = partial(ask_store, url=place.url, path=place.path, options=fs)
    find = _unfinished_uploads if "s3fs" in packages else _unfinished_files
    yield from find(fs, place, ask, recursive=recursive)


def _unfinished_uploads(
    fs: Any, place: Place, ask: Callable[..., Any], *, recursive: bool
) -> Iterator[Unfinished]:
    bucket, key, _ = fs.split_path(place.path.rstrip("/"))
    directory = f"{key}/" if key else ""
    request = {"Bucket": bucket, "Prefix": key}
    for upload in ask(_listed, fs, "list_multipart_uploads", "Uploads", request):
        name, token = upload["Key"], upload["UploadId"]
        is_inside = name.startswith(directory) and (
            recursive or "/" not in name.removeprefix(directory)
        )
        if name != key and not is_inside:
            continue
        size = 0
        with suppress(FileNotFoundError):  # it has ended meanwhile
            parts = {"Bucket": bucket, "Key": name, "UploadId": token}
            size = sum(int(each["Size"]) for each in ask(_listed, fs, "list_parts", "Parts", parts))
        abort = partial(ask, fs.abort_mpu, bucket, name, token)
        begun = upload["Initiated"].timestamp() if upload.get("Initiated") else None
        yield Unfinished(f"s3://{bucket}/{name}", size, begun, abort)


def _listed(fs: Any, method: str, name: str, request: dict[str, Any]) -> list[dict[str, Any]]:
    """What a request to S3 lists under a name, of all pages."""
    page = fs.call_s3(method, **request)
    listed = list(page.get(name) or ())
    while page.get("IsTruncated"):
        # As NextKeyMarker, which is the KeyMarker of the next page.
        markers = {each[4:]: page[each] for each in page if each.startswith("Next")}
        page = fs.call_s3(method, **request, **markers)
        listed += page.get(name) or ()
    return listed


def _unfinished_files(
    fs: Any, place: Place, ask: Callable[..., Any], *, recursive: bool
) -> Iterator[Unfinished]:
    fs.invalidate_cache()
    listed = partial(fs.find, place.path, detail=True, maxdepth=None if recursive else 1)
    for path, info in sorted(ask(listed).items()):
        found = parts_of(path.rpartition("/")[2])
        if found is None or info.get("type") == "directory":
            continue
        url = f"{place.url.rstrip('/')}{path[len(place.path.rstrip('/')) :]}"
        modified = None
        with suppress(Exception):  # not all stores can tell
            modified = float(fs.modified(path).timestamp())
        delete = partial(ask, fs.rm_file, path)
        yield Unfinished(url, int(info.get("size") or 0), modified, delete, *found[1:])
