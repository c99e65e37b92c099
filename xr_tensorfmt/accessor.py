"""``ds.tensorfmt``: what can be asked of a Dataset that this engine has opened.

It is there as soon as xarray has looked for engines, and so imports nothing of the house before it
is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import xarray as xr

if TYPE_CHECKING:
    from dask.delayed import Delayed

    from xr_tensorfmt.datasets.explanation import Explanation

Selection = Mapping[Any, Any] | None


def explain(
    data: xr.Dataset | xr.DataArray, selection: Selection = None, **indexers: Any
) -> Explanation:
    """Say what computing something would read, without reading any of it.

    Parameters
    ----------
    data : Dataset or DataArray
        Opened by this engine, lazily or in chunks; also what was selected or, in chunks,
        computed from such.
    selection : mapping, optional
        Indices by dimension, as for ``isel``.
    **indexers
        The same as keywords.

    Returns
    -------
    Explanation
        A piece for each chunk that would be read, or for each variable that is not in chunks.
        Variables in memory, and those of other engines, read nothing here. Where only the file
        itself can tell, as for pairs of index and value, it is the most that could be read.
    """
    from xr_tensorfmt.datasets.explanation import explanation  # noqa: PLC0415

    return explanation(data.isel(selection, **indexers))


@xr.register_dataset_accessor("tensorfmt")  # type: ignore[no-untyped-call]
@xr.register_dataarray_accessor("tensorfmt")  # type: ignore[no-untyped-call]
class TensorFormatAccessor:
    """What this engine adds to a Dataset or DataArray.

    Parameters
    ----------
    data : Dataset or DataArray
        Whose accessor it is.
    """

    def __init__(self, data: xr.Dataset | xr.DataArray) -> None:
        self._data = data

    def explain(self, selection: Selection = None, **indexers: Any) -> Explanation:
        """Say what a selection would read, chunk by chunk; as `xr_tensorfmt.explain`.

        Parameters
        ----------
        selection : mapping, optional
            Indices by dimension, as for ``isel``.
        **indexers
            The same as keywords.

        Returns
        -------
        Explanation
        """
        return explain(self._data, selection, **indexers)

    def to_file(self, path: Any, format: str | None = None, **options: Any) -> Delayed | None:
        """Write to a tensor file; as `xr_tensorfmt.to_file`.

        Parameters
        ----------
        path : str or PathLike
            The file, or its URL.
        format : {"tens", "vespa", "pycauset", "mag"}, optional
            By default the end of the name decides.
        **options
            As for `xr_tensorfmt.to_file`.

        Returns
        -------
        Delayed or None
            What writes the file when it is computed, where ``compute=False``.
        """
        from xr_tensorfmt.writing.to_file import to_file  # noqa: PLC0415

        return to_file(self._data, path, format, **options)
