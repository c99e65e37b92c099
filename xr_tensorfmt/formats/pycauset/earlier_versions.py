"""Versions 1 and 2 (a header and the values), and the zip of the development version 0.3.0.

Sources: PyCauset, ``documentation/internals/File Format.md`` at commit 35c934d (with the
offsets of a packed struct), and files of PyCauset 0.1.0 to 0.2.8. In these files the struct is not
packed: 4 zero bytes precede ``rows``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from struct import Struct
from zipfile import ZipInfo

from xr_tensorfmt.core.header import HeaderReader, read_json
from xr_tensorfmt.formats.pycauset.metadata import build_matrix
from xr_tensorfmt.formats.pycauset.spec import HEADER_BYTES, MIN_PAYLOAD_BYTES, WORD_BYTES, Matrix
from xr_tensorfmt.formats.zip_members import open_member, read_directory

# Names by number, from 1 on.
MATRIX_TYPES = ("CAUSAL", "INTEGER", "TRIANGULAR_FLOAT", "DENSE_FLOAT", "IDENTITY", "VECTOR")
DATA_TYPES = ("BIT", "INT32", "FLOAT64", "COMPLEX_FLOAT64")

# Matrix types are named after float64. With int32, two of them have other names.
_INT32_TYPES = {"TRIANGULAR_FLOAT": "TRIANGULAR_INTEGER", "DENSE_FLOAT": "INTEGER"}

# Magic number, version, matrix type, data type, and the gap before the number of rows.
_TYPES = Struct("<8s4I")
_GAP_BYTES = 4
# Rows, columns and seed. Version 2 adds scalar, is_temporary and is_transposed.
_FIELDS = {1: Struct("<3Q"), 2: Struct("<3Qd2B")}

# Offset of the matrix type. The data type follows.
TYPES_OFFSET = 12

METADATA, DATA = "metadata.json", "data.bin"

MAX_DIRECTORY_BYTES, MAX_METADATA_BYTES = 1 << 17, 1 << 20


def read_matrix(reader: HeaderReader) -> Matrix:
    """Read the header of version 1 or 2."""
    raw = reader.read_field(0, HEADER_BYTES, "the header")
    _, version, type_number, data_type_number, gap = _TYPES.unpack_from(raw)
    # The gap is zero. In a packed struct, its bytes are the low half of `rows`.
    fields_offset = _TYPES.size - _GAP_BYTES if gap else _TYPES.size
    rows, columns, seed, *view = _FIELDS[version].unpack_from(raw, fields_offset)
    scalar, is_temporary, is_transposed = view or (1.0, 0, 0)
    matrix_type = _get_name(reader, "the matrix type", type_number, MATRIX_TYPES, TYPES_OFFSET)
    data_type = _get_name(reader, "the data type", data_type_number, DATA_TYPES, TYPES_OFFSET + 4)
    row_bytes = WORD_BYTES
    if matrix_type == "INTEGER":
        # A triangle in version 1, without padding. The size decides in version 2.
        is_dense = version == 2 and reader.source.size == HEADER_BYTES + 4 * rows * columns
        matrix_type = "INTEGER" if is_dense else "TRIANGULAR_INTEGER"
        row_bytes = 4 if version == 1 else WORD_BYTES
    elif data_type == "INT32":
        matrix_type = _INT32_TYPES.get(matrix_type, matrix_type)
    return Matrix(
        version=f"v{version}",
        matrix_type=matrix_type,
        data_type=data_type,
        rows=rows,
        columns=columns,
        offset=HEADER_BYTES,
        limit=reader.source.size,
        types_offset=TYPES_OFFSET,
        seed=seed,
        scalar=scalar,
        is_transposed=bool(is_transposed),
        row_bytes=row_bytes,
        encoding={"fields_offset": fields_offset, "is_temporary": bool(is_temporary)},
        min_stop=HEADER_BYTES + MIN_PAYLOAD_BYTES,
    )


def find_fields_stop(matrix: Matrix) -> int:
    """Return the offset of the end of the last header field."""
    return int(matrix.encoding["fields_offset"]) + _FIELDS[int(matrix.version[1:])].size


def _get_name(
    reader: HeaderReader, field: str, number: int, names: Sequence[str], offset: int
) -> str:
    if not 1 <= number <= len(names):
        expected = ", ".join(f"{code} ({name})" for code, name in enumerate(names, 1))
        hint = "the header is corrupt, or of an unsupported version"
        raise reader.error(field, number, expected, hint, offset)
    return names[number - 1]


def read_archive(reader: HeaderReader) -> Matrix:
    """Read the metadata of a zip archive."""
    listed, end = read_directory(reader, MAX_DIRECTORY_BYTES)
    (info, start), (data, data_start) = _find_entries(reader, listed)
    metadata = read_json(reader, start, info.file_size, MAX_METADATA_BYTES, METADATA)
    matrix = build_matrix(metadata, "zip", metadata, data_start, data_start + data.file_size)
    derived = (f"the CRC-32 of {DATA!r}",)
    return replace(matrix, derived=derived, min_stop=end.stop, members=listed)


def _find_entries(reader: HeaderReader, listed: Sequence[ZipInfo]) -> Iterator[tuple[ZipInfo, int]]:
    """Yield the metadata and data members, and the offsets of their content."""
    members = {member.filename: member for member in listed}
    hint = "this zip is not a PyCauset matrix; of a '.causet' file, unzip 'matrix.bin' and open it"
    for name in (METADATA, DATA):
        field, expected = f"the entry {name!r}", "an entry stored without compression"
        if name not in members:
            actual = f"missing among {', '.join(map(repr, members))}"
            raise reader.error(field, actual, expected, hint, 0)
        content, start, _ = open_member(reader, members[name], field)
        if content is not None:
            raise reader.error(field, "compressed", expected, hint, members[name].header_offset)
        yield members[name], start
