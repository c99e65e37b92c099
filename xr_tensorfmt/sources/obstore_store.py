"""Requests to stores of obstore, which are passed as ``fs=``."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from xr_tensorfmt.sources.fsspec_store import copy_bytes
from xr_tensorfmt.sources.requests import RangeRequest, RangeResponse, Version

_ROOTS = {
    "AzureStore": "az://",
    "GCSStore": "gs://",
    "HTTPStore": "",
    "LocalStore": "file:///",
    "MemoryStore": "memory://",
    "S3Store": "s3://",
}

_processes: set[int] = set()
"""Processes that have used obstore. A process forked from one of them lacks its threads."""


def is_obstore(store: object) -> bool:
    """Return whether an object has the methods of a store of obstore."""
    return hasattr(store, "head_async") and hasattr(store, "get_async")


class ObstoreStore:
    """A store of obstore, with the attributes of an fsspec file system that locations use."""

    is_conditional = True
    retries_statuses = True
    storage_args = ()

    def __init__(self, store: Any, pickled: bytes | None = None) -> None:
        _processes.add(os.getpid())
        self.store = store
        self._pickled = pickled
        names = "url", "prefix", "config", "client_options"
        self.storage_options = {name: getattr(store, name, None) for name in names}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the store. A process unpickles equal stores once and shares the connections."""
        return _unpickle, (self._pickled or pickle.dumps(self.store),)

    async def prepare(self) -> None:
        """Do nothing. The store has its client."""

    def check_process(self) -> None:
        """Raise RuntimeError if the process was forked after obstore was used."""
        if _processes - {os.getpid()}:
            raise RuntimeError(
                "a store of obstore cannot be used in a forked process; start the process with "
                "'spawn' or 'forkserver', or pass an fsspec file system"
            )

    def invalidate_cache(self, path: str) -> None:
        """Do nothing. obstore does not cache."""

    def unstrip_protocol(self, path: str) -> str:
        """Return the URL of an object."""
        options = self.storage_options
        config = options["config"] or {}
        bucket = config.get("bucket") or config.get("container_name")
        parts = options["url"], bucket, options["prefix"], path
        joined = "/".join(str(part).strip("/") for part in parts if part)
        names = [base.__name__ for base in type(self.store).__mro__]
        root = next((_ROOTS[name] for name in names if name in _ROOTS), f"{names[0]}://")
        return f"{root}{joined}"

    async def info(self, path: str) -> dict[str, Any]:
        """Request size and version of an object."""
        return _convert_meta(await self.store.head_async(path))

    async def call(self, method: str, path: str, **_: Any) -> Any:
        """Raise ValueError, because directories are not listed."""
        raise ValueError(f"a store of obstore has no {method!r} for {path!r}; pass an fsspec one")

    async def request_range(self, request: RangeRequest, buffer: memoryview) -> RangeResponse:
        """Request a byte range of a version, and copy it into a buffer of its length."""
        options: dict[str, Any] = {"range": (request.start, request.stop)}
        if request.version.strong_etag:
            options["if_match"] = request.version.strong_etag
        response = await self.store.get_async(request.path, options=options)
        count = copy_bytes(await response.bytes_async(), buffer)
        return RangeResponse(count, Version.from_info(_convert_meta(response.meta)))


@lru_cache(maxsize=32)
def _unpickle(pickled: bytes) -> ObstoreStore:
    return ObstoreStore(pickle.loads(pickled), pickled)  # noqa: S301  # pickled by this module


def adapt_obstore(store: Any) -> ObstoreStore:
    """Return the adapter of a store. Equal stores have one adapter and one limit on requests."""
    with suppress(TypeError):  # a MemoryStore cannot be pickled
        return _unpickle(pickle.dumps(store))
    return ObstoreStore(store)


def _convert_meta(meta: Any) -> dict[str, Any]:
    """Return size and version under the names of fsspec."""
    info = {"size": meta["size"], "ETag": meta["e_tag"]}
    modified = meta["last_modified"]
    if modified != datetime.fromtimestamp(0, UTC):  # 1970 means an unknown time
        info["LastModified"] = modified.isoformat()
    return info
