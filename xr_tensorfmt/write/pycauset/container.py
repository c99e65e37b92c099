"""The header and metadata of PyCauset files: a container R1, or the header of version 2."""

from __future__ import annotations

from collections.abc import Mapping
from struct import pack
from typing import Any
from zlib import crc32

from xr_tensorfmt.formats.pycauset.container import (
    BLOCK_HEADER,
    BLOCK_MAGIC,
    KNOWN_VERSION,
)
from xr_tensorfmt.formats.pycauset.header import DATA_TYPES, FIELDS, MATRIX_TYPES
from xr_tensorfmt.formats.pycauset.matrix import Matrix
from xr_tensorfmt.formats.pycauset.reading import MAGIC
from xr_tensorfmt.formats.pycauset.slots import (
    CHECKSUM,
    HEADER_BYTES,
    METADATA_ALIGNMENT,
    POINTERS,
    PREAMBLE,
    SLOTS,
)
from xr_tensorfmt.formats.pycauset.typedmap import encode_map
from xr_tensorfmt.write.draft import Piece

_VIEW = {"is_transposed": False, "is_conjugated": False, "scalar": {"real": 1.0, "imag": 0.0}}
_STORED = ("CAUSAL", "TRIANGULAR_FLOAT", "TRIANGULAR_INTEGER", "SYMMETRIC", "ANTISYMMETRIC")


def metadata_of(matrix: Matrix, uuid: str) -> dict[str, Any]:
    """The keys that every container has.

    Parameters
    ----------
    matrix : Matrix
        What it holds.
    uuid : str
        What tells its values from all others.

    Returns
    -------
    dict
    """
    kinds = {"DIAGONAL": "raw_diagonal", **dict.fromkeys(_STORED, "raw_triangular")}
    return {
        "rows": matrix.rows,
        "cols": matrix.columns,
        "seed": matrix.seed,
        "matrix_type": matrix.matrix_type,
        "data_type": matrix.data_type,
        "payload_uuid": uuid,
        "payload_layout": {"kind": kinds.get(matrix.matrix_type, "raw_dense"), "params": {}},
        "view": _VIEW,
    }


def container(metadata: Mapping[str, Any], payload: int) -> tuple[int, tuple[Piece, ...]]:
    """A container without its values.

    Parameters
    ----------
    metadata : mapping
        Its metadata.
    payload : int
        Bytes of its values.

    Returns
    -------
    size : int
        Bytes of the file.
    pieces : tuple of Piece
        The header and the metadata.
    """
    encoded = encode_map(metadata)
    versions = (KNOWN_VERSION, KNOWN_VERSION, 0)
    facts = (*versions, len(encoded), crc32(encoded), 0)
    block = BLOCK_HEADER.pack(BLOCK_MAGIC, *facts) + encoded
    end = HEADER_BYTES + payload
    place = end + -end % METADATA_ALIGNMENT
    header = bytearray((MAGIC + pack("<I", 1) + PREAMBLE).ljust(HEADER_BYTES, b"\0"))
    # Both slots lead to the same, as PyCauset writes them.
    for generation, offset in zip((1, 0), SLOTS.values(), strict=True):
        pointers = POINTERS.pack(generation, HEADER_BYTES, payload, place, len(block), 0, 0)
        slot = pointers + CHECKSUM.pack(crc32(pointers))
        header[offset : offset + len(slot)] = slot
    return place + len(block), (Piece(0, bytes(header)), Piece(place, block))


def version_2(matrix: Matrix, payload: int) -> tuple[int, tuple[Piece, ...]]:
    """A file of version 2 without its values.

    Parameters
    ----------
    matrix : Matrix
        What it holds.
    payload : int
        Bytes of its values.

    Returns
    -------
    size : int
        Bytes of the file.
    pieces : tuple of Piece
        The header.
    """
    kinds = {word: number for number, word in MATRIX_TYPES.items()}
    types = {word: number for number, word in DATA_TYPES.items()}
    words = pack("<4I", 2, kinds[matrix.matrix_type], types[matrix.data_type], 0)
    shape = (matrix.rows, matrix.columns)
    header = MAGIC + words + FIELDS[2].pack(*shape, matrix.seed, 1.0, 0, 0)
    size = HEADER_BYTES + max(payload, _least_payload(matrix))
    return size, (Piece(0, header.ljust(HEADER_BYTES, b"\0")),)


def _least_payload(matrix: Matrix) -> int:
    """Bytes that version 2 has for no element at all."""
    if matrix.matrix_type == "IDENTITY":
        return 0
    return 4 if matrix.data_type == "INT32" else 8
