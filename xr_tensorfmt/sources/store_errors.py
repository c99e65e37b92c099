"""Errors of stores, converted to built-in exceptions that pickle and contain no secrets."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping
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
    401: errno.EACCES,
    403: errno.EACCES,
    404: errno.ENOENT,
    407: errno.EACCES,
    408: errno.ETIMEDOUT,
    410: errno.ENOENT,
    504: errno.ETIMEDOUT,
}


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


def _number(error: Exception) -> int:
    answered = _answered(error)
    if answered is not None:
        return _NUMBERS_BY_STATUS.get(answered[0], errno.EIO)
    if isinstance(error, OSError) and isinstance(error.errno, int):
        return error.errno
    if type(error).__name__ == "NoCredentialsError":  # botocore's
        return errno.EACCES
    return next((n for kind, n in _NUMBERS.items() if isinstance(error, kind)), errno.EIO)


def _answered(error: BaseException | None) -> tuple[int, str] | None:
    """The HTTP status and the message in an error of a library, or in that behind it."""
    if isinstance(error, OSError) and str(error).startswith("Forbidden: "):  # gcsfs
        return 403, str(error).partition("\n")[2]
    for name in ("status", "status_code", "code"):  # aiohttp, Azure, gcsfs
        status = getattr(error, name, None)
        if isinstance(status, int):
            return status, str(getattr(error, "message", "")).partition("\n")[0]
    # adlfs raises it from an error of Azure.
    return _answered(error.__cause__) if type(error) is RuntimeError else None


def _reason(error: Exception, url: str, path: str) -> str:
    answered, text = _answered(error), str(error)
    if answered is not None:
        # Not str(error), which also describes the request.
        return " ".join(("the server answered", *map(str, answered))).rstrip()
    names = ("", path.strip("/"), url)
    if isinstance(error, FileNotFoundError) and (
        text.strip("/") in names or _URL.fullmatch(text)  # gcsfs names the URL of its request
    ):
        return "there is no such object"
    if isinstance(error, OSError):
        return error.strerror or text or type(error).__name__
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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
