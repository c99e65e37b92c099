"""What processes that have ended left in stores: parts of uploads, and unfinished files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from xr_tensorfmt.sources.caches import is_cache
from xr_tensorfmt.sources.places import Place, of_this_process
from xr_tensorfmt.sources.store_errors import ask_store
from xr_tensorfmt.writing.unfinished import Unfinished, writer_of
from xr_tensorfmt.writing.upload import packages_of


def unfinished_at(place: Place, *, recursive: bool) -> Iterator[Unfinished]:
    """What is unfinished in a directory of a store, or of one object."""
    fs = of_this_process(place.fs)
    if is_cache(fs):
        raise ValueError(f"{place.url}: nothing is written into a cache; give the URL after '::'")
    packages = packages_of(fs)
    if packages & {"gcsfs", "adlfs"}:
        reason = "its store does not list unfinished uploads, and removes them after a week"
        raise ValueError(f"{place.url}: {reason}")
    ask = partial(ask_store, url=place.url, path=place.path, options=fs)
    find = _uploads if "s3fs" in packages else _files
    yield from find(fs, place, ask, recursive=recursive)


def _uploads(
    fs: Any, place: Place, ask: Callable[..., Any], *, recursive: bool
) -> Iterator[Unfinished]:
    bucket, key, _ = fs.split_path(place.path.rstrip("/"))
    for upload in ask(_listed, fs, "list_multipart_uploads", {"Bucket": bucket, "Prefix": key}):
        name, token = upload["Key"], upload["UploadId"]
        inside = name.removeprefix(f"{key}/") if key else name
        if name != key and (inside == name) == bool(key):
            continue  # another one whose name begins alike
        if name != key and "/" in inside and not recursive:
            continue
        size = ask(_size_of_parts, fs, {"Bucket": bucket, "Key": name, "UploadId": token})
        abort = partial(ask, fs.abort_mpu, bucket, name, token)
        begun = upload["Initiated"].timestamp() if upload.get("Initiated") else None
        yield Unfinished(f"s3://{bucket}/{name}", size, begun, abort)


def _size_of_parts(fs: Any, request: Mapping[str, str]) -> int:
    """Bytes of the parts of an upload; 0 where it has ended meanwhile."""
    with suppress(FileNotFoundError):
        return sum(int(part["Size"]) for part in _listed(fs, "list_parts", request))
    return 0


# What a page lists, and the names of the markers where the next page begins.
_LISTS = {
    "list_multipart_uploads": ("Uploads", ("KeyMarker", "UploadIdMarker")),
    "list_parts": ("Parts", ("PartNumberMarker",)),
}


def _listed(fs: Any, method: str, request: Mapping[str, str]) -> list[dict[str, Any]]:
    """What a request lists, of all pages."""
    name, markers = _LISTS[method]
    listed: list[dict[str, Any]] = []
    next_page: dict[str, Any] = {}
    while True:
        page = fs.call_s3(method, **request, **next_page)
        listed += page.get(name) or []
        if not page.get("IsTruncated"):
            return listed
        next_page = {marker: page[f"Next{marker}"] for marker in markers}


def _files(
    fs: Any, place: Place, ask: Callable[..., Any], *, recursive: bool
) -> Iterator[Unfinished]:
    fs.invalidate_cache()
    listed = partial(fs.find, place.path, detail=True, maxdepth=None if recursive else 1)
    for path, info in sorted(ask(listed).items()):
        writer = writer_of(path.rpartition("/")[2])
        if writer is None or info.get("type") == "directory":
            continue
        url = f"{place.url.rstrip('/')}{path[len(place.path.rstrip('/')) :]}"
        modified = None
        with suppress(Exception):  # not all stores can tell
            modified = float(fs.modified(path).timestamp())
        delete = partial(ask, fs.rm_file, path)
        yield Unfinished(url, int(info.get("size") or 0), modified, delete, *writer)
