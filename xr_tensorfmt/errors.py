"""Exceptions and warnings about files."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from itertools import islice
from typing import Any


@dataclass(eq=False)
class TensorFormatError(ValueError):
    """A file is damaged, or not of the format that it claims to be.

    Parameters
    ----------
    path : str
        Path or URL of the file.
    field : str
        The part of the file that is wrong, as its format calls it.
    found : object
        What the file contains there.
    expected : str
        What a valid file contains there.
    hint : str
        What the user can do.
    offset : int, optional
        Position of the field in bytes from the start of the file; None where the error has no
        single position.

    Examples
    --------
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> try:
    ...     xr.open_dataset(b"no tensor", engine="tensorfmt")
    ... except xr_tensorfmt.TensorFormatError as error:
    ...     print(error.field, error.offset, error.found)
    the magic number 0 b'no tenso'
    """

    path: str
    field: str
    found: Any
    expected: str
    hint: str
    offset: int | None = None

    def __str__(self) -> str:
        """One sentence with the position, what was found, what was expected, and what to do."""
        place = "" if self.offset is None else f" at byte {self.offset}"
        return (
            f"{self.path}: {shorten(self.field)}{place}: {shorten(self.found)}, "
            f"expected {shorten(self.expected)}; {self.hint}."
        )

    def __reduce__(self) -> tuple[type[TensorFormatError], tuple[Any, ...]]:
        """Pickle by the fields: exceptions pickle by ``args``, which a dataclass leaves empty."""
        return type(self), tuple(getattr(self, field.name) for field in fields(self))


def shorten(thing: object, length: int = 200) -> str:
    """``str(thing)`` for a message, without its middle where it is longer than `length`."""
    text = str(thing)
    half = length // 2
    return text if len(text) <= length else f"{text[:half]} ... {text[-half:]}"


_MAX_COMPARED = 10_000


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """``" (did you mean 'x'?)"`` with the most similar of some names, or nothing."""
    names = {str(each).casefold(): str(each) for each in islice(known, _MAX_COMPARED)}
    close = get_close_matches(name.casefold(), names, n=1) if isinstance(name, str) else ()
    return f" (did you mean {shorten(repr(names[close[0]]))}?)" if close else ""


class SourceChangedError(TensorFormatError):
    """The file was changed or replaced after it had been opened."""


class StoreUnavailableError(OSError):
    """A store did not answer as it should, although the request was repeated.

    `errno` and `strerror` describe the last failure, and `filename` is the URL, without what may
    be secret.

    Parameters
    ----------
    errno : int
        Number of the last failure, such as ``errno.EIO``.
    strerror : str
        The last failure, how often the request was sent, how long it took, what the user can do.
    url : str
        URL of the object.
    span : tuple of int or None
        First byte, and the one after the last, that were requested; None for a request of the size
        and version of the object.
    attempts : int
        How often the request was sent.
    seconds : float
        How long all attempts took, with the pauses between them.

    Examples
    --------
    >>> import xarray as xr
    >>> from xr_tensorfmt import StoreUnavailableError
    >>> try:
    ...     xr.open_dataset(url, engine="tensorfmt")  # doctest: +SKIP
    ... except StoreUnavailableError as error:
    ...     print(error.filename, error.span, error.attempts, error.seconds)
    """

    def __init__(
        self,
        errno: int,
        strerror: str,
        url: str,
        span: tuple[int, int] | None,
        attempts: int,
        seconds: float,
    ) -> None:
        super().__init__(errno, strerror, url)
        self.span = span
        self.attempts = attempts
        self.seconds = seconds

    def __reduce__(self) -> tuple[type[StoreUnavailableError], tuple[Any, ...]]:
        """Pickle by all arguments, of which `OSError` would keep the first three."""
        arguments = self.errno, self.strerror, self.filename, self.span, self.attempts, self.seconds
        return type(self), arguments


class StoreTimeoutError(StoreUnavailableError, TimeoutError):
    """A store sent nothing, or too little, for too long, although the request was repeated."""


class TensorFormatWarning(UserWarning):
    """A file violates its format but has all values, or other programs cannot load it."""


def find_stack_level() -> int:
    """The ``stacklevel`` with which a warning names the line that called xarray or this package."""
    frame, level = inspect.currentframe(), 0
    while frame and _is_internal(frame.f_globals.get("__name__")):
        frame, level = frame.f_back, level + 1
    return level


def _is_internal(module: object) -> bool:
    # Code that runs by exec() need not have a name.
    return isinstance(module, str) and module.startswith(("xr_tensorfmt.", "xarray."))
