"""What is wrong with a file, where, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from xr_tensorfmt.errors import TensorFormatError, shortened

Severity = Literal["error", "warning"]

_PLACE = re.compile(r"\bat byte (\d+)")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a file.

    Parameters
    ----------
    path : str
        The file; of a matrix of blocks perhaps that of a block.
    offset : int or None
        Position in bytes from the start of the file; None where the fault has no single place.
    field : str
        The part of the file, in the words of its format.
    message : str
        What is there, what should be, and what to do.
    severity : {"error", "warning"}
        A warning is about what breaks a rule and leaves no doubt about the values.
    """

    path: str
    offset: int | None
    field: str
    message: str
    severity: Severity = "error"

    def __str__(self) -> str:
        """One line, without the path."""
        place = "" if self.offset is None else f" at byte {self.offset}"
        field = f"{shortened(self.field)}: " if self.field else ""
        return f"{self.severity}{place}: {field}{self.message}"


def finding_of(error: TensorFormatError, within: str = "") -> Finding:
    """What a reader refuses, as a finding.

    Parameters
    ----------
    error : TensorFormatError
        The error.
    within : str
        The variable that was being read, where the error does not name it.

    Returns
    -------
    Finding
    """
    field = f"{error.field} of {within}" if within else error.field
    message = f"{shortened(error.found)}, expected {shortened(error.expected)}; {error.hint}"
    return Finding(error.path, error.offset, field, message)


def finding_of_warning(path: str, warning: str) -> Finding:
    """What a reader warns of, as a finding.

    Parameters
    ----------
    path : str
        The file.
    warning : str
        The text, which may begin with the path and say the place.

    Returns
    -------
    Finding
    """
    text = warning.removeprefix(f"{path}: ").removesuffix(".")
    found = _PLACE.search(text)
    return Finding(path, int(found[1]) if found else None, "", text, "warning")
