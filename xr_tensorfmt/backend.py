"""The entry point for xarray.

All engines are imported when xarray looks for one, so this module imports little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from xarray.backends import BackendEntrypoint

from xr_tensorfmt.datasets.options import KEYWORDS, parse_keywords, with_keywords

if TYPE_CHECKING:
    from xarray import Dataset, DataTree


class TensorFormatBackend(BackendEntrypoint):
    """The engine ``"tensorfmt"``: opens binary tensor files as lazy, labelled Datasets.

    The documentation lists the formats; other packages can add theirs by the entry-point group
    ``xr_tensorfmt.formats``.

    Examples
    --------
    >>> import xarray as xr
    >>> xr.open_dataset("vertex.bin", engine="tensorfmt")  # doctest: +SKIP
    """

    description: ClassVar[str] = "Open binary tensor files as lazy, labelled Datasets"
    url: ClassVar[str] = "https://xr-tensorfmt.readthedocs.io"
    supports_groups: ClassVar[bool] = True

    open_dataset_parameters: ClassVar[tuple[str, ...]] = ("filename_or_obj", *KEYWORDS)

    @with_keywords
    def open_dataset(self, filename_or_obj: Any, **keywords: Any) -> Dataset:
        """Open a file as a Dataset; only its header is read.

        Parameters
        ----------
        filename_or_obj : str, PathLike, file object, bytes, bytearray, memoryview or OpenFile
            A path, in which ``~`` is the home directory; a URL that fsspec knows, or a chain of
            URLs such as ``"simplecache::s3://..."``; an ``fsspec.OpenFile``; the content itself;
            or a seekable binary file object. A file object is read from its start, its position
            changes, and it must stay open as long as values are lazy.
        mask_and_scale, decode_times, concat_characters, decode_coords : bool, mapping or str
            As in `xarray.open_dataset`. They act on attributes that the file itself has.
        drop_variables : str or iterable of str, optional
            Variables to leave out.
        use_cftime, decode_timedelta : bool, mapping or coder, optional
            As in `xarray.open_dataset`.
        format : str, optional
            Name of the format. By default the first bytes of the file decide, or the suffix for a
            format without a magic number. An unknown name raises an error that lists all names.
        name : str
            Name of the variable, for a file of one variable.
        dims : sequence of str, or mapping of variable name to such, optional
            Names of the dimensions, in the order of the file, instead of the file's own names.
        sparse : {"auto", "dense", "stored"}
            How to open a file that does not store all elements. ``"dense"`` gives the full tensor,
            with a fill value where nothing is stored; ``"stored"`` gives the stored values along
            one dimension, with a coordinate for each dimension of the tensor. ``"auto"`` chooses
            what suits the format, and refuses a full tensor of more than 2**40 elements. Files
            that store every element refuse ``"stored"``.
        fill_value : float, optional
            Value of elements that are not stored, for formats that define none. NaN by default; it
            is required for integers, and for very large tensors.
        text_errors : {"strict", "surrogateescape"}
            How to decode labels that are not UTF-8, as in `bytes.decode`.
        verify : bool
            If True, raise an error for a wrong checksum of a header, or for bytes after the end of
            the data; otherwise warn. If programs of the format leave such bytes themselves, always
            warn. If the size of a file tells where its values are, always raise an error.
        apply_unit : bool
            If True, values are multiplied by the factor to atomic units that the file states, when
            they are read; otherwise it is only the attribute ``unit``. For formats that have one.
        group : str, optional
            Open only the variables whose names begin with this prefix, and remove it from their
            names: ``"layers.0"`` selects ``"layers.0.weight"`` and opens it as ``"weight"``. The
            path of a group as in `xarray.open_datatree`, ``"/layers/0"`` or ``"layers/0"``, means
            the same; a slash within a name is ``%2F`` there.
        separator : str
            Separator of the parts of a name, for `group` and for trees.
        storage_options : mapping, optional
            Options of the fsspec file system of a URL, such as ``{"anon": True}`` for S3.
        fs : AbstractFileSystem, optional
            A file system of fsspec, or a store of obstore, in which `filename_or_obj` is a path.
        timeout : float, optional
            Seconds that a request to a store may take without progress, beyond 0.2 s for each 1000
            bytes. It is then repeated, as after other failures that may be transient, and at last
            `StoreTimeoutError` is raised. ``storage_options={"timeout": 10}`` means the
            same. None sets no limit. Local files have none.
        io : {"auto", "mmap", "read"}
            How a local file is read. ``"auto"`` and ``"mmap"`` map a window of the file for each
            read; ``"read"`` reads into new memory, which suits network file systems.
        chunk_bytes : int or str
            Upper limit on the bytes of a chunk for ``chunks={}``, such as ``"64MiB"``; 31 MiB by
            default. dask's setting ``array.chunk-size`` is a limit as well. It has no effect
            without ``chunks=``.

        Returns
        -------
        Dataset
            All variables are lazy.

        Raises
        ------
        TensorFormatError
            The file is damaged or of no known format.
        StoreUnavailableError
            A store did not answer as it should, although the request was repeated.
        OSError, ValueError, TypeError
            The file cannot be read, or a keyword does not fit it.

        See Also
        --------
        xarray.open_dataset : Its other keywords, such as ``chunks``.
        xr_tensorfmt.explain : What a selection would read.
        xr_tensorfmt.to_file : The way back.

        Examples
        --------
        >>> import xarray as xr
        >>> xr.open_dataset(
        ...     "vertex.bin", engine="tensorfmt", dims=("F", "q", "r"), chunks={}
        ... )  # doctest: +SKIP
        """
        from xr_tensorfmt.opening import open_file  # noqa: PLC0415

        return open_file(filename_or_obj, parse_keywords(**keywords))

    def open_datatree(self, filename_or_obj: Any, **keywords: Any) -> DataTree:
        """Open a file as a tree, with a group for each part of a variable's name but the last.

        Parameters
        ----------
        filename_or_obj : object
            As for `open_dataset`.
        **keywords
            The keywords of `open_dataset`. With `group`, that group is the root of the tree.

        Returns
        -------
        DataTree
            ``"layers.0.weight"`` is the variable ``weight`` of the group ``/layers/0``. Attributes
            of the file are at the root.

        Raises
        ------
        TensorFormatError, OSError, ValueError, TypeError
            As for `open_dataset`.

        See Also
        --------
        xarray.open_datatree : What calls this.
        TensorFormatBackend.open_dataset : All keywords.

        Examples
        --------
        >>> import xarray as xr
        >>> xr.open_datatree("model.mag", engine="tensorfmt")  # doctest: +SKIP
        """
        from xr_tensorfmt.opening import open_tree  # noqa: PLC0415

        return open_tree(filename_or_obj, parse_keywords(**keywords))

    def open_groups_as_dict(self, filename_or_obj: Any, **keywords: Any) -> dict[str, Dataset]:
        """Open a file as one Dataset for each group.

        Parameters
        ----------
        filename_or_obj : object
            As for `open_dataset`.
        **keywords
            The keywords of `open_dataset`.

        Returns
        -------
        dict of str to Dataset
            The groups of `open_datatree`, by path.

        Raises
        ------
        TensorFormatError, OSError, ValueError, TypeError
            As for `open_dataset`.

        See Also
        --------
        xarray.open_groups : What calls this.
        TensorFormatBackend.open_dataset : All keywords.

        Examples
        --------
        >>> import xarray as xr
        >>> xr.open_groups("model.mag", engine="tensorfmt")  # doctest: +SKIP
        """
        from xr_tensorfmt.opening import open_groups  # noqa: PLC0415

        return open_groups(filename_or_obj, parse_keywords(**keywords))

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Whether a local file, a file object or bytes can only be of one of the formats.

        Parameters
        ----------
        filename_or_obj : object
            What the user passed to xarray.

        Returns
        -------
        bool
            False for URLs, of which nothing is requested, and for what cannot be read.
        """
        from xr_tensorfmt.opening import recognised  # noqa: PLC0415

        try:
            return recognised(filename_or_obj)
        except Exception:  # noqa: BLE001  # xarray then asks the other engines
            return False
