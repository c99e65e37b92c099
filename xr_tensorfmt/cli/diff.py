"""``xr-tensorfmt diff``: compare two files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from operator import attrgetter
from typing import Any

import click
import numpy as np
from xarray import Dataset, Variable

from xr_tensorfmt.cli.files import flatten, open_input
from xr_tensorfmt.cli.info import format_dtype, to_plain
from xr_tensorfmt.cli.messages import errors_in_one_line, print_json, print_lines, to_one_line
from xr_tensorfmt.cli.options import (
    STORED_VALUES,
    STORES,
    KeyValues,
    add_source_options,
    format_examples,
    group_options,
    list_files,
    store_format,
    verify_option,
)
from xr_tensorfmt.cli.statistics import iterate_blocks
from xr_tensorfmt.core.elements import Array, StoredDtype
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.writing.conversion import is_numeric


@click.command(
    epilog=format_examples(
        "diff a.mag b.zarr", "diff a.mag half.mag --rtol 1e-3", "diff before/ after/"
    )
)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--rtol",
    metavar="NUMBER",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Relative tolerance, a factor of the value in B, as in numpy.isclose. With a tolerance, "
    "dtypes may differ.",
)
@click.option(
    "--atol",
    metavar="NUMBER",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Absolute tolerance, which is added to the relative tolerance.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@group_options
@add_source_options
@verify_option
def diff(
    first: str, second: str, as_json: bool, storage_options: KeyValues, **options: Any
) -> None:
    """Compare the variables of two files.

    Names, dtypes, shapes and all values are compared, but neither dimension names nor attributes.
    The formats may differ, including zarr and netCDF. In two directories, files with the same name
    are compared. The exit code is 0 for equal files, 1 for differences, 2 for an error.
    """
    options["storage_options"] = storage_options
    try:
        files = [list_files(path, storage_options) for path in (first, second)]
        if all(files) and files != [[first], [second]]:
            document = _compare_directories(first, second, *files, **options)
        else:
            document = _compare_files(first, second, **options)
    except click.ClickException as error:
        error.show()
        raise SystemExit(2) from error
    if as_json:
        print_json(document)
    else:
        for part in document.get("files", [document]):
            print_lines(_format_lines(part))
        unmatched = _list_unmatched(document) if "files" in document else ()
        print_lines(f"{name}: only in {path}" for name, path in unmatched)
    raise SystemExit(int(not document["equal"]))


def _compare_directories(
    first: str, second: str, first_files: Iterable[str], second_files: Iterable[str], **options: Any
) -> dict[str, Any]:
    """Compare files with the same name, and return a document for JSON."""
    firsts = {os.path.basename(file): file for file in first_files}
    seconds = {os.path.basename(file): file for file in second_files}
    common = [name for name in firsts if name in seconds]
    compared = [_compare_files(firsts[name], seconds[name], **options) for name in common]
    return {
        "first": to_one_line(first),
        "second": to_one_line(second),
        "equal": firsts.keys() == seconds.keys() and all(part["equal"] for part in compared),
        "only_first": sorted(firsts.keys() - seconds.keys()),
        "only_second": sorted(seconds.keys() - firsts.keys()),
        "files": compared,
    }


def _compare_files(
    first: str, second: str, *, rtol: float, atol: float, **options: Any
) -> dict[str, Any]:
    """Compare two files, and return a document for JSON."""
    # Stores contain decoded values, or attributes by which xarray decodes them.
    formats = (options["format"] or store_format(file) for file in (first, second))
    if not any(name in STORES for name in formats):
        options |= STORED_VALUES
    a, b = (_open(file, **options) for file in (first, second))
    with errors_in_one_line(first, second):
        names = {"first": to_one_line(first), "second": to_one_line(second)}
        return {**names, "rtol": rtol, "atol": atol, **compare(a, b, rtol, atol)}


def _open(file: str, separator: str, **options: Any) -> Dataset:
    """Open a file as one Dataset, with flattened groups."""
    with errors_in_one_line(file):
        data = open_input(file, file, separator=separator, **options)
        return flatten(file, data, separator, ["attrs"])


def compare(first: Dataset, second: Dataset, rtol: float = 0, atol: float = 0) -> dict[str, Any]:
    """Compare all variables chunk by chunk, and return a document for JSON."""
    names = *first.data_vars, *second.data_vars
    used = {*second.variables, *second.dims}
    if len(first.data_vars) == len(second.data_vars) == 1 and names[0] not in used:
        second = second.rename_vars({names[1]: names[0]})  # some formats store no name
    common = [name for name in first.variables if name in second.variables]
    differences = {
        str(name): _compare_variables(first.variables[name], second.variables[name], rtol, atol)
        for name in common
    }
    different = {name: difference for name, difference in differences.items() if difference}
    only_first = [str(name) for name in first.variables if name not in second.variables]
    only_second = [str(name) for name in second.variables if name not in first.variables]
    return {
        "equal": not (only_first or only_second or different),
        "only_first": only_first,
        "only_second": only_second,
        "variables": different,
        "equal_variables": len(differences) - len(different),
    }


def _format_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line per difference of two files, and a summary."""
    verb = "differ beyond the tolerance" if document["rtol"] or document["atol"] else "differ"
    unmatched = list(_list_unmatched(document))
    for name, file in unmatched:
        yield f"{shorten(name)}: only in {file}"
    for name, difference in document["variables"].items():
        for sentence in _describe_difference(difference, verb):
            yield f"{shorten(name)}: {sentence}"
    yield (
        f"{shorten(document['first'])} and {shorten(document['second'])}: variables: "
        f"{document['equal_variables']} equal, {len(document['variables'])} different, "
        f"{len(unmatched)} in only one file"
    )


def _list_unmatched(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names that only one file or directory has, with its path."""
    for key in ("first", "second"):
        for name in document[f"only_{key}"]:
            yield name, document[key]


def _describe_difference(difference: Mapping[str, Any], verb: str) -> Iterator[str]:
    for attribute in ("dtypes", "shapes"):
        one, other = difference[attribute]
        if one != other:
            yield f"the {attribute} are {one} and {other}"
    if difference["different_values"]:
        total = prod(difference["shapes"][0])
        largest = difference["largest"]
        distance = "" if largest is None else f"by up to {float(largest):.6g}, "
        pair = " and ".join(shorten(repr(value), 40) for value in difference["values"])
        index = f" at {difference['index']}" if difference["index"] else ""
        yield f"{difference['different_values']} of {total} values {verb}, {distance}{pair}{index}"


def _compare_variables(
    first: Variable, second: Variable, rtol: float, atol: float
) -> dict[str, Any]:
    """Return the difference of two variables, or an empty dict."""
    dtypes = _get_stored_dtype(first), _get_stored_dtype(second)
    shapes = first.shape, second.shape
    difference: dict[str, Any] = {"dtypes": dtypes, "shapes": shapes, "different_values": None}
    if first.shape != second.shape:
        return difference
    values = _compare_blocks(first, second, rtol, atol)
    # With a tolerance, dtypes may differ, as in `xarray.testing.assert_allclose`.
    if values is None and (dtypes[0] == dtypes[1] or rtol or atol):
        return {}
    return difference | ({"different_values": 0} if values is None else to_plain(asdict(values)))


def _get_stored_dtype(variable: Variable) -> str:
    """Return the dtype of a variable in its file, without the byte order."""
    stored = variable.encoding.get("dtype")
    return format_dtype(stored if isinstance(stored, StoredDtype) else variable.dtype).split(",")[0]


@dataclass(frozen=True)
class ValueDifference:
    """The number of different values, the largest difference, its index and the two values.

    The difference is NaN if one value is NaN, and None if values are not numbers.
    """

    different_values: int
    largest: Any
    index: tuple[int, ...]
    values: tuple[Any, Any]

    @property
    def rank(self) -> float:
        """Sort key: the difference, or infinity for NaN."""
        is_number = self.largest is not None and self.largest == self.largest
        return float(self.largest if is_number else "inf")


def _compare_blocks(
    first: Variable, second: Variable, rtol: float, atol: float
) -> ValueDifference | None:
    """Compare two variables of the same shape, block by block."""
    differences = []
    for block in iterate_blocks(first):
        difference = compare_values(first[block].values, second[block].values, rtol, atol)
        if difference is not None:
            index = zip(block, difference.index, strict=True)
            index_in_variable = tuple(part.start + i for part, i in index)
            differences.append(replace(difference, index=index_in_variable))
    if not differences:
        return None
    count = sum(difference.different_values for difference in differences)
    return replace(max(differences, key=attrgetter("rank")), different_values=count)


def compare_values(
    first: Array, second: Array, rtol: float = 0, atol: float = 0
) -> ValueDifference | None:
    """Compare two arrays of the same shape. Return None if they are equal. NaN equals NaN.

    Tolerances have the meaning of `numpy.isclose`.
    """
    same = _are_equal(first, second)
    if not same.all():
        same |= (first != first) & (second != second)
    numeric = is_numeric(first.dtype) and is_numeric(second.dtype)
    if numeric and (rtol or atol):
        wide = np.result_type(first, second, np.float64)
        same |= np.isclose(first.astype(wide), second.astype(wide), rtol, atol)
    if same.all():
        return None
    flat = int(np.argmin(same))
    largest = None
    if numeric:
        distances = _compute_distances(first, second)
        distances[same] = 0
        flat = int(np.argmax(distances))  # the first NaN, if there is one
        largest = distances.flat[flat].item()
    index = tuple(map(int, np.unravel_index(flat, same.shape)))
    count = same.size - int(np.count_nonzero(same))
    return ValueDifference(count, largest, index, (first[index], second[index]))


def _are_equal(first: Array, second: Array) -> Array:
    """Compare elements exactly. numpy would round 64-bit integers to compare them with floats."""
    if first.dtype.kind in "fc" and second.dtype.kind in "iu":
        first, second = second, first
    if first.dtype.kind in "iu" and second.dtype.kind in "fc":
        integers, is_integer = _convert_to_integers(second, first.dtype)
        return np.asarray(is_integer & (first == integers))
    return np.asarray(first == second)


def _convert_to_integers(values: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Convert floats or complex numbers to integers, and return a mask of exact ones."""
    limits = np.iinfo(dtype)
    real = values.real.astype(np.float64)
    is_integer = (real >= float(limits.min)) & (real < 2.0 ** (limits.max.bit_length()))
    is_integer &= (np.floor(real) == real) & (values.imag == 0)
    return np.where(is_integer, real, 0).astype(dtype), is_integer


@np.errstate(all="ignore")
def _compute_distances(first: Array, second: Array) -> Array:
    """Return the absolute differences, exact for integers of the same sign."""
    wide = np.complex128 if "c" in (first.dtype.kind, second.dtype.kind) else np.float64
    rounded = np.asarray(np.abs(np.subtract(first, second, dtype=wide)))
    if first.dtype.kind in "fc" and second.dtype.kind in "iu":
        first, second = second, first
    if first.dtype.kind in "iu" and second.dtype.kind in "fc":
        integers, is_integer = _convert_to_integers(second, first.dtype)
        return np.where(is_integer, _compute_distances(first, integers), rounded)
    if {first.dtype.kind, second.dtype.kind} == {"i", "u"}:
        has_sign = (first < 0) | (second < 0)
        unsigned = [np.where(has_sign, 0, values).astype(np.uint64) for values in (first, second)]
        return np.where(has_sign, rounded, _compute_distances(*unsigned))
    if first.dtype.kind in "iu" and second.dtype.kind == first.dtype.kind:
        # The difference of the larger and the smaller value is exact modulo 2**64.
        high = np.maximum(first, second).astype(np.uint64)
        return np.asarray(high - np.minimum(first, second).astype(np.uint64))
    return rounded
