"""The engine for xarray, and the methods of ``ds.tensorfmt``.

xarray imports this module when it lists the engines. Keep its imports cheap.
"""

from __future__ import annotations

from inspect import signature
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import xarray as xr
from xarray.backends import BackendEntrypoint

from xr_tensorfmt.core.extents import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.core.source import DEFAULT_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xr_tensorfmt.core.file_format import Names
    from xr_tensorfmt.core.source import InputOutput

Data = xr.Dataset | xr.DataArray | xr.DataTree


class TensorFormatBackend(BackendEntrypoint):
    """The engine ``"tensorfmt"``: opens binary tensor files as lazy, labelled Datasets."""

    description: ClassVar[str] = "Open binary tensor files as lazy, labelled Datasets"
    url: ClassVar[str] = "https://xr-tensorfmt.readthedocs.io"
    supports_groups: ClassVar[bool] = True

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: bool | Mapping[str, bool] = True,
        decode_times: Any = True,
        concat_characters: bool | Mapping[str, bool] = True,
        decode_coords: bool | Literal["coordinates", "all"] = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: bool | Mapping[str, bool] | None = None,
        decode_timedelta: Any = None,
        format: str | None = None,
        name: str = "tensor",
        dims: Names = None,
        group: str | None = None,
        separator: str = ".",
        storage_options: Mapping[str, Any] | None = None,
        fs: Any = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        verify_unchanged: bool = True,
        io: InputOutput = "auto",
        chunk_bytes: int | str = DEFAULT_CHUNK_BYTES,
        **format_options: Any,
    ) -> xr.Dataset:
        """Open a file as a lazy Dataset. This method reads only the header.

        Parameters
        ----------
        filename_or_obj : str, PathLike, file object, bytes, bytearray, memoryview or OpenFile
            A path; a URL or chain of URLs that fsspec supports; the content; or a seekable binary
            file object, which is read from its start and must stay open while values are lazy.
        format : str, optional
            Name of the format. The default depends on the first bytes of the file, or on the
            suffix for formats without a magic number.
        name : str, default: "tensor"
            Name of the variable, for formats with one unnamed tensor per file.
        dims : sequence of str, or mapping of variable name to sequence of str, optional
            Dimension names, in file order, instead of the names in the file. A key can be a
            pattern such as ``"*.weight"``, for variables with as many dimensions as names.
        group : str, optional
            Open only variables whose names begin with this prefix, and remove it: ``"layers.0"``,
            or the path ``"layers/0"`` with ``%2F`` for a slash in a name, opens
            ``"layers.0.weight"`` as ``"weight"``.
        separator : str, default: "."
            Separator of name parts, for `group` and trees.
        storage_options : mapping, optional
            Options of the fsspec file system of a URL, such as ``{"anon": True}`` for S3.
        fs : AbstractFileSystem, optional
            The fsspec file system of the path `filename_or_obj`.
        timeout : float or None, default: 60
            Seconds to wait for one attempt of a request to a store, plus 1 second per 5000
            requested bytes. Failed requests are retried. None disables the limit.
        verify_unchanged : bool, default: True
            Raise `SourceChangedError` if the size, time, inode or entity tag of the file differ
            from when it was opened. False compares sizes only.
        io : {"auto", "mmap", "read"}, default: "auto"
            How to read a local file. ``"auto"`` returns values in new memory, and maps only dask
            chunks. ``"read"`` never maps, which is best for network file systems. ``"mmap"``
            also maps values without chunks: they follow changes of the file, and the system may
            kill this process if the file is truncated.
        chunk_bytes : int or str, default: "31MiB"
            Limit on the size of chunks for ``chunks={}``, as is dask's ``array.chunk-size``.
        mask_and_scale, decode_times, concat_characters, decode_coords, use_cftime, decode_timedelta
            CF decoding by the attributes of the file, as in `xarray.open_dataset`.
        drop_variables : str or iterable of str, optional
            Names of variables to drop. Unknown names are ignored.
        **format_options
            Keywords of formats, such as ``sparse``, ``verify`` and ``apply_unit``.

        Returns
        -------
        Dataset
            All variables are lazy, except dimension coordinates, which xarray loads to create
            indexes (see ``create_default_indexes``). With chunks, other labels are loaded, too.

        Raises
        ------
        TensorFormatError
            The file is corrupt, or its format is unknown.
        StoreUnavailableError
            A store failed although requests were retried.
        OSError, ValueError, TypeError
            The file cannot be read, or a keyword does not apply to it.

        Examples
        --------
        >>> import xarray as xr
        >>> from xr_tensorfmt import tutorial
        >>> path = tutorial.get_path("integrals")
        >>> dims = ["c", "d", "k", "l"]
        >>> xr.open_dataset(path, engine="tensorfmt", dims=dims)
        <xarray.Dataset> Size: 2kB
        Dimensions:  (c: 8, d: 8, k: 2, l: 2)
        Dimensions without coordinates: c, d, k, l
        Data variables:
            tensor   (c, d, k, l) float64 2kB ...
        """
        keywords = dict(locals())
        from xr_tensorfmt.opening import open_file  # noqa: PLC0415

        del keywords["self"], keywords["filename_or_obj"]
        return open_file(filename_or_obj, keywords)

    # All but `self` and `**format_options`.
    open_dataset_parameters: ClassVar[tuple[str, ...]] = tuple(signature(open_dataset).parameters)[
        1:-1
    ]

    def open_datatree(self, filename_or_obj: Any, **keywords: Any) -> xr.DataTree:
        """Open a file as a tree: ``"layers.0.weight"`` is ``weight`` of the group ``/layers/0``.

        Parameters
        ----------
        filename_or_obj, **keywords
            As in `open_dataset`. `group` is the root of the tree.

        Returns
        -------
        DataTree
            The root has the attributes of the file.

        Examples
        --------
        >>> import xarray as xr
        >>> from xr_tensorfmt import tutorial
        >>> tree = xr.open_datatree(tutorial.get_path("circle"))
        >>> tree["hidden/weight"].shape
        (12, 2)
        """
        return xr.DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **keywords))

    def open_groups_as_dict(self, filename_or_obj: Any, **keywords: Any) -> dict[str, xr.Dataset]:
        """Open a file as a dict of the Datasets of `open_datatree`, by path.

        Parameters
        ----------
        filename_or_obj, **keywords
            As in `open_dataset`.

        Returns
        -------
        dict of str to Dataset

        Examples
        --------
        >>> import xarray as xr
        >>> from xr_tensorfmt import tutorial
        >>> list(xr.open_groups(tutorial.get_path("circle")))
        ['/', '/hidden', '/out']
        """
        from xr_tensorfmt.opening import open_groups  # noqa: PLC0415

        return open_groups(filename_or_obj, complete_keywords(**keywords))

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether the content of a file identifies a format. URLs are not requested."""
        from xr_tensorfmt.formats.recognition import is_recognised  # noqa: PLC0415

        try:
            return is_recognised(filename_or_obj)
        except Exception:  # noqa: BLE001  # xarray tries other engines
            return False


def complete_keywords(**keywords: Any) -> dict[str, Any]:
    """Return keywords of `TensorFormatBackend.open_dataset` with the defaults of the others."""
    bound = signature(TensorFormatBackend.open_dataset).bind(None, None, **keywords)
    bound.apply_defaults()
    return dict(list(bound.arguments.items())[2:])


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
        from xr_tensorfmt.datasets.explanation import explain  # noqa: PLC0415

        return MethodType(explain, self._data)
