"""PyCauset: causal matrices and others, of all generations of the format."""

from __future__ import annotations

from typing import Any

from xr_tensorfmt.formats.base import Format, OpenOptions
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.pycauset.archive import MAGIC as ZIP_MAGIC
from xr_tensorfmt.formats.pycauset.facts import attribute_of
from xr_tensorfmt.formats.pycauset.matrix import Matrix
from xr_tensorfmt.formats.pycauset.reading import MAGIC, Opening, recognises
from xr_tensorfmt.formats.pycauset.storage import stored_dtype
from xr_tensorfmt.layouts import Layout
from xr_tensorfmt.tensor import Container, Tensor, named_dims

MATRIX_DIMS = ("row", "col")
VECTOR_DIMS = ("index",)


def parse(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a PyCauset file.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    options : OpenOptions
        What the user asked for.

    Returns
    -------
    Container
        One tensor, over ``row`` and ``col``, or ``index``.

    Raises
    ------
    TensorFormatError
        The file is damaged, or holds no matrix.
    ValueError
        The options do not fit the file.
    """
    options.check_all_stored(reader.source.name)
    opening = Opening()
    matrix, layout = opening.read(reader)
    dims = named_dims(options.dims, options.name, default_dims(len(layout.shape)))
    encoding = _encoding(matrix, layout)
    tensor = Tensor(options.name, dims, layout, shown_attrs(matrix), encoding)
    siblings, warnings = tuple(opening.siblings), tuple(opening.warnings)
    return Container(
        (tensor,),
        siblings=siblings,
        warnings=warnings,
        note=matrix.note,
        derived=matrix.derived,
    )


def default_dims(rank: int) -> tuple[str, ...]:
    """What the axes of a matrix or vector are called."""
    return MATRIX_DIMS if rank == len(MATRIX_DIMS) else VECTOR_DIMS


def shown_attrs(matrix: Matrix) -> dict[str, Any]:
    """What a file without a note has for attributes."""
    return {
        "matrix_type": matrix.matrix_type,
        "data_type": matrix.data_type,
        "seed": matrix.seed,
        "scalar": attribute_of(matrix.scalar),
        "is_transposed": int(matrix.transposed),
        "is_conjugated": int(matrix.conjugated),
        **matrix.attrs,
    }


def _encoding(matrix: Matrix, layout: Layout) -> dict[str, Any]:
    facts = {
        **shown_attrs(matrix),
        "format": "pycauset",
        "version": matrix.generation,
        "shape": (matrix.rows, matrix.columns),
        "offset": matrix.offset,
        "byteorder": "little",
        **matrix.facts,
    }
    return {"tensorfmt": facts, "dtype": stored_dtype(matrix, layout)}


PYCAUSET = Format("pycauset", (MAGIC, ZIP_MAGIC), recognises, parse)
