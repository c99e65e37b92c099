"""``ds.tensorfmt``, and the function `explain`.

The accessor is registered as soon as xarray looks for engines, so this module imports little.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

import xarray as xr

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from fsspec import AbstractFileSystem

    from xr_tensorfmt.datasets.explanation import Explanation

Selection = Mapping[Any, Any] | None


def explain(
    data: xr.Dataset | xr.DataArray, selection: Selection = None, **indexers: Any
) -> Explanation:
    """Explain which bytes computing something would read, without reading them.

    Parameters
    ----------
    data : Dataset or DataArray
        Opened by this engine, lazily or in chunks; also a selection of it or, in chunks, the
        result of a computation.
    selection : mapping, optional
        Indices by dimension, as for ``isel``.
    **indexers
        The same as keywords.

    Returns
    -------
    Explanation
        Its pieces are the chunks that would be read, or whole variables where there are no
        chunks. Variables that are in memory or of other engines have none. Where what is read
        depends on the content of the file, as for pairs of index and value, it is an upper limit.

    See Also
    --------
    xr_tensorfmt.datasets.explanation.Explanation : What is returned.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> data = xr.DataArray(np.ones((4, 3)), dims=("a", "b"))
    >>> xr_tensorfmt.to_tens(data, "vertex.bin")
    >>> ds = xr.open_dataset("vertex.bin", engine="tensorfmt", chunks={})
    >>> xr_tensorfmt.explain(ds, b=slice(0, 2))
    1 request fetches 64 B for 64 B (1.00 x)
    variable  chunk  values  ranges  requests  needed  fetched      bytes
      tensor   0, 0       8       1         1    64 B     64 B  48 to 112
    >>> xr_tensorfmt.explain(ds.tensor.sum("a")).fetched
    96
    """
    from xr_tensorfmt.datasets.explanation import explain  # noqa: PLC0415

    return explain(data.isel(selection, **indexers))


@xr.register_dataset_accessor("tensorfmt")  # type: ignore[no-untyped-call]
@xr.register_dataarray_accessor("tensorfmt")  # type: ignore[no-untyped-call]
class TensorFormatAccessor:
    """The methods of ``ds.tensorfmt``.

    Parameters
    ----------
    data : Dataset or DataArray
        The object that the accessor belongs to.
    """

    def __init__(self, data: xr.Dataset | xr.DataArray) -> None:
        self._data = data

    def explain(self, selection: Selection = None, **indexers: Any) -> Explanation:
        """Explain which bytes a selection would read; as `xr_tensorfmt.explain`.

        Parameters
        ----------
        selection : mapping, optional
            Indices by dimension, as for ``isel``.
        **indexers
            The same as keywords.

        Returns
        -------
        Explanation
            It prints as a table, with a row for each chunk.

        See Also
        --------
        xr_tensorfmt.explain : The same as a function.

        Examples
        --------
        >>> import xarray as xr
        >>> ds = xr.open_dataset("vertex.bin", engine="tensorfmt", chunks={})  # doctest: +SKIP
        >>> ds.tensorfmt.explain(b=slice(0, 512))  # doctest: +SKIP
        """
        return explain(self._data, selection, **indexers)

    def to_file(
        self,
        path: Any,
        format: str | None = None,
        *,
        mode: Literal["w", "x"] = "w",
        compute: bool = True,
        region: Mapping[Any, slice] | None = None,
        encoding: Mapping[Any, Any] | None = None,
        drop: Collection[Literal["name", "dims", "coords", "attrs"]] = (),
        storage_options: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
        **format_options: Any,
    ) -> Delayed | None:
        """Write to a tensor file, chunk by chunk and in parallel; as `xr_tensorfmt.to_file`.

        Parameters
        ----------
        path : str, PathLike or OpenFile
            The file, or a URL that fsspec knows.
        format : str, optional
            Name of the format; by default the suffix of `path` decides.
        mode : {"w", "x"}
            ``"w"`` replaces an existing file, ``"x"`` refuses to.
        compute : bool
            If False, return a `dask.delayed.Delayed` that writes the file when it is computed.
        region : mapping of str to slice, optional
            Write into this part of an existing local file that has the same variables.
        encoding : mapping, optional
            ``{name: {"dtype": ...}}``: the dtype in which a variable is stored. A name can be a
            pattern such as ``"layers.*"``; ``{"dtype": ...}`` is for all variables.
        drop : collection of {"name", "dims", "coords", "attrs"}
            What may be left out if the format cannot store it; otherwise that is an error.
        storage_options : mapping, optional
            Options of the fsspec file system of a URL.
        fs : AbstractFileSystem, optional
            An fsspec file system in which `path` is.
        **format_options
            Keywords of the format.

        Returns
        -------
        Delayed or None
            A `Delayed` if `compute` is False.

        Raises
        ------
        ValueError
            The format cannot store the data; the message says what would work.
        OSError
            The file cannot be written.

        See Also
        --------
        xr_tensorfmt.to_file : The same as a function.
        xr_tensorfmt.validate : Check what was written.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> ds = xr.Dataset({"weight": (("x", "y"), np.ones((2, 3)))})
        >>> encoding = {"weight": {"dtype": "float32"}}
        >>> ds.tensorfmt.to_file("weights.mag", encoding=encoding)  # doctest: +SKIP
        """
        from xr_tensorfmt.writers import to_file  # noqa: PLC0415

        return to_file(
            self._data,
            path,
            format,
            mode=mode,
            compute=compute,
            region=region,
            encoding=encoding,
            drop=drop,
            storage_options=storage_options,
            fs=fs,
            **format_options,
        )


@xr.register_datatree_accessor("tensorfmt")  # type: ignore[no-untyped-call]
class TensorFormatTreeAccessor:
    """The method of ``tree.tensorfmt``.

    Parameters
    ----------
    tree : DataTree
        The tree that the accessor belongs to.
    """

    def __init__(self, tree: xr.DataTree) -> None:
        self._tree = tree

    def to_file(
        self, path: Any, format: str | None = None, *, separator: str = ".", **options: Any
    ) -> Delayed | None:
        """Write to a tensor file that `xarray.open_datatree` opens as the same tree.

        Parameters
        ----------
        path : str, PathLike or OpenFile
            The file, or a URL that fsspec knows.
        format : str, optional
            Name of the format; by default the suffix of `path` decides.
        separator : str
            What separates the parts of a path in the name of a variable: ``/layers/0/weight`` is
            written as ``layers.0.weight``.
        **options
            The other keywords of `xr_tensorfmt.to_file`.

        Returns
        -------
        Delayed or None
            A `Delayed` if ``compute=False``.

        Raises
        ------
        ValueError
            The file would open as another tree, or the format cannot store the data.
        OSError
            The file cannot be written.

        See Also
        --------
        xr_tensorfmt.to_file : All keywords.
        xarray.open_datatree : The way back.

        Examples
        --------
        >>> import xarray as xr
        >>> tree = xr.open_datatree("model.mag", engine="tensorfmt")  # doctest: +SKIP
        >>> tree.tensorfmt.to_file("copy.bin", encoding={"dtype": "float16"})  # doctest: +SKIP
        """
        from xr_tensorfmt.writers import to_file  # noqa: PLC0415

        return to_file(self._tree, path, format, separator=separator, **options)
