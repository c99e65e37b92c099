"""Locations of files: URLs, open files of fsspec, and paths in ``fs=``. No request is sent."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from fsspec import AbstractFileSystem, available_protocols
from fsspec.core import OpenFile, url_to_fs
from fsspec.implementations.local import LocalFileSystem

from xr_tensorfmt.core.locks import find_imported
from xr_tensorfmt.core.open_options import DEFAULT_TIMEOUT
from xr_tensorfmt.sources.obstore_store import ObstoreStore, adapt_obstore, is_obstore
from xr_tensorfmt.sources.retries import check_timeout
from xr_tensorfmt.sources.store_errors import redact, translate_error
from xr_tensorfmt.sources.threads import MAX_REQUESTS

Result = TypeVar("Result")

EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "azure"),
    **dict.fromkeys(("http", "https"), "http"),
}
"""Extras of the package that install the file system of a URL scheme."""


@dataclass(frozen=True)
class Location:
    """An object in a file system, with the timeout of its requests."""

    url: str
    fs: AbstractFileSystem = field(repr=False)
    path: str = field(repr=False)
    timeout: float | None = DEFAULT_TIMEOUT

    @property
    def is_local(self) -> bool:
        """Whether the object is a local file."""
        return isinstance(self.fs, LocalFileSystem)

    def sibling(self, name: str) -> Location:
        """Return the location of another object in the same directory."""

        def rename(path: str) -> str:
            if self.is_local:  # on Windows, paths may contain backslashes
                return os.path.join(os.path.dirname(path), name)
            return path[: path.rfind("/") + 1] + name

        return replace(self.renew_after_fork(), url=rename(self.url), path=rename(self.path))

    def renew_after_fork(self) -> Location:
        """Return the location with a new file system if the process was forked.

        A forked process has no threads for the event loop of an asynchronous file system.
        """
        if isinstance(self.fs, ObstoreStore):
            self.fs.check_process()
            return self
        try:
            getattr(self.fs, "loop", None)
        except RuntimeError:  # fsspec refuses the event loop of another process
            return replace(self, fs=pickle.loads(pickle.dumps(self.fs)))  # noqa: S301  # own bytes
        return self

    def translate(self, error: Exception, context: str = "") -> Exception:
        """Return a built-in error without secrets for an error of the file system."""
        return translate_error(error, self.url, self.path, self.fs, context)

    def call(self, call: Callable[..., Result], *arguments: Any, context: str = "") -> Result:
        """Call a function of the file system, and translate its errors."""
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001  # libraries do not share a base class
            failure = self.translate(error, context)
        # Raising outside of the except clause leaves out the original error as context.
        try:
            raise failure from None
        finally:
            del failure


def exists(fs: AbstractFileSystem, path: str) -> bool:
    """Return whether a path exists. Unlike ``fs.exists``, raise if the request fails."""
    try:
        fs.info(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_cache(fs: object) -> bool:
    """Return whether a file system keeps local copies."""
    cached = find_imported("fsspec.implementations.cached")
    return cached is not None and isinstance(fs, cached.CachingFileSystem)


def locate(
    file: Any, storage_options: Mapping[str, Any] | None, fs: AbstractFileSystem | None
) -> Location:
    """Return the location of a remote file, for writing."""
    if is_obstore(fs):
        raise TypeError(
            f"fs={fs!r}: stores of obstore can be read, but not written; pass a URL, or a file "
            "system of fsspec"
        )
    if isinstance(file, OpenFile) and file.compression:
        raise ValueError(
            f"{redact(file.full_name)}: compression={file.compression!r}, but tensor files cannot "
            "be written compressed; omit compression="
        )
    options, _ = _split_timeout(file, storage_options, None)
    return _locate(file, options, fs)


def locate_for_reading(
    file: Any,
    storage_options: Mapping[str, Any] | None,
    fs: AbstractFileSystem | None,
    timeout: float | None,
) -> Location:
    """Return the location of a remote file, whose requests this package limits and retries."""
    options, timeout = _split_timeout(file, storage_options, timeout)
    # botocore must not retry as well.
    config = {"retries": {"total_max_attempts": 1}, "read_timeout": timeout}
    location = _locate(file, options, fs, config)
    # The first request to a cache may download the whole file.
    return replace(location, timeout=None if is_cache(location.fs) else timeout)


def _split_timeout(
    file: Any, storage_options: Mapping[str, Any] | None, timeout: float | None
) -> tuple[dict[str, Any], float | None]:
    """Return the options of a file system, and the timeout, which may be among the options."""
    options = dict(storage_options or {})
    if isinstance(options.get("timeout"), int | float) and isinstance(file, str):
        timeout = options.pop("timeout")
    return options, check_timeout(timeout)


def _locate(
    file: Any,
    options: dict[str, Any],
    fs: AbstractFileSystem | None,
    config: Mapping[str, Any] = MappingProxyType({}),
) -> Location:
    """Return the location of a file; `config` configures botocore for URLs of S3."""
    if options and not (fs is None and isinstance(file, str)):
        raise ValueError(
            "storage_options= applies only to URLs, but the file already has a file system; omit it"
        )
    if fs is not None:
        url, fs, path = _locate_in_file_system(fs, file)
    elif isinstance(file, OpenFile):
        url, fs, path = file.full_name, file.fs, file.path
    else:
        if file.startswith(("s3://", "s3a://")):
            # botocore opens ten connections by default.
            config = {"max_pool_connections": MAX_REQUESTS, **config}
            options["config_kwargs"] = {**config, **options.get("config_kwargs", {})}
        url = file
        fs, path = _find_file_system(url, options)
    url = redact(url)
    if getattr(file, "compression", None):
        raise ValueError(
            f"{url} is compressed ({file.compression}), so it cannot be read by byte ranges; "
            "decompress it first"
        )
    if getattr(fs, "asynchronous", False):
        raise ValueError(
            f"{url}: the file system was created with asynchronous=True, so other threads cannot "
            "use it; create it without asynchronous=True"
        )
    return Location(url, fs, path)


def _find_file_system(url: str, options: dict[str, Any]) -> tuple[AbstractFileSystem, str]:
    """Return the file system and the path of a URL; name the extra if a package is missing."""
    try:
        return url_to_fs(url, **options)  # type: ignore[no-any-return]
    except Exception as error:  # noqa: BLE001  # libraries do not share a base class
        kept = ImportError, TypeError, ValueError
        failure = translate_error(error, redact(url), url, options, kept=kept)
    protocol = url.rpartition("://")[0].rpartition("::")[2]
    extra = EXTRAS.get(protocol)
    # fsspec 2025.7 lists "abfss" only if adlfs is installed.
    is_missing = isinstance(failure, ImportError) or protocol not in available_protocols()
    if extra and is_missing:
        raise ImportError(f"{failure}; run: pip install 'xr-tensorfmt[{extra}]'")
    raise failure


def _locate_in_file_system(fs: Any, file: Any) -> tuple[str, Any, str]:
    """Return the URL of a path in a file system, the file system, and the path."""
    if not isinstance(fs, AbstractFileSystem) and not is_obstore(fs):
        raise TypeError(
            f"fs= must be a file system of fsspec or a store of obstore, not a {type(fs).__name__}"
        )
    if not isinstance(file, str | os.PathLike):
        raise TypeError(f"fs= needs the path of a file in it, not a {type(file).__name__}")
    path = os.fspath(file)
    if is_obstore(fs):
        fs, path = adapt_obstore(fs), path.strip("/")
    else:
        path = fs._strip_protocol(path)  # noqa: SLF001  # fsspec has no public form
    return fs.unstrip_protocol(path), fs, path
