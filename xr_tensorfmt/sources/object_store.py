"""Stores of obstore, in the place of a file system of fsspec."""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from errno import ECONNREFUSED, EIO
from functools import cached_property, lru_cache
from typing import Any

from xr_tensorfmt.sources.requests import Asked, Version

_KINDS = "AzureStore", "GCSStore", "HTTPStore", "LocalStore", "MemoryStore", "S3Store"
_SCHEMES = {"AzureStore": "az", "GCSStore": "gs", "S3Store": "s3", "MemoryStore": "memory"}
_BUCKETS = "bucket", "container_name"
_DEFAULT_RETRIES = 10

# What errors of obstore say.
_STATUS = re.compile(r"status code: (\d{3})\b ?([^:\n]*)")
_FAILURE = re.compile(r"kind: (Interrupted|Timeout)\b|\b(IncompleteMessage)\b")
_OTHER_RANGES = {
    "source: NotPartial": "the whole file",
    "RangeNotSupported": "the whole file",
    "source: UnexpectedRange": "another range",
}
_STATUSES = {
    "PreconditionError": 412,
    "FileNotFoundError": 404,
    "PermissionDeniedError": 403,
    "UnauthenticatedError": 401,
}


def is_object_store(store: object) -> bool:
    """Whether something is a store of obstore, which is not imported for it."""
    obstore = sys.modules.get("obstore.store")
    return obstore is not None and isinstance(store, tuple(getattr(obstore, k) for k in _KINDS))


_users: set[int] = set()
"""Processes that have used obstore; its threads are not in those that are forked from them."""


def is_lost() -> bool:
    """Whether this process was forked from one that has used obstore."""
    return bool(_users - {os.getpid()})


@dataclass(frozen=True)
class Origin:
    """The URL of a bucket, and the options and the limit with which fsspec would open it."""

    root: str
    options: Mapping[str, Any] = field(repr=False)
    timeout: float | None


class ObjectStore:
    """A store of obstore, with what the file systems of fsspec have that is used here."""

    storage_args = ()

    def __init__(
        self, store: Any, origin: Origin | None = None, pickled: bytes | None = None
    ) -> None:
        _users.add(os.getpid())
        self.store = store
        self.origin = origin
        self.is_refused = False
        self._pickled = pickled

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the store; a process has it once, with its connections."""
        return _unpickled, (self._pickled or pickle.dumps((self.store, self.origin)),)

    @cached_property
    def storage_options(self) -> dict[str, Any]:
        """All that the store was made of, some of which is secret."""
        names = "url", "prefix", "config", "client_options"
        known = {name: getattr(self.store, name, None) for name in names}
        return known | (dict(self.origin.options) if self.origin else {})

    @property
    def repeats(self) -> bool:
        """Whether the store itself repeats requests."""
        retries = getattr(self.store, "retry_config", None) or {}
        return bool(retries.get("max_retries", _DEFAULT_RETRIES))

    def key_of(self, path: str) -> str:
        """The key of an object; the path of what was opened by URL begins with its bucket."""
        return path.partition("/")[2] if self.origin else path

    def invalidate_cache(self, path: str) -> None:
        """Do nothing, as nothing is cached."""

    def unstrip_protocol(self, path: str) -> str:
        """The URL of an object."""
        kind, options = type(self.store).__name__, self.storage_options
        prefix = options["prefix"]
        inside = "/".join(str(each).strip("/") for each in (prefix, path) if each)
        if kind == "HTTPStore":
            return f"{str(options['url']).rstrip('/')}/{inside}"
        if kind == "LocalStore":
            return f"file:///{inside}"
        config = options["config"] or {}
        bucket = next((config[name] for name in _BUCKETS if name in config), "")
        return f"{_SCHEMES[kind]}://{f'{bucket}/' if bucket else ''}{inside}"


@lru_cache(maxsize=32)
def _unpickled(pickled: bytes) -> ObjectStore:
    store, origin = pickle.loads(pickled)  # noqa: S301  # our own bytes
    return ObjectStore(store, origin, pickled)


def adapted(store: Any, origin: Origin | None = None) -> ObjectStore:
    """The same object for equal stores, so that they share a limit on concurrent requests."""
    with suppress(TypeError):  # a store in memory is not pickled
        return _unpickled(pickle.dumps((store, origin)))
    return ObjectStore(store, origin)


def described(meta: Any) -> dict[str, Any]:
    """Size and version, by the names that fsspec uses; obstore has 1970 for an unknown time."""
    modified = meta["last_modified"]
    known = modified != datetime.fromtimestamp(0, UTC)
    described = {"size": meta["size"], "ETag": meta["e_tag"], "VersionId": meta["version"]}
    return described | ({"LastModified": modified.isoformat()} if known else {})


def condition(version: Version) -> dict[str, Any]:
    """The options of a request for a version."""
    if version.strong:
        return {"if_match": version.etag}
    if version.modified:
        return {"if_unmodified_since": datetime.fromisoformat(version.modified)}
    return {}


@contextmanager
def converted_errors(store: ObjectStore, asked: Asked | None) -> Iterator[None]:
    """Convert errors of obstore to such as other libraries raise."""
    try:
        yield
    except (FileNotFoundError, sys.modules["obstore.exceptions"].BaseError) as error:
        converted = _converted(error, store, asked)
    else:
        return
    raise converted


class _StatusError(Exception):
    """A status that a server answered, with the attributes of the errors of aiohttp."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


def _converted(error: Exception, store: ObjectStore, asked: Asked | None) -> Exception:
    """The error of obstore as one that other libraries raise; much is in its text alone."""
    text = str(error)
    said = text.partition("\n\nDebug source")[0].strip()
    answered = _STATUS.search(said)
    status = int(answered[1]) if answered else _STATUSES.get(type(error).__name__)
    if asked is not None:
        asked.check_status(status or 0)
        for name, sent in _OTHER_RANGES.items():
            if name in text:
                return asked.refused(sent)
    if status is not None:
        return _StatusError(status, answered[2] if answered else "")
    if "ConnectionRefused" in text:
        return ConnectionRefusedError(ECONNREFUSED, said)
    failure = None if store.repeats else _FAILURE.search(text)
    if failure:
        return TimeoutError(said) if failure[1] == "Timeout" else ConnectionResetError(said)
    return OSError(EIO, said)
