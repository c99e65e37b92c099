"""Requests to stores of obstore, which are passed as ``fs=``."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any

from fsspec.asyn import get_loop

from xr_tensorfmt.sources.fsspec_store import put
from xr_tensorfmt.sources.requests import Answer, RangeRequest, Version

_ROOTS = {
    "AzureStore": "az://",
    "GCSStore": "gs://",
    "HTTPStore": "",
    "LocalStore": "file:///",
    "MemoryStore": "memory://",
    "S3Store": "s3://",
}
_BUCKETS = "bucket", "container_name"
_DEFAULT_RETRIES = 10

# obstore says so of a response that is not the requested range.
_OTHER_RANGE = re.compile("source: (NotPartial|UnexpectedRange)|RangeNotSupported")

_users: set[int] = set()
"""Processes that have used obstore. A process that is forked from them lacks its threads."""


def is_obstore(store: object) -> bool:
    """Return whether something is a store of obstore, without importing obstore."""
    return any(base.__module__.startswith("obstore.") for base in type(store).__mro__)


class ObstoreStore:
    """A store of obstore, with the attributes of file systems of fsspec that are used here."""

    is_conditional = True
    storage_args = ()

    def __init__(self, store: Any, pickled: bytes | None = None) -> None:
        _users.add(os.getpid())
        self.store = store
        self._pickled = pickled
        config = getattr(store, "retry_config", None) or {}
        self.retries = bool(config.get("max_retries", _DEFAULT_RETRIES))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the store; a process has it once, with its connections."""
        return _unpickle, (self._pickled or pickle.dumps(self.store),)

    @cached_property
    def storage_options(self) -> dict[str, Any]:
        """The configuration of the store, including secrets."""
        names = "url", "prefix", "config", "client_options"
        return {name: getattr(self.store, name, None) for name in names}

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop for requests; it runs in a thread of fsspec."""
        loop: asyncio.AbstractEventLoop = get_loop()
        return loop

    def check_process(self) -> None:
        """Raise RuntimeError in a process that was forked from one that has used obstore."""
        if _users - {os.getpid()}:
            raise RuntimeError(
                "a store of obstore cannot be used in a process that was forked from one that has "
                "used obstore; start the process by 'spawn' or 'forkserver', or pass a file system "
                "of fsspec"
            )

    def invalidate_cache(self, path: str) -> None:
        """Do nothing, because obstore caches nothing."""

    def unstrip_protocol(self, path: str) -> str:
        """Return the URL of an object."""
        options = self.storage_options
        config = options["config"] or {}
        parts = options["url"], *map(config.get, _BUCKETS), options["prefix"], path
        joined = "/".join(str(part).strip("/") for part in parts if part)
        return f"{_ROOTS[type(self.store).__name__]}{joined}"

    async def connect(self) -> None:
        """Do nothing, because the first request connects."""

    async def info(self, path: str) -> dict[str, Any]:
        """Request size and version of an object, once."""
        return _describe(await self.store.head_async(path))

    async def fetch(self, request: RangeRequest, into: memoryview) -> Answer:
        """Request a range, with a condition on the version."""
        options: dict[str, Any] = {"range": (request.start, request.stop)}
        if request.version.strong_etag:
            options["if_match"] = request.version.strong_etag
        try:
            response = await self.store.get_async(request.path, options=options)
        except Exception as error:
            if _OTHER_RANGE.search(str(error)):
                raise request.refuse("another range, or the whole file,") from None
            raise
        size = response.meta["size"]
        request.check_size(size)
        count = put(await response.bytes_async(), into)
        return Answer(count, Version.of(_describe(response.meta)), size)


@lru_cache(maxsize=32)
def _unpickle(pickled: bytes) -> ObstoreStore:
    return ObstoreStore(pickle.loads(pickled), pickled)  # noqa: S301  # our own bytes


def adapt_obstore(store: Any) -> ObstoreStore:
    """Return the same object for equal stores, so that they share a limit on requests."""
    with suppress(TypeError):  # a store in memory is not pickled
        return _unpickle(pickle.dumps(store))
    return ObstoreStore(store)


def _describe(meta: Any) -> dict[str, Any]:
    """Return size and version by the names of fsspec; obstore has 1970 for an unknown time."""
    modified = meta["last_modified"]
    info = {"size": meta["size"], "ETag": meta["e_tag"]}
    is_known = modified != datetime.fromtimestamp(0, UTC)
    return info | ({"LastModified": modified.isoformat()} if is_known else {})
