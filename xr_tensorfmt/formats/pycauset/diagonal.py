"""Whether a triangle of numbers in an R1 container is stored with its diagonal.

The metadata do not say, and PyCauset itself loads the matrix as if it were stored without. The
payload length of the slot tells: it counts the diagonal where ``TriangularFloatMatrix(n, True)`` or
``TriangularIntegerMatrix(n, True)`` of 0.5.0, 0.6.0 or 0.6.1 was saved.
"""

from __future__ import annotations

from dataclasses import replace

from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.pycauset.container import BLOCK_MAGIC
from xr_tensorfmt.formats.pycauset.matrix import TRIANGLES, Matrix
from xr_tensorfmt.formats.pycauset.slots import METADATA_ALIGNMENT, Slot
from xr_tensorfmt.formats.pycauset.storage import sized_layout

LENGTH_EXCESS = 64
"""Bytes by which the payload length is too large in files of 0.5.0."""

_LEAST = 8
"""Bytes that PyCauset stores even where a strict triangle has no element."""


def with_diagonal(reader: HeaderReader, slot: Slot, matrix: Matrix) -> Matrix:
    """Note in a triangle of numbers that its diagonal is stored, where the payload length says so.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    slot : Slot
        The slot that counts.
    matrix : Matrix
        What the metadata say.

    Returns
    -------
    Matrix
        The same, for other types. Of order 1, PyCauset stores 8 bytes with or without a diagonal:
        they are one unless they are zero, as they are where PyCauset stored none.
    """
    if matrix.matrix_type not in TRIANGLES:
        return matrix
    length = slot.payload_length
    complete = replace(matrix, has_diagonal=True)
    strict, full = (
        max(sized_layout(each, reader.source.name)[1], _LEAST) for each in (matrix, complete)
    )
    has_diagonal = matrix.rows > 0 and length in (full, full + LENGTH_EXCESS)
    if has_diagonal and strict == full:
        has_diagonal = any(reader.bytes_at(matrix.offset, full, "the payload"))
    elif has_diagonal and length == strict + LENGTH_EXCESS:
        # A strict triangle by 0.5.0, or a complete one by 0.6: metadata follow at once.
        following = matrix.offset + -(-strict // METADATA_ALIGNMENT) * METADATA_ALIGNMENT
        magic = reader.bytes_at(following, len(BLOCK_MAGIC), "the end of the payload")
        has_diagonal = magic != BLOCK_MAGIC
    facts = {**matrix.facts, "has_diagonal": int(has_diagonal)}
    return replace(matrix, has_diagonal=has_diagonal, facts=facts)
