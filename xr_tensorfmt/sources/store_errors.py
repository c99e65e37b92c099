"""What errors of stores mean: built-in exceptions without secrets, and which may be transient.

The errors of each library are known here alone, by their attributes and names, as the libraries
need not be there.
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
    """Call a file system, and raise its errors as `store_error` converts them."""
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
    """Convert an error of a store to one that pickles and contains no secret."""
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
    """What a server has answered, and how often the library had repeated its request."""

    status: int
    message: str = ""
    headers: Mapping[str, Any] | None = None
    repeats: int = 0


def response_in(error: BaseException | None) -> Response | None:
    """The response in an error of a library, or in that behind it."""
    if isinstance(error, OSError) and str(error).startswith("Forbidden: "):  # gcsfs
        return Response(403, str(error).partition("\n")[2])
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        about, said = response.get("ResponseMetadata", {}), response.get("Error", {})
        status, repeats = about.get("HTTPStatusCode", 0), about.get("RetryAttempts", 0)
        return Response(status, said.get("Message", ""), about.get("HTTPHeaders"), repeats)
    said = _said_by_obstore(error)
    if said:
        found = _STATUS.search(said)
        status = int(found[1]) if found else _STATUSES.get(type(error).__name__)
        return Response(status, found[2] if found else "") if status else None
    for name in ("status", "status_code", "code"):  # aiohttp, Azure, gcsfs
        status = getattr(error, name, None)
        if isinstance(status, int):
            message = str(getattr(error, "message", "")).partition("\n")[0]
            return Response(status, message, getattr(error, "headers", None))
    # adlfs raises it from an error of Azure.
    return response_in(error.__cause__) if type(error) is RuntimeError else None


def _said_by_obstore(error: BaseException | None) -> str:
    """What an error of obstore says; of others nothing."""
    said, mark, _ = str(error).partition("\n\nDebug source")
    return said.strip() if mark else ""


def _number(error: Exception) -> int:
    response = response_in(error)
    if response is not None:
        return _NUMBERS_BY_STATUS.get(response.status, errno.EIO)
    if isinstance(error, OSError) and isinstance(error.errno, int):
        return error.errno
    if type(error).__name__ == "NoCredentialsError":  # botocore's
        return errno.EACCES
    if _said_by_obstore(error) and "ConnectionRefused" in str(error):
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
    text = _said_by_obstore(error) or text
    if isinstance(error, OSError):
        return error.strerror or text or type(error).__name__
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@dataclass(frozen=True)
class Transient:
    """A failure that another attempt may not meet.

    Libraries that repeat requests have repeated it if it is `by_library`. `wait` is how long the
    server asks to wait, `sent` how often a library has sent the request.
    """

    error: Exception
    is_timeout: bool = False
    by_library: bool = False
    wait: float = 0.0
    sent: int = 1


def transient(error: Exception) -> Transient | None:
    """Whether a failure may be transient, by the error or by one from which a library made it."""
    origin = _origin(error)
    # fsspec turns every failure of HEAD into FileNotFoundError.
    said = origin if isinstance(error, FileNotFoundError) and origin is not None else error
    for each in (error, origin):
        if each is None:
            continue
        response = response_in(each)
        if response and response.status in _TRANSIENT_STATUSES:
            wait = _wait(response.headers or {})
            return Transient(said, response.status in (408, 504), True, wait, 1 + response.repeats)
        failure = _FAILURE.search(str(each)) if _said_by_obstore(each) else None
        if failure:
            return Transient(said, failure[1] == "Timeout", True)
        is_timeout = not _TIMEOUTS.isdisjoint(kind.__name__ for kind in type(each).__mro__)
        is_reset = isinstance(each, _RESET_ERRORS) or type(each).__name__ in _RESETS
        number = each.errno if isinstance(each, OSError) else None
        if is_timeout or is_reset or number in _TRANSIENT_NUMBERS:
            return Transient(said, is_timeout)
    return None


def _origin(error: Exception) -> Exception | None:
    """The error from which a library made this one; botocore has it among its arguments."""
    arguments = getattr(error, "kwargs", None)
    inner = arguments.get("error") if isinstance(arguments, dict) else error.__cause__
    return inner if isinstance(inner, Exception) else None


def _wait(headers: Mapping[str, Any]) -> float:
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
