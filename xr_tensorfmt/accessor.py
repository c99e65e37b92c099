"""The methods of ``ds.tensorfmt``, and the function `explain`.

xarray imports this module when it lists the engines. Keep its imports cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any

import xarray as xr

if TYPE_CHECKING:
    from xr_tensorfmt.datasets.explanation import Explanation

Data = xr.Dataset | xr.DataArray | xr.DataTree


def explain(
    data: Data, /, indexers: Mapping[Any, Any] | None = None, **indexers_kwargs: Any
) -> Explanation:
    """Explain which bytes loading data would read, without reading them.

    Parameters
    ----------
    data : Dataset, DataArray or DataTree
        Data opened with this engine, a selection of it, transposed or chunked. The
        result of another computation raises ValueError.
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

    Examples
    --------
    >>> from xr_tensorfmt import explain, tutorial
    >>> ds = tutorial.open_dataset("cities", chunks={})
    >>> explain(ds, x=slice(0, 2))
    1 request fetches 508 B for 208 B (2.44 x)
    variable: tensor
    chunk:    0, 0
    values:   52
    ranges:   26
    bytes:    19 to 527
    >>> explain(ds, x=slice(0, 2)).fetched_bytes
    508
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
        hint = "pass positions as to isel, or select labels with sel() first"
        raise type(error)(f"{hint}: {error}") from error


@xr.register_dataset_accessor("tensorfmt")  # type: ignore[no-untyped-call]
@xr.register_dataarray_accessor("tensorfmt")  # type: ignore[no-untyped-call]
@xr.register_datatree_accessor("tensorfmt")  # type: ignore[no-untyped-call]
class TensorFormatAccessor:
    """The methods of ``ds.tensorfmt``: `to_file` and `explain` without their first parameter."""

    def __init__(self, data: Data) -> None:
        self._data = data

    @property
    def to_file(self) -> MethodType:
        """The method `xr_tensorfmt.to_file` of the data."""
        from xr_tensorfmt.saving import to_file  # noqa: PLC0415

        return MethodType(to_file, self._data)

    @property
    def explain(self) -> MethodType:
        """The method `xr_tensorfmt.explain` of the data."""
        return MethodType(explain, self._data)
