"""The door: what xarray calls. No parsing, no bytes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from xarray import Coordinates, Dataset, Variable, conventions
from xarray.backends import BackendEntrypoint

from xr_tensorfmt import chunks, formats
from xr_tensorfmt.errors import TensorFormatWarning
from xr_tensorfmt.formats import OpenOptions, Sparse
from xr_tensorfmt.lazyarray import lazy_array
from xr_tensorfmt.sources import InputOutput, Source, is_url, open_source
from xr_tensorfmt.tensor import Container, Names, Tensor


class TensorFormatBackend(BackendEntrypoint):
    """Opens binary tensor files as lazy, labelled Datasets.

    xarray finds it as ``engine="tensorfmt"``.
    """

    description: ClassVar[str] = "Open binary tensor files (TENS) as lazy, labelled Datasets"
    url: ClassVar[str] = "https://xr-tensorfmt.readthedocs.io"
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
        io: InputOutput = "auto",
        chunk_bytes: int | str = chunks.TARGET,
    ) -> Dataset:
        """Open a file; nothing but its header is read.

        Parameters
        ----------
        filename_or_obj : str, PathLike, file object, bytes, bytearray or memoryview
            The file; ``~`` is the home folder. A file object is read from its start, whatever its
            position, which moves; it must stay open while values are lazy.
        mask_and_scale, decode_times, concat_characters, decode_coords : bool, mapping or str
            As in `xarray.open_dataset`; they act on attributes that the file itself has.
        drop_variables : str or iterable of str, optional
            Variables to leave out.
        use_cftime, decode_timedelta : bool, mapping or coder, optional
            As in `xarray.open_dataset`.
        format : {"tens"}, optional
            The format; by default the content decides.
        name : str
            Name of the variable.
        dims : sequence of str, or mapping of variable name to such, optional
            A name for each index in the order of the file, in place of the file's own names.
        sparse : {"auto", "dense", "stored"}
            For a file of index-value pairs. ``"dense"`` is the full tensor, with zeros where
            nothing is stored; ``"auto"`` is the same, but refuses tensors of more than 2**40
            elements; ``"stored"`` is the stored values over dim ``entry``, with a coordinate for
            each dimension, and refuses files that store every element.
        io : {"auto", "mmap", "read"}
            How a local file is read: by windows mapped for each read (``"auto"`` and ``"mmap"``
            are the same today), or into memory of its own (``"read"``), which suits network file
            systems. It means nothing for file objects and bytes.
        chunk_bytes : int or str
            Most bytes of a chunk of ``chunks={}``, 32 MiB by default; texts such as ``"64MiB"``
            are understood. dask's ``array.chunk-size`` is a limit as well.

        Returns
        -------
        Dataset

        Raises
        ------
        TensorFormatError
            The file is damaged or of no known format.
        OSError
            There is no such file, or it may not be read.
        ValueError, TypeError
            A keyword does not fit the file.

        Examples
        --------
        >>> xr.open_dataset(
        ...     "CoulombVertex.bin", engine="tensorfmt", dims=("F", "q", "r"), chunks={}
        ... )  # doctest: +SKIP
        """
        target = _chunk_target(chunk_bytes)
        source = open_source(filename_or_obj, io)
        container = formats.parse(source, OpenOptions(name, dims, sparse), format)
        for message in container.warnings:
            # Two frames up, past xarray's own function, is the line of the user.
            warnings.warn(message, TensorFormatWarning, stacklevel=3)
        variables, attrs, coordinates = conventions.decode_cf_variables(
            _variables(container, source, target),
            dict(container.attrs),
            concat_characters=concat_characters,
            mask_and_scale=mask_and_scale,
            decode_times=decode_times,
            decode_coords=decode_coords,
            drop_variables=drop_variables,
            use_cftime=use_cftime,
            decode_timedelta=decode_timedelta,
        )
        names = {each.name for each in container.coordinates} | coordinates
        coords = {key: value for key, value in variables.items() if key in names}
        data = {key: value for key, value in variables.items() if key not in names}
        # Without indexes: what labels the pairs of a sparse tensor must stay lazy.
        dataset = Dataset(data, Coordinates(coords, indexes={}), attrs)
        dataset.set_close(_nothing_to_close)
        return dataset

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
        if is_url(filename_or_obj):
            return False
        try:
            return _recognised(filename_or_obj)
        except Exception:  # noqa: BLE001  # no fault of any file is ours to report here
            return False


def _nothing_to_close() -> None:
    """Reads leave nothing open; `xarray.open_mfdataset` wants something to call all the same."""


def _recognised(file: Any) -> bool:
    if isinstance(file, str | os.PathLike | bytes | bytearray | memoryview):
        return formats.recognised(open_source(file, "read"))
    position = file.tell()
    try:
        return formats.recognised(open_source(file))
    finally:
        file.seek(position)


def _variables(container: Container, source: Source, target: int) -> dict[str, Variable]:
    tensors = (*container.tensors, *container.coordinates)
    return {each.name: _variable(each, source, target) for each in tensors}


def _variable(tensor: Tensor, source: Source, target: int) -> Variable:
    chunk = dict(zip(tensor.dims, tensor.layout.chunk_shape(target), strict=True))
    encoding = {**tensor.encoding, "preferred_chunks": chunk}
    return Variable(tensor.dims, lazy_array(source, tensor.layout), dict(tensor.attrs), encoding)


def _chunk_target(chunk_bytes: int | str) -> int:
    """Bytes of a chunk: what the user wants, but no more than dask would leave uncut."""
    # Not at the top: every user of xarray pays for what an entry point imports.
    import dask.config  # noqa: PLC0415
    from dask.utils import parse_bytes  # noqa: PLC0415

    if isinstance(chunk_bytes, bool) or not isinstance(chunk_bytes, int | str):
        raise TypeError(f"chunk_bytes={chunk_bytes!r} is neither an int nor a text such as '32MiB'")
    wanted = parse_bytes(chunk_bytes)
    if wanted < 1:
        raise ValueError(f"chunk_bytes={chunk_bytes!r} is not a positive number of bytes")
    return min(wanted, int(parse_bytes(dask.config.get("array.chunk-size", "128MiB"))))
