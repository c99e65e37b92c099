"""The door: what xarray calls. No parsing, no bytes.

Whoever uses xarray imports all engines, so that this imports nothing heavy before a file is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from xarray.backends import BackendEntrypoint

from xr_tensorfmt.core.chunk_grid import TARGET

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from xarray import Dataset, DataTree

    from xr_tensorfmt.core.container import Names
    from xr_tensorfmt.core.options import Sparse, TextErrors
    from xr_tensorfmt.sources import InputOutput


class TensorFormatBackend(BackendEntrypoint):
    """Opens binary tensor files as lazy, labelled Datasets.

    xarray finds it as ``engine="tensorfmt"``.
    """

    description: ClassVar[str] = (
        "Open binary tensor files (TENS, MAG, PyCauset, Vespa) as lazy, labelled Datasets"
    )
    url: ClassVar[str] = "https://xr-tensorfmt.readthedocs.io"
    supports_groups: ClassVar[bool] = True
    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        "filename_or_obj",
        "mask_and_scale",
        "decode_times",
        "concat_characters",
        "decode_coords",
        "drop_variables",
        "use_cftime",
        "decode_timedelta",
        "format",
        "name",
        "dims",
        "sparse",
        "fill_value",
        "errors",
        "verify",
        "group",
        "separator",
        "storage_options",
        "fs",
        "io",
        "chunk_bytes",
    )

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
        sparse: Sparse = "auto",
        fill_value: float | None = None,
        errors: TextErrors = "strict",
        verify: bool = True,
        group: str | None = None,
        separator: str = ".",
        storage_options: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
        io: InputOutput = "auto",
        chunk_bytes: int | str = TARGET,
    ) -> Dataset:
        """Open a file; nothing but its header is read.

        Parameters
        ----------
        filename_or_obj : str, PathLike, file object, bytes, bytearray or memoryview
            The file: a path, where ``~`` is the home folder, a URL that fsspec knows, a chain of
            them such as ``"simplecache::s3://..."``, or an ``fsspec.OpenFile``. A file object is
            read from its start, whatever its position, which moves; it must stay open while
            values are lazy.
        mask_and_scale, decode_times, concat_characters, decode_coords : bool, mapping or str
            As in `xarray.open_dataset`; they act on attributes that the file itself has.
        drop_variables : str or iterable of str, optional
            Variables to leave out.
        use_cftime, decode_timedelta : bool, mapping or coder, optional
            As in `xarray.open_dataset`.
        format : {"tens", "mag", "pycauset", "vespa"}, optional
            By default the content decides, and ``.tbf`` at the end of the name.
        name : str
            Name of the variable of a file that holds one.
        dims : sequence of str, or mapping of variable name to such, optional
            A name for each index in the order of the file, in place of the file's own names.
        sparse : {"auto", "dense", "stored"}
            For a file of index-value pairs. ``"dense"`` is the full tensor, with zeros where
            nothing is stored; ``"auto"`` is the same, but refuses tensors of more than 2**40
            elements; ``"stored"`` is the stored values over dim ``entry``, with a coordinate for
            each dimension, and refuses files that store every element. For a Vespa tensor with
            labels, ``"dense"`` is the outer product of all labels, and ``"stored"`` the blocks
            over dim ``block``, which ``"auto"`` is as well unless each block has one label only.
        fill_value : float, optional
            For a Vespa tensor with ``sparse="dense"``: the value of cells that are not stored, NaN
            by default. It must be given for int8, and for more than 2**32 cells.
        errors : {"strict", "surrogateescape"}
            What becomes of labels that are not UTF-8, as in `bytes.decode`.
        verify : bool
            Whether a wrong checksum, or bytes after a Vespa tensor, are an error or a warning.
        group : str, optional
            Only the variables whose names begin so, under the rest of their names:
            ``"layers.0"`` for ``"layers.0.weight"`` and its like. The path of a group in
            `xarray.open_datatree`, ``"/layers/0"``, means the same.
        separator : str
            What stands between the parts of a name, for `group` and for trees.
        storage_options : mapping, optional
            How to reach a URL, in the words of its file system: ``{"anon": True}`` for S3.
        fs : AbstractFileSystem, optional
            A file system of fsspec, in which `filename_or_obj` is a path.
        io : {"auto", "mmap", "read"}
            How a local file is read: by windows mapped for each read (``"auto"``, ``"mmap"``), or
            into memory of its own (``"read"``), which suits network file systems.
        chunk_bytes : int or str
            Most bytes of a chunk of ``chunks={}``, 31 MiB by default; texts such as ``"64MiB"``
            are understood. dask's ``array.chunk-size`` is a limit as well.

        Returns
        -------
        Dataset

        Raises
        ------
        TensorFormatError
            The file is damaged or of no known format.
        OSError, ValueError, TypeError
            The file cannot be read, or a keyword does not fit it.
        """
        from xr_tensorfmt.datasets.opening import open_file  # noqa: PLC0415
        from xr_tensorfmt.datasets.options import Request  # noqa: PLC0415

        request = Request(
            mask_and_scale,
            decode_times,
            concat_characters,
            decode_coords,
            drop_variables,
            use_cftime,
            decode_timedelta,
            format=format,
            name=name,
            dims=dims,
            sparse=sparse,
            fill_value=fill_value,
            errors=errors,
            verify=verify,
            group=group,
            separator=separator,
            storage_options=storage_options,
            fs=fs,
            io=io,
            chunk_bytes=chunk_bytes,
        )
        return open_file(filename_or_obj, request)

    def open_datatree(self, filename_or_obj: Any, **keywords: Any) -> DataTree:
        """Open a file as a tree, with a group for each part of the variables' names but the last.

        Parameters
        ----------
        filename_or_obj : object
            As for `open_dataset`.
        **keywords
            Those of `open_dataset`. With `group` its branch is the root of the tree.

        Returns
        -------
        DataTree
            ``"layers.0.weight"`` is variable ``weight`` of group ``/layers/0``. Attributes of the
            whole file are at the root.

        Raises
        ------
        TensorFormatError, OSError, ValueError, TypeError
            As for `open_dataset`.
        """
        from xr_tensorfmt.datasets.opening import open_tree  # noqa: PLC0415
        from xr_tensorfmt.datasets.options import Request  # noqa: PLC0415

        return open_tree(filename_or_obj, Request(**keywords))

    def open_groups_as_dict(self, filename_or_obj: Any, **keywords: Any) -> dict[str, Dataset]:
        """Open a file as one Dataset a group.

        Parameters
        ----------
        filename_or_obj : object
            As for `open_dataset`.
        **keywords
            Those of `open_dataset`.

        Returns
        -------
        dict of str to Dataset
            By path; the same that `open_datatree` makes a tree of.

        Raises
        ------
        TensorFormatError, OSError, ValueError, TypeError
            As for `open_dataset`.
        """
        from xr_tensorfmt.datasets.opening import open_groups  # noqa: PLC0415
        from xr_tensorfmt.datasets.options import Request  # noqa: PLC0415

        return open_groups(filename_or_obj, Request(**keywords))

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Whether a local file, or bytes, can only be of one of the formats.

        Parameters
        ----------
        filename_or_obj : object
            Whatever the user passed to xarray.

        Returns
        -------
        bool
            False for URLs, which are never asked, and for all that cannot be read.
        """
        from xr_tensorfmt.datasets.opening import recognised  # noqa: PLC0415

        try:
            return recognised(filename_or_obj)
        except Exception:  # noqa: BLE001  # no fault of any file is ours to report here
            return False
