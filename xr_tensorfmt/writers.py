"""Functions that write tensor files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, get_args

from dask.delayed import Delayed
from xarray import DataArray, Dataset, DataTree

from xr_tensorfmt import formats
from xr_tensorfmt.contract import Format
from xr_tensorfmt.core.container import OpenOptions
from xr_tensorfmt.errors import did_you_mean
from xr_tensorfmt.writing.checked_input import Encoding, Part, check_input
from xr_tensorfmt.writing.region import write_region
from xr_tensorfmt.writing.save import get_name, locate_target, save
from xr_tensorfmt.writing.tree import flatten_tree

if TYPE_CHECKING:
    from xr_tensorfmt.formats.pycauset.write import MatrixType

Mode = Literal["w", "x"]
Form = Literal["short", "long", "hex"]


class WriteOptions(TypedDict, total=False):
    """The keywords that all functions for writing share; `to_file` describes them."""

    mode: Mode
    compute: bool
    region: Mapping[Any, slice] | None
    encoding: Encoding | None
    drop: Collection[Part]
    storage_options: Mapping[str, Any] | None
    fs: Any


def _allowed(format: Format, name: str, value: Any) -> Any:
    """The value of a keyword of a format; numbers and their str stand for each other."""
    if name not in format.write_options:
        own = " and ".join(sorted(format.write_options)) or "none"
        hint = did_you_mean(name, (*format.write_options, *signature(to_file).parameters))
        raise TypeError(
            f"{name!r}{hint} is not a keyword for {format.title} files; they take those of "
            f"to_file and, of their own, {own}"
        )
    allowed = format.write_options[name]
    for choice in allowed:
        if _comparable(value) == _comparable(choice):
            return choice
    if allowed:
        hint = did_you_mean(value, allowed)
        raise ValueError(f"{name}={value!r}{hint} is not one of {', '.join(map(repr, allowed))}")
    return value


def _comparable(value: Any) -> float | str:
    """A number where a value, or its str, is one; else its str."""
    try:
        return str(value) if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return str(value)


def _check_keywords(
    given: Mapping[str, Any], mode: str, region: Mapping[Any, slice] | None
) -> None:
    if not isinstance(region, Mapping | None):
        raise TypeError(f"region= must have the form {{'x': slice(0, 10)}}, not {region!r}")
    if mode not in get_args(Mode):
        raise ValueError(f"mode={mode!r} is neither 'w' (replace) nor 'x' (only if there is none)")
    if mode == "x" and region is not None:
        raise ValueError(
            "mode='x' demands that there is no file, and region= writes into one; leave one out"
        )
    if given and region is not None:
        raise ValueError(
            f"{', '.join(f'{name}=' for name in given)} is for new files, and region= writes into "
            "one that exists; leave one of them out"
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
    drop: Collection[Part] = (),
    separator: str = ".",
    storage_options: Mapping[str, Any] | None = None,
    fs: Any = None,
    **format_options: Any,
) -> Delayed | None:
    """Write a Dataset, DataArray or DataTree to a tensor file, chunk by chunk and in parallel.

    The file has another name beside `path` until it is complete and on the disk. If anything
    fails before that, what was there is unchanged.

    Parameters
    ----------
    data : Dataset, DataArray or DataTree
        What to write: in memory, lazy, or in chunks of dask, which are written one by one. Only
        coordinates that a header holds, labels of blocks, and pairs that were opened with
        ``sparse="stored"`` are gathered in memory. The data may have been opened from the very
        file that is written.
    path : str, PathLike or OpenFile
        The file, or a URL of any store that fsspec knows.
    format : str, optional
        Name of the format; by default the suffix of `path` decides.
    mode : {"w", "x"}
        Replace what is there (the default), or refuse to.
    compute : bool
        If False, nothing is written yet: the `dask.delayed.Delayed` that is returned does it.
    region : mapping of str to slice, optional
        Write into a part of a local file that exists and has the same variables. The file is
        changed in place, so that a failure leaves it changed in part.
    encoding : mapping, optional
        ``{name: {"dtype": ...}}``: the dtype that a variable is stored with. Numbers are rounded
        to it; an integer that would become another one is an error. Without it nothing is rounded.
        A name such as ``"layers.*"`` is a pattern, and ``{"dtype": ...}`` is for all variables;
        both change only those of the same kind, as floating-point ones for ``"bfloat16"``.
    drop : list of {"name", "dims", "coords", "attrs"}
        What may be left out where the format has no place for it, which is an error otherwise.
    separator : str
        Of a DataTree, what separates the parts of a variable's path in its name in the file.
    storage_options : mapping, optional
        Options of the file system of fsspec that the URL names.
    fs : AbstractFileSystem, optional
        The file system of fsspec that `path` is in.
    **format_options
        Keywords of the format; `to_tens` and the like describe them. None counts as not given.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something; the message says what, and what would work.
    TypeError
        A keyword is not one of the format, or a value has the wrong type.
    OSError
        The system refuses: no space, no permission, no such directory.

    See Also
    --------
    to_cc4s, to_mag, to_npy, to_pycauset, to_safetensors, to_tens, to_vespa : What each holds.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> ds = xr.Dataset({"tensor": (("a", "b"), np.eye(3))})
    >>> to_file(ds, "identity.tens")
    >>> xr.open_dataset("identity.tens", engine="tensorfmt").identical(ds)
    True
    """
    chosen = (
        formats.find_format(format)
        if format is not None
        else formats.find_format_for_path(get_name(path))
    )
    if not chosen.can_write:
        raise ValueError(f"{chosen.title} files can only be read; choose another format")
    given = {
        name: _allowed(chosen, name, value)
        for name, value in format_options.items()
        if value is not None
    }
    _check_keywords(given, mode, region)
    location = locate_target(path, storage_options, fs)
    if isinstance(data, DataTree):
        data = flatten_tree(location.url, data, separator, drop)
    elif separator != ".":
        raise ValueError(f"separator={separator!r} is for a DataTree; leave it out")
    checked = check_input(
        data, location.url, chosen.title, encoding, drop, file_attrs=formats.find_file_attrs
    )
    if region is not None:
        read = partial(formats.read, chosen=chosen, options=OpenOptions())
        return write_region(checked, location, region, read, compute=compute)
    return save(chosen.plan(checked, **given), location, replace=mode == "w", compute=compute)


_Function = TypeVar("_Function")


def with_write_options(function: _Function) -> _Function:
    """Show the keywords of a function that takes `WriteOptions` as they are those of `to_file`."""
    described: Any = function
    own, shared = signature(described), signature(to_file).parameters
    named = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    named += [shared[name] for name in WriteOptions.__annotations__]
    described.__signature__ = own.replace(parameters=named)
    return function


@with_write_options
def to_cc4s(
    data: Dataset | DataArray,
    path: Any,
    **options: Unpack[WriteOptions],
) -> Delayed | None:
    """Write a tensor as cc4s reads it today: ``<name>.yaml`` and ``<name>.elements`` beside it.

    Several variables become a TensorSet, with a file of elements for each.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write, as float64 or complex128. The names of dimensions become their types, without
        a number at the end that makes them different: cc4s wants (``AuxiliaryField``, ``State``,
        ``State_2``) for a Coulomb vertex. The attribute ``unit`` is the factor to atomic units, 1
        if it is missing; other attributes become ``metaData``. Coordinates such as ``State_Spin``,
        integers along ``State``, are written to ``State.yaml``.
    path : str or PathLike
        The YAML file, or its URL. cc4s knows what the tensor is by the name that it is given in
        its input; the usual one is that of the object, such as ``CoulombVertex.yaml``.
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`. The YAML is replaced when all elements are on the disk.

    Returns
    -------
    Delayed or None
        What writes the files when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something; the message says what, and what would work.
    OSError
        The system refuses; what was there before is unchanged.

    See Also
    --------
    xr_tensorfmt.to_file : All keywords that formats share.
    xr_tensorfmt.to_tens : What cc4s read until 2020.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> vertex = xr.DataArray(
    ...     np.ones((5, 3, 3), complex),
    ...     dims=("AuxiliaryField", "State", "State_2"),
    ...     attrs={"unit": 1.0, "halfGrid": 0},
    ...     name="CoulombVertex",
    ... )
    >>> to_cc4s(vertex, "CoulombVertex.yaml")
    >>> xr.open_dataset("CoulombVertex.yaml").CoulombVertex.identical(vertex)
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
    """Write a MAG file: every variable a tensor under its name.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write. Attributes of the Dataset become the file's metadata.
    path : str or PathLike
        The file, or its URL.
    version : {300, 1}
        A snapshot that magnetron 0.2 loads, or an archive as magnetron 0.1.2 wrote it, which has
        no place for dims, coordinates and attributes of variables.
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something; the message says what, and what would work.
    OSError
        The system refuses; what was there before is unchanged.

    See Also
    --------
    xr_tensorfmt.to_file : All keywords that formats share.
    xr_tensorfmt.to_safetensors : A format that more programs load.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> ds = xr.Dataset({"layers.0.weight": (("out", "in"), np.ones((2, 3), "float32"))})
    >>> to_mag(ds, "model.mag", encoding={"layers.0.weight": {"dtype": "bfloat16"}})
    """
    return to_file(data, path, "mag", version=version, **options)


@with_write_options
def to_npy(data: Dataset | DataArray, path: Any, **options: Unpack[WriteOptions]) -> Delayed | None:
    """Write one variable as an array that `numpy.load` loads.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write. An array has no place for names, coordinates and attributes, which must be
        dropped.
    path : str or PathLike
        The file, or its URL.
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    See Also
    --------
    xr_tensorfmt.to_file : All keywords that formats share, and what they raise.
    numpy.save : The same for an array in memory.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> array = xr.DataArray(np.eye(3), dims=("row", "column"), name="identity")
    >>> to_npy(array, "identity.npy", drop=["name", "dims"])
    >>> np.load("identity.npy").shape
    (3, 3)
    """
    return to_file(data, path, "npy", **options)


@with_write_options
def to_pycauset(
    data: Dataset | DataArray,
    path: Any,
    *,
    version: Literal["r1", "v2"] | None = None,
    matrix_type: MatrixType | None = None,
    seed: int | None = None,
    **options: Unpack[WriteOptions],
) -> Delayed | None:
    """Write a PyCauset file: one matrix or vector.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write: one variable of one or two dimensions.
    path : str or PathLike
        The file, or its URL.
    version : {"r1", "v2"}
        The container that PyCauset 0.5 and later load, or the format of 0.2, which holds only
        some types of square matrices and no names, coordinates or attributes.
    matrix_type : str, optional
        How to store it: ``"CAUSAL"``, ``"TRIANGULAR_FLOAT"``, ``"TRIANGULAR_INTEGER"``,
        ``"DENSE_FLOAT"``, ``"INTEGER"``, ``"SYMMETRIC"``, ``"ANTISYMMETRIC"``, ``"DIAGONAL"``,
        ``"IDENTITY"``, ``"VECTOR"`` or ``"UNIT_VECTOR"``. The values must be those of such a
        matrix. By default the type in the file that the variable was opened from, and
        ``"CAUSAL"`` for bools, if the values are those of such a matrix; else every element is
        stored.
    seed : int, optional
        Of the random numbers that the values come from; by default the attribute ``seed``.
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something, or the values are not those of the matrix type;
        the message says what, and what would work.
    OSError
        The system refuses; what was there before is unchanged.

    See Also
    --------
    xr_tensorfmt.to_file : All keywords that formats share.
    xr_tensorfmt.popcount : Count the bits of such a file.

    Notes
    -----
    Of a symmetric or antisymmetric matrix one half is stored. To see that the other half is its
    mirror image, every chunk is computed a second time. Where values turn out not to be those of
    the type that was chosen by default, the file is begun again, and they are computed anew.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> causal = xr.DataArray(np.triu(np.ones((4, 4), bool), 1), dims=("row", "col"))
    >>> to_pycauset(causal, "order.pycauset")
    """
    given: dict[str, Any] = {"version": version, "matrix_type": matrix_type, "seed": seed}
    return to_file(data, path, "pycauset", **given, **options)


@with_write_options
def to_safetensors(
    data: Dataset | DataArray, path: Any, **options: Unpack[WriteOptions]
) -> Delayed | None:
    """Write a safetensors file: every variable a tensor under its name.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write. Attributes of the Dataset that are strings become ``__metadata__``.
    path : str or PathLike
        The file, or its URL.
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    See Also
    --------
    xr_tensorfmt.to_file : All keywords that formats share, and what they raise.
    xr_tensorfmt.to_mag : A format with attributes of any kind.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> ds = xr.Dataset({"layers.0.weight": (("out", "in"), np.ones((2, 3), "float32"))})
    >>> to_safetensors(ds, "model.safetensors", encoding={"layers.*": {"dtype": "bfloat16"}})
    """
    return to_file(data, path, "safetensors", **options)


@with_write_options
def to_tens(
    data: Dataset | DataArray,
    path: Any,
    *,
    version: Literal["1.0", "0.9"] | float | None = None,
    sparse: bool = False,
    symmetries: str | Collection[str] | None = None,
    **options: Unpack[WriteOptions],
) -> Delayed | None:
    """Write a TENS file: one tensor.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write; one variable, with its coordinates.
    path : str or PathLike
        The file, or its URL.
    version : {"1.0", "0.9"}, optional
        What the specification describes, or what cc4s until 2020 and sisi4s read: float64 or
        complex128, without names, coordinates and attributes. By default 0.9 for a suffix
        ``.bin``; for a variable that was opened from a file of version 0.9 that version as well,
        with a warning and version 1.0 where it cannot hold something; else 1.0.
    sparse : bool
        Whether to store only what is not zero, as pairs of index and value. For this the values
        are computed twice: to count them, and to write them. What was opened with
        ``sparse="stored"`` is written as pairs in any case, after it is loaded and sorted.
    symmetries : str or collection of str, optional
        What leaves the tensor as it is, and is to be stated in a file of version 1.0: ``"-x ba"``
        says T[a, b] = -T[b, a]. Dimensions of longer names are called a, b, ... in their order.
        All values are stored nonetheless, and each is compared with its image first, which
        computes them once more. By default those of the opened file, if its dims are still the
        same; an empty list for none.
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something, or the values do not have the symmetries; the message
        says what, and what would work.
    OSError
        The system refuses; what was there before is unchanged.

    Warns
    -----
    TensorFormatWarning
        What was opened as version 0.9 is written as 1.0, which cc4s and sisi4s cannot load.

    See Also
    --------
    xr_tensorfmt.to_file : All keywords that formats share.
    xr_tensorfmt.to_cc4s : What cc4s reads today.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> tensor = xr.DataArray(np.eye(3), dims=("a", "b"))
    >>> to_tens(tensor, "identity.tens", sparse=True)
    >>> to_tens(tensor, "identity.bin")
    """
    given: dict[str, Any] = {"version": version, "sparse": sparse or None, "symmetries": symmetries}
    return to_file(data, path, "tens", **given, **options)


@with_write_options
def to_vespa(
    data: Dataset | DataArray,
    path: Any,
    **options: Unpack[WriteOptions],
) -> Delayed | None:
    """Write a typed binary tensor of Vespa.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write: one variable, ``"tensor"``, of float64, float32, bfloat16 or int8. A
        dimension whose coordinate holds strings is mapped, and so is each coordinate of strings
        along the dimension ``block``; dimensions without a coordinate are indexed.
    path : str or PathLike
        The file, or its URL.
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`.

    Returns
    -------
    Delayed or None
        With ``compute=False`` an object that writes the file when it is computed.

    Raises
    ------
    ValueError
        The format cannot hold something; the message says what, and what would work.
    OSError
        The file cannot be written; what was there before is unchanged.

    See Also
    --------
    xr_tensorfmt.to_file : All keywords that formats share.
    xr_tensorfmt.vespa_to_json : The same as JSON.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> users = xr.DataArray(
    ...     np.ones((2, 3), "float32"), {"user": ["ada", "bob"]}, dims=("user", "x")
    ... )
    >>> to_vespa(users, "users.tbf")
    """
    return to_file(data, path, "vespa", **options)


def vespa_to_json(
    data: Dataset | DataArray,
    form: Form = "short",
    *,
    encoding: Encoding | None = None,
    drop: Collection[Part] = (),
) -> dict[str, Any]:
    """Make the JSON of a tensor, as Vespa returns it and as fields of documents are fed.

    Parameters
    ----------
    data : Dataset or DataArray
        One variable, as `to_vespa` takes it. JSON has no place for its name.
    form : {"short", "long", "hex"}
        Nested lists of values (the default), a list of cells with their addresses, or the short
        form with hexadecimal digits for dense values, which are exact and quick to parse.
    encoding : mapping, optional
        ``{name: {"dtype": ...}}``, as `to_vespa` takes it.
    drop : list of {"coords", "attrs"}
        What may be left out, which is an error otherwise.

    Returns
    -------
    dict
        With the ``"type"`` and ``"values"``, ``"cells"`` or ``"blocks"``, for `json.dumps` or
        pyvespa. NaN is None, and infinities are strings, as JSON has no numbers for them.

    Raises
    ------
    ValueError
        Vespa cannot hold something; the message says what, and what would work.

    See Also
    --------
    vespa_from_json : The inverse.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> vector = xr.DataArray(np.float32([1, 2]), dims="x")
    >>> vespa_to_json(vector)
    {'type': 'tensor<float>(x[2])', 'values': [1.0, 2.0]}
    >>> vespa_to_json(vector, "hex")
    {'type': 'tensor<float>(x[2])', 'values': '3F80000040000000'}
    """
    from xr_tensorfmt.formats.vespa.write import arranged  # noqa: PLC0415
    from xr_tensorfmt.formats.vespa.write_json import to_json  # noqa: PLC0415

    if form not in get_args(Form):
        raise ValueError(f"form={form!r} is not one of {', '.join(map(repr, get_args(Form)))}")
    checked = check_input(
        data, "the JSON", "Vespa", encoding, drop, file_attrs=formats.find_file_attrs
    )
    return to_json(*arranged(checked), form)
