"""Checks of what is to be written that are the same for all formats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from json import dumps
from typing import Any, Literal, get_args

import numpy as np
from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.core.container import OpenOptions, Tensor
from xr_tensorfmt.core.elements import Element, StoredDtype
from xr_tensorfmt.core.header import MAX_DIMENSIONS, MAX_ITEM_BYTES, is_addressable
from xr_tensorfmt.datasets.lazy_array import get_lazy_data, unmodified_tensor
from xr_tensorfmt.errors import did_you_mean, shorten
from xr_tensorfmt.writing.conversion import Conversion, check_dense, dtype_name, is_numeric


def check_name(path: str, name: Hashable) -> None:
    """Refuse a name that no file can hold."""
    if not isinstance(name, str):
        raise TypeError(f"{path}: the name {name!r} is not a str; rename it to {str(name)!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{path}: the name {name!a} cannot be encoded as UTF-8; rename it"
        ) from None


def check_variable(path: str, name: str, variable: Variable, *, labels: bool) -> None:
    """Refuse a variable that no file gives back as it is."""
    if len(set(variable.dims)) != len(variable.dims):
        raise ValueError(
            f"{path}: {name!r} has two dimensions of the same name in {variable.dims}; rename one"
        )
    if any(length != length for length in variable.shape):  # NaN
        raise ValueError(
            f"{path}: dask does not know how long {name!r} is; "
            "call compute_chunk_sizes() on its array first"
        )
    if not is_addressable(variable.shape, MAX_ITEM_BYTES):
        raise ValueError(
            f"{path}: {name!r} of shape {variable.shape} exceeds any address space; "
            "write a part of it"
        )
    check_dense(name, get_lazy_data(variable))
    if name in variable.dims and not labels:
        raise ValueError(
            f"{path}: {name!r} has the name of one of its dimensions but is not a coordinate, and "
            "would open as one; rename it, or call set_coords"
        )


Encoding = Mapping[Any, Any]
"""``{name: {"dtype": ...}}``, where the name may be a pattern, or ``{"dtype": ...}`` for all."""


def encoding_by_name(
    variables: Mapping[Any, Variable], coordinates: Collection[Any], encoding: Any
) -> dict[Any, Mapping[str, Any]]:
    """Spell out an ``encoding=`` for each variable that it changes.

    A name wins over patterns of `fnmatch`, the first of several patterns over the others, and each
    of these over the dtype for all. Patterns and the dtype for all change no coordinates, and only
    variables of the kind of the dtype, but a sole variable in any case.
    """
    if not isinstance(encoding, Mapping):
        raise _form_error(encoding)
    asked = list(encoding.items())
    if not isinstance(encoding.get("dtype", {}), Mapping):
        asked.remove(("dtype", encoding["dtype"]))
        asked.append(("*", {"dtype": encoding["dtype"]}))
    data = {name: each for name, each in variables.items() if name not in coordinates}
    names: dict[Any, Mapping[str, Any]] = {}
    matched: dict[Any, Mapping[str, Any]] = {}
    for name, wanted in asked:
        if not isinstance(wanted, Mapping):
            raise _form_error(encoding)
        unknown = set(wanted) - {"dtype"}
        if unknown:
            raise ValueError(
                f"encoding={{{name!r}: {wanted!r}}} has {', '.join(map(repr, sorted(unknown)))}; "
                "only 'dtype' can be given"
            )
        if name in variables:
            names[name] = wanted
        elif isinstance(name, str) and _WILDCARDS & set(name):
            matched = dict.fromkeys(_matching(name, wanted, data), wanted) | matched
        else:
            raise ValueError(
                f"encoding= names {name!r}{did_you_mean(name, variables)}, which is not one of the "
                f"variables {shorten(', '.join(map(repr, variables)))}"
            )
    return matched | names


_WILDCARDS = frozenset("*?[")


def _form_error(encoding: Any) -> TypeError:
    form = "{name: {'dtype': ...}}, or {'dtype': ...} for all"
    return TypeError(f"encoding= must have the form {form}, not {encoding!r}")


def _matching(pattern: str, wanted: Mapping[str, Any], data: Mapping[Any, Variable]) -> list[Any]:
    """The variables that a pattern changes; ValueError where there are none."""
    named = [name for name in data if fnmatchcase(str(name), pattern)]
    kind = _kind(wanted.get("dtype"))
    of_kind = [name for name in named if kind in (None, _kind(data[name].dtype))]
    matching = of_kind or (named if len(data) == 1 else [])
    if not matching:
        what = f"{kind} variable" if named else "variable"
        found = ", ".join(f"{name!r} ({each.dtype})" for name, each in data.items())
        raise ValueError(
            f"encoding={{{pattern!r}: {dict(wanted)!r}}} changes nothing, as there is no {what} of "
            f"such a name; the variables are {shorten(found) or 'none'}"
        )
    return matching


_KINDS = {"f": "floating-point", "i": "integer", "u": "integer", "b": "bool", "c": "complex"}


def _kind(dtype: Any) -> str | None:
    """What the values of a dtype are; None where numpy does not know it."""
    name = dtype_name(dtype)
    if name.startswith(("float", "bfloat")):
        return _KINDS["f"]
    try:
        kind = np.dtype(name).kind
    except TypeError:
        return None
    return _KINDS.get(kind, name)


Part = Literal["name", "dims", "coords", "attrs"]
"""What ``drop=`` can name: a part of the input that may be left out."""


FileAttrs = Callable[[Mapping[Any, Any]], Collection[str]]
"""A function that returns the names of attributes that a reader has set."""


@dataclass(frozen=True, eq=False)
class CheckedInput:
    """A Dataset that any format can be asked to write, with what the user has asked for.

    Parameters
    ----------
    path : str
        The file that will be written, for errors.
    format : str
        Title of its format, for errors.
    variables : mapping of str to Variable
        The data variables.
    coordinates : mapping of str to Variable
        The coordinates.
    attrs : mapping
        The attributes of the Dataset.
    encoding : mapping
        ``{name: {"dtype": ...}}``: the dtypes that variables are to be stored with.
    drop : frozenset of {"name", "dims", "coords", "attrs"}
        What may be left out where the format has no place for it.
    file_attrs : callable
        Returns the names of attributes that a reader has set to describe a file.
    """

    path: str
    format: str
    variables: Mapping[str, Variable]
    coordinates: Mapping[str, Variable]
    attrs: Mapping[Any, Any]
    encoding: Mapping[Any, Mapping[str, Any]]
    drop: frozenset[str]
    file_attrs: FileAttrs

    def user_attrs(self, variable: Variable) -> dict[Any, Any]:
        """Return the attributes of a variable that no reader has set to describe a file.

        Parameters
        ----------
        variable : Variable
            The variable.

        Returns
        -------
        dict
            Attributes by name.
        """
        if not variable.attrs:
            return {}
        names = self.file_attrs(variable.attrs)
        return {name: value for name, value in variable.attrs.items() if name not in names}

    @property
    def only(self) -> tuple[str, Variable]:
        """The one variable of a format that holds one tensor; ValueError where there are more."""
        if len(self.variables) != 1:
            names = shorten(", ".join(map(repr, self.variables))) or "none"
            raise ValueError(
                f"{self.path}: a {self.format} file holds one variable, the Dataset has "
                f"{len(self.variables)} ({names}); pass one of them as a DataArray, or choose a "
                "format that holds several"
            )
        return next(iter(self.variables.items()))

    def check_rank(self, name: Hashable, variable: Variable) -> None:
        """Refuse more dimensions than a variable can be read with."""
        if variable.ndim > MAX_DIMENSIONS:
            raise ValueError(
                f"{self.path}: {name!r} has {variable.ndim} dimensions, and a {self.format} file "
                f"is read with at most {MAX_DIMENSIONS}; stack some of them"
            )

    def only_values(self, dims: tuple[str, ...]) -> tuple[str, Variable]:
        """The one variable of a format that has no place for anything but its values.

        Parameters
        ----------
        dims : tuple of str
            The names that its dimensions will have when the file is read.

        Returns
        -------
        tuple of (str, Variable)
            The variable with its name.

        Raises
        ------
        ValueError
            The variable has another number of dimensions, or something would be lost that
            ``drop=`` does not name.
        """
        name, variable = self.only
        if variable.ndim != len(dims):
            raise ValueError(
                f"{self.path}: {name!r} must have {len(dims)} dimensions, not {variable.ndim}"
            )
        if name != OpenOptions.name:
            self.dropping("name", f"the name {name!r}", f"rename it to {OpenOptions.name!r}")
        if variable.dims != dims:
            self.dropping("dims", f"the dims {variable.dims}", f"rename them to {dims}")
        for coordinate in self.coordinates:
            self.dropping("coords", f"the coordinate {coordinate!r}", "call drop_vars()")
        for attribute in (*self.attrs, *self.user_attrs(variable)):
            self.dropping("attrs", f"the attribute {attribute!r}", "call drop_attrs()")
        return name, variable

    def unmodified(self, name: str, variable: Variable) -> Tensor | None:
        """Return the tensor of a file if a variable is written with all values of the file."""
        return None if name in self.encoding else unmodified_tensor(variable)

    def attrs_to_write(self, name: str, variable: Variable) -> dict[Any, Any]:
        """Return the attributes of a variable, for a format that has a place for them.

        Parameters
        ----------
        name : str
            Name of the variable.
        variable : Variable
            The variable.

        Returns
        -------
        dict
            The attributes that the user has set, and the attributes of the file that the variable
            was opened from if the variable is provably unmodified (see `unmodified_tensor`).
        """
        attrs, tensor = self.user_attrs(variable), self.unmodified(name, variable)
        if tensor is None or len(attrs) == len(variable.attrs):
            return attrs
        return {
            key: value
            for key, value in variable.attrs.items()
            if key in attrs or (key in tensor.attrs and _is_same(value, tensor.attrs[key]))
        }

    def dropping(self, part: Part, what: str, hint: str) -> None:
        """Raise an error about what the format has no place for, unless it may be dropped.

        Parameters
        ----------
        part : {"name", "dims", "coords", "attrs"}
            The part of the input that it belongs to.
        what : str
            What would be lost, for the message.
        hint : str
            What would work instead, for the message.

        Raises
        ------
        ValueError
            ``drop=`` does not name the part.
        """
        if part not in self.drop:
            raise ValueError(
                f"{self.path}: {self.format} has no place for {what}; {hint}, "
                f"or pass drop=[{part!r}] to leave it out"
            )

    def conversion(
        self, name: str, variable: Variable, elements: Mapping[str, Element]
    ) -> Conversion:
        """Choose the dtype that a variable is stored with.

        Parameters
        ----------
        name : str
            The variable.
        variable : Variable
            Its values.
        elements : mapping of str to Element
            The elements of the format, by the names of their dtypes.

        Returns
        -------
        Conversion
            To the dtype of ``encoding=``; else to that of the file it was opened from, where
            numpy has no such dtype; else to its own.

        Raises
        ------
        ValueError
            The format does not have the dtype.
        """
        requested = self.encoding.get(name, {}).get("dtype")
        inherited = variable.encoding.get("dtype")
        wanted = variable.dtype.name
        if requested is not None and is_numeric(variable.dtype):
            wanted = dtype_name(requested)
        elif isinstance(inherited, StoredDtype) and inherited.name in elements:
            same_values = elements[inherited.name].dtype == variable.dtype
            wanted = inherited.name if same_values else wanted
        element = elements.get(wanted)
        if element is None:
            raise self._dtype_error(name, variable, wanted, elements)
        if requested is not None and variable.dtype.kind == "c" and element.dtype.kind != "c":
            keeping = [each for each in elements if elements[each].dtype.kind == "c"]
            hint = f"encode it as {' or '.join(keeping)}"
            if not keeping:
                hint = f"ds[{name!r}].imag as well"
            raise ValueError(
                f"{self.path}: {name!r} is {variable.dtype}, and as {wanted} it would lose its "
                f"imaginary part; write ds[{name!r}].real to leave that out, or {hint} to "
                "keep it"
            )
        return Conversion(name, element, exact=requested is None)

    def _dtype_error(
        self, name: str, variable: Variable, wanted: str, elements: Mapping[str, Element]
    ) -> ValueError:
        hint = f"convert it, as by ds[{name!r}].astype(...)"
        if variable.dtype.kind == "c":
            hint = "make its real and its imaginary part variables of their own"
        elif is_numeric(variable.dtype):
            hint = f"choose one by encoding={{{name!r}: {{'dtype': ...}}}}"
        return ValueError(
            f"{self.path}: {name!r} is {wanted}, and {self.format} holds only "
            f"{', '.join(elements)}; {hint}, or write another format"
        )


def _is_same(value: Any, other: Any) -> bool:
    """Whether two values of attributes are equal, NaN included."""
    return dumps(value, default=repr) == dumps(other, default=repr)


def check_input(
    data: Dataset | DataArray,
    path: str,
    format: str,
    encoding: Encoding | None = None,
    drop: Any = (),
    *,
    file_attrs: FileAttrs = lambda _: (),
) -> CheckedInput:
    """Refuse what no format can write, and keep the rest for the one that is asked."""
    dropped = _dropped(drop)
    dataset = _to_dataset(data, path, dropped)
    for name in (*dataset.variables, *dataset.dims):
        check_name(path, name)
    for name, index in dataset.xindexes.items():
        if len(index.create_variables()) > 1:
            raise ValueError(
                f"{path}: {name!r} belongs to an index of several levels, which no format holds; "
                f"call reset_index({name!r}) first"
            )
    for name, variable in dataset.variables.items():
        check_variable(path, str(name), variable, labels=name in dataset.coords)
    by_name = encoding_by_name(dataset.variables, dataset.coords, encoding or {})
    plain = {str(name): each.to_base_variable() for name, each in dataset.variables.items()}
    coords = {name: plain.pop(name) for name in list(plain) if name in dataset.coords}
    return CheckedInput(path, format, plain, coords, dataset.attrs, by_name, dropped, file_attrs)


def _to_dataset(data: Dataset | DataArray, path: str, dropped: Collection[str]) -> Dataset:
    if isinstance(data, DataArray):
        name = OpenOptions.name if data.name is None else data.name
        if name not in data.coords:
            return data.to_dataset(name=name)
        # A coordinate that is taken as an array is its own coordinate.
        if "coords" not in dropped and not data.coords[name].variable.identical(data.variable):
            raise ValueError(
                f"{path}: the array {name!r} has a coordinate of the same name with other values "
                "or attributes, and a file has one variable of a name; call rename() with another "
                "name, or pass drop=['coords'] to leave the coordinate out"
            )
        return data.drop_vars([name]).to_dataset(name=name)
    if not isinstance(data, Dataset):
        raise TypeError(
            f"a {type(data).__name__} cannot be written; pass an xarray Dataset or DataArray"
        )
    return data


def _dropped(drop: Any) -> frozenset[str]:
    known = get_args(Part)
    drop = [drop] if isinstance(drop, str) else () if drop is None else drop
    if not isinstance(drop, Collection) or not all(part in known for part in drop):
        raise ValueError(f"drop={drop!r} is not a list of some of {', '.join(map(repr, known))}")
    return frozenset(drop)
