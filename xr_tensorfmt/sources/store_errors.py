"""Translate errors of storage libraries, which are optional, into built-in ones without secrets."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import responses
from typing import Any
from urllib.parse import unquote

from xr_tensorfmt.errors import URL_USER, StoreUnavailableError, TensorFormatError, redact

# File system options with secret values.
_SECRET_OPTION = re.compile(
    "secret|passw|passphrase|token|key|auth|cookie|credential|sas|signature|connection_string|header",
    re.IGNORECASE,
)
_MIN_SECRET_LENGTH = 4

# Statuses, and exceptions of Python, aiohttp, http.client, botocore, obstore, requests and httpx.
_CAUSES = {
    errno.ENOENT: "404 410 FileNotFoundError",
    errno.EEXIST: "FileExistsError",
    errno.EISDIR: "IsADirectoryError",
    errno.EACCES: "401 403 407 PermissionError NoCredentialsError PermissionDeniedError "
    "UnauthenticatedError",
    errno.ETIMEDOUT: "408 504 TimeoutError ConnectTimeoutError ReadTimeoutError Timeout "
    "TimeoutException",
    errno.ECONNRESET: "ConnectionResetError ClientPayloadError ServerDisconnectedError "
    "IncompleteRead HTTPClientError IncompleteReadError ResponseParserError",
}
_ERRNO_BY_CAUSE = {cause: number for number, causes in _CAUSES.items() for cause in causes.split()}
_REASONS = {
    errno.ENOENT: "there is no such object",
    errno.ETIMEDOUT: "the response was not complete in time",
}
_TRANSIENT_STATUSES = {408, 429, 500, 502, 503, 504}
_TRANSIENT_ERRNOS = {errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT}


def translate_error(
    error: Exception, url: str, path: str, options: object, context: str = ""
) -> Exception:
    """Return a picklable error without secrets: an OSError, ImportError, TypeError or MemoryError.

    `path` and `options` are searched for secrets.
    """
    if isinstance(error, TensorFormatError | StoreUnavailableError | MemoryError):
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    error = _unwrap(error)
    reason = redact(_describe(error))
    secrets = {*_find_secrets(options), *_find_secrets_in_url(path)}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _MIN_SECRET_LENGTH:
            reason = reason.replace(secret, "***")
    for error_type in (ImportError, TypeError):
        if isinstance(error, error_type):
            return error_type(f"{url}: {reason}{context}")
    return OSError(_get_errno(error), f"{reason}{context}", url)


MAX_PAUSE = 86400.0
"""Longest pause in seconds that a server can request."""


@dataclass(frozen=True)
class Response:
    """Status, message and headers of an HTTP response. The status is 0 if there is none."""

    status: int = 0
    message: str = ""
    headers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pause(self) -> float:
        """The pause in seconds that the server requests with ``Retry-After``."""
        headers = {name.lower(): str(value) for name, value in self.headers.items()}
        value = headers.get("retry-after", "")
        if value.isdecimal():
            seconds = float(value)
        else:
            try:
                date = parsedate_to_datetime(value)
            except (OverflowError, ValueError):
                return 0.0
            date = date if date.tzinfo else date.replace(tzinfo=UTC)
            seconds = (date - datetime.now(UTC)).total_seconds()
        return min(max(0.0, seconds), MAX_PAUSE)


def find_response(error: BaseException) -> Response:
    """Return the HTTP response in an error of a library."""
    if str(error).startswith("Forbidden: "):  # gcsfs
        return Response(403, str(error).partition("\n")[2])
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        metadata, details = response.get("ResponseMetadata", {}), response.get("Error", {})
        status, headers = metadata.get("HTTPStatusCode", 0), metadata.get("HTTPHeaders", {})
        return Response(status, details.get("Message", ""), headers)
    for item in (error, response):  # of aiohttp, Azure, gcsfs; of requests, httpx
        for name in ("status", "status_code", "code"):
            if isinstance(status := getattr(item, name, None), int):
                message = str(getattr(error, "message", "")).partition("\n")[0]
                headers = getattr(error, "headers", None) or getattr(response, "headers", None)
                return Response(status, message, headers or {})
    return Response()


def _get_errno(error: Exception) -> int:
    if status := find_response(error).status:
        return _ERRNO_BY_CAUSE.get(str(status), errno.EIO)
    if isinstance(error, OSError) and isinstance(error.errno, int):
        return error.errno
    names = (base.__name__ for base in type(error).__mro__)
    return next(filter(None, map(_ERRNO_BY_CAUSE.get, names)), errno.EIO)


def _describe(error: Exception) -> str:
    response = find_response(error)
    if response.status:  # str(error) also contains the request
        phrase = response.message or responses.get(response.status, "")
        return f"the server answered {response.status} {phrase}".rstrip()
    reason = getattr(error, "strerror", None) or _REASONS.get(_get_errno(error))
    text = str(error).partition("\n\nDebug source")[0].strip()  # obstore
    return reason or f"{type(error).__name__}: {text}".removesuffix(": ")


def find_transient_failure(error: Exception) -> Exception | None:
    """Return the failure behind an error, or None if a second attempt cannot avoid it."""
    error = _unwrap(error)
    is_transient = find_response(error).status in _TRANSIENT_STATUSES
    return error if is_transient or _get_errno(error) in _TRANSIENT_ERRNOS else None


def _unwrap(error: Exception) -> Exception:
    """Return the failure behind an error of fsspec, s3fs, adlfs or botocore that hides it."""
    arguments = getattr(error, "kwargs", None)
    cause = arguments.get("error") if isinstance(arguments, dict) else error.__cause__
    is_vague = isinstance(error, FileNotFoundError) or _get_errno(error) == errno.EIO
    if not isinstance(cause, Exception) or not (is_vague or isinstance(error, OSError)):
        return error
    is_specific = isinstance(cause, TypeError | ValueError) or _get_errno(cause) != errno.EIO
    return cause if find_response(cause).status or (is_vague and is_specific) else error


def _find_secrets(options: object, *, is_secret: bool = False) -> Iterator[str]:
    """Yield secret values in the options of a file system and of file systems below it."""
    options = getattr(options, "storage_options", options)
    if isinstance(options, Mapping):
        for name, value in options.items():
            is_secret_value = is_secret or bool(_SECRET_OPTION.search(str(name)))
            yield from _find_secrets(value, is_secret=is_secret_value)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _find_secrets(value, is_secret=is_secret)
    elif isinstance(options, str | bytes) and is_secret:
        text = options if isinstance(options, str) else options.decode(errors="replace")
        yield from (text, *text.split())


def _find_secrets_in_url(url: str) -> Iterator[str]:
    """Yield passwords, users without a password, and values, also percent-decoded."""
    secrets = re.findall(r"[?&;#][^?&;#=]*=([^&;#]*)", url)
    for match in re.finditer(URL_USER, url.rpartition("@")[0] + "@"):
        user, colon, password = (match[1] or match[2] or "").partition(":")
        secrets.append(password if colon else user)
    for secret in secrets:
        yield from (secret, unquote(secret))
