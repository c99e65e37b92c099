"""The chunk in which our writer notes what TENS has no place for; other readers skip it.

Its content is JSON in UTF-8, followed by zeros until the data begin on a page.
"""

from __future__ import annotations

from collections.abc import Collection
from json import loads
from typing import Any

from xr_tensorfmt.errors import shortened
from xr_tensorfmt.formats.annotation import MOST_BYTES
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.tens.variable_chunks import CHUNK_HEADER_BYTES, VariableChunk

NOTE = b"XRTENSOR"
"""Its magic."""

PAGE = 4096
"""Where the chunk ends, the first value begins, at a multiple of this."""

TENSOR = "tensor"
"""What the note calls the one tensor of a file."""


def read_note(reader: HeaderReader, chunk: VariableChunk) -> tuple[Any, tuple[str, ...]]:
    """Read the note of a file.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    chunk : VariableChunk
        Where the note is.

    Returns
    -------
    note : object
        What JSON gives; None where that is nothing.
    warnings : tuple of str
        What to say of a chunk that is no note; the values can be read all the same.
    """
    length = chunk.size - CHUNK_HEADER_BYTES
    if length > MOST_BYTES + PAGE:
        return None, (_warning(reader, chunk, f"{length} bytes, more than {MOST_BYTES}"),)
    text = reader.bytes_at(chunk.body, length, "the note").rstrip(b"\0")
    try:
        return loads(text), ()
    except (ValueError, RecursionError) as error:
        return None, (_warning(reader, chunk, f"{type(error).__name__}: {error}"),)


def _warning(reader: HeaderReader, chunk: VariableChunk, problem: str) -> str:
    return (
        f"{reader.source.name}: the chunk {NOTE.decode()!r} at byte {chunk.offset} is no note of "
        f"names, dims, attributes and coordinates and is not used ({shortened(problem)})"
    )


def noted_dims(note: Any, rank: int) -> tuple[str, ...] | None:
    """The names of the dimensions of a tensor, that of components included.

    Parameters
    ----------
    note : object
        The note.
    rank : int
        How many there should be.

    Returns
    -------
    tuple of str or None
        None where the note does not name so many, all different.
    """
    try:
        dims = note["tensors"][TENSOR]["dims"]
        fits = len(set(dims)) == len(dims) == rank and all(isinstance(dim, str) for dim in dims)
    except (KeyError, TypeError):
        return None
    return tuple(dims) if fits else None


def noted_name(note: Any) -> str | None:
    """What the variable is called; None where the note does not say."""
    try:
        name = note["tensors"][TENSOR]["name"]
    except (KeyError, TypeError):
        return None
    return name if isinstance(name, str) else None


def note_of_pairs(note: Any, dims: Collection[str]) -> Any:
    """What a note says of the pairs alone, without what labels the dimensions of the tensor.

    Parameters
    ----------
    note : object
        The note.
    dims : collection of str
        Names of dimensions that the pairs do not have.

    Returns
    -------
    object
        The same where it is no note.
    """
    try:
        tensor = {key: each for key, each in note["tensors"][TENSOR].items() if key != "dims"}
        coordinates = {
            name: each
            for name, each in note["coordinates"].items()
            if not {name, *each["dims"]} & set(dims)
        }
    except (KeyError, TypeError, AttributeError):
        return note
    return {**note, "tensors": {TENSOR: tensor}, "coordinates": coordinates}
