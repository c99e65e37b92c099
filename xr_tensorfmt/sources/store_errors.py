"""Translate errors of stores to built-in exceptions without secrets, and tell transient errors.

This is the one module that knows the errors of libraries. It knows them by their attributes and
names, because the libraries are optional.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import unquote

from xr_tensorfmt.errors import StoreUnavailableError, TensorFormatError

Result = TypeVar("Result")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
# A password may contain "@" and, unescaped, "/" or "?"; what follows the colon is not a port then.
_USER = re.compile(r"(?<=://)(?:([^\s/?#]*)@|(?!\[)([^\s/:@]*:(?!:|\d*(?:[/?#]|$))\S*)@)")
_QUERY = re.compile(r"\?((?:\.\.\.)?\S*?)(?=[:;,.'\")\]]*(?:\s|$))")

# Names of file system options whose values are secret.
_SECRET = re.compile(
    "secret|passw|passphrase|token|key|auth|cookie|credential|sas|signature|connection_string"
    "|headers",
    re.IGNORECASE,
)
_SHORTEST_SECRET = 4

_NUMBERS = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    FileExistsError: errno.EEXIST,
    IsADirectoryError: errno.EISDIR,
    TimeoutError: errno.ETIMEDOUT,
}
_NUMBERS_BY_STATUS = {
    **dict.fromkeys((401, 403, 407), errno.EACCES),
    **dict.fromkeys((404, 410), errno.ENOENT),
    **dict.fromkeys((408, 504), errno.ETIMEDOUT),
}

_TRANSIENT_STATUSES = {408, 429, 500, 502, 503, 504}
_TRANSIENT_NUMBERS = {errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT}
_RESET_ERRORS = ConnectionResetError, ConnectionAbortedError, BrokenPipeError
# Of aiohttp, Python's http.client, and botocore.
_RESETS = {
    "ClientPayloadError",
    "ServerDisconnectedError",
    "IncompleteRead",
    "ConnectionClosedError",
    "HTTPClientError",
    "IncompleteReadError",
    "ResponseParserError",
    "ResponseStreamingError",
}
_TIMEOUTS = {"TimeoutError", "ConnectTimeoutError", "ReadTimeoutError"}

# What errors of obstore say; much is in their text alone.
_STATUS = re.compile(r"status code: (\d{3})\b ?([^:\n]*)")
_STATUSES = {"PreconditionError": 412, "PermissionDeniedError": 403, "UnauthenticatedError": 401}
_FAILURE = re.compile(r"kind: (Interrupted|Timeout)\b|\b(IncompleteMessage)\b")


def redacted(text: str) -> str:
    """Remove user, password and query from the URLs in a str."""
    return _URL.sub(lambda found: _QUERY.sub("?...", _USER.sub("", found[0])), text)


def ask_store(
    call: Callable[..., Result],
    *arguments: Any,
    url: str,
    path: str,
    options: object,
    context: str = "",
    kept: tuple[type[Exception], ...] = (),
) -> Result:
    """Call a file system, and raise its errors as `store_error` translates them."""
    try:
        return call(*arguments)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  # each library has its own exceptions
        failure = store_error(error, url, path, options, context, kept)
    # Outside of the except clause, so that the original error is not the context of this one.
    try:
        raise failure from None
    finally:
        del failure


def store_error(
    error: Exception,
    url: str,
    path: str,
    options: object,
    context: str = "",
    kept: tuple[type[Exception], ...] = (),
) -> Exception:
    """Return an error without secrets that pickles: of a type of `kept`, or an OSError."""
    error = _get_actual_error(error)
    if isinstance(error, TensorFormatError | StoreUnavailableError):
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    reason = redacted(_reason(error, url, path))
    for secret in sorted({*_secrets(options), *_secrets_of(path)}, key=len, reverse=True):
        reason = reason.replace(secret, "***")
    for kind in kept:
        if isinstance(error, kind):
            return kind(f"{url}: {reason}{context}")
    return OSError(_number(error), f"{reason}{context}", url)


@dataclass(frozen=True)
class Response:
    """The response of a server, and how often the library has repeated the request."""

    status: int
    message: str = ""
    headers: Mapping[str, Any] | None = None
    repeats: int = 0


def response_in(error: BaseException | None) -> Response | None:
    """Return the response in an error of a library, or in its cause."""
    if isinstance(error, OSError) and str(error).startswith("Forbidden: "):  # gcsfs
        return Response(403, str(error).partition("\n")[2])
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        metadata, details = response.get("ResponseMetadata", {}), response.get("Error", {})
        status, repeats = metadata.get("HTTPStatusCode", 0), metadata.get("RetryAttempts", 0)
        return Response(status, details.get("Message", ""), metadata.get("HTTPHeaders"), repeats)
    obstore_message = _get_obstore_message(error)
    if obstore_message:
        match = _STATUS.search(obstore_message)
        status = int(match[1]) if match else _STATUSES.get(type(error).__name__)
        return Response(status, match[2] if match else "") if status else None
    for name in ("status", "status_code", "code"):  # aiohttp, Azure, gcsfs
        status = getattr(error, name, None)
        if isinstance(status, int):
            message = str(getattr(error, "message", "")).partition("\n")[0]
            return Response(status, message, getattr(error, "headers", None))
    # adlfs raises it from an error of Azure.
    return response_in(error.__cause__) if type(error) is RuntimeError else None


def _get_obstore_message(error: BaseException | None) -> str:
    """Return the message of an error of obstore, an empty str for other errors."""
    message, mark, _ = str(error).partition("\n\nDebug source")
    return message.strip() if mark else ""


def _number(error: Exception) -> int:
    response = response_in(error)
    if response is not None:
        return _NUMBERS_BY_STATUS.get(response.status, errno.EIO)
    if isinstance(error, OSError) and isinstance(error.errno, int):
        return error.errno
    if type(error).__name__ == "NoCredentialsError":  # botocore's
        return errno.EACCES
    if _get_obstore_message(error) and "ConnectionRefused" in str(error):
        return errno.ECONNREFUSED
    return next((n for kind, n in _NUMBERS.items() if isinstance(error, kind)), errno.EIO)


def _reason(error: Exception, url: str, path: str) -> str:
    response, text = response_in(error), str(error)
    if response is not None:
        # Not str(error), which also describes the request.
        return f"the server answered {response.status} {response.message}".rstrip()
    names = ("", path.strip("/"), url)
    if isinstance(error, FileNotFoundError) and (
        text.strip("/") in names or _URL.fullmatch(text)  # gcsfs names the URL of its request
    ):
        return "there is no such object"
    text = _get_obstore_message(error) or text
    if isinstance(error, OSError):
        return error.strerror or text or type(error).__name__
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@dataclass(frozen=True)
class Transient:
    """A failure that another attempt may not meet.

    `is_status` says that the server answered with an error status, which some libraries repeat
    themselves. `wait` is how many seconds the server asks to wait, `sent` how often a library has
    sent the request.
    """

    error: Exception
    is_timeout: bool = False
    is_status: bool = False
    wait: float = 0.0
    sent: int = 1


def transient(error: Exception) -> Transient | None:
    """Return what may be transient about a failure, or about the error that caused it."""
    actual = _get_actual_error(error)
    for candidate in (actual, _get_cause(actual)):
        if candidate is None:
            continue
        response = response_in(candidate)
        if response and response.status in _TRANSIENT_STATUSES:
            is_timeout, sent = response.status in (408, 504), 1 + response.repeats
            return Transient(actual, is_timeout, True, _get_wait(response.headers or {}), sent)
        failure = _FAILURE.search(str(candidate)) if _get_obstore_message(candidate) else None
        if failure:
            return Transient(actual, failure[1] == "Timeout", True)
        names = {base.__name__ for base in type(candidate).__mro__}
        is_timeout = not _TIMEOUTS.isdisjoint(names)
        is_reset = isinstance(candidate, _RESET_ERRORS) or type(candidate).__name__ in _RESETS
        number = candidate.errno if isinstance(candidate, OSError) else None
        if is_timeout or is_reset or number in _TRANSIENT_NUMBERS:
            return Transient(actual, is_timeout)
    return None


def _get_actual_error(error: Exception) -> Exception:
    """Return the cause of a FileNotFoundError if it says why, such as a timeout.

    fsspec raises FileNotFoundError for all failures of HEAD.
    """
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or not isinstance(cause, Exception):
        return error
    is_other = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
    return cause if is_other or response_in(cause) else error


def _get_cause(error: Exception) -> Exception | None:
    """Return the error from which a library made this one; botocore has it in its arguments."""
    arguments = getattr(error, "kwargs", None)
    cause = arguments.get("error") if isinstance(arguments, dict) else error.__cause__
    return cause if isinstance(cause, Exception) else None


def _get_wait(headers: Mapping[str, Any]) -> float:
    """The seconds of ``Retry-After``, which may be a date."""
    value = next((str(headers[name]) for name in headers if name.lower() == "retry-after"), "")
    if value.isdecimal():
        return float(value)
    with suppress(ValueError, TypeError):
        then = parsedate_to_datetime(value)
        return max(0.0, (then - datetime.now(then.tzinfo or UTC)).total_seconds())
    return 0.0


def _secrets(options: object, *, inside: bool = False) -> Iterator[str]:
    """Secret values in the options of a file system, and of the file systems that it wraps."""
    options = getattr(options, "storage_options", options)
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from _secrets(value, inside=inside or bool(_SECRET.search(str(name))))
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _secrets(value, inside=inside)
    elif isinstance(options, bytes) and inside:
        yield from _secrets(options.decode(errors="replace"), inside=True)
    elif isinstance(options, str) and inside:
        parts = (options, *options.split())
        yield from (each for each in parts if len(each) >= _SHORTEST_SECRET)


def _secrets_of(path: str) -> Iterator[str]:
    """Password of a URL, or the user where there is none, and the values of its query."""
    for found in _USER.finditer(path):
        user, colon, password = (found[1] or found[2] or "").partition(":")
        yield from _spellings(password if colon else user)
    query = path.partition("?")[2]
    for pair in query.split("&"):
        yield from _spellings(pair.partition("=")[2])


def _spellings(secret: str) -> Iterator[str]:
    """A secret as it is in a URL, and with its percent-escapes decoded."""
    yield from (each for each in (secret, unquote(secret)) if len(each) >= _SHORTEST_SECRET)
