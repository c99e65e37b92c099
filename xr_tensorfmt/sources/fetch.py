"""Ranges of objects by fsspec: one request each, of the version that was opened where that can be.

What a store does with a condition is its own affair. HTTP servers get ``If-Match`` or
``If-Unmodified-Since`` (RFC 9110, section 13.1), S3 gets ``IfMatch``; both say in their answer
which version it is of, which is compared as well. Other file systems have no such means.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.asyn import sync

from xr_tensorfmt.errors import SourceChangedError
from xr_tensorfmt.sources.version import Version

_NOTHING_KNOWN = Version()
_PARTIAL, _PRECONDITION_FAILED = 206, 412

# File systems that keep whole files download at the first read, and must not do so in many threads.
_one_download = Lock()


@dataclass(frozen=True)
class Answer:
    """What a store sent.

    Parameters
    ----------
    data : bytes
        The bytes.
    version : Version
        Of which version they are, if the store says so.
    """

    data: bytes
    version: Version = _NOTHING_KNOWN


def fetch(
    fs: AbstractFileSystem, path: str, start: int, stop: int, version: Version = _NOTHING_KNOWN
) -> Answer:
    """Send one request.

    Parameters
    ----------
    fs : AbstractFileSystem
        The file system.
    path : str
        The object, as `fs` calls it.
    start, stop : int
        The range, in bytes; a store sends less where the object ends before.
    version : Version
        The version that the bytes must be of.

    Returns
    -------
    Answer

    Raises
    ------
    SourceChangedError
        The object is there in another version.
    OSError
        The server sent something else than the range.
    Exception
        Whatever the file system raises.
    """
    if _is(fs, "fsspec.implementations.http", "HTTPFileSystem"):
        answer: Answer = sync(fs.loop, _fetch_http, fs, path, start, stop, version)
    elif _is(fs, "s3fs.core", "S3FileSystem"):
        answer = sync(fs.loop, _fetch_s3, fs, path, start, stop, version)
    elif _is(fs, "fsspec.implementations.cached", "CachingFileSystem"):
        with _one_download:
            answer = Answer(fs.cat_file(path, start=start, end=stop))
    else:
        answer = Answer(fs.cat_file(path, start=start, end=stop))
    if version.differs(answer.version):
        raise changed(path, answer.version, version)
    return answer


def changed(path: str, found: object, expected: object) -> SourceChangedError:
    """The error for an object that is not the one that was opened."""
    return SourceChangedError(
        path,
        "the object",
        found,
        str(expected),
        "it has been replaced since it was opened; open it again",
    )


def _is(fs: AbstractFileSystem, module: str, name: str) -> bool:
    """Whether a file system is of a class, which is not imported for the question."""
    return module in sys.modules and isinstance(fs, getattr(sys.modules[module], name))


async def _fetch_http(fs: Any, url: str, start: int, stop: int, version: Version) -> Answer:
    options = dict(fs.kwargs)
    headers = {
        **options.pop("headers", {}),
        "Accept-Encoding": "identity",
        "Range": f"bytes={start}-{stop - 1}",
        **_condition(version),
    }
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), headers=headers, **options) as response:
        if response.status == _PRECONDITION_FAILED:
            raise changed(url, "another version", version)
        if response.status == 404:
            raise FileNotFoundError(url)
        response.raise_for_status()
        _check_range(url, response.status, response.headers, start, stop)
        return Answer(await response.read(), Version.of(response.headers))


def _condition(version: Version) -> dict[str, str]:
    if version.strong:
        return {"If-Match": version.etag}
    return {"If-Unmodified-Since": version.modified} if version.modified else {}


def _check_range(url: str, status: int, headers: Mapping[str, str], start: int, stop: int) -> None:
    """Refuse an answer that is not the range, before its body is received."""
    if status == _PARTIAL:
        sent = headers.get("Content-Range", "")
        if sent.startswith(f"bytes {start}-"):
            return
        found = f"the range {sent!r}"
    else:
        if start == 0 and int(headers.get("Content-Length", stop + 1)) <= stop:
            return
        found = "the whole file"
    raise OSError(
        f"{url}: the server sent {found} in place of bytes {start} to {stop - 1}; "
        "it does not serve byte ranges, so open a copy of the file: 'simplecache::' before the "
        "URL makes one"
    )


async def _fetch_s3(fs: Any, path: str, start: int, stop: int, version: Version) -> Answer:
    bucket, key, version_id = fs.split_path(path)
    request = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{stop - 1}"}
    if version_id:
        request["VersionId"] = version_id
    if version.etag:
        request["IfMatch"] = version.etag
    for attempt in range(1, fs.retries + 1):
        response = await _ask_s3(fs, request, version)
        try:
            return Answer(await response["Body"].read(), Version.of(response))
        except sys.modules["s3fs.core"].S3_RETRYABLE_ERRORS:
            if attempt == fs.retries:
                raise
        finally:
            response["Body"].close()
    raise AssertionError("s3fs tries at least once")


async def _ask_s3(fs: Any, request: Mapping[str, str], version: Version) -> Any:
    try:
        # The coroutine beneath fs.call_s3, which also sends it again where that may help.
        return await fs._call_s3("get_object", **request)  # noqa: SLF001
    except OSError as error:
        if _status(error.__cause__) == _PRECONDITION_FAILED:
            path = f"s3://{request['Bucket']}/{request['Key']}"
            raise changed(path, "another version", version) from error
        raise


def _status(error: object) -> int:
    """The HTTP status that botocore keeps in its errors."""
    response = getattr(error, "response", {})
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
