"""Versions 1 and 2: a header of 4096 bytes, then the values.

Sources: PyCauset, ``documentation/internals/File Format.md`` at commit 35c934d (the offsets that it
prints are those of a packed struct), and the files that PyCauset 0.1.0 to 0.2.8 write (in which the
struct is not packed, so that 4 zero bytes precede ``rows``).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.pycauset.matrix import Matrix

HEADER_BYTES = 4096

MATRIX_TYPES = {
    1: "CAUSAL",
    2: "INTEGER",
    3: "TRIANGULAR_FLOAT",
    4: "DENSE_FLOAT",
    5: "IDENTITY",
    6: "VECTOR",
}
DATA_TYPES = {1: "BIT", 2: "INT32", 3: "FLOAT64", 4: "COMPLEX_FLOAT64"}

_TYPES_OFFSET = 12
_GAP_OFFSET = 20

FIELDS = {1: Struct("<3Q"), 2: Struct("<3Qd2B")}
"""Rows, columns and seed; of version 2 also scalar, is_temporary and is_transposed."""


@dataclass(frozen=True)
class _Fields:
    offset: int
    rows: int
    columns: int
    seed: int
    scalar: float = 1.0
    is_temporary: int = 0
    is_transposed: int = 0


def read_header(reader: HeaderReader, version: int) -> Matrix:
    """Read the header of version 1 or 2.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    version : int
        Its version.

    Returns
    -------
    Matrix

    Raises
    ------
    TensorFormatError
        The file ends before the header does, or a type has no meaning.
    """
    reader.bytes_at(0, HEADER_BYTES, "the header")
    matrix_type = _word(reader, _TYPES_OFFSET, "the matrix type", MATRIX_TYPES)
    data_type = _word(reader, _TYPES_OFFSET + 4, "the data type", DATA_TYPES)
    fields = _fields(reader, version)
    triangle_row = 8
    if matrix_type == "INTEGER":
        matrix_type, triangle_row = _integer_storage(reader, version, fields)
    elif data_type == "INT32":
        matrix_type = _OF_INTEGERS.get(matrix_type, matrix_type)
    return Matrix(
        f"v{version}",
        matrix_type,
        data_type,
        fields.rows,
        fields.columns,
        HEADER_BYTES,
        reader.source.size,
        _TYPES_OFFSET,
        fields.seed,
        fields.scalar,
        bool(fields.is_transposed),
        triangle_row=triangle_row,
        attrs={"is_temporary": int(bool(fields.is_temporary))},
        facts={"fields_at": fields.offset},
    )


# The names in files are placeholders; the pair of matrix type and data type decides.
_OF_INTEGERS = {"TRIANGULAR_FLOAT": "TRIANGULAR_INTEGER", "DENSE_FLOAT": "INTEGER"}


def _word(reader: HeaderReader, offset: int, field: str, words: dict[int, str]) -> str:
    number = reader.unsigned(offset, 4, field)
    if number not in words:
        raise TensorFormatError(
            reader.source.name,
            field,
            number,
            ", ".join(f"{key} ({word})" for key, word in words.items()),
            "the header is damaged, or of a version that is not known",
            offset=offset,
        )
    return words[number]


def _fields(reader: HeaderReader, version: int) -> _Fields:
    # The low half of a packed `rows` is not zero, the gap before an aligned one is.
    gap = reader.unsigned(_GAP_OFFSET, 4, "the gap before the number of rows")
    offset = _GAP_OFFSET if gap else _GAP_OFFSET + 4
    fields = FIELDS[version]
    values = fields.unpack(reader.bytes_at(offset, fields.size, "the shape"))
    return _Fields(offset, *values)


def _integer_storage(reader: HeaderReader, version: int, fields: _Fields) -> tuple[str, int]:
    """What matrix type 2 means: three readings, of which the size of the file picks one."""
    if version == 1:
        return "TRIANGULAR_INTEGER", 4
    order, payload = fields.rows, reader.source.size - HEADER_BYTES
    elements = order * (order - 1) // 2
    sizes = {
        ("INTEGER", 8): 4 * fields.rows * fields.columns,
        # Rows of 1 to N - 1 numbers, each padded to an even count of them.
        ("TRIANGULAR_INTEGER", 8): max(8, 4 * (elements + order // 2)),
        ("TRIANGULAR_INTEGER", 4): max(8, 4 * elements),
    }
    for reading, size in sizes.items():
        if payload == size:
            return reading
    raise TensorFormatError(
        reader.source.name,
        f"the payload of a matrix of type 2 (INTEGER) of order {order}",
        f"{payload} bytes",
        " or ".join(str(size) for size in dict.fromkeys(sizes.values())) + " bytes",
        "its size alone tells how such a matrix is stored; the file is cut off or damaged",
        offset=HEADER_BYTES,
    )
