"""``xr-tensorfmt diff``: compare two files."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import hypot, prod
from operator import add
from typing import Any

import click
import numpy as np

from xr_tensorfmt.cli import files
from xr_tensorfmt.cli.files import OpenedFile, Row
from xr_tensorfmt.cli.info import format_dtype, to_plain
from xr_tensorfmt.cli.messages import errors_in_one_line, print_json, print_lines, to_one_line
from xr_tensorfmt.cli.options import (
    STORES,
    KeyValues,
    add_source_options,
    format_examples,
    get_storage_options,
    group_options,
    list_files,
    store_format,
    verify_option,
)
from xr_tensorfmt.core.chunk_grid import DEFAULT_CHUNK_BYTES
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.elements import Array, get_stored_name
from xr_tensorfmt.core.layout import BATCH_BYTES
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets.options import parse_keywords
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.opening import open_group
from xr_tensorfmt.writing.conversion import is_numeric
from xr_tensorfmt.writing.tree import flatten_tree


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
def diff(first: str, second: str, as_json: bool, **options: Any) -> None:
    """Compare the variables of two files.

    Names, dtypes, shapes and all values are compared, but neither dimension names nor attributes.
    The formats may differ, including zarr and netCDF. In two directories, files with the same name
    are compared. The exit code is 0 for equal files, 1 for differences, 2 for an error.
    """
    try:
        inputs = [list_files(path, options["storage_options"]) for path in (first, second)]
        if all(inputs) and inputs != [[first], [second]]:
            document = _compare_directories(first, second, *inputs, **options)
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
    firsts, seconds = (
        {os.path.basename(file): file for file in files} for files in (first_files, second_files)
    )
    compared = [_compare_files(firsts[x], seconds[x], **options) for x in firsts if x in seconds]
    return {
        "first": to_one_line(first),
        "second": to_one_line(second),
        "equal": firsts.keys() == seconds.keys() and all(part["equal"] for part in compared),
        **_find_unmatched(firsts, seconds),
        "files": compared,
    }


def _find_unmatched(first: Collection[Any], second: Collection[Any]) -> dict[str, list[str]]:
    return {
        "only_first": [str(name) for name in first if name not in second],
        "only_second": [str(name) for name in second if name not in first],
    }


def _compare_files(
    first: str, second: str, *, rtol: float, atol: float, **options: Any
) -> dict[str, Any]:
    # Stores contain decoded values, or attributes by which xarray decodes them.
    formats = [options["format"] or store_format(file) for file in (first, second)]
    open_any = _open_decoded if any(name in STORES for name in formats) else _open_stored
    opened: list[OpenedFile] = []
    for file in (first, second):
        with errors_in_one_line(file):
            is_same = bool(opened) and _is_copy(second, first, *opened[0])
            opened.append(opened[0] if is_same else open_any(file, **options))
    with errors_in_one_line(first, second):
        names = {"first": to_one_line(first), "second": to_one_line(second)}
        return {**names, "rtol": rtol, "atol": atol, **compare(opened[0], opened[1], rtol, atol)}


def _is_copy(file: str, first: str, source: Source, container: Container) -> bool:
    """Return whether a small file has the bytes of the first one, and thus the same tensors."""
    if container.findings or [end.source for end in container.ends] != [source]:
        return False  # it prints warnings, or has sibling files
    is_small = all(
        os.path.isfile(x) and os.path.getsize(x) <= DEFAULT_CHUNK_BYTES for x in (file, first)
    )
    if not is_small or os.path.splitext(file)[1] != os.path.splitext(first)[1]:
        return False
    filecmp.clear_cache()  # it trusts the times of files
    return filecmp.cmp(file, first, shallow=False)


def _open_decoded(file: str, separator: str, **options: Any) -> OpenedFile:
    data = files.open_input(file, file, separator=separator, cache=False, **options)
    return files.wrap_dataset(flatten_tree(file, data, separator, ["attrs"]))


def _open_stored(file: str, storage_options: KeyValues, **options: Any) -> OpenedFile:
    options["storage_options"] = get_storage_options(file, storage_options)
    return open_group(file, parse_keywords(**options))


def compare(
    first: OpenedFile, second: OpenedFile, rtol: float = 0, atol: float = 0
) -> dict[str, Any]:
    """Compare all variables chunk by chunk, and return a document for JSON."""
    one, other = files.list_tensors(first), files.list_tensors(second)
    data, other_data = first[1].tensors, second[1].tensors
    if len(data) == len(other_data) == 1:
        used = {*other, *(dim for tensor in other.values() for dim in tensor.dims)}
        if data[0].name not in used:
            other[data[0].name] = other.pop(other_data[0].name)  # some formats store no name
    names = [name for name in one if name in other]
    groups = files.group_rows([one[name] for name in names], [other[name] for name in names])
    comparable = [rows for rows in groups if rows[0][0].layout.shape == rows[0][1].layout.shape]
    values = _compare_blocks([first[0], second[0]], comparable, rtol, atol)
    different = {}
    for rows in groups:
        shapes = [tensor.layout.shape for tensor in rows[0]]
        dtypes = [_get_stored_dtype(tensor) for tensor in rows[0]]
        # With a tolerance, dtypes may differ, as in `xarray.testing.assert_allclose`.
        is_other = shapes[0] != shapes[1] or (dtypes[0] != dtypes[1] and not (rtol or atol))
        count = 0 if shapes[0] == shapes[1] else None
        difference = {"dtypes": dtypes, "shapes": shapes, "different_values": count}
        for name in [x.name for x, _ in rows if is_other or x.name in values]:
            different[name] = difference | to_plain(values.get(name, {}))
    return {
        "equal": one.keys() == other.keys() and not different,
        **_find_unmatched(one, other),
        "variables": {name: different[name] for name in one if name in different},
        "equal_variables": len(names) - len(different),
    }


def _get_stored_dtype(tensor: Tensor) -> str:
    """Return the dtype of a variable in its file, without the byte order."""
    stored = get_stored_name(tensor.encoding.get("dtype"))
    return stored or format_dtype(tensor.layout.dtype).split(",")[0]


def _compare_blocks(
    sources: Sequence[Source], groups: Sequence[Sequence[Row]], rtol: float, atol: float
) -> dict[str, dict[str, Any]]:
    """Return the number of different values of variables, and the largest difference."""
    found: dict[str, dict[str, Any]] = {}
    for names, start, (first, second) in files.read_blocks(sources, groups):
        if len(names) > 1 and not compare_values(first, second, rtol, atol):
            continue
        for row, name in enumerate(names):
            difference = compare_values(first[row, ...], second[row, ...], rtol, atol)
            if difference:
                difference["index"] = list(map(add, difference["index"], start))
                known = found.get(name, {"different_values": 0, "largest": -1.0})
                largest = max(known, difference, key=_rank)  # the first of equal ones
                count = known["different_values"] + difference["different_values"]
                found[name] = largest | {"different_values": count}
    return found


def _rank(difference: Mapping[str, Any]) -> Any:
    distance = difference["largest"]
    return np.inf if distance is None or distance != distance else distance


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


def compare_values(first: Array, second: Array, rtol: float = 0, atol: float = 0) -> dict[str, Any]:
    """Compare two arrays of the same shape, and return the largest difference, if there is any.

    NaN equals NaN, and is the largest difference from a number. Strings have no distance.
    """
    is_plain = first.dtype == second.dtype and not first.dtype.hasobject
    if is_plain and first.nbytes <= BATCH_BYTES and first.tobytes() == second.tobytes():
        return {}  # faster than comparing few elements
    same = _are_equal(first, second) | np.asarray((first != first) & (second != second))
    is_number = is_numeric(first.dtype) and is_numeric(second.dtype)
    wide = np.result_type(first, second, np.float64) if is_number else first.dtype
    if is_number and (rtol or atol):
        same |= np.isclose(first.astype(wide), second.astype(wide), rtol, atol)
    if same.all():
        return {}
    flat = int(np.argmin(same))
    if is_number:
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
