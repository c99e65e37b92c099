"""What goes wrong with a file, said so that a user can act on it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Any


@dataclass(eq=False)
class TensorFormatError(ValueError):
    """A file that cannot be read as what it claims to be.

    Parameters
    ----------
    path : str
        The file.
    field : str
        The part of the file that is wrong, in the words of its format.
    found : object
        What the file holds there.
    expected : str
        What a readable file would hold.
    hint : str
        What the user can do about it.
    offset : int, optional
        Position of the field in bytes from the start of the file; None where the fault has no
        single place.
    """

    path: str
    field: str
    found: Any
    expected: str
    hint: str
    offset: int | None = None

    def __str__(self) -> str:
        """One sentence: where, what is there, what should be, what to do."""
        place = "" if self.offset is None else f" at byte {self.offset}"
        return (
            f"{self.path}: {shortened(self.field)}{place}: {shortened(self.found)}, "
            f"expected {shortened(self.expected)}; {self.hint}."
        )

    def __reduce__(self) -> tuple[type[TensorFormatError], tuple[Any, ...]]:
        """Exceptions pickle by ``args``, which a dataclass leaves empty; dask workers need this."""
        return type(self), tuple(getattr(self, each.name) for each in fields(self))


def shortened(thing: object, length: int = 200) -> str:
    """The text of a thing for a message, without its middle where it is long.

    Parameters
    ----------
    thing : object
        A text, or whatever ``str`` makes one of.
    length : int
        Most characters of it.

    Returns
    -------
    str
    """
    text = str(thing)
    half = length // 2
    return text if len(text) <= length else f"{text[:half]} ... {text[-half:]}"


class SourceChangedError(TensorFormatError):
    """The file was written to or replaced after it had been opened."""


class TensorFormatWarning(UserWarning):
    """The file breaks a rule of its format in a way that leaves no doubt about its values."""


def frames_to_the_user() -> int:
    """How far up, from the caller of this, the code is that called xarray; for warnings."""
    frame, count = inspect.currentframe(), 0
    while frame and frame.f_globals["__name__"].startswith(("xr_tensorfmt.", "xarray.")):
        frame, count = frame.f_back, count + 1
    return count
