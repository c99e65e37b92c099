"""``xr-tensorfmt diff``: compare two files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import hypot, prod
from operator import add
from typing import Any

import click
import numpy as np
import pandas as pd
import xarray as xr

from xr_tensorfmt.cli import common, describe, stores
from xr_tensorfmt.core.elements import Array, get_stored_name
from xr_tensorfmt.datasets.groups import flatten_tree
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.writing.encoding import is_numeric

_MAX_COMPARED_BYTES = 1 << 20
"""Limit on the size of values whose bytes are compared before their elements."""


@click.command(
    epilog=common.format_examples(
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
@common.add_group_options
@common.add_source_options
@common.verify_option
def diff(first: str, second: str, as_json: bool, **options: Any) -> None:
    """Compare the variables of two files.

    Names, dtypes, shapes and all values are compared, but neither dimension names nor attributes.
    The formats may differ, including zarr and netCDF. In two directories, files with the same name
    are compared. The exit code is 0 for equal files, 1 for differences, 2 for an error.
    """
    try:
        inputs = [common.list_files(path, options["storage_options"]) for path in (first, second)]
        if all(inputs) and inputs != [[first], [second]]:
            document = _compare_directories(first, second, *inputs, **options)
        else:
            document = _compare_files(first, second, **options)
    except click.ClickException as error:
        error.show()
        raise SystemExit(2) from error
    if as_json:
        common.print_json(document)
    else:
        for part in document.get("files", [document]):
            common.print_lines(_format_lines(part))
        unmatched = _list_unmatched(document) if "files" in document else ()
        common.print_lines(f"{name}: only in {path}" for name, path in unmatched)
    raise SystemExit(int(not document["equal"]))


def _compare_directories(
    first: str, second: str, first_files: Iterable[str], second_files: Iterable[str], **options: Any
) -> dict[str, Any]:
    firsts, seconds = (
        {os.path.basename(file): file for file in files} for files in (first_files, second_files)
    )
    compared = [_compare_files(firsts[x], seconds[x], **options) for x in firsts if x in seconds]
    return {
        "first": common.to_one_line(first),
        "second": common.to_one_line(second),
        "equal": firsts.keys() == seconds.keys() and all(part["equal"] for part in compared),
        **_find_unmatched(firsts, seconds),
        "files": compared,
    }


def _find_unmatched(first: Collection[Any], second: Collection[Any]) -> dict[str, list[Any]]:
    known, others = set(second), set(first)
    return {
        "only_first": [describe.to_plain(name) for name in first if name not in known],
        "only_second": [describe.to_plain(name) for name in second if name not in others],
    }


def _compare_files(
    first: str, second: str, *, rtol: float, atol: float, **options: Any
) -> dict[str, Any]:
    # Stores contain decoded values, or attributes by which xarray decodes them.
    formats = [options["format"] or common.get_store_format(file) for file in (first, second)]
    stored: dict[str, Any] = (
        {} if any(name in common.STORES for name in formats) else stores.STORED_VALUES
    )
    opened: list[xr.Dataset] = []
    for file in (first, second):
        with common.errors_in_one_line(file):
            data = stores.open_input(file, file, cache=False, **stored, **options)
            opened.append(flatten_tree(file, data, options["separator"], ["attrs"]))
    with common.errors_in_one_line(first, second):
        names = {"first": common.to_one_line(first), "second": common.to_one_line(second)}
        return {**names, "rtol": rtol, "atol": atol, **compare(opened[0], opened[1], rtol, atol)}


def compare(
    first: xr.Dataset, second: xr.Dataset, rtol: float = 0, atol: float = 0
) -> dict[str, Any]:
    """Compare all variables block by block, and return a document for JSON."""
    if len(first.data_vars) == len(second.data_vars) == 1:
        (name,), (other,) = first.data_vars, second.data_vars
        if name not in second.variables and name not in second.dims:
            second = second.rename_vars({other: name})  # some formats store no name
    labels = _find_labels(first, second)
    unmatched = {dim: _find_unmatched(*pair) for dim, pair in labels.items()}
    for dim, (one, other) in labels.items():
        if not one.equals(other):
            shared = one.intersection(other, sort=False)
            first = first.isel({dim: one.get_indexer(shared)})
            second = second.isel({dim: other.get_indexer(shared)})
    different: dict[str, Any] = {}
    changed: dict[Any, set[int]] = {dim: set() for dim in labels}
    for name, variable in first.variables.items():
        if name in second.variables:
            difference = _compare_variables(variable, second.variables[name], rtol, atol, changed)
            different |= {str(name): difference} if difference else {}
    found = {}
    for dim, (one, other) in labels.items():
        shared = one.intersection(other, sort=False)
        found[str(dim)] = unmatched[dim] | {
            "changed": describe.to_plain(shared[sorted(changed[dim])].tolist()),
            "reordered": not one.equals(other) and len(one) == len(other) == len(shared),
        }
    names = _find_unmatched(first.variables, second.variables)
    differs = different or any(map(any, (part.values() for part in (names, *found.values()))))
    return {
        "equal": not differs,
        **names,
        "variables": different,
        "labels": {dim: part for dim, part in found.items() if any(part.values())},
        "equal_variables": len(set(first.variables) & set(second.variables)) - len(different),
    }


def _find_labels(
    first: xr.Dataset, second: xr.Dataset
) -> dict[Any, tuple[pd.Index[Any], pd.Index[Any]]]:
    """Return the labels of both Datasets by dimension. A dimension without labels is left out."""
    pairs = {dim: (_get_labels(first, dim), _get_labels(second, dim)) for dim in first.dims}
    return {dim: (one, other) for dim, (one, other) in pairs.items() if len(one) and len(other)}


def _get_labels(ds: xr.Dataset, dim: Any) -> pd.Index[Any]:
    """Return the labels of a dimension, if they are strings and do not repeat."""
    along = [name for name, coord in ds.coords.items() if coord.dims == (dim,)]
    names = [dim] if dim in along else along
    columns = [ds[name].values for name in names if ds[name].dtype.kind in "OUT"]
    if not columns:
        return pd.Index([])
    index = pd.MultiIndex.from_arrays(columns) if len(columns) > 1 else pd.Index(columns[0])
    return index if index.is_unique else pd.Index([])


def _compare_variables(
    first: xr.Variable,
    second: xr.Variable,
    rtol: float,
    atol: float,
    changed: Mapping[Any, set[int]],
) -> dict[str, Any]:
    """Describe the differences of two variables, and add positions of changed labels."""
    dtypes = [_get_stored_dtype(variable) for variable in (first, second)]
    found = {"dtypes": dtypes, "shapes": [first.shape, second.shape], "different_values": None}
    if first.shape != second.shape:
        return found
    # With a tolerance, dtypes may differ, as in `xarray.testing.assert_allclose`.
    is_other = dtypes[0] != dtypes[1] and not (rtol or atol)
    count, largest = 0, {"largest": -1.0}
    for key in stores.iterate_blocks(first):
        one, other = first[key].values, second[key].values
        difference = compare_values(one, other, rtol, atol)
        if not difference:
            continue
        start = [part.start for part in key]
        difference["index"] = list(map(add, difference["index"], start))
        count += difference["different_values"]
        largest = max(largest, difference, key=_rank)  # the first of equal ones
        for axis in (axis for axis, dim in enumerate(first.dims) if dim in changed):
            same = np.moveaxis(_are_close(one, other, rtol, atol), axis, 0)
            rows = np.flatnonzero(~same.reshape(len(same), -1).all(axis=1))
            changed[first.dims[axis]].update((rows + start[axis]).tolist())
    if not (count or is_other):
        return {}
    return found | (describe.to_plain(largest) if count else {}) | {"different_values": count}


def _get_stored_dtype(variable: xr.Variable) -> str:
    """Return the dtype of a variable in its file, without the byte order."""
    stored = get_stored_name(variable.encoding.get("dtype"))
    is_narrow = stored is not None and not hasattr(np, stored)  # such as bfloat16
    return str(stored) if is_narrow else describe.format_dtype(variable.dtype).split(",")[0]


def _rank(difference: Mapping[str, Any]) -> Any:
    distance = difference["largest"]
    return np.inf if distance is None or distance != distance else distance


def _format_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line per difference of two files, and a summary."""
    verb = "differ beyond the tolerance" if document["rtol"] or document["atol"] else "differ"
    unmatched = list(_list_unmatched(document))
    for name, file in unmatched:
        yield f"{shorten(name)}: only in {file}"
    for dim, labels in document["labels"].items():
        for label, file in _list_unmatched(labels, document):
            yield f"{shorten(dim)}: {shorten(repr(label))} only in {file}"
        if labels["changed"]:
            yield f"{shorten(dim)}: {shorten(repr(labels['changed'])[1:-1], 60)} changed"
        if labels["reordered"]:
            yield f"{shorten(dim)}: the labels have another order"
    for name, difference in document["variables"].items():
        for sentence in _describe_difference(difference, verb):
            yield f"{shorten(name)}: {sentence}"
    yield (
        f"{shorten(document['first'])} and {shorten(document['second'])}: variables: "
        f"{document['equal_variables']} equal, {len(document['variables'])} different, "
        f"{len(unmatched)} in only one file"
    )


def _list_unmatched(
    document: Mapping[str, Any], files: Mapping[str, Any] | None = None
) -> Iterator[tuple[Any, str]]:
    """Yield what only one file or directory has, with its path."""
    for key in ("first", "second"):
        for name in document[f"only_{key}"]:
            yield name, (files or document)[key]


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


def _are_close(first: Array, second: Array, rtol: float, atol: float) -> Array:
    """Compare elements within tolerances. NaN equals NaN."""
    same: Array = _are_equal(first, second) | np.asarray((first != first) & (second != second))
    if (rtol or atol) and is_numeric(first.dtype) and is_numeric(second.dtype):
        wide = np.result_type(first, second, np.float64)
        same |= np.isclose(first.astype(wide), second.astype(wide), rtol, atol)
    return same


def compare_values(first: Array, second: Array, rtol: float = 0, atol: float = 0) -> dict[str, Any]:
    """Compare two arrays of the same shape, and return the largest difference, if there is any.

    NaN equals NaN, and is the largest difference from a number. Strings have no distance.
    """
    is_plain = first.dtype == second.dtype and not first.dtype.hasobject
    if is_plain and first.nbytes <= _MAX_COMPARED_BYTES and first.tobytes() == second.tobytes():
        return {}  # faster than comparing few elements
    same = _are_close(first, second, rtol, atol)
    if same.all():
        return {}
    flat = int(np.argmin(same))
    is_number = is_numeric(first.dtype) and is_numeric(second.dtype)
    if is_number:
        wide = np.result_type(first, second, np.float64)
        with np.errstate(all="ignore"):
            distances = np.abs(np.subtract(first, second, dtype=wide))
        flat = int(np.argmax(np.where(same, -1, distances)))  # the first NaN, if there is one
    index = tuple(map(int, np.unravel_index(flat, same.shape)))
    values = first[index], second[index]
    return {
        "different_values": same.size - int(np.count_nonzero(same)),
        "largest": _find_distance(*values) if is_number else None,
        "index": index,
        "values": values,
    }


def _are_equal(first: Array, second: Array) -> Array:
    """Compare elements exactly, although numpy rounds integers to compare them with floats."""
    same = np.asarray(first == second)
    for integers, others in ((first, second), (second, first)):
        if integers.dtype.kind in "iu" and others.dtype.kind in "fc":
            limit = 2.0 ** np.iinfo(integers.dtype).max.bit_length()
            same &= others.real < limit
            same &= np.where(same, others.real, 0).astype(integers.dtype) == integers
    return same


def _find_distance(first: Any, second: Any) -> int | float:
    """Return the distance of two numbers. It is exact for integers, and infinite on overflow."""
    difference = _to_exact(first) - _to_exact(second)
    if isinstance(difference, int):
        return abs(difference)
    return hypot(difference.real, difference.imag)


def _to_exact(value: Any) -> Any:
    """Convert a number of numpy to an int of Python if its value is an integer of 64 bits."""
    number = value.item()
    if isinstance(number, complex) and not number.imag:
        number = number.real
    is_exact = isinstance(number, float) and number.is_integer() and abs(number) < 2**64
    return int(number) if is_exact else number
