"""Writing of one array as `numpy.save` writes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from io import BytesIO
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.lib import format as npy
from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Boolean, Element, Plain
from xr_tensorfmt.formats.npy import NpyFormat
from xr_tensorfmt.formats.npy.read import default_dims
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.checked_input import CheckedInput, Encoding, Part
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.file_plan import FilePlan, Placed
from xr_tensorfmt.writing.to_file import Mode, write

_NUMBERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
_ELEMENTS: Mapping[str, Element] = {"bool": Boolean()} | {
    np.dtype(code).name: Plain(np.dtype(f"<{code}")) for code in _NUMBERS
}


def plan(checked: CheckedInput) -> FilePlan:
    """Plan a file."""
    name, variable = checked.only
    checked.check_rank(name, variable)
    checked.only_values(default_dims(variable.ndim))
    conversion = _conversion(checked, name, variable)
    element = conversion.element
    dtype = np.dtype(np.bool_) if isinstance(element, Boolean) else element.stored
    header = BytesIO()
    npy.write_array_header_1_0(
        header,
        {
            "descr": npy.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": tuple(map(int, variable.shape)),
        },
    )
    layout = Dense(variable.shape, element, header.tell())
    placed = Placed(variable, layout, conversion)
    return FilePlan(layout.stop, (Piece(0, header.getvalue()),), (placed,))


def _conversion(checked: CheckedInput, name: str, variable: Variable) -> Conversion:
    """To a number; strings and times are stored as they are."""
    dtype = variable.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "mMSU" and name not in checked.encoding:
        return Conversion(name, Plain(dtype.newbyteorder("<")), exact=True)
    return checked.conversion(name, variable, _ELEMENTS)


def to_npy(
    data: Dataset | DataArray,
    path: Any,
    *,
    mode: Mode = "w",
    compute: bool = True,
    region: Mapping[Any, slice] | None = None,
    encoding: Encoding | None = None,
    drop: Collection[Part] = (),
    storage_options: Mapping[str, Any] | None = None,
    fs: Any = None,
) -> Delayed | None:
    """Write one variable as an array that `numpy.load` loads.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write. An array has no place for names, coordinates and attributes, which must be
        dropped.
    path : str or PathLike
        The file, or its URL.
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something; the message says what, and what would work.
    OSError
        The system refuses; what was there before is unchanged.

    See Also
    --------
    xr_tensorfmt.to_file : All keywords that formats share.
    numpy.save : The same for an array in memory.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> array = xr.DataArray(np.eye(3), dims=("row", "column"), name="identity")
    >>> to_npy(array, "identity.npy", drop=["name", "dims"])
    >>> np.load("identity.npy").shape
    (3, 3)
    """
    return write(
        data,
        path,
        NpyFormat(),
        {},
        mode=mode,
        compute=compute,
        region=region,
        encoding=encoding,
        drop=drop,
        storage_options=storage_options,
        fs=fs,
    )
