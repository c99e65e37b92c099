"""What processes that have ended left in stores: parts of uploads, and unfinished files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from xr_tensorfmt.sources.caches import is_cache
from xr_tensorfmt.sources.remote import Place, of_this_process
from xr_tensorfmt.sources.store_errors import ask_store
from xr_tensorfmt.writing.unfinished import Unfinished, writer_of

_FORGET_THEMSELVES = {
    "gcsfs": "Google Cloud Storage does not list unfinished uploads, and removes them after a week",
    "adlfs": "Azure does not list unfinished uploads, and removes them after a week",
}
_ONLY_READ = "its file system can only be read, so that nothing of this package is unfinished there"


@dataclass(frozen=True)
class UnfinishedUpload:
    """The parts of an object that have been uploaded to S3, where they are kept and charged for."""

    path: str
    size: int
    modified: float | None
    abort: Callable[[], None]

    is_being_written = False
    dated = "begun"

    @property
    def reason_to_keep(self) -> str:
        """That nothing says whether a process is still sending."""
        return "a process may be sending it"

    def remove(self) -> None:
        """Abort the upload."""
        self.abort()


@dataclass(frozen=True)
class UnfinishedObject(Unfinished):
    """An unfinished file in a store whose objects do not appear at once."""

    bytes_stored: int
    time: float | None
    delete: Callable[[], None]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.bytes_stored

    @property
    def modified(self) -> float | None:
        """When it was last written to, in seconds; None where the store does not tell."""
        return self.time

    def remove(self) -> None:
        """Remove the file."""
        self.delete()


def unfinished_at(
    place: Place, *, recursive: bool
) -> Iterator[UnfinishedUpload | UnfinishedObject]:
    """What is unfinished in a directory of a store, or of one object."""
    fs = of_this_process(place.fs)
    if is_cache(fs):
        raise ValueError(f"{place.url}: nothing is written into a cache; give the URL after '::'")
    packages = {base.__module__.partition(".")[0] for base in type(fs).__mro__}
    for package in packages & _FORGET_THEMSELVES.keys():
        raise ValueError(f"{place.url}: {_FORGET_THEMSELVES[package]}")
    ask = partial(ask_store, url=place.url, path=place.path, options=fs)
    if "s3fs" in packages:
        yield from _uploads(fs, place, ask, recursive=recursive)
    elif not _can_write(fs):
        raise ValueError(f"{place.url}: {_ONLY_READ}")
    else:
        yield from _files(fs, place, ask, recursive=recursive)


def _can_write(fs: Any) -> bool:
    """Whether a file system is not that of HTTP, or of an archive."""
    for module, name in (
        ("fsspec.implementations.http", "HTTPFileSystem"),
        ("fsspec.archive", "AbstractArchiveFileSystem"),
    ):
        if isinstance(fs, getattr(sys.modules.get(module), name, ())):
            return False
    return True


def _uploads(
    fs: Any, place: Place, ask: Callable[..., Any], *, recursive: bool
) -> Iterator[UnfinishedUpload]:
    bucket, key, _ = fs.split_path(place.path.rstrip("/"))
    for upload in ask(_list_uploads, fs, bucket, key):
        name, token = upload["Key"], upload["UploadId"]
        inside = name.removeprefix(f"{key}/") if key else name
        if name != key and (inside == name) == bool(key):
            continue  # another one whose name begins alike
        if name != key and "/" in inside and not recursive:
            continue
        size = ask(_size_of_parts, fs, bucket, name, token)
        abort = partial(ask, fs.abort_mpu, bucket, name, token)
        begun = upload["Initiated"].timestamp() if upload.get("Initiated") else None
        yield UnfinishedUpload(f"s3://{bucket}/{name}", size, begun, abort)


def _list_uploads(fs: Any, bucket: str, prefix: str) -> list[dict[str, Any]]:
    markers = "KeyMarker", "UploadIdMarker"
    pages = _pages(fs, "list_multipart_uploads", markers, Bucket=bucket, Prefix=prefix)
    return [upload for page in pages for upload in page.get("Uploads") or ()]


def _size_of_parts(fs: Any, bucket: str, key: str, token: str) -> int:
    """Bytes of the parts of an upload; 0 where it has ended meanwhile."""
    names = {"Bucket": bucket, "Key": key, "UploadId": token}
    try:
        pages = list(_pages(fs, "list_parts", ["PartNumberMarker"], **names))
    except FileNotFoundError:
        return 0
    return sum(int(part["Size"]) for page in pages for part in page.get("Parts") or ())


def _pages(
    fs: Any, method: str, markers: Iterable[str], **request: str
) -> Iterator[Mapping[str, Any]]:
    """The answers of a request that lists something, a page at a time."""
    while True:
        page = fs.call_s3(method, **request)
        yield page
        if not page.get("IsTruncated"):
            return
        request |= {marker: page[f"Next{marker}"] for marker in markers}


def _files(
    fs: Any, place: Place, ask: Callable[..., Any], *, recursive: bool
) -> Iterator[UnfinishedObject]:
    fs.invalidate_cache()
    listed = partial(fs.find, place.path, detail=True, maxdepth=None if recursive else 1)
    for path, info in sorted(ask(listed).items()):
        writer = writer_of(path.rpartition("/")[2])
        if writer is None or info.get("type") == "directory":
            continue
        delete = partial(ask, fs.rm_file, path)
        url = f"{place.url.rstrip('/')}{path[len(place.path.rstrip('/')) :]}"
        time = _time_of(fs, path)
        yield UnfinishedObject(url, *writer, int(info.get("size") or 0), time, delete)


def _time_of(fs: Any, path: str) -> float | None:
    try:
        return float(fs.modified(path).timestamp())
    except Exception:  # noqa: BLE001  # not all stores can tell
        return None
