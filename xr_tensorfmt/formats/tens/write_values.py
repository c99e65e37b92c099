"""Header, chunks and values of a TENS file that is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from string import ascii_letters
from typing import Any

from xarray import Variable

from xr_tensorfmt.contract import (
    PAGE,
    CheckedInput,
    Conversion,
    Dense,
    FilePlan,
    Piece,
    PlannedVariable,
    build_elements,
    column_major,
)
from xr_tensorfmt.formats.tens import chunks, spec
from xr_tensorfmt.formats.tens.spec import TensHeader
from xr_tensorfmt.formats.tens.symmetries import Symmetry


def get_file_info(variable: Variable) -> Mapping[str, Any]:
    """Return the description of the TENS file that a variable was opened from, or an empty dict."""
    file_info = variable.encoding.get("tensorfmt")
    return file_info if isinstance(file_info, Mapping) and file_info.get("format") == "tens" else {}


def build_header(
    checked: CheckedInput, version: int, sizes: Mapping[Any, int], flags: int = 0
) -> tuple[TensHeader, Conversion]:
    """Build the header of a file, and the conversion of its variable."""
    elements = build_elements(spec.DTYPES[version])
    conversion = checked.choose_conversion(*checked.single_variable, elements)
    fields = spec.get_number_fields(conversion.element.dtype)
    dimensions = _build_dimensions(checked.path, sizes)
    return TensHeader(version, *fields, flags, dimensions), conversion


def _build_dimensions(path: str, sizes: Mapping[Any, int]) -> tuple[spec.DimensionHeader, ...]:
    """Build dimension headers. A name that is not an index name is replaced by a free letter."""
    for dim, length in sizes.items():
        if length > spec.MAX_LENGTH:
            raise ValueError(
                f"{path}: dimension {dim!r} has {length} elements, expected at most "
                f"{spec.MAX_LENGTH}; split it in two"
            )
    index_names = set(filter(spec.is_index_name, sizes))
    letters = (letter for letter in ascii_letters if letter not in index_names)
    names = (dim if dim in index_names else next(letters) for dim in sizes)
    return tuple(map(spec.DimensionHeader, sizes.values(), map(ord, names)))


def pack_head(
    header: TensHeader, symmetries: Sequence[Symmetry], embedded: bytes, following: int
) -> bytes:
    """Encode header and chunks. `following` more bytes fill the head to whole pages."""
    start = header.pack() + b"".join(
        chunks.pack_chunk(chunks.SYMMETRY, symmetry.pack()) for symmetry in symmetries
    )
    size = len(start) + chunks.HEADER_BYTES + len(embedded) + following
    return start + chunks.pack_chunk(chunks.EMBEDDED, embedded + bytes(-size % PAGE))


def plan_values(variable: Variable, conversion: Conversion, head: bytes, unit: int) -> FilePlan:
    """Plan a file of values after the head, padded to a multiple of `unit` bytes."""
    layout = column_major(Dense(variable.shape[::-1], conversion.element, len(head)))
    size = len(head) + prod(variable.shape) * conversion.element.stored.itemsize
    planned = PlannedVariable(variable, layout, conversion)
    return FilePlan(size + -size % unit, (Piece(0, head),), (planned,))
