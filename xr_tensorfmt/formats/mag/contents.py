"""What every MAG container holds, whatever its bytes look like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xr_tensorfmt.elements import Element


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a file.

    Parameters
    ----------
    key : str
        Its name.
    shape : tuple of int
        Lengths of the axes, slowest first; the data are row-major.
    element : Element
        What an element is.
    offset : int
        Byte of the file at which the data begin.
    nbytes : int
        Bytes of the data, which the shape and the element give.
    """

    key: str
    shape: tuple[int, ...]
    element: Element
    offset: int
    nbytes: int

    @property
    def stop(self) -> int:
        """The byte after the data."""
        return self.offset + self.nbytes


@dataclass(frozen=True)
class Contents:
    """What the header of a container says.

    Parameters
    ----------
    container : {"archive", "snapshot", "stream"}
        The container.
    version : int
        Its version field.
    tensors : tuple of Stored
        In the order in which they were put, as far as the container keeps it.
    data_start : int
        Byte of the file before which no data can lie.
    metadata : mapping
        What users stored beside the tensors.
    facts : mapping
        What else the header says.
    warnings : tuple of str
        What is doubtful, but readable.
    """

    container: str
    version: int
    tensors: tuple[Stored, ...]
    data_start: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
