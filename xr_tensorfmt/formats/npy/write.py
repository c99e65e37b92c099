"""Plan a file as `numpy.save` writes it."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from numpy.lib import format as npy

from xr_tensorfmt.core.elements import Boolean, Plain, build_elements
from xr_tensorfmt.core.layout import Dense
from xr_tensorfmt.formats.npy import get_default_dims
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.encoding import Conversion
from xr_tensorfmt.writing.file_plan import FilePlan, Piece, PlannedVariable

_CODES = "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16"
_ELEMENTS = build_elements(np.dtype(code).name for code in _CODES.split())


def plan(checked: CheckedInput) -> FilePlan:
    """Plan a file."""
    name, variable = checked.require_values_only(get_default_dims(checked.single_variable[1].ndim))
    dtype = variable.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "mMSU" and name not in checked.encoding:
        conversion = Conversion(name, Plain(dtype.newbyteorder("<")), exact=True)
    else:
        conversion = checked.choose_conversion(name, variable, _ELEMENTS)
    element = conversion.element
    stored = np.dtype(np.bool_) if isinstance(element, Boolean) else element.stored
    shape = tuple(map(int, variable.shape))
    fields = {"descr": npy.dtype_to_descr(stored), "fortran_order": False, "shape": shape}
    header = BytesIO()
    npy.write_array_header_1_0(header, fields)
    layout = Dense(shape, element, header.tell())
    planned = PlannedVariable(variable, layout, conversion)
    return FilePlan(layout.stop, (Piece(0, header.getvalue()),), (planned,))
