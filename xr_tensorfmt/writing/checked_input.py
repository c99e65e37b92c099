"""What no format can hold, or cannot be meant."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.core.elements import Element, StoredDtype
from xr_tensorfmt.core.header import WIDEST, is_addressable
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.errors import shortened
from xr_tensorfmt.writing.conversion import Conversion, dtype_name, is_convertible, is_numeric


def check_name(path: str, name: Hashable) -> None:
    """Refuse names that no file can hold."""
    if not isinstance(name, str):
        raise TypeError(f"{path}: the name {name!r} is no text; rename it to {str(name)!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{path}: UTF-8 cannot hold the name {name!a}; rename it") from None


def check_variable(path: str, name: str, variable: Variable, *, labels: bool) -> None:
    """Refuse a variable that no file could give back as it is."""
    if len(set(variable.dims)) != len(variable.dims):
        raise ValueError(
            f"{path}: two dimensions of {name!r} have one name in {variable.dims}; rename one"
        )
    if any(length != length for length in variable.shape):  # NaN
        raise ValueError(
            f"{path}: dask does not know how long {name!r} is; "
            "call compute_chunk_sizes() on its array first"
        )
    if not is_addressable(variable.shape, WIDEST):
        raise ValueError(
            f"{path}: {name!r} of shape {variable.shape} fits no computer; write a part"
        )
    if name in variable.dims and not labels:
        raise ValueError(
            f"{path}: {name!r} labels a dimension and is no coordinate, but would open as one; "
            "rename it, or make it one by set_coords"
        )


def check_encoding(variables: Mapping[Any, Variable], encoding: Any) -> None:
    """Refuse what means nothing as ``encoding=``."""
    known = isinstance(encoding, Mapping)
    if not known or not all(isinstance(each, Mapping) for each in encoding.values()):
        raise TypeError(f"encoding={encoding!r} is not as {{name: {{'dtype': ...}}}}")
    for name, wanted in encoding.items():
        if name not in variables:
            raise ValueError(
                f"encoding= names {name!r}, which is none of the variables "
                f"{shortened(', '.join(map(repr, variables)))}"
            )
        unknown = set(wanted) - {"dtype"}
        if unknown:
            raise ValueError(
                f"encoding={{{name!r}: {wanted!r}}} has {', '.join(map(repr, sorted(unknown)))}; "
                "only 'dtype' means something here"
            )


Part = Literal["name", "dims", "coords", "attrs"]
"""What a user can give leave to lose."""

Encoding = Mapping[Any, Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class CheckedInput:
    """A Dataset, with what the user has asked for.

    Parameters
    ----------
    path : str
        The file to be, for errors.
    format : str
        Its format, for errors.
    variables : mapping of str to Variable
        The data variables.
    coordinates : mapping of str to Variable
        The coordinates.
    attrs : mapping
        The attributes of the whole.
    encoding : mapping
        What the user wants variables to be stored as.
    drop : frozenset of str
        What need not be kept where the format has no place for it.
    """

    path: str
    format: str
    variables: Mapping[str, Variable]
    coordinates: Mapping[str, Variable]
    attrs: Mapping[Any, Any]
    encoding: Encoding
    drop: frozenset[str]

    @property
    def only(self) -> tuple[str, Variable]:
        """The one variable of a format that holds one tensor; ValueError where there are more."""
        if len(self.variables) != 1:
            names = shortened(", ".join(map(repr, self.variables))) or "none"
            raise ValueError(
                f"{self.path}: a {self.format} file holds one variable, the Dataset has "
                f"{len(self.variables)} ({names}); pass one of them, as a DataArray, or write MAG"
            )
        return next(iter(self.variables.items()))

    def dropping(self, part: Part, what: str, way_out: str) -> None:
        """Refuse to lose something that the format has no place for, unless it may be dropped.

        Parameters
        ----------
        part : {"name", "dims", "coords", "attrs"}
            Its kind.
        what : str
            What would be lost, for the message.
        way_out : str
            What would work instead.

        Raises
        ------
        ValueError
            The user has not said that it may be dropped.
        """
        if part not in self.drop:
            raise ValueError(
                f"{self.path}: {self.format} has no place for {what}; {way_out}, "
                f"or pass drop=[{part!r}] to leave it out"
            )

    def conversion(self, name: str, variable: Variable, elements: Mapping[str, Element]) -> Any:
        """What becomes of the values of a variable.

        Parameters
        ----------
        name : str
            The variable.
        variable : Variable
            Its values.
        elements : mapping of str to Element
            What the format can hold, by the usual names of dtypes.

        Returns
        -------
        Conversion
            To the dtype of ``encoding=``; else to what the file held that it was opened from,
            where numpy has no such dtype; else to its own.

        Raises
        ------
        ValueError
            The format has no such dtype.
        """
        requested = self.encoding.get(name, {}).get("dtype")
        inherited = variable.encoding.get("dtype")
        if requested is not None:
            wanted, exact = dtype_name(requested), False
        elif (
            isinstance(inherited, StoredDtype)
            and inherited.name in elements
            and elements[inherited.name].dtype == variable.dtype
        ):
            wanted, exact = inherited.name, True
        else:
            wanted, exact = variable.dtype.name, True
        element = elements.get(wanted)
        if element is None:
            raise self._no_such_dtype(name, variable, wanted, elements)
        if not is_convertible(variable.dtype, element.dtype):
            raise self._no_such_dtype(name, variable, variable.dtype.name, elements)
        return Conversion(name, element, exact)

    def _no_such_dtype(
        self, name: str, variable: Variable, wanted: str, elements: Mapping[str, Element]
    ) -> ValueError:
        way_out = f"convert it, as by ds[{name!r}].astype(...)"
        if variable.dtype.kind == "c":
            way_out = "make its real and its imaginary part variables of their own"
        if is_numeric(variable.dtype) and variable.dtype.kind != "c":
            way_out = f"choose one by encoding={{{name!r}: {{'dtype': ...}}}}"
        return ValueError(
            f"{self.path}: {name!r} is {wanted}, and {self.format} holds only "
            f"{', '.join(elements)}; {way_out}, or write another format"
        )


def check_input(
    data: Dataset | DataArray, path: str, format: str, encoding: Encoding | None, drop: Any
) -> CheckedInput:
    """Look over what is to be written."""
    dataset = _dataset(data)
    for name in (*dataset.variables, *dataset.dims):
        check_name(path, name)
    for name, index in dataset.xindexes.items():
        if len(index.create_variables()) > 1:
            raise ValueError(
                f"{path}: {name!r} belongs to an index of several levels, which no file holds; "
                f"call reset_index({name!r}) first"
            )
    for name, variable in dataset.variables.items():
        check_variable(path, str(name), variable, labels=name in dataset.coords)
    check_encoding(dataset.variables, encoding or {})
    every = {str(name): each.to_base_variable() for name, each in dataset.variables.items()}
    coords = {name: each for name, each in every.items() if name in dataset.coords}
    plain = {name: each for name, each in every.items() if name not in coords}
    return CheckedInput(path, format, plain, coords, dataset.attrs, encoding or {}, _dropped(drop))


def _dataset(data: Dataset | DataArray) -> Dataset:
    if isinstance(data, DataArray):
        name = OpenOptions.name if data.name is None else data.name
        array = data.drop_vars([name]) if name in data.coords else data
        return array.to_dataset(name=name)
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
