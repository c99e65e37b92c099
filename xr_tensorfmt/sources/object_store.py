"""Stores of obstore in the place of file systems of fsspec: ``fs=``, and URLs of S3 and Azure.

The store of a URL is made of the `storage_options` of fsspec. There is none where anything is
stated, here or in the environment, that is not known to mean the same to obstore; fsspec opens the
URL then. URLs of HTTP are left to fsspec: obstore reads from no server without HEAD, no path with
escaped characters, and no URL with a user. So are those of Google: obstore uses another interface
of that store, for which there is no emulator to test with.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache, partial
from importlib import import_module
from typing import Any

from fsspec.config import conf
from fsspec.registry import registry

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


def is_object_store(store: object) -> bool:
    """Whether something is a store of obstore, which is not imported for it."""
    return any(kind.__module__.startswith("obstore.") for kind in type(store).__mro__)


_users: set[int] = set()
"""Processes that have used obstore; its threads are not in those that are forked from them."""


def is_lost() -> bool:
    """Whether this process was forked from one that has used obstore."""
    return bool(_users - {os.getpid()})


class ObjectStore:
    """A store of obstore, with what the file systems of fsspec have that is used here."""

    storage_args = ()

    def __init__(self, store: Any, pickled: bytes | None = None) -> None:
        _users.add(os.getpid())
        self.store = store
        self.is_refused = False
        self._pickled = pickled
        retries = getattr(store, "retry_config", None) or {}
        self.repeats = bool(retries.get("max_retries", _DEFAULT_RETRIES))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the store; a process has it once, with its connections."""
        return _unpickled, (self._pickled or pickle.dumps(self.store),)

    @cached_property
    def storage_options(self) -> dict[str, Any]:
        """All that the store was made of, some of which is secret."""
        names = "url", "prefix", "config", "client_options"
        return {name: getattr(self.store, name, None) for name in names}

    def invalidate_cache(self, path: str) -> None:
        """Do nothing, as nothing is cached."""

    def unstrip_protocol(self, path: str) -> str:
        """The URL of an object."""
        options = self.storage_options
        config = options["config"] or {}
        parts = options["url"], *map(config.get, _BUCKETS), options["prefix"], path
        inside = "/".join(str(each).strip("/") for each in parts if each)
        return f"{_ROOTS[type(self.store).__name__]}{inside}"


@lru_cache(maxsize=32)
def _unpickled(pickled: bytes) -> ObjectStore:
    return ObjectStore(pickle.loads(pickled), pickled)  # noqa: S301  # our own bytes


def adapted(store: Any) -> ObjectStore:
    """The same object for equal stores, so that they share a limit on concurrent requests."""
    with suppress(TypeError):  # a store in memory is not pickled
        return _unpickled(pickle.dumps(store))
    return ObjectStore(store)


def described(meta: Any) -> dict[str, Any]:
    """Size and version, by the names that fsspec uses; obstore has 1970 for an unknown time."""
    modified = meta["last_modified"]
    known = modified != datetime.fromtimestamp(0, UTC)
    described = {"size": meta["size"], "ETag": meta["e_tag"], "VersionId": meta["version"]}
    return described | ({"LastModified": modified.isoformat()} if known else {})


# No part of a key that obstore refuses, and nothing that fsspec takes for more than a name.
_PART = r"(?!\.{1,2}(?:/|$))[^\x00-\x1f\x7f/?#%:]+"
_KEY = rf"{_PART}(?:/{_PART})*"

_NO_LIMIT = timedelta(days=365)

_CREDENTIALS_LAST = timedelta(minutes=10)
"""Obstore asks again when five minutes are left; botocore renews what lasts for less than ten."""

_PROFILES = (
    "${AWS_CONFIG_FILE}",
    "${AWS_SHARED_CREDENTIALS_FILE}",
    "~/.aws/config",
    "~/.aws/credentials",
)
_PROFILE_SETTINGS = re.compile(
    "region|output|aws_(access_key_id|secret_access_key|session_token)|role_(arn|session_name)"
    "|source_profile|credential_(source|process)|external_id|duration_seconds"
    "|web_identity_token_file|sso_.+"
)
_OTHER_PARTITIONS = "cn-", "us-iso", "eu-iso", "eusc-"


class _LeftToFsspecError(Exception):
    """Something is stated that is not known here, or something that is needed is not stated."""


def _require(is_known: object) -> None:
    """Leave the URL to fsspec unless something is so."""
    if not is_known:
        raise _LeftToFsspecError


def store_of_url(
    url: str, options: Mapping[str, Any], timeout: float | None
) -> tuple[ObjectStore, str] | None:
    """The store of a URL, and the key in it; None if fsspec has to open it."""
    for kind in _KINDS:
        found = None if is_lost() else kind.url.fullmatch(url)
        if found and options.keys() <= kind.words:
            try:
                stated = json.dumps(dict(options), sort_keys=True)
            except TypeError:  # an option that is not a str, bool or dict
                return None
            store = _store(kind, found["bucket"], stated, timeout)
            return None if store is None or store.is_refused else (store, found["key"])
    return None


@lru_cache(maxsize=32)
def _store(kind: _Kind, bucket: str, stated: str, timeout: float | None) -> ObjectStore | None:
    """One store for equal URLs of a process, as fsspec keeps its file systems."""
    options: dict[str, Any] = json.loads(stated)
    waits = _NO_LIMIT if timeout is None else timedelta(seconds=timeout)
    client: dict[str, Any] = {"timeout": _NO_LIMIT, "connect_timeout": waits, "read_timeout": waits}
    # Whatever obstore or botocore do not take, fsspec either takes or has a better error for.
    with suppress(Exception):
        kind.check_surroundings()
        arguments = kind.arguments({k: v for k, v in options.items() if v is not None})
        client["allow_http"] = arguments.get("endpoint", "").startswith("http://")
        store = getattr(import_module("obstore.store"), kind.name)(
            bucket, **arguments, client_options=client, retry_config={"max_retries": 0}
        )
        return adapted(store)
    return None


def _text(options: Mapping[str, Any], name: str) -> str:
    """An option that is a str, or an empty one where it is not there."""
    value = options.get(name, "")
    _require(isinstance(value, str))
    return str(value)


def _of_s3(options: Mapping[str, Any]) -> dict[str, Any]:
    client = options.get("client_kwargs", {})
    _require(isinstance(client, dict) and client.keys() <= {"endpoint_url", "region_name"})
    session = _Session(_text(options, "profile") or None)
    settings = session.settings()
    _require(all(map(_PROFILE_SETTINGS.fullmatch, settings)))
    endpoint = _text(options, "endpoint_url") or _text(client, "endpoint_url")
    _require("AWS_CA_BUNDLE" not in os.environ or endpoint.startswith("http://"))
    region = _text(client, "region_name") or os.environ.get("AWS_DEFAULT_REGION")
    region = region or str(settings.get("region", ""))
    _require(endpoint or (region and not region.startswith(_OTHER_PARTITIONS)))
    # Botocore signs for this region if it knows of none for a server.
    arguments: dict[str, Any] = {"region": region or "us-east-1"}
    if endpoint:
        arguments["endpoint"] = endpoint.rstrip("/")
    if options.get("anon"):
        return arguments | {"skip_signature": True}
    key, secret, token = (_text(options, name) for name in ("key", "secret", "token"))
    if not (key or secret or token):
        session()  # there are credentials
        return arguments | {"credential_provider": session}
    _require(key and secret)
    # By this and not by its arguments, which it completes from the environment.
    return arguments | {"credential_provider": partial(_credentials, key, secret, token or None)}


def _credentials(
    key: str, secret: str, token: str | None, expires_at: datetime | None = None
) -> dict[str, Any]:
    found = {"access_key_id": key, "secret_access_key": secret, "token": token}
    return {**found, "expires_at": expires_at}


@dataclass
class _Session:
    """What botocore finds in files and environment: each process finds its own credentials."""

    profile: str | None
    _found: Any = field(default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name of the profile alone."""
        return _Session, (self.profile,)

    def settings(self) -> dict[str, Any]:
        """The settings of the profile; botocore is not imported if there are no files."""
        files = (os.path.expanduser(os.path.expandvars(file)) for file in _PROFILES)
        if not self.profile and not any(map(os.path.exists, files)):
            return {}
        return dict(self._botocore().get_scoped_config())

    def __call__(self) -> dict[str, Any]:
        """Credentials, for obstore."""
        self._found = self._found or self._botocore().get_credentials()
        _require(self._found)
        key, secret, token = self._found.get_frozen_credentials()[:3]
        renewed = hasattr(self._found, "refresh_needed")
        expires_at = datetime.now(UTC) + _CREDENTIALS_LAST if renewed else None
        return _credentials(key, secret, token, expires_at)

    def _botocore(self) -> Any:
        return import_module("botocore.session").Session(profile=self.profile)


def _of_azure(options: Mapping[str, Any]) -> dict[str, Any]:
    stated = {name: value for name, value in options.items() if value and name != "account_name"}
    _require(len(stated) == 1)
    (name,) = stated
    if name == "connection_string":
        return _of_connection(_text(stated, name))
    account = _text(options, "account_name")
    _require(account)
    if name == "anon":
        return {"account_name": account, "skip_signature": True}
    key = "sas_key" if name == "sas_token" else name
    return {"account_name": account, key: _text(stated, name).removeprefix("?")}


def _of_connection(text: str) -> dict[str, Any]:
    """What a connection string says, of which the parts for other services are not needed."""
    pairs = (each.partition("=") for each in text.split(";") if each)
    parts = {name: value for name, _, value in pairs if name not in _OTHER_SERVICES}
    protocol = parts.pop("DefaultEndpointsProtocol", "https")
    suffix = parts.pop("EndpointSuffix", "core.windows.net")
    account, key = parts.pop("AccountName", ""), parts.pop("AccountKey", "")
    endpoint = parts.pop("BlobEndpoint", f"{protocol}://{account}.blob.{suffix}")
    _require(account and key and not parts)
    return {"account_name": account, "account_key": key, "endpoint": endpoint.rstrip("/")}


_OTHER_SERVICES = {"QueueEndpoint", "TableEndpoint", "FileEndpoint"}


@dataclass(frozen=True, eq=False)
class _Kind:
    """A kind of store: its name in obstore, and what is known of its file system in fsspec.

    `strange` are variables of the environment that might mean something else to obstore.
    """

    name: str
    package: str
    protocols: tuple[str, ...]
    url: re.Pattern[str]
    words: frozenset[str]
    strange: re.Pattern[str]
    arguments: Callable[[Mapping[str, Any]], dict[str, Any]]

    def check_surroundings(self) -> None:
        """Refuse what fsspec was configured with, and variables of the environment."""
        for protocol in self.protocols:
            known = registry.get(protocol)
            _require(not known or known.__module__.startswith(self.package))
            _require(not conf.get(protocol))
        _require(not any(map(self.strange.match, os.environ)))


def _urls(schemes: str, bucket: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{schemes})://(?P<bucket>{bucket})/(?P<key>{_KEY})")


_KINDS = (
    _Kind(
        "S3Store",
        "s3fs",
        ("s3", "s3a"),
        _urls("s3a?", r"(?![^/]*--|[^/]*-s3alias/)[a-z0-9][a-z0-9.-]+[a-z0-9]"),
        frozenset({"anon", "key", "secret", "token", "endpoint_url", "client_kwargs", "profile"}),
        re.compile(
            "AWS_(?!((ACCESS_KEY|SECRET_ACCESS|SESSION).*|(DEFAULT_)?(PROFILE|REGION)|CONFIG_FILE"
            "|SHARED_CREDENTIALS_FILE|ROLE_.+|WEB_IDENTITY_TOKEN_FILE|CONTAINER_.+|EXECUTION_ENV"
            "|EC2_METADATA_DISABLED|METADATA_.+|LAMBDA_.+|PAGER|CA_BUNDLE)$)"
        ),
        _of_s3,
    ),
    _Kind(
        "AzureStore",
        "adlfs",
        ("abfs", "abfss", "az"),
        _urls("abfss?|az", "[a-z0-9][a-z0-9-]+"),
        frozenset({"account_name", "account_key", "sas_token", "connection_string", "anon"}),
        re.compile("AZURE_"),
        _of_azure,
    ),
)
