"""Functions that write tensor files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from functools import partial
from inspect import cleandoc, signature
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args

from dask.delayed import Delayed
from xarray import DataArray, Dataset, DataTree

from xr_tensorfmt.contract import Format
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.datasets.options import Function, with_keywords
from xr_tensorfmt.errors import TensorFormatWarning, did_you_mean, find_stack_level
from xr_tensorfmt.formats import registry
from xr_tensorfmt.formats.reading import read_container
from xr_tensorfmt.sources.store_errors import redact
from xr_tensorfmt.writing.checked_input import DroppablePart, check_input
from xr_tensorfmt.writing.encoding import Encoding
from xr_tensorfmt.writing.region import write_region
from xr_tensorfmt.writing.save import get_name, locate_target, save
from xr_tensorfmt.writing.tree import flatten_tree

if TYPE_CHECKING:
    from xr_tensorfmt.formats.pycauset.write import MatrixType

Mode = Literal["w", "x"]
Form = Literal["short", "long", "hex"]

# A parameter in a docstring: its name, and its type with the indented description.
_ENTRY = re.compile(r"^(\w+) : (.*\n(?: {4}.*\n)+)", re.MULTILINE)


class WriteOptions(TypedDict, total=False):
    """Keywords of all writers. `to_file` documents them."""

    mode: Mode
    compute: bool
    region: Mapping[Any, slice] | None
    encoding: Encoding | None
    drop: Collection[DroppablePart]
    storage_options: Mapping[str, Any] | None
    fs: Any


def _normalize_option(format: Format, name: str, value: Any) -> Any:
    """Return the value of a keyword of a format. ``1`` and ``"1"`` are equivalent."""
    if name not in format.write_options:
        keywords = " and ".join(["the keywords of to_file", *sorted(format.write_options)])
        hint = did_you_mean(name, (*format.write_options, *signature(to_file).parameters))
        if name == "dtype":
            hint = f" (pass encoding={{'dtype': {value!r}}})"
        raise TypeError(
            f"{name!r}{hint} is not a keyword for {format.title} files; they accept {keywords}"
        )
    allowed = format.write_options[name]
    for choice in allowed:
        if _to_comparable(value) == _to_comparable(choice):
            return choice
    if allowed:
        hint = did_you_mean(value, allowed)
        raise ValueError(f"{name}={value!r}{hint} is not one of {', '.join(map(repr, allowed))}")
    return value


def _to_comparable(value: Any) -> float | str:
    """Convert a value to a number if possible, otherwise to a str."""
    try:
        return str(value) if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return str(value)


def _check_keywords(
    format_options: Mapping[str, Any], mode: str, region: Mapping[Any, slice] | None
) -> None:
    if not isinstance(region, Mapping | None):
        raise TypeError(f"region= must have the form {{'x': slice(0, 10)}}, not {region!r}")
    if mode not in get_args(Mode):
        raise ValueError(f"mode={mode!r} is neither 'w' (overwrite) nor 'x' (create a new file)")
    if mode == "x" and region is not None:
        raise ValueError(
            "mode='x' creates a new file, but region= writes to an existing file; omit one of them"
        )
    if format_options and region is not None:
        names = ", ".join(f"{name}=" for name in format_options)
        raise ValueError(
            f"{names} is for new files, but region= writes to an existing file; omit one of them"
        )


def to_file(
    data: Dataset | DataArray | DataTree,
    path: Any,
    format: str | None = None,
    *,
    mode: Mode = "w",
    compute: bool = True,
    region: Mapping[Any, slice] | None = None,
    encoding: Encoding | None = None,
    drop: Collection[DroppablePart] = (),
    separator: str = ".",
    storage_options: Mapping[str, Any] | None = None,
    fs: Any = None,
    **format_options: Any,
) -> Delayed | None:
    """Write a Dataset, DataArray or DataTree to a tensor file, chunk by chunk and in parallel.

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
    mode : {"w", "x"}
        ``"w"`` overwrites an existing file, ``"x"`` raises an error if it exists.
    compute : bool
        If False, return a `dask.delayed.Delayed` that writes the file when it is computed.
    region : mapping of str to slice, optional
        Write to a part of an existing local file with the same variables. The file is changed in
        place, so an error can leave the part incomplete. Unlike in `xarray.Dataset.to_zarr`,
        ``"auto"`` is not supported.
    encoding : mapping, optional
        ``{name: {"dtype": ...}}``: the dtype of a variable in the file. Floating-point values are
        rounded to it; integers must be representable. Without an encoding, values must be
        representable in the dtype of the file. A name can be a pattern such as ``"layers.*"``, and
        ``{"dtype": ...}`` applies to all variables. Both apply only to variables of the same kind,
        such as floating-point variables for ``"bfloat16"``.
    drop : list of {"name", "dims", "coords", "attrs"}
        Parts to omit if the format does not support them. Otherwise they raise an error.
    separator : str
        Separator between group and variable names of a DataTree.
    storage_options : mapping, optional
        Options of the fsspec file system of a URL.
    fs : AbstractFileSystem, optional
        The fsspec file system of `path`.
    **format_options
        Keywords of the format, as in `to_tens`. None selects the default of the format.

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
    to_cc4s, to_mag, to_npy, to_pycauset, to_safetensors, to_tens, to_vespa : Formats.

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
    file_format = (
        registry.find_format(format)
        if format is not None
        else registry.find_format_for_path(get_name(path))
    )
    name = get_name(path)
    named = registry.find_format_by_suffix(name) or file_format
    # A format of another package may have the same suffix, or none.
    if len(named.find_suffix(name)) > len(file_format.find_suffix(name)):
        suffixes = ", ".join(file_format.suffixes)
        warnings.warn(
            f"{redact(name)}: the suffix is for {named.title} files, but the file is "
            f"{file_format.title}; use {f'one of {suffixes}' if suffixes else 'another one'}",
            TensorFormatWarning,
            stacklevel=find_stack_level(),
        )
    if not file_format.can_write:
        raise ValueError(f"{file_format.title} files can only be read; choose another format")
    format_options = {
        name: _normalize_option(file_format, name, value)
        for name, value in format_options.items()
        if value is not None
    }
    _check_keywords(format_options, mode, region)
    location = locate_target(path, storage_options, fs)
    if isinstance(data, DataTree):
        data = flatten_tree(location.url, data, separator, drop)
    elif separator != ".":
        raise ValueError(f"separator={separator!r} is only for a DataTree; omit it")
    title, reader_attrs = file_format.title, registry.list_reader_attrs()
    checked = check_input(data, location.url, title, encoding, drop, reader_attrs=reader_attrs)
    if region is not None:
        read = partial(read_container, file_format=file_format, options=OpenOptions())
        return write_region(checked, location, region, read, compute=compute)
    plan = file_format.plan(checked, **format_options)
    return save(plan, location, overwrite=mode == "w", compute=compute)


def with_write_options(function: Function) -> Function:
    """Replace ``**options`` in the signature and the docstring with the keywords of `to_file`."""
    parameters = signature(to_file).parameters
    keywords = [parameters[name] for name in WriteOptions.__annotations__]
    if function.__doc__ and to_file.__doc__:  # missing with python -OO
        entries = dict(_ENTRY.findall(cleandoc(to_file.__doc__)))
        documented = "".join(f"{name} : {entries[name]}" for name in WriteOptions.__annotations__)
        head, _, tail = cleandoc(function.__doc__).partition("**options\n")
        function.__doc__ = head + documented + tail.partition("\n")[2]  # without its description
    return with_keywords(keywords)(function)


@with_write_options
def to_cc4s(
    data: Dataset | DataArray,
    path: Any,
    **options: Unpack[WriteOptions],
) -> Delayed | None:
    """Write a cc4s tensor: ``<name>.yaml`` and its sibling ``<name>.elements``.

    Several variables become a TensorSet, with one file of elements per variable.

    Parameters
    ----------
    data : Dataset or DataArray
        The data. They are stored as float64 or complex128. The type of a dimension is its name
        without a final number: ``State`` and ``State_2`` have the type ``State``. The attribute
        ``unit`` is the factor to atomic units, 1 by default. Other attributes become ``metaData``.
        Integer coordinates such as ``State_Spin`` along ``State`` are written to ``State.yaml``.
    path : str or PathLike
        The YAML file, or its URL. By convention it is named after the object, such as
        ``CoulombVertex.yaml``. It is replaced after the elements are complete.
    **options
        Keywords of `to_file`, from `mode` to `fs`.

    Returns
    -------
    Delayed or None
        A `Delayed` if `compute` is False.

    Raises
    ------
    ValueError
        The format does not support the data. The message names an alternative.
    OSError
        The file cannot be written. An existing file is unchanged.

    See Also
    --------
    xr_tensorfmt.to_file : Common keywords.
    xr_tensorfmt.to_tens : The format of cc4s until 2020.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> dims = (
    ...     "AuxiliaryField",
    ...     "State",
    ...     "State_2",
    ... )
    >>> vertex = xr.DataArray(
    ...     np.ones((5, 3, 3), complex),
    ...     dims=dims,
    ...     attrs={"unit": 1.0, "halfGrid": 0},
    ...     name="CoulombVertex",
    ... )
    >>> path = "CoulombVertex.yaml"
    >>> xr_tensorfmt.to_cc4s(vertex, path)
    >>> ds = xr.open_dataset(
    ...     path, engine="tensorfmt"
    ... )
    >>> ds.CoulombVertex.identical(vertex)
    True
    """
    return to_file(data, path, "cc4s", **options)


@with_write_options
def to_mag(
    data: Dataset | DataArray,
    path: Any,
    *,
    version: Literal[300, 1] | None = None,
    **options: Unpack[WriteOptions],
) -> Delayed | None:
    """Write a MAG file, with variable names as keys.

    Parameters
    ----------
    data : Dataset or DataArray
        The data. Attributes of the Dataset become metadata of the file.
    path : str or PathLike
        The file, or its URL.
    version : {300, 1}, optional
        300, the default, is a snapshot for magnetron 0.2. 1 is an archive as written by magnetron
        0.1.2, without dims, coordinates and attributes of variables.
    **options
        Keywords of `to_file`, from `mode` to `fs`.

    Returns
    -------
    Delayed or None
        A `Delayed` if `compute` is False.

    Raises
    ------
    ValueError
        The format does not support the data. The message names an alternative.
    OSError
        The file cannot be written. An existing file is unchanged.

    See Also
    --------
    xr_tensorfmt.to_file : Common keywords.
    xr_tensorfmt.to_safetensors : A format with wider support.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> ones = np.ones((2, 3), "float32")
    >>> weight = (("out", "in"), ones)
    >>> tensors = {"layers.0.weight": weight}
    >>> ds = xr.Dataset(tensors)
    >>> xr_tensorfmt.to_mag(
    ...     ds,
    ...     "model.mag",
    ...     encoding={"dtype": "bfloat16"},
    ... )
    >>> back = xr.open_dataset(
    ...     "model.mag", engine="tensorfmt"
    ... )
    >>> back["layers.0.weight"].encoding["dtype"]
    'bfloat16'
    """
    return to_file(data, path, "mag", version=version, **options)


@with_write_options
def to_npy(data: Dataset | DataArray, path: Any, **options: Unpack[WriteOptions]) -> Delayed | None:
    """Write a variable as an array for `numpy.load`.

    Parameters
    ----------
    data : Dataset or DataArray
        The data. The format does not support names, coordinates and attributes; `drop` omits them.
    path : str or PathLike
        The file, or its URL.
    **options
        Keywords of `to_file`, from `mode` to `fs`.

    Returns
    -------
    Delayed or None
        A `Delayed` if `compute` is False.

    See Also
    --------
    xr_tensorfmt.to_file : Common keywords and errors.
    numpy.save : The same for an array in memory.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> array = xr.DataArray(
    ...     np.eye(3),
    ...     dims=["a", "b"],
    ...     name="eye",
    ... )
    >>> xr_tensorfmt.to_npy(
    ...     array,
    ...     "eye.npy",
    ...     drop=["name", "dims"],
    ... )
    >>> np.load("eye.npy").shape
    (3, 3)
    """
    return to_file(data, path, "npy", **options)


@with_write_options
def to_pycauset(
    data: Dataset | DataArray,
    path: Any,
    *,
    matrix_type: MatrixType | None = None,
    seed: int | None = None,
    **options: Unpack[WriteOptions],
) -> Delayed | None:
    """Write a PyCauset file with a matrix or vector, for PyCauset 0.5 and later.

    Parameters
    ----------
    data : Dataset or DataArray
        The data: one variable with one or two dimensions.
    path : str or PathLike
        The file, or its URL.
    matrix_type : str, optional
        How to store the matrix: ``"CAUSAL"``, ``"TRIANGULAR_FLOAT"``, ``"TRIANGULAR_INTEGER"``,
        ``"DENSE_FLOAT"``, ``"INTEGER"`` or ``"VECTOR"``. The values must fit the type. The default
        is the type of the opened file, or ``"CAUSAL"`` for bools of another origin. If the values
        do not fit the default, all elements are stored.
    seed : int, optional
        Seed of the random numbers in the values. The default is the attribute ``seed``.
    **options
        Keywords of `to_file`, from `mode` to `fs`.

    Returns
    -------
    Delayed or None
        A `Delayed` if `compute` is False.

    Raises
    ------
    ValueError
        The format does not support the data, or the values do not fit the matrix type. The
        message names an alternative.
    OSError
        The file cannot be written. An existing file is unchanged.

    See Also
    --------
    xr_tensorfmt.to_file : Common keywords.
    xr_tensorfmt.pycauset.popcount : Sums of packed bits.

    Notes
    -----
    If values do not fit the default type, writing restarts with another type, and the values are
    computed again.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> bits = np.triu(np.ones((4, 4), bool), 1)
    >>> dims = ["a", "b"]
    >>> causal = xr.DataArray(bits, dims=dims)
    >>> path = "order.pycauset"
    >>> xr_tensorfmt.to_pycauset(causal, path)
    >>> back = xr.open_dataarray(
    ...     path, engine="tensorfmt"
    ... )
    >>> back.encoding["tensorfmt"]["matrix_type"]
    'CAUSAL'
    """
    return to_file(data, path, "pycauset", matrix_type=matrix_type, seed=seed, **options)


@with_write_options
def to_safetensors(
    data: Dataset | DataArray,
    path: Any,
    *,
    max_shard_bytes: int | str | None = None,
    **options: Unpack[WriteOptions],
) -> Delayed | None:
    """Write a safetensors file, or a model in several files, with variable names as keys.

    Parameters
    ----------
    data : Dataset or DataArray
        The data. String attributes of the Dataset become ``__metadata__``.
    path : str or PathLike
        The file, or its URL. A name that ends with ``.safetensors.index.json`` writes several
        files and their index, named as by transformers and huggingface_hub, such as
        ``model-00001-of-00002.safetensors``.
    max_shard_bytes : int or str, optional
        Limit on the data of a file, if there are several: a number of bytes, or a str such as
        ``"5GB"``, which is the default. A single tensor may be larger.
    **options
        Keywords of `to_file`, from `mode` to `fs`.

    Returns
    -------
    Delayed or None
        A `Delayed` if `compute` is False.

    See Also
    --------
    xr_tensorfmt.to_file : Common keywords and errors.
    xr_tensorfmt.to_mag : A format with attributes of all types.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> ones = np.ones((2, 3), "float32")
    >>> weight = (("out", "in"), ones)
    >>> tensors = {"layers.0.weight": weight}
    >>> ds = xr.Dataset(tensors)
    >>> xr_tensorfmt.to_safetensors(
    ...     ds,
    ...     "model.safetensors",
    ...     encoding={"dtype": "bfloat16"},
    ... )
    >>> back = xr.open_dataset(
    ...     "model.safetensors",
    ...     engine="tensorfmt",
    ... )
    >>> back["layers.0.weight"].dims
    ('out', 'in')

    Write several files and an index:

    >>> xr_tensorfmt.to_safetensors(
    ...     ds,
    ...     "model.safetensors.index.json",
    ...     max_shard_bytes="2GB",
    ... )
    """
    return to_file(data, path, "safetensors", max_shard_bytes=max_shard_bytes, **options)


@with_write_options
def to_tens(
    data: Dataset | DataArray,
    path: Any,
    *,
    version: Literal["1.0", "0.9"] | float | None = None,
    **options: Unpack[WriteOptions],
) -> Delayed | None:
    """Write a TENS file with one tensor.

    Parameters
    ----------
    data : Dataset or DataArray
        The data: one variable with its coordinates.
    path : str or PathLike
        The file, or its URL.
    version : {"1.0", "0.9"}, optional
        "1.0" is the version of the specification. "0.9" is the version of sisi4s, and of cc4s
        until 2020: float64 or complex128 without names, coordinates and attributes. The default is
        "0.9" for the suffix ``.bin``, and for data that were opened from version 0.9 if this
        version supports them. Otherwise the default is "1.0", with a warning if it was 0.9.
    **options
        Keywords of `to_file`, from `mode` to `fs`.

    Returns
    -------
    Delayed or None
        A `Delayed` if `compute` is False.

    Raises
    ------
    ValueError
        The format does not support the data. The message names an alternative.
    OSError
        The file cannot be written. An existing file is unchanged.

    Warns
    -----
    TensorFormatWarning
        Data of version 0.9 are written as 1.0, which cc4s and sisi4s cannot read.

    See Also
    --------
    xr_tensorfmt.to_file : Common keywords.
    xr_tensorfmt.to_cc4s : The current format of cc4s.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> values = np.eye(3)
    >>> dims = ["a", "b"]
    >>> eye = xr.DataArray(values, dims=dims)
    >>> xr_tensorfmt.to_tens(eye, "eye.tens")
    >>> back = xr.open_dataarray(
    ...     "eye.tens", engine="tensorfmt"
    ... )
    >>> back.dims
    ('a', 'b')

    The suffix ``.bin`` selects version 0.9 for cc4s and sisi4s:

    >>> xr_tensorfmt.to_tens(eye, "eye.bin")
    """
    return to_file(data, path, "tens", version=version, **options)


@with_write_options
def to_vespa(
    data: Dataset | DataArray,
    path: Any,
    **options: Unpack[WriteOptions],
) -> Delayed | None:
    """Write a tensor as a typed binary tensor of Vespa.

    Parameters
    ----------
    data : Dataset or DataArray
        The data: one variable named ``"tensor"`` of float64, float32, bfloat16 or int8. A
        dimension with string labels is mapped, and one without labels is indexed. Coordinates of
        strings along the dimension ``block`` stand for several mapped dimensions.
    path : str or PathLike
        The file, or its URL.
    **options
        Keywords of `to_file`, from `mode` to `fs`.

    Returns
    -------
    Delayed or None
        A `Delayed` if `compute` is False.

    Raises
    ------
    ValueError
        The format does not support the data. The message names an alternative.
    OSError
        The file cannot be written. An existing file is unchanged.

    See Also
    --------
    xr_tensorfmt.to_file : Common keywords.
    xr_tensorfmt.vespa_to_json : Convert to JSON.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> users = xr.DataArray(
    ...     np.ones((2, 3), "float32"),
    ...     {"user": ["ada", "bob"]},
    ...     dims=("user", "x"),
    ... )
    >>> xr_tensorfmt.to_vespa(users, "users.tbf")
    >>> back = xr.open_dataarray(
    ...     "users.tbf", engine="tensorfmt"
    ... )
    >>> back.sel(user="bob").values
    array([1., 1., 1.], dtype=float32)
    """
    return to_file(data, path, "vespa", **options)


def vespa_to_json(
    data: Dataset | DataArray,
    form: Form = "short",
    *,
    encoding: Encoding | None = None,
    drop: Collection[DroppablePart] = (),
) -> dict[str, Any]:
    """Convert a tensor to the JSON that Vespa returns and accepts in documents.

    Parameters
    ----------
    data : Dataset or DataArray
        The data, as in `to_vespa`. The name of the variable is not stored.
    form : {"short", "long", "hex"}
        ``"short"`` has nested lists of values, ``"long"`` has a list of cells with addresses, and
        ``"hex"`` is the short form with hexadecimal digits for dense values, which are lossless
        and fast to parse.
    encoding : mapping, optional
        ``{name: {"dtype": ...}}``, as in `to_vespa`.
    drop : list of {"coords", "attrs"}
        Parts to omit. Otherwise they raise an error.

    Returns
    -------
    dict
        The ``"type"`` and ``"values"``, ``"cells"`` or ``"blocks"``, for `json.dumps` or pyvespa.
        NaN is None, and infinities are strings.

    Raises
    ------
    ValueError
        Vespa does not support the data. The message names an alternative.

    See Also
    --------
    vespa_from_json : Open JSON.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import xr_tensorfmt
    >>> values = np.float32([1, 2])
    >>> vector = xr.DataArray(values, dims="x")
    >>> xr_tensorfmt.vespa_to_json(vector)
    {'type': 'tensor<float>(x[2])', 'values': [1.0, 2.0]}
    >>> xr_tensorfmt.vespa_to_json(vector, "hex")
    {'type': 'tensor<float>(x[2])', 'values': '3F80000040000000'}
    """
    from xr_tensorfmt.formats.vespa.write import arrange_tensor  # noqa: PLC0415
    from xr_tensorfmt.formats.vespa.write_json import build_json  # noqa: PLC0415

    if form not in get_args(Form):
        raise ValueError(f"form={form!r} is not one of {', '.join(map(repr, get_args(Form)))}")
    checked = check_input(
        data, "the JSON", "Vespa", encoding, drop, reader_attrs=registry.list_reader_attrs()
    )
    return build_json(*arrange_tensor(checked), form)
