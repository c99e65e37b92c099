"""The functions `to_file` and `explain`, which are also methods of ``ds.tensorfmt``.

xarray imports this module when it lists the engines. Keep its imports cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

import xarray as xr

from xr_tensorfmt.errors import Hint, with_hint

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from fsspec import AbstractFileSystem

    from xr_tensorfmt.datasets.explanation import Explanation

Data = xr.Dataset | xr.DataArray | xr.DataTree
Indexers = Mapping[Any, Any] | None
Mode = Literal["w", "w-", "x"]
Region = Mapping[Any, Any] | Literal["auto"]
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def explain(
    data: Data,
    /,
    indexers: Indexers = None,
    **indexers_kwargs: Any,
) -> Explanation:
    """Explain which bytes a computation would read, without reading them.

    Parameters
    ----------
    data : Dataset, DataArray or DataTree
        Data opened with this engine, a selection of it, or a dask computation on it.
    indexers : mapping, optional
        Indices by dimension, as in ``isel``. To select labels, call ``data.sel`` first.
    **indexers_kwargs
        The keyword form of `indexers`.

    Returns
    -------
    Explanation
        The planned reads: one per dask chunk, or one per variable without chunks. Variables in
        memory or of other engines have none. For files of index-value pairs, the result is an
        upper bound, because the positions of values are only known after reading.

    See Also
    --------
    xr_tensorfmt.Explanation : The result.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> values = np.ones((4, 3))
    >>> dims = ["a", "b"]
    >>> data = xr.DataArray(values, dims=dims)
    >>> xr_tensorfmt.to_file(data, "v.bin")
    >>> ds = xr.open_dataset(
    ...     "v.bin",
    ...     engine="tensorfmt",
    ...     chunks={},
    ... )
    >>> xr_tensorfmt.explain(ds, b=slice(0, 2))
    1 request fetches 64 B for 64 B (1.00 x)
    variable: tensor
    chunk:    0, 0
    values:   8
    bytes:    48 to 112
    >>> total = ds.tensor.sum("a")
    >>> xr_tensorfmt.explain(total).fetched_bytes
    96
    """
    from xr_tensorfmt.datasets.explanation import explain  # noqa: PLC0415

    if not isinstance(data, xr.Dataset | xr.DataArray | xr.DataTree):
        raise TypeError(
            f"data= must be a Dataset, DataArray or DataTree, not a {type(data).__name__}; open a "
            "file with xarray.open_dataset"
        )
    try:
        return explain(data.isel(indexers, **indexers_kwargs))
    except (IndexError, KeyError, TypeError) as error:
        hint = Hint(
            "pass positions as to isel, or select labels with sel() first",
            "pass positions to --select",
        )
        raise with_hint(type(error)(f"{hint}: {error}"), hint) from error


def to_file(
    data: Data,
    /,
    path: Any,
    format: str | None = None,
    *,
    mode: Mode = "w",
    compute: bool = True,
    region: Region | None = None,
    encoding: Mapping[Any, Any] | None = None,
    drop: Collection[Literal["name", "dims", "coords", "attrs"]] = (),
    separator: str = ".",
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    **format_options: Any,
) -> Delayed | None:
    """Write a tensor file, chunk by chunk and in parallel.

    ``data.tensorfmt.to_file(path)`` is the method of Datasets, DataArrays and DataTrees.

    Data are written to a temporary file that replaces `path` once it is complete. If an error
    occurs before that, an existing file is unchanged.

    Parameters
    ----------
    data : Dataset, DataArray or DataTree
        The data: in memory, lazy, or in dask chunks, which are written in parallel. Coordinates in
        a header and labels of blocks are loaded into memory. The data may be opened from the file
        that is overwritten.
    path : str, PathLike or OpenFile
        The file, or a URL that fsspec supports.
    format : str, optional
        Name of the format. The default depends on the suffix of `path`. A suffix of another format
        causes a warning.
    mode : {"w", "w-", "x"}
        ``"w"`` overwrites an existing file, ``"w-"`` or ``"x"`` raises an error if it exists.
    compute : bool
        If False, return a `dask.delayed.Delayed` that writes the file when it is computed.
    region : mapping of str to slice or list, or "auto", optional
        Write to a part of an existing local file with the same variables, encoded as they are in
        the file. A slice or a list of integers has positions, any other list has labels, and
        ``"auto"``, for one dimension or for all, takes the labels of the data. The file is changed
        in place, so an error can leave the part incomplete.
    encoding : mapping, optional
        ``{name: {"dtype": ...}}``: the dtype of a variable in the file. Floating-point values are
        rounded to it; integers must be representable. Without an encoding, values must be
        representable in the dtype of the file. A name can be a pattern such as ``"layers.*"``, and
        ``{"dtype": ...}`` applies to all variables. Both apply only to variables of the same kind,
        such as floating-point variables for ``"bfloat16"``. Formats with attributes also support
        the keys of CF, such as ``scale_factor`` and ``units``, as in `xarray.Dataset.to_netcdf`.
        For a DataTree, ``{"/layers/0": {name: ...}}`` as in ``DataTree.to_zarr``.
    drop : list of {"name", "dims", "coords", "attrs"}
        Parts to omit if the format does not support them. Otherwise they raise an error.
    separator : str
        Separator between group and variable names of a DataTree.
    storage_options : mapping, optional
        Options of the fsspec file system of a URL.
    fs : AbstractFileSystem, optional
        The fsspec file system of `path`.
    **format_options
        Keywords of the format, which its page lists. None selects the default.

    Returns
    -------
    Delayed or None
        A `Delayed` if `compute` is False.

    Raises
    ------
    ValueError
        The format does not support the data. The message names an alternative.
    TypeError
        A keyword is unknown, or a value has the wrong type.
    OSError
        The file cannot be written: no space, no permission, no such directory.

    See Also
    --------
    xr_tensorfmt.validate : Check a file.
    xr_tensorfmt.cc4s.to_calculation : Write the files of a calculation.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> tensor = (("a", "b"), np.eye(3))
    >>> ds = xr.Dataset({"tensor": tensor})
    >>> xr_tensorfmt.to_file(ds, "identity.tens")
    >>> path = "identity.tens"
    >>> back = xr.open_dataset(
    ...     path, engine="tensorfmt"
    ... )
    >>> back.identical(ds)
    True
    """
    from xr_tensorfmt.saving import write  # noqa: PLC0415

    return write(
        data,
        path,
        format,
        format_options,
        mode=mode,
        compute=compute,
        region=region,
        encoding=encoding,
        drop=drop,
        separator=separator,
        storage_options=storage_options,
        fs=fs,
    )


def _as_method(
    function: Callable[Concatenate[Data, Parameters], Result],
) -> Callable[Concatenate[TensorFormatAccessor, Parameters], Result]:
    """Turn a function of data into a method of their accessor, with signature and docstring."""

    @wraps(function)
    def method(
        accessor: TensorFormatAccessor, /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        return function(accessor._data, *args, **kwargs)  # noqa: SLF001

    return method


@xr.register_dataset_accessor("tensorfmt")  # type: ignore[no-untyped-call]
@xr.register_dataarray_accessor("tensorfmt")  # type: ignore[no-untyped-call]
@xr.register_datatree_accessor("tensorfmt")  # type: ignore[no-untyped-call]
class TensorFormatAccessor:
    """The methods of ``ds.tensorfmt``: `to_file` and `explain` without their first parameter.

    Parameters
    ----------
    data : Dataset, DataArray or DataTree
        The object that the accessor belongs to.
    """

    def __init__(self, data: Data) -> None:
        self._data = data

    to_file = _as_method(to_file)
    explain = _as_method(explain)
