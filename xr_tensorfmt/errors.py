"""Exceptions and warnings about files."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from glob import escape, glob
from itertools import islice
from typing import Any, Literal, NoReturn

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """A fault of a file, which `validate` returns. ``str(finding)`` is one line without the path.

    Parameters
    ----------
    path : str
        The file with the fault: the opened file or a sibling.
    field : str
        The invalid field, as the format calls it. Empty if the whole file is meant.
    actual : object
        Value of the field, or a description of the fault if `expected` is empty.
    expected : str
        Description of a valid value.
    hint : str
        What the user can do.
    offset : int or None
        Offset of the fault in bytes, or None if it has no single offset.
    severity : {"error", "warning"}
        A warning is a violation of the format that leaves the values certain.

    Examples
    --------
    >>> from xr_tensorfmt import Finding
    >>> print(Finding("a.mag", "the data offset", 4095, "a multiple of 4096", offset=28))
    error at byte 28: the data offset: 4095, expected a multiple of 4096
    """

    path: str
    field: str
    actual: Any
    expected: str = ""
    hint: str = ""
    offset: int | None = None
    severity: Severity = "error"

    @property
    def message(self) -> str:
        """The actual and the expected value, and what to do."""
        actual = str(self.actual)
        if self.expected:
            actual = f"{shorten(actual)}, expected {shorten(self.expected)}"
        return f"{actual}; {self.hint}" if self.hint else actual

    def __str__(self) -> str:
        """Return one line without the path."""
        field = f"{shorten(self.field)}: " if self.field else ""
        return f"{self.severity}{self._at_byte}: {field}{self.message}"

    @property
    def sentence(self) -> str:
        """Text of a warning: path, field, offset and message."""
        field = f"{shorten(self.field)}{self._at_byte}".strip()
        return f"{self.path}: {field}: {self.message}" if field else f"{self.path}: {self.message}"

    @property
    def _at_byte(self) -> str:
        return "" if self.offset is None else f" at byte {self.offset}"


class TensorFormatError(ValueError):
    """A file is corrupt, truncated, or has another format than it claims.

    Parameters
    ----------
    path, field, actual, expected, hint, offset
        As in `Finding`. They are attributes of the error, too.
    """

    def __init__(
        self,
        path: str,
        field: str,
        actual: object,
        expected: str,
        hint: str,
        offset: int | None = None,
    ) -> None:
        super().__init__(path, field, actual, expected, hint, offset)
        self.path, self.field, self.actual = path, field, actual
        self.expected, self.hint, self.offset = expected, hint, offset

    def __str__(self) -> str:
        """Return one sentence."""
        return f"{Finding(*self.args).sentence}."

    def to_finding(self, severity: Severity = "error") -> Finding:
        """Return the finding, with text in place of the actual value."""
        return replace(Finding(*self.args), actual=shorten(self.actual), severity=severity)


def shorten(value: object, length: int = 200) -> str:
    """Return ``str(value)``, without its middle if it is longer than `length`."""
    text = str(value)
    half = length // 2
    return text if len(text) <= length else f"{text[:half]} ... {text[-half:]}"


# Schemes with "@" in names, such as "abfs://container@account". Other schemes may have users.
_SCHEMES = "abfs abfss az file gcs github gs hf memory s3 s3a tar wasb wasbs zip"
_HAS_USER = "".join(rf"(?<!\b{scheme}://)" for scheme in _SCHEMES.split())
URL_USER = rf"(?<=://)(?:{_HAS_USER}([^\s/?#]*)@|(?!\[)([^\s/:@]*:(?!:|\d*(?:[/?#]|$))\S*)@)"
"""Pattern of the user of a URL. Compiling it takes longer than opening a file.

A password may contain "@", and unescaped "/" or "?". Its colon does not start a port number.
"""
# Query, fragment or parameter.
_URL_SUFFIX = r"[?#]|;(?=[^\s/?#;=]+=)"


def redact(text: str) -> str:
    """Remove user, password, query, fragment and parameters from the URLs in a str."""
    words = re.split(r"(\s+)", text) if "://" in text else [text]
    return "".join(_redact_word(word) if "://" in word else word for word in words)


def _redact_word(word: str) -> str:
    """Redact a word in linear time, because messages may contain long names."""
    start = word.find("://")
    before, at, after = word.rpartition("@")
    word = re.sub(URL_USER, "", before + at) + after
    suffix = re.compile(_URL_SUFFIX).search(word, start)
    if suffix is None:
        return word
    punctuation = word[len(word.rstrip(":;,.'\")]")) :].removeprefix("...")
    return f"{word[: suffix.start()]}{suffix[0]}...{punctuation}"


_MAX_COMPARED = 10_000


def did_you_mean(name: object, choices: Iterable[object]) -> str:
    """Return ``" (did you mean 'x'?)"`` with the most similar choice, or an empty string."""
    if not isinstance(name, str):
        return ""
    names = {str(choice).casefold(): str(choice) for choice in islice(choices, _MAX_COMPARED)}
    close = get_close_matches(name.casefold(), names, n=1, cutoff=0.65)
    return f" (did you mean {shorten(repr(names[close[0]]))}?)" if close else ""


def suggest_file(error: FileNotFoundError, start: str = "") -> FileNotFoundError:
    """Return the error about a missing file with a similar name in its directory, if any."""
    directory, name = os.path.split(error.filename)
    names = {*map(os.path.basename, glob(os.path.join(escape(directory), "*")))} - {name}
    hint = did_you_mean(name, (x for x in names if x.casefold().startswith(start.casefold())))
    return FileNotFoundError(error.errno, f"{error.strerror}{hint}", error.filename)


def build_choice_error(keyword: str, value: object, choices: Collection[object]) -> ValueError:
    """Return the error for a value of a keyword that is not one of its choices."""
    allowed = ", ".join(map(repr, choices))
    return ValueError(f"{keyword}={value!r}{did_you_mean(value, choices)} is not one of {allowed}")


def build_keyword_error(name: str, scope: str, known: Collection[str], hint: str = "") -> TypeError:
    """Return the error for an unknown keyword. The scope is like "for these files"."""
    expected = f"one of {', '.join(known)}" if known else "no keyword"
    return TypeError(
        f"{name!r}{did_you_mean(name, known)} is not a keyword {scope}, expected {expected}{hint}"
    )


def build_directory_error(
    path: str, hint: str = "a pattern of files to xarray.open_mfdataset or the command"
) -> IsADirectoryError:
    """Return the error for a directory in place of a file."""
    return IsADirectoryError(f"{path} is a directory; pass the path of a file in it, or {hint}")


SAME_BYTES = (
    "with verify_unchanged=False or --open-option verify_unchanged=false if its bytes are the same "
    "as before"
)
"""Hint about a file or object whose time, inode or entity tag has changed."""


class SourceChangedError(TensorFormatError):
    """The file was changed or replaced after it was opened."""

    def to_finding(self, severity: Severity = "error") -> NoReturn:
        """Raise the error, because findings would be about different contents."""
        raise self


class StoreUnavailableError(OSError):
    """A store failed although the request was retried. ``filename`` is the URL without secrets."""

    #: Requested bytes ``(start, stop)``, or None for a request of the size.
    span: tuple[int, int] | None = None
    #: Number of attempts.
    attempts: int = 0
    #: Duration of the attempts and the pauses between them.
    seconds: float = 0.0


class StoreTimeoutError(StoreUnavailableError, TimeoutError):
    """A store did not send data in time, although the request was retried."""


class TensorFormatWarning(UserWarning):
    """A file violates its format but all values are readable, or other programs cannot load it."""


def warn(message: str) -> None:
    """Warn of a file at the line that called xarray or this package."""
    frame, level = inspect.currentframe(), 1
    while frame and str(frame.f_globals.get("__name__")).startswith(("xr_tensorfmt.", "xarray.")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, TensorFormatWarning, stacklevel=level)
