"""Plan a TENS file of version 0.9 or 1.0, with all values."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from string import ascii_letters
from typing import Literal

from xarray import Variable

from xr_tensorfmt.core.elements import Plain, build_elements
from xr_tensorfmt.core.embedded_metadata import embed_tensor
from xr_tensorfmt.core.extents import PAGE
from xr_tensorfmt.core.layout import Dense, column_major
from xr_tensorfmt.errors import warn
from xr_tensorfmt.formats.tens import read
from xr_tensorfmt.formats.tens.read import TensHeader
from xr_tensorfmt.writing.checked_input import CheckedInput, get_file_info
from xr_tensorfmt.writing.file_plan import Conversion, FilePlan, Piece, PlannedVariable


def plan(checked: CheckedInput, *, version: Literal["1.0", "0.9"] | None = None) -> FilePlan:
    """Plan a TENS file. Version 1.0 has a header, embedded metadata and values."""
    _, variable = checked.single_variable
    is_bin = version is None and checked.file_name.casefold().endswith(".bin")
    default = "the default for .bin files, " if is_bin else ""
    older = replace(checked, format=f"TENS 0.9 ({default}unlike version='1.0')")
    if is_bin or version == "0.9":
        return _plan_0_9(older)
    if version is None and get_file_info(variable, "tens").get("version") == "0.9":
        try:
            return _plan_0_9(older)
        except ValueError as error:
            obstacle = str(error).removeprefix(f"{checked.path}: ")
        warn(
            f"{checked.path}: the file has version 1.0, which cc4s and sisi4s cannot load, "
            f"because {obstacle}; pass version='1.0' or --option version=1.0 to accept it"
        )
    checked = checked.encode(read.DTYPES[read.VERSION_1_0])
    name, variable = checked.single_variable
    checked.warn_of_order(name, variable)
    header, conversion = _build_header(checked, read.VERSION_1_0)
    nbytes = prod(variable.shape) * conversion.element.stored.itemsize
    data = read.pack_chunk_header(read.DENSE_DATA, nbytes)
    embedded = embed_tensor(checked)
    start = header.pack()
    # Fill the head to whole pages, and with it the chunk to a multiple of 8 bytes.
    size = len(start) + read.CHUNK_HEADER_BYTES + len(embedded) + len(data)
    embedded += bytes(-size % PAGE)
    metadata = read.pack_chunk_header(read.EMBEDDED, len(embedded)) + embedded
    return _plan_values(variable, conversion, start + metadata + data, read.CHUNK_UNIT)


def _plan_0_9(checked: CheckedInput) -> FilePlan:
    """Plan a file of version 0.9. Raise ValueError if the version cannot represent the input."""
    header, conversion = _build_header(checked, read.VERSION_0_9)
    _, variable = checked.require_values_only(header.dimension_names)
    return _plan_values(variable, conversion, header.pack(), 1)


def _build_header(checked: CheckedInput, version: int) -> tuple[TensHeader, Conversion]:
    """Build the header. A name that is not an index name is replaced by a free letter."""
    name, variable = checked.single_variable
    elements = build_elements(read.DTYPES[version])
    conversion = checked.choose_conversion(name, variable, elements)
    for dim, length in variable.sizes.items():
        if length > read.MAX_LENGTH:
            raise ValueError(
                f"{checked.path}: dimension {dim!r} has {length} elements, expected at most "
                f"{read.MAX_LENGTH}; split it in two"
            )
    dims = [str(dim) for dim in variable.dims]
    letters = (letter for letter in ascii_letters if letter not in dims)
    names = (dim if read.is_index_name(dim) else next(letters) for dim in dims)
    element = Plain(conversion.element.dtype)
    return TensHeader(version, element, variable.shape, "".join(names)), conversion


def _plan_values(variable: Variable, conversion: Conversion, head: bytes, unit: int) -> FilePlan:
    """Plan a file of values after the head, padded to a multiple of `unit` bytes."""
    layout = column_major(Dense(variable.shape[::-1], conversion.element, len(head)))
    size = len(head) + prod(variable.shape) * conversion.element.stored.itemsize
    planned = PlannedVariable(variable, layout, conversion)
    return FilePlan(size + -size % unit, (Piece(0, head),), (planned,))
