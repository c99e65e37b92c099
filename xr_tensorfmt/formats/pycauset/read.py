"""Read a file of any PyCauset version as a Container."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.elements import StoredDtype
from xr_tensorfmt.core.header import MAX_FILLED_ELEMENTS, HeaderReader
from xr_tensorfmt.core.open_options import OpenOptions, name_dims
from xr_tensorfmt.errors import Hint
from xr_tensorfmt.formats.pycauset import spec
from xr_tensorfmt.formats.pycauset.matrix_file import MatrixFile, open_file
from xr_tensorfmt.formats.pycauset.spec import NAME


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a PyCauset file."""
    options.refuse_stored(reader.source.name)
    file = open_file(reader)
    matrix, layout = file.matrix, file.layout
    matrix_type = spec.MATRIX_TYPES.get(matrix.matrix_type)
    is_mostly_implied = matrix_type is None or matrix_type.stored in ("diagonal", "none")
    is_large = is_mostly_implied and prod(layout.shape) > MAX_FILLED_ELEMENTS
    if is_large and options.sparse == "auto":
        raise reader.error(
            field=f"the shape of a {matrix.matrix_type}",
            actual=f"{matrix.rows} rows and {matrix.columns} columns",
            expected=f"at most {MAX_FILLED_ELEMENTS} elements, because most are not stored",
            hint=Hint("open it with {sparse} to read all of them", sparse="dense"),
            offset=matrix.types_offset,
        )
    dims = name_dims(options.dims, options.name, get_default_dims(len(layout.shape)))
    return Container(
        (Tensor(options.name, dims, layout, matrix.attrs, _build_encoding(file)),),
        siblings=tuple(block.source for block in file.files[1:]),
        findings=tuple(finding for part in file.files for finding in part.matrix.findings),
        embedded=matrix.embedded,
        ends=tuple(part.end for part in file.files),
        derived=matrix.derived,
        parsed=file,
    )


def get_default_dims(rank: int) -> tuple[str, ...]:
    """Return the dimension names of a matrix or vector."""
    return ("index",) if rank == 1 else ("row", "col")


def _build_encoding(file: MatrixFile) -> dict[str, Any]:
    matrix, layout = file.matrix, file.layout
    encoding = {
        "format": NAME,
        "version": matrix.version,
        "matrix_type": matrix.matrix_type,
        "data_type": matrix.data_type,
        "seed": matrix.seed,
        "scalar": [complex(matrix.scalar).real, complex(matrix.scalar).imag],
        "is_transposed": matrix.is_transposed,
        "is_conjugated": matrix.is_conjugated,
        "is_temporary": False,
        "shape": (matrix.rows, matrix.columns),
        "byteorder": "little",
        **matrix.encoding,
    }
    if file.payload_bytes:
        encoding["offset"] = matrix.offset
    dtype: Any = np.dtype(spec.DTYPES.get(matrix.data_type, "V1"))
    # Values of another dtype are not cast to the dtype of the file.
    if dtype != layout.dtype:
        dtype = StoredDtype(matrix.data_type.lower(), layout.dtype)
    return {"tensorfmt": encoding, "dtype": dtype}
