"""Locations of files: URLs, open files of fsspec, and paths in ``fs=``. No request is sent."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from fsspec import AbstractFileSystem
from fsspec.core import OpenFile, url_to_fs
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from xr_tensorfmt.core.source import DEFAULT_TIMEOUT, Result, check_timeout
from xr_tensorfmt.errors import redact
from xr_tensorfmt.sources import get_class_names, get_packages, get_path, is_url, split_chain
from xr_tensorfmt.sources.requests import MAX_REQUESTS
from xr_tensorfmt.sources.store_errors import translate_error

_WEB = ("http://", "https://")

# A part of a path that is not a part of the name: the query of a URL, the version of a key.
_QUERY = re.compile(r"[?#].*", re.DOTALL)
_VERSION = re.compile(r"(?:\?(?:versionId|versionid|generation)=[^/?#]+|#\d+)\Z")

CACHE = "fsspec.implementations.cached.CachingFileSystem"

_COLONS = "\ue03a"
"""Stands for ``::`` in names while fsspec divides a chain of URLs."""


def split_path(path: str) -> tuple[str, str, str]:
    """Split a path or URL into the directory, the decoded name, and a query or version."""
    is_web = path.startswith(_WEB)
    query = (_QUERY if is_web else _VERSION).search(path)
    stop = query.start() if query else len(path)
    directory, slash, name = path[:stop].rpartition("/")
    return directory + slash, unquote(name) if is_web else name, path[stop:]


def build_sibling_path(path: str, relative: str) -> str:
    """Return the path or URL of a file in the same directory or below it, with the same query."""
    directory, _, query = split_path(path)
    if path.startswith(_WEB):
        return f"{directory}{quote(relative)}{query}"
    if query:
        raise ValueError(
            f"{redact(path)} names a version of one object, but {relative!r} is also needed; "
            "omit the version"
        )
    return f"{directory}{relative}"


@dataclass(frozen=True)
class Location:
    """An object in a file system: `path` is requested, and messages show `name`."""

    url: str
    fs: AbstractFileSystem
    path: str
    timeout: float | None = DEFAULT_TIMEOUT
    verify_unchanged: bool = True

    def __repr__(self) -> str:
        """Show no secrets."""
        return f"{type(self).__name__}({self.name!r})"

    @property
    def name(self) -> str:
        """The URL or local path without secrets."""
        return self.url if self.is_local else redact(self.url)

    @property
    def file_name(self) -> str:
        """The name in the directory."""
        return os.path.basename(self.path) if self.is_local else split_path(self.path)[1]

    @property
    def is_local(self) -> bool:
        """Whether the object is a local file."""
        return isinstance(self.fs, LocalFileSystem)

    @property
    def server(self) -> tuple[int, str]:
        """Key of the limit on requests: the file system, and for HTTP the host."""
        return hash(self.fs), urlsplit(self.path).netloc if "://" in self.path else ""

    def sibling(self, relative: str) -> Location:
        """Return the location of an object in the same directory or below it."""
        location = self.renew_after_fork()
        if self.is_local:  # on Windows, paths may contain backslashes
            url, path = (os.path.join(os.path.dirname(p), relative) for p in (self.url, self.path))
            return replace(location, url=url, path=path)
        return location.replace_path(build_sibling_path(self.path, relative))

    def replace_path(self, path: str) -> Location:
        """Return the location of another path in the file system."""
        # The path is a part of the URL, except for some URLs of Azure. A chain begins with it.
        find = str.partition if len(split_chain(self.url)) > 1 else str.rpartition
        before, found, after = find(self.url, self.path.strip("/"))
        url = before + path.strip("/") + after if found else self.fs.unstrip_protocol(path)
        return replace(self, url=url, path=path)

    def renew_after_fork(self) -> Location:
        """Return the location with a new file system if the process was forked without threads."""
        try:
            getattr(self.fs, "loop", None)
        except RuntimeError:  # fsspec refuses the event loop of another process
            if "obstore" in get_packages(self.fs):  # its threads are missing here
                raise RuntimeError(
                    "a store of obstore cannot be used in a forked process; start the process "
                    "with 'spawn' or 'forkserver'"
                ) from None
            return replace(self, fs=pickle.loads(pickle.dumps(self.fs)))  # noqa: S301  # own bytes
        return self

    def translate(self, error: Exception, context: str = "") -> Exception:
        """Return a built-in error without secrets."""
        return translate_error(error, self.name, self.path, self.fs, context)

    def call(self, call: Callable[..., Result], *arguments: Any, context: str = "") -> Result:
        """Call a function of the file system, and translate its errors."""
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001  # libraries do not share a base class
            failure = self.translate(error, context)
        # Raising outside of the except clause leaves out the original error as context.
        raise failure from None


def is_cache(fs: Any) -> bool:
    """Return whether a file system keeps local copies."""
    return CACHE in get_class_names(fs)


def exists(fs: AbstractFileSystem, path: str) -> bool:
    """Return whether a path exists. Unlike ``fs.exists``, raise if the request fails."""
    try:
        fs.info(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def locate_for_reading(
    file: Any,
    storage_options: Mapping[str, Any] | None,
    fs: AbstractFileSystem | None,
    timeout: float | None,
    verify_unchanged: bool = True,
) -> Location:
    """Return the location of a remote file, whose requests this package limits and retries."""
    limit = (storage_options or {}).get("timeout")
    timeout = check_timeout(limit if isinstance(limit, Real) and isinstance(file, str) else timeout)
    # botocore must not retry as well.
    config = {"retries": {"total_max_attempts": 1}, "read_timeout": timeout}
    location = locate(file, storage_options, fs, config)
    # The first request to a cache may download the whole file.
    timeout = None if is_cache(location.fs) else timeout
    return replace(location, timeout=timeout, verify_unchanged=verify_unchanged)


def locate(
    file: Any,
    storage_options: Mapping[str, Any] | None,
    fs: Any,
    s3_config: Mapping[str, Any] | None = None,
) -> Location:
    """Return the location of a file or object. `s3_config` configures botocore for URLs."""
    if storage_options and (fs is not None or not isinstance(file, str)):
        raise ValueError(
            "storage_options= applies only to URLs, but the file already has a file system; omit it"
        )
    if fs is not None:
        if not isinstance(path := get_path(file), str):
            raise TypeError(f"fs= needs the path of a file in it, not a {type(path).__name__}")
        if not isinstance(fs, AbstractFileSystem):
            raise TypeError(
                "fs= must be a file system of fsspec, for example obstore.fsspec.FsspecStore, not "
                f"a {type(fs).__name__}"
            )
        location = Location("", fs, fs._strip_protocol(path))  # noqa: SLF001  # no public form
    elif isinstance(file, OpenFile):
        location = Location(file.full_name, file.fs, file.path)
    elif not is_url(file):
        path = os.path.abspath(os.path.expanduser(file))
        return Location(file, LocalFileSystem(), path)
    else:
        location = _locate_url(file, dict(storage_options or {}), s3_config or {})
    fs, path = location.fs, location.path
    while isinstance(fs, DirFileSystem):  # requests to the file system below may have conditions
        # It refuses paths outside of a local directory. fsspec has no public form.
        fs, path = fs.fs, fs._join(path)  # noqa: SLF001
    location = replace(location, url=location.url or fs.unstrip_protocol(path), fs=fs, path=path)
    if compression := getattr(file, "compression", None):
        raise ValueError(
            f"{location.name}: compression={compression!r}, but byte ranges of compressed files "
            "cannot be read or written; decompress the file, or omit compression="
        )
    return location


def _locate_url(url: str, options: dict[str, Any], s3_config: Mapping[str, Any]) -> Location:
    """Return the location of a URL."""
    timeout: float | None = DEFAULT_TIMEOUT
    if isinstance(options.get("timeout"), Real):
        timeout = check_timeout(options.pop("timeout"))
    if url.startswith(("s3://", "s3a://")):
        # botocore opens ten connections by default.
        config = {"max_pool_connections": MAX_REQUESTS, **s3_config}
        options["config_kwargs"] = {**config, **options.get("config_kwargs", {})}
    # fsspec would divide names at "::", too.
    chain = "::".join(part.replace("::", _COLONS) for part in split_chain(url))
    fs: Any = options  # whose secrets are not in errors
    fs, path = Location(url, fs, url).call(partial(url_to_fs, **options), chain)
    return Location(url, fs, path.replace(_COLONS, "::"), timeout)
