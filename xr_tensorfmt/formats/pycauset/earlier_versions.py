"""Versions 1 and 2, a header and the values, and the zip of the development version 0.3.0.

Sources: PyCauset, ``documentation/internals/File Format.md`` at commit 35c934d (the offsets that it
prints are those of a packed struct), and the files that PyCauset 0.1.0 to 0.2.8 write (in which the
struct is not packed, so that 4 zero bytes precede ``rows``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from struct import Struct
from zipfile import ZipInfo

from xr_tensorfmt.contract import Document, HeaderReader
from xr_tensorfmt.formats._shared.zip_members import Directory, read_directory, stored_content
from xr_tensorfmt.formats.pycauset.spec import (
    HEADER_BYTES,
    LEAST_PAYLOAD,
    MAGIC,
    WORD_BYTES,
    Matrix,
    Metadata,
)

MATRIX_TYPES = {
    1: "CAUSAL",
    2: "INTEGER",
    3: "TRIANGULAR_FLOAT",
    4: "DENSE_FLOAT",
    5: "IDENTITY",
    6: "VECTOR",
}
DATA_TYPES = {1: "BIT", 2: "INT32", 3: "FLOAT64", 4: "COMPLEX_FLOAT64"}

# The names in files are placeholders; the pair of matrix type and data type decides.
_OF_INT32 = {"TRIANGULAR_FLOAT": "TRIANGULAR_INTEGER", "DENSE_FLOAT": "INTEGER"}

# Magic, version, matrix type, data type, and the gap before the number of rows.
_TYPES = Struct("<8s4I")
_GAP_BYTES = 4
# Rows, columns and seed; of version 2 also scalar, is_temporary and is_transposed.
_FIELDS = {1: Struct("<3Q"), 2: Struct("<3Qd2B")}

TYPES_AT = 12
"""Byte of the matrix type; the data type follows."""

METADATA, DATA = "metadata.json", "data.bin"

MAX_DIRECTORY = 1 << 17
"""Limit on the bytes of the directory at the end of a zip."""

MAX_METADATA = 1 << 20
"""Limit on the bytes of ``metadata.json``."""


def pack_header(matrix: Matrix) -> bytes:
    """The header of version 2 that describes a matrix, at the offsets of real files."""
    matrix_types = {name: number for number, name in MATRIX_TYPES.items()}
    data_types = {name: number for number, name in DATA_TYPES.items()}
    types = (matrix_types[matrix.matrix_type], data_types[matrix.data_type])
    fields = _FIELDS[2].pack(matrix.rows, matrix.columns, matrix.seed, 1.0, 0, 0)
    return (_TYPES.pack(MAGIC, 2, *types, 0) + fields).ljust(HEADER_BYTES, b"\0")


def least_payload(matrix: Matrix) -> int:
    """Bytes that version 2 has for values even where there is no element."""
    if matrix.matrix_type == "IDENTITY":
        return 0
    return 4 if matrix.data_type == "INT32" else LEAST_PAYLOAD


def read_matrix(reader: HeaderReader) -> Matrix:
    """What the header of version 1 or 2 says."""
    raw = reader.read_field(0, HEADER_BYTES, "the header")
    _, version, type_number, data_type_number, gap = _TYPES.unpack_from(raw)
    # The low half of a packed `rows` is not zero, the gap before an aligned one is.
    fields_at = _TYPES.size - _GAP_BYTES if gap else _TYPES.size
    rows, columns, seed, *view = _FIELDS[version].unpack_from(raw, fields_at)
    scalar, is_temporary, is_transposed = view or (1.0, 0, 0)
    matrix_type = _name(reader, "the matrix type", type_number, MATRIX_TYPES, TYPES_AT)
    data_type = _name(reader, "the data type", data_type_number, DATA_TYPES, TYPES_AT + 4)
    row_bytes = WORD_BYTES
    if matrix_type == "INTEGER":
        matrix_type, row_bytes = _integer_storage(reader, version, rows, columns)
    elif data_type == "INT32":
        matrix_type = _OF_INT32.get(matrix_type, matrix_type)
    return Matrix(
        version=f"v{version}",
        matrix_type=matrix_type,
        data_type=data_type,
        rows=rows,
        columns=columns,
        offset=HEADER_BYTES,
        limit=reader.source.size,
        stated_at=TYPES_AT,
        seed=seed,
        scalar=scalar,
        is_transposed=bool(is_transposed),
        is_temporary=bool(is_temporary),
        row_bytes=row_bytes,
        facts={"fields_at": fields_at},
        least_stop=HEADER_BYTES + LEAST_PAYLOAD,
    )


def fields_stop(matrix: Matrix) -> int:
    """Byte of the header after its last field."""
    return int(matrix.facts["fields_at"]) + _FIELDS[int(matrix.version[1:])].size


def _name(
    reader: HeaderReader, field: str, number: int, names: Mapping[int, str], offset: int
) -> str:
    if number not in names:
        expected = ", ".join(f"{known} ({name})" for known, name in names.items())
        hint = "the header is damaged, or of a version that is not known"
        raise reader.error(field, number, expected, hint, offset)
    return names[number]


def _integer_storage(
    reader: HeaderReader, version: int, order: int, columns: int
) -> tuple[str, int]:
    """What matrix type 2 means, and how rows are padded: the size of the file tells."""
    if version == 1:
        return "TRIANGULAR_INTEGER", 4
    payload, elements = reader.source.size - HEADER_BYTES, order * (order - 1) // 2
    # Rows of 1 to N - 1 numbers, each padded to an even count of them, or none.
    padded, packed = (max(LEAST_PAYLOAD, 4 * n) for n in (elements + order // 2, elements))
    readings = {
        packed: ("TRIANGULAR_INTEGER", 4),
        padded: ("TRIANGULAR_INTEGER", WORD_BYTES),
        4 * order * columns: ("INTEGER", WORD_BYTES),
    }
    if payload not in readings:
        field = f"the payload of a matrix of type 2 (INTEGER) of order {order}"
        hint = "its size alone tells how such a matrix is stored; the file is cut off or damaged"
        expected = " or ".join(map(str, reversed(readings))) + " bytes"
        raise reader.error(field, f"{payload} bytes", expected, hint, HEADER_BYTES)
    return readings[payload]


def read_archive(reader: HeaderReader) -> Matrix:
    """What the metadata of a zip say."""
    directory = read_directory(reader, MAX_DIRECTORY)
    (info, start), (data, data_start) = _entries(reader, directory)
    document = Document.read(reader, start, info.file_size, MAX_METADATA, METADATA)
    document.check_repeated(*document.repeated)
    metadata = Metadata(document.content, reader.source.name, start)
    matrix = metadata.matrix("zip", metadata, data_start, data_start + data.file_size)
    derived = (f"the CRC-32 of {DATA!r}",)
    return replace(
        matrix, derived=derived, least_stop=directory.end.stop, members=directory.members
    )


def _entries(reader: HeaderReader, directory: Directory) -> Iterator[tuple[ZipInfo, int]]:
    """The two entries, by the directory of the zip, and where the content of each begins."""
    known = {member.filename: member for member in directory.members}
    hint = (
        "this zip is not a PyCauset matrix; a '.causet' archive has one as 'matrix.bin', which can "
        "be opened once it is unzipped"
    )
    for name in (METADATA, DATA):
        field = f"the entry {name!r}"
        if name not in known:
            found = f"missing among {', '.join(map(repr, known))}"
            raise reader.error(field, found, "an entry stored without compression", hint, 0)
        start, _ = stored_content(reader, known[name], field, hint)
        yield known[name], start
