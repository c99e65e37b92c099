"""The accessors ``ds.tensorfmt`` and ``tree.tensorfmt``, and the function `explain`.

xarray imports this module when it lists the engines. Keep its imports cheap.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import xarray as xr

from xr_tensorfmt.errors import Hint, with_hint

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from fsspec import AbstractFileSystem

    from xr_tensorfmt.datasets.explanation import Explanation

Indexers = Mapping[Any, Any] | None


def explain(
    data: xr.Dataset | xr.DataArray | xr.DataTree,
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
    >>> xr_tensorfmt.to_tens(data, "v.bin")
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
        self._data: xr.Dataset | xr.DataArray | xr.DataTree = data

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError. If the name is a function of the package, point to it."""
        import xr_tensorfmt  # noqa: PLC0415  # imports this module

        hint = f"; call xr_tensorfmt.{name}" if name in xr_tensorfmt.__all__ else ""
        message = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
        raise AttributeError(message, name=name, obj=self)

    def explain(self, indexers: Indexers = None, **indexers_kwargs: Any) -> Explanation:
        """Explain which bytes a selection would read. See `xr_tensorfmt.explain`.

        Parameters
        ----------
        indexers : mapping, optional
            Indices by dimension, as in ``isel``.
        **indexers_kwargs
            The keyword form of `indexers`.

        Returns
        -------
        Explanation
            The totals, and a row per chunk.

        See Also
        --------
        xr_tensorfmt.explain : The function.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> import xr_tensorfmt
        >>> values = np.ones((1000, 8))
        >>> dims = ["a", "b"]
        >>> data = xr.DataArray(values, dims=dims)
        >>> data.tensorfmt.to_file("v.bin")
        >>> ds = xr.open_dataset(
        ...     "v.bin",
        ...     engine="tensorfmt",
        ...     chunks={},
        ... )
        >>> ds.tensorfmt.explain(b=0).needed_bytes
        8000
        """
        return explain(self._data, indexers, **indexers_kwargs)

    def to_file(
        self,
        path: Any,
        format: str | None = None,
        *,
        mode: Literal["w", "w-", "x"] = "w",
        compute: bool = True,
        region: Mapping[Any, slice | Literal["auto"]] | Literal["auto"] | None = None,
        encoding: Mapping[Any, Any] | None = None,
        drop: Collection[Literal["name", "dims", "coords", "attrs"]] = (),
        storage_options: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
        **format_options: Any,
    ) -> Delayed | None:
        """Write to a tensor file, chunk by chunk and in parallel. See `xr_tensorfmt.to_file`.

        Parameters
        ----------
        path : str, PathLike or OpenFile
            The file, or a URL that fsspec supports.
        format : str, optional
            Name of the format. The default depends on the suffix of `path`.
        mode : {"w", "w-", "x"}
            ``"w"`` overwrites an existing file, ``"w-"`` or ``"x"`` raises an error if it exists.
        compute : bool
            If False, return a `dask.delayed.Delayed` that writes the file when it is computed.
        region : mapping of str to slice, or "auto", optional
            Write to this part of an existing local file with the same variables. ``"auto"`` finds
            the part by the labels.
        encoding : mapping, optional
            ``{name: {"dtype": ...}}``: the dtype of a variable in the file. A name can be a
            pattern such as ``"layers.*"``, and ``{"dtype": ...}`` applies to all variables.
        drop : collection of {"name", "dims", "coords", "attrs"}
            Parts to omit if the format does not support them. Otherwise they raise an error.
        storage_options : mapping, optional
            Options of the fsspec file system of a URL.
        fs : AbstractFileSystem, optional
            The fsspec file system of `path`.
        **format_options
            Keywords of the format.

        Returns
        -------
        Delayed or None
            A `Delayed` if `compute` is False.

        Raises
        ------
        ValueError
            The format does not support the data. The message names an alternative.
        OSError
            The file cannot be written.

        See Also
        --------
        xr_tensorfmt.to_file : The function.
        xr_tensorfmt.validate : Check a file.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> import xr_tensorfmt
        >>> weight = (("x", "y"), np.ones((2, 3)))
        >>> ds = xr.Dataset({"weight": weight})
        >>> encoding = {"weight": {"dtype": "float32"}}
        >>> ds.tensorfmt.to_file(
        ...     "weights.mag", encoding=encoding
        ... )
        >>> back = xr.open_dataset(
        ...     "weights.mag", engine="tensorfmt"
        ... )
        >>> back.weight.dtype
        dtype('float32')
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
class TensorFormatTreeAccessor(TensorFormatAccessor):
    """The methods of ``tree.tensorfmt``. `explain` names variables by their paths in the tree.

    Parameters
    ----------
    tree : DataTree
        The tree that the accessor belongs to.
    """

    def __init__(self, tree: xr.DataTree) -> None:
        self._data = tree

    def to_file(
        self, path: Any, format: str | None = None, *, separator: str = ".", **options: Any
    ) -> Delayed | None:
        """Write to a tensor file that `xarray.open_datatree` opens as the same tree.

        Parameters
        ----------
        path : str, PathLike or OpenFile
            The file, or a URL that fsspec supports.
        format : str, optional
            Name of the format. The default depends on the suffix of `path`.
        separator : str
            Separator between group and variable names: ``/layers/0/weight`` is written as
            ``layers.0.weight``.
        **options
            The other keywords of `xr_tensorfmt.to_file`.

        Returns
        -------
        Delayed or None
            A `Delayed` if ``compute=False``.

        Raises
        ------
        ValueError
            The file would open as another tree, or the format does not support the data.
        OSError
            The file cannot be written.

        See Also
        --------
        xr_tensorfmt.to_file : All keywords.
        xarray.open_datatree : Open a tree.

        Examples
        --------
        >>> import numpy as np
        >>> import xarray as xr
        >>> import xr_tensorfmt
        >>> ones = np.ones((2, 3), "float32")
        >>> weight = (("out", "in"), ones)
        >>> layer = xr.Dataset({"weight": weight})
        >>> tree = xr.DataTree.from_dict(
        ...     {
        ...         "/layers/0": layer,
        ...         "/layers/1": layer,
        ...     }
        ... )
        >>> tree.tensorfmt.to_file(
        ...     "model.mag",
        ...     encoding={"dtype": "float16"},
        ... )
        >>> back = xr.open_datatree(
        ...     "model.mag", engine="tensorfmt"
        ... )
        >>> back["layers/1/weight"].dtype
        dtype('float16')
        """
        from xr_tensorfmt.writers import to_file  # noqa: PLC0415

        return to_file(self._data, path, format, separator=separator, **options)
