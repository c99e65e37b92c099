"""Checks of Datasets that apply to all formats."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from xarray import DataArray, Dataset, IndexVariable, Variable, apply_ufunc
from xarray.indexes import PandasMultiIndex

from xr_tensorfmt.core.elements import Array, Element, Plain, get_dtype_name, get_stored_name
from xr_tensorfmt.core.file_format import OpenOptions
from xr_tensorfmt.core.header import MAX_DIMENSIONS, MAX_ITEM_BYTES, is_addressable
from xr_tensorfmt.datasets import cf
from xr_tensorfmt.datasets.building import get_info
from xr_tensorfmt.errors import did_you_mean, shorten, warn
from xr_tensorfmt.writing.file_plan import Conversion, format_dtype, is_numeric

_READER_KEYS = frozenset({"original_shape", "preferred_chunks", "source", "tensorfmt"})
"""Keys that only readers set. Their other keys are not for this package, and are ignored."""


def resolve_encoding(
    variables: Mapping[Any, Variable], coordinates: Collection[Any], encoding: Any
) -> dict[Any, Mapping[str, Any]]:
    """Return the encoding of every variable: by name, or the dtype of all of its kind."""
    by_name = dict(encoding) if isinstance(encoding, Mapping) else {None: encoding}
    resolved: dict[Any, Mapping[str, Any]] = {}
    if not isinstance(by_name.get("dtype", {}), Mapping):
        requested = {"dtype": by_name.pop("dtype")}
        data = {name: item for name, item in variables.items() if name not in coordinates}
        resolved = dict.fromkeys(_find_same_kind(data, requested["dtype"]), requested)
    for name, given in by_name.items():
        if not isinstance(given, Mapping):
            raise TypeError(
                "encoding= must have the form {name: {'dtype': ...}}, or {'dtype': ...} for all, "
                f"not {encoding!r}"
            )
        if name not in variables:
            raise ValueError(
                f"encoding= or --dtype names {name!r}{did_you_mean(name, variables)}, which is "
                f"not one of the variables {shorten(', '.join(map(repr, variables)))}"
            )
        resolved[name] = _select_keys(name, given, variables[name])
    return resolved


def _select_keys(name: Any, requested: Mapping[str, Any], variable: Variable) -> Mapping[str, Any]:
    """Return an encoding without the keys that only describe the file it was read from."""
    own = variable.encoding
    is_read = not _READER_KEYS.isdisjoint(requested)
    known = cf.KEYS | {"tensorfmt"}
    if unknown := {key for key in requested if key not in known and not is_read and key not in own}:
        raise ValueError(
            f"encoding={{{name!r}: {requested!r}}} has {', '.join(sorted(map(repr, unknown)))}, "
            f"expected some of {', '.join(map(repr, sorted(cf.KEYS)))}"
        )
    return {key: value for key, value in requested.items() if key in known}


def _find_same_kind(data: Mapping[Any, Variable], dtype: Any) -> list[Any]:
    """Return the variables of the kind of a dtype, or the only one. Raise if there is none."""
    dtypes = map(cf.find_dtype, (dtype, *(variable.dtype for variable in data.values())))
    kind, *kinds = (getattr(found, "kind", "").replace("u", "i") for found in dtypes)
    same = [name for name, known in zip(data, kinds, strict=True) if kind in ("", "V", known)]
    if not same and len(data) != 1:
        actual = ", ".join(f"{name!r} ({variable.dtype})" for name, variable in data.items())
        raise ValueError(
            f"encoding={ {'dtype': dtype} } matches no variable of its kind; the variables are "
            f"{shorten(actual) or 'none'}; name a variable to convert another kind: "
            "encoding={name: {'dtype': ...}} or --dtype NAME=..."
        )
    return same or list(data)


def get_file_info(variable: Variable, format: str) -> Mapping[str, Any]:
    """Return the properties of the file of a format that a variable was opened from, if any."""
    file_info = get_info(variable.encoding)
    return file_info if file_info.get("format") == format else {}


def _check_names(path: str, names: Iterable[Hashable]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{path}: the name {name!r} is not a str; rename it to {str(name)!r}")
        if name.encode(errors="replace").decode() != name:
            raise ValueError(f"{path}: the name {name!a} cannot be encoded as UTF-8; rename it")


def _check_variable(path: str, name: str, variable: Variable, *, is_coordinate: bool) -> None:
    dims, shape = variable.dims, variable.shape
    if len(set(dims)) != len(dims):
        fault = f"has two dimensions of the same name in {dims}; rename one"
    elif len(dims) > MAX_DIMENSIONS:
        most = f"at most {MAX_DIMENSIONS} can be read from files"
        fault = f"has {len(dims)} dimensions, but {most}; stack some of them"
    elif any(length != length for length in shape):  # NaN
        fault = "has chunks of unknown size; call compute_chunk_sizes() on its array first"
    elif not is_addressable(shape, MAX_ITEM_BYTES):
        fault = f"of shape {shape} is too large to address; write a part"
    elif name in dims and not is_coordinate:
        fault = (
            "has the name of one of its dimensions but is not a coordinate, and would open as one; "
            "rename it, or write a Dataset that has it as a coordinate"
        )
    else:
        return
    raise ValueError(f"{path}: {name!r} {fault}")


DroppablePart = Literal["name", "dims", "coords", "attrs"]
"""A part of the input that ``drop=`` can omit."""

Loss = tuple[DroppablePart, str, str]
"""A part that a file cannot store: its kind, what it is, and what to do."""


@dataclass(frozen=True, eq=False)
class CheckedInput:
    """A Dataset that passed the checks for all formats, with the options of the user.

    Parameters
    ----------
    path, format : str
        The file to write and the title of the format, for errors.
    variables, coordinates : mapping of str to Variable
        The data variables and the coordinates.
    attrs : mapping
        The attributes of the Dataset.
    encoding : mapping
        The requested encodings of variables by name.
    drop : frozenset of {"name", "dims", "coords", "attrs"}
        Parts to omit if the format does not support them.
    file_name : str
        Name of the file in its directory.
    is_encoded : bool
        Whether `encode` was called.
    """

    path: str
    format: str
    variables: Mapping[str, Variable]
    coordinates: Mapping[str, Variable]
    attrs: Mapping[Any, Any]
    encoding: Mapping[Any, Mapping[str, Any]]
    drop: frozenset[str]
    file_name: str = ""
    is_encoded: bool = False

    def warn_of_order(self, name: str, variable: Variable) -> None:
        """Warn if dims are in another order than in the file from which a variable was opened.

        Only for formats whose readers identify dimensions by their position.
        """
        dims, known = variable.dims, get_info(variable.encoding).get("dims", ())
        kept = [dim for dim in known if dim in dims]
        renamed = [dim for dim in dims if dim not in known]
        if len(known) == len(dims):  # a dimension that was renamed is still on its axis
            expected = [dim if dim in dims else renamed.pop(0) for dim in known]
        else:
            expected = [kept.pop(0) if dim in known else dim for dim in dims]
        if expected != [*dims]:
            order = ", ".join(map(repr, expected))
            warn(
                f"{self.path}: the dims {tuple(dims)} of {name!r} are in another order than in the "
                f"opened file; write ds[{name!r}].transpose({order}) for programs that expect its "
                "order, or call drop_encoding()"
            )

    def encode(self, dtypes: Collection[str]) -> CheckedInput:
        """Encode values and attributes by CF, as one of the dtypes of a format with attributes.

        Without `dtypes`, the format is not limited to any.
        """
        given = {**self.variables, **self.coordinates}
        if dtypes:
            given = {name: self._drop_packing(name, given[name], dtypes) for name in given}
        try:
            encoded = cf.encode(given, dtypes, _cast)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error
        variables = {name: encoded[name] for name in self.variables}
        coordinates = {name: encoded[name] for name in self.coordinates}
        return replace(self, variables=variables, coordinates=coordinates, is_encoded=True)

    def _drop_packing(self, name: str, variable: Variable, dtypes: Collection[str]) -> Variable:
        """Return a variable as the user sees it, if its file packs it in none of the dtypes."""
        encoding, requested = variable.encoding, self.encoding.get(name, {})
        # The units of times apply to integers and to other floats as well.
        is_packed = variable.dtype.kind not in "mM" and {"dtype"} < cf.VALUE_KEYS & encoding.keys()
        if not is_packed or not cf.list_required(encoding, variable) or "dtype" in requested:
            return variable
        if encoding["dtype"] is None or format_dtype(encoding["dtype"]) in dtypes:
            return variable
        unpacked: Variable = variable.copy(deep=False)
        unpacked.encoding = {k: v for k, v in encoding.items() if k not in cf.VALUE_KEYS}
        return unpacked

    @property
    def single_variable(self) -> tuple[str, Variable]:
        """The variable, for a format with one tensor. Raises ValueError if there are several."""
        if len(self.variables) != 1:
            names = shorten(", ".join(map(repr, self.variables))) or "none"
            raise ValueError(
                f"{self.path}: a {self.format} file holds one variable, but the Dataset has "
                f"{len(self.variables)} ({names}); pass one of them as a DataArray "
                "or with --variable, or choose a format with several variables"
            )
        return next(iter(self.variables.items()))

    def require_values_only(self, dims: tuple[str, ...]) -> tuple[str, Variable]:
        """Return the variable; raise ValueError if a file of values with `dims` loses something."""
        name, variable = self.single_variable
        if variable.ndim != len(dims):
            raise ValueError(
                f"{self.path}: {name!r} must have {len(dims)} dimensions, not {variable.ndim}"
            )
        attrs = {**self.attrs, **variable.attrs}
        losses: list[Loss] = []
        if name != OpenOptions.name:
            losses.append(("name", f"the name {name!r}", f"rename it to {OpenOptions.name!r}"))
        if variable.dims != dims:
            losses.append(("dims", f"the dims {variable.dims}", f"rename the dims to {dims}"))
        losses += [
            ("coords", f"the coordinate {c!r}", "call drop_vars()") for c in self.coordinates
        ]
        for attr in attrs:
            method = "drop_encoding()" if attr in cf.RELATED else "drop_attrs()"
            losses.append(("attrs", f"the attribute {attr!r}", f"call {method}"))
        self.refuse_losses(*losses)
        self.warn_of_order(name, variable)
        return name, variable

    def refuse_losses(self, *losses: Loss) -> None:
        """Raise ValueError about lost parts, each with a hint, except those that may be dropped."""
        refused = [loss for loss in losses if loss[0] not in self.drop]
        if refused:
            parts, subjects, hints = (
                list(dict.fromkeys(column)) for column in zip(*refused, strict=True)
            )
            raise ValueError(
                f"{self.path}: {self.format} cannot store {', '.join(subjects)}; "
                f"{', '.join(hints)}, or pass drop={parts!r} or --drop {','.join(parts)} to leave "
                f"{'it' if len(refused) == 1 else 'them'} out"
            )

    def choose_conversion(
        self, name: str, variable: Variable, elements: Mapping[str, Element]
    ) -> Conversion:
        """Choose the dtype in the file from ``encoding=``, the variable, or the opened file."""
        encoding = self.encoding.get(name, {})
        if not self.is_encoded and (others := sorted(encoding.keys() - {"dtype", "tensorfmt"})):
            raise ValueError(
                f"{self.path}: encoding= has {', '.join(map(repr, others))} for {name!r}, but "
                f"{self.format} does not store attributes; leave them out, or write another format"
            )
        if not self.is_encoded:
            variable = self._drop_packing(name, variable, ())
        requested = variable.encoding.get("dtype")
        stored = get_stored_name(requested)
        dtype = get_dtype_name(variable.dtype)
        # As in `to_netcdf`. A dtype that a reader has set only applies to values that it fits.
        is_set = requested is not None and (stored is None or "dtype" in encoding)
        element = elements.get(stored or "")
        if is_numeric(variable.dtype):
            if is_set and (stored is None or element is not None):
                dtype = format_dtype(requested)
            elif element is not None and element.dtype == variable.dtype:
                dtype = element.name
        # Scaled values are rounded to the dtype of the file, because packing always rounds.
        exact = not is_set and (stored is None or "scale_factor" not in variable.attrs)
        return self.build_conversion(name, variable, dtype, elements, exact=exact)

    def compute_values(
        self, name: str, variable: Variable, subject: str, elements: Mapping[str, Element]
    ) -> Array:
        """Return values that a format embeds. Numbers have the dtype that the user has set."""
        if not isinstance(variable.dtype, np.dtype):
            raise TypeError(
                f"{subject} has the pandas dtype {variable.dtype}, which JSON does not support; "
                "convert it with astype(...)"
            )
        values = np.asarray(variable.values)
        if get_dtype_name(values.dtype) not in elements:
            return values
        embedded = replace(self, format=f"a coordinate in {self.format}")
        return embedded.choose_conversion(name, variable, elements).apply(values)

    def build_conversion(
        self,
        name: str,
        variable: Variable,
        dtype: str,
        elements: Mapping[str, Element],
        *,
        exact: bool,
    ) -> Conversion:
        """Return the conversion to a dtype. Raise ValueError if the format does not support it."""
        element, kind = elements.get(dtype), variable.dtype.kind
        if element is not None and (kind != "c" or element.dtype.kind == "c"):
            return Conversion(name, element, exact)
        hint = f"choose a dtype with encoding={{{name!r}: {{'dtype': ...}}}} or --dtype {name}=..."
        if not is_numeric(variable.dtype):
            hint = f"convert it with ds[{name!r}].astype(...)"
        elif kind == "c" and all(item.dtype.kind != "c" for item in elements.values()):
            hint = "split it into two variables with .real and .imag"
        fault = f"is {dtype}, but {self.format} supports only {', '.join(elements)}"
        if element is not None:
            fault = f"is {variable.dtype}, and as {dtype} it would lose its imaginary part"
        raise ValueError(f"{self.path}: {name!r} {fault}; {hint}, or write another format")


def check_input(
    data: Dataset | DataArray,
    path: str,
    format: str,
    encoding: Mapping[Any, Any] | None = None,
    drop: Any = (),
    file_name: str = "",
) -> CheckedInput:
    """Check a Dataset or DataArray that is written to any format."""
    dropped = _normalize_drop(drop)
    dataset = _to_dataset(data, dropped)
    _check_names(path, (*dataset.variables, *dataset.dims))
    variables = {str(name): variable for name, variable in dataset.variables.items()}
    for name, index in dataset.xindexes.items():
        if isinstance(index, PandasMultiIndex):
            raise ValueError(  # noqa: TRY004  # the type of the Dataset is right
                f"{path}: {name!r} belongs to a MultiIndex, which no format supports; "
                f"call reset_index({name!r}) first"
            )
    for name, variable in variables.items():
        _check_variable(path, name, variable, is_coordinate=name in dataset.coords)
    resolved = resolve_encoding(variables, dataset.coords, encoding or {})
    file_dims = get_info(dataset.encoding).get("dims", {})
    merged = {
        name: _merge_encoding(variable, resolved.get(name, {}), file_dims.get(name))
        for name, variable in variables.items()
    }
    coordinates = {name: merged.pop(name) for name in variables if name in dataset.coords}
    return CheckedInput(
        path=path,
        format=format,
        variables=merged,
        coordinates=coordinates,
        attrs=dataset.attrs,
        encoding=resolved,
        drop=dropped,
        file_name=file_name,
    )


def _merge_encoding(
    variable: Variable, requested: Mapping[str, Any], replaced_dims: Sequence[Hashable] | None
) -> Variable:
    """Return a variable with the requested encoding, and references in its attributes.

    `replaced_dims` are the dims in the opened file of the variable that it may have replaced.
    """
    info, references = get_info(variable.encoding), cf.RELATED & {*variable.encoding, *requested}
    is_same = not (requested or references or "reader_attrs" in info)
    is_same &= not replaced_dims or "dims" in info
    if is_same and not isinstance(variable, IndexVariable):
        return variable
    merged: Variable = variable.to_base_variable()
    encoding = dict(merged.encoding)
    for name in info.get("reader_attrs", ()):
        if isinstance(merged.attrs.get(name), str) and merged.attrs[name] == info.get(name):
            del merged.attrs[name]
    if not cf.VALUE_KEYS.isdisjoint(requested):  # as in `xarray.Dataset.to_netcdf`
        encoding = {key: value for key, value in encoding.items() if key not in cf.VALUE_KEYS}
    encoding.update(requested)
    if replaced_dims:
        encoding["tensorfmt"] = {"dims": replaced_dims, **get_info(encoding)}
    merged.attrs = {**{key: encoding.pop(key) for key in references}, **merged.attrs}
    merged.encoding = encoding
    return merged


def _cast(name: str, variable: Variable, dtype: np.dtype[Any], is_rounded: bool) -> Variable:
    conversion = Conversion(name, Plain(dtype), exact=not is_rounded)

    def convert(values: Any) -> Any:
        return conversion.apply(np.around(values) if is_rounded and dtype.kind in "iu" else values)

    converted: Variable = apply_ufunc(convert, variable, dask="parallelized", output_dtypes=[dtype])
    return converted


def _to_dataset(data: Dataset | DataArray, dropped: Collection[str]) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if not isinstance(data, DataArray):
        raise TypeError(
            f"a {type(data).__name__} cannot be written; pass an xarray Dataset or DataArray"
        )
    name = OpenOptions.name if data.name is None else data.name
    # An index coordinate as a DataArray is its own coordinate.
    if name in data.coords:
        coordinate = data.coords[name].variable
        if "coords" in dropped or coordinate.identical(data.variable):
            data = data.drop_vars([name])
    return data.to_dataset(name=name)


def _normalize_drop(drop: Any) -> frozenset[str]:
    parts = get_args(DroppablePart)
    drop = [drop] if isinstance(drop, str) else () if drop is None else drop
    if not isinstance(drop, Collection) or not all(part in parts for part in drop):
        raise ValueError(f"drop={drop!r} must be a list with any of {', '.join(map(repr, parts))}")
    return frozenset(drop)
