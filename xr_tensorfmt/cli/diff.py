"""``xr-tensorfmt diff``: compare two files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import hypot
from operator import add
from typing import Any

import click
import numpy as np
import pandas as pd
import xarray as xr

from xr_tensorfmt.cli import common, describe
from xr_tensorfmt.cli.convert import STORED_VALUES, open_input
from xr_tensorfmt.core.elements import FLOAT8_NAMES, Array, get_stored_name
from xr_tensorfmt.core.extents import DEFAULT_CHUNK_BYTES, contiguous_chunk, iterate_chunks
from xr_tensorfmt.datasets.building import get_info
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.writing.file_plan import is_numeric

_TOLERANCE: dict[str, Any] = {"type": click.FloatRange(min=0), "default": None}


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--rtol",
    help="Relative tolerance, a factor of the value in B, as in numpy.isclose. With a tolerance, "
    "even 0, dtypes may differ.",
    **_TOLERANCE,
)
@click.option(
    "--atol", help="Absolute tolerance, which is added to the relative tolerance.", **_TOLERANCE
)
@common.add_open_options
def diff(first: str, second: str, rtol: float | None, atol: float | None, **options: Any) -> None:
    """Compare the variables and attributes of two files.

    Names, dtypes, shapes, attributes and all values are compared, but not the dimension names.
    The formats may differ, including zarr and netCDF. The exit code is 0 for equal files, 1 for
    differences, 2 for an error.
    """
    files = (first, second)
    # Stores contain decoded values, or attributes by which xarray decodes them.
    formats = {options["format"] or common.get_store_format(file) for file in files}
    stored = {} if formats & set(common.STORES) else STORED_VALUES
    opened = []
    try:
        for file in files:
            with common.format_errors(file):
                opened.append(open_input(file, drop=["attrs"], cache=False, **stored, **options))
        with common.format_errors(*files):
            lines = compare(opened[0], opened[1], rtol, atol, files)
    except click.ClickException as error:
        error.show()
        raise SystemExit(2) from error
    common.print_lines(lines)
    raise SystemExit(int(len(lines) > 1))  # the last line is the summary


def compare(
    first: xr.Dataset,
    second: xr.Dataset,
    rtol: float | None = None,
    atol: float | None = None,
    files: Sequence[str] = ("A", "B"),
) -> list[str]:
    """Compare attributes, and variables block by block. Return a line per difference, a summary."""
    if len(first.data_vars) == len(second.data_vars) == 1:
        (name,), (other,) = first.data_vars, second.data_vars
        if name not in second.variables and name not in second.dims:
            second = second.rename_vars({other: name})  # some formats store no name
    files = [shorten(common.to_one_line(file)) for file in files]
    unmatched = _find_unmatched(first.variables, second.variables, files)
    originals = first.variables, second.variables
    labeled = _find_labels(first), _find_labels(second)
    labels = {dim: (labeled[0][dim], labeled[1][dim]) for dim in labeled[0] if dim in labeled[1]}
    labels = {dim: pair for dim, pair in labels.items() if pair[0].dtype.kind == pair[1].dtype.kind}
    shared = {dim: one.intersection(other, sort=False) for dim, (one, other) in labels.items()}
    changed: dict[Any, set[int]] = {dim: set() for dim in labels}
    for dim, (one, other) in labels.items():
        if not one.equals(other):
            first = first.isel({dim: one.get_indexer(shared[dim])})
            second = second.isel({dim: other.get_indexer(shared[dim])})
    names = [name for name in first.variables if name in second.variables]
    pairs = {name: (first.variables[name], second.variables[name]) for name in names}
    compared = {
        name: [*_compare_attrs(*x, files), *_compare_variables(*x, rtol, atol, shared, changed)]
        for name, x in pairs.items()
    }
    different = {name: lines for name, lines in compared.items() if lines}
    moved = [one for one, other in labels.values() if not one.equals(other)]
    coords = {name for index in moved for name in index.names}.intersection(names)
    relabeled = {x for x in coords if not np.array_equal(originals[0][x], originals[1][x])}
    count = len(different.keys() | relabeled)
    counted = f"{len(names) - count} equal, {count} different"
    found = [(name, f"only in {file}") for name, file in unmatched]
    for dim, pair in labels.items():
        others = shared[dim][sorted(changed[dim])]
        found += [(dim, line) for line in _compare_labels(*pair, others, files)]
    found += [(name, line) for name, lines in different.items() for line in lines]
    summary = f"{' and '.join(files)}: variables: {counted}, {len(unmatched)} in only one file"
    of_files = _compare_attrs(first, second, files)
    return [*of_files, *(f"{shorten(name)}: {line}" for name, line in found), summary]


def _find_unmatched(
    first: Collection[Any], second: Collection[Any], files: Sequence[str]
) -> list[tuple[Any, str]]:
    """Return what only one of two files has, with its path."""
    missing = [(name, files[0]) for name in first if name not in second]
    return missing + [(name, files[1]) for name in second if name not in first]


def _compare_attrs(
    first: xr.Dataset | xr.Variable, second: xr.Dataset | xr.Variable, files: Sequence[str]
) -> Iterator[str]:
    """Describe attributes that differ. Those that a reader makes are not in the file."""
    made = {x for item in (first, second) for x in get_info(item.encoding).get("reader_attrs", ())}
    attrs, others = (
        describe.to_plain({name: x.attrs[name] for name in x.attrs if name not in made})
        for x in (first, second)
    )
    for name, file in _find_unmatched(attrs, others, files):
        yield f"the attribute {shorten(repr(name))} only in {file}"
    for name in [name for name in attrs if attrs[name] != others.get(name, attrs[name])]:
        pair = " and ".join(shorten(repr(values[name]), 60) for values in (attrs, others))
        yield f"the attribute {shorten(repr(name))} differs: {pair}"


def _find_labels(ds: xr.Dataset) -> dict[Any, pd.Index[Any]]:
    """Return the labels of dimensions that do not repeat: strings, and indexes without floats."""
    along: dict[Any, dict[Any, xr.DataArray]] = {}
    for name, coord in ds.coords.items():
        if coord.ndim == 1:
            along.setdefault(coord.dims[0], {})[name] = coord
    labels: dict[Any, pd.Index[Any]] = {}
    for dim, coords in along.items():
        named = [coords[dim]] if dim in coords else coords.values()
        kinds = "OUTiuM" if dim in coords else "OUT"
        columns = [pd.Index(x.values, name=x.name) for x in named if x.dtype.kind in kinds]
        if columns:
            index = pd.MultiIndex.from_arrays(columns) if columns[1:] else columns[0]
            labels |= {dim: index} if index.is_unique else {}
    return labels


def _compare_labels(
    first: pd.Index[Any], second: pd.Index[Any], changed: pd.Index[Any], files: Sequence[str]
) -> Iterator[str]:
    """Describe labels of one file, and the `changed` ones with other values."""
    missing = first.difference(second, sort=False), second.difference(first, sort=False)
    ends = f" only in {files[0]}", f" only in {files[1]}", " differ"
    for labels, end in zip((*missing, changed), ends, strict=True):
        if len(labels):
            count = f"{len(labels)} labels, " if len(labels) > 1 else ""
            start = f"values at {count}" if end == " differ" else count
            yield f"{start}{shorten(repr(describe.to_plain(labels.tolist()))[1:-1], 60)}{end}"
    if not first.equals(second) and len(first) == len(second) and not len(missing[0]):
        yield "the labels have another order"


def iterate_blocks(variable: xr.Variable) -> Iterator[tuple[slice, ...]]:
    """Yield the keys of the chunks of a variable, or of contiguous blocks if it has none."""
    chunk = contiguous_chunk(variable.shape, variable.dtype.itemsize, DEFAULT_CHUNK_BYTES)
    chunks = variable.encoding.get("preferred_chunks") or {}
    if variable.nbytes > DEFAULT_CHUNK_BYTES and chunks.keys() & set(variable.dims):
        chunk = tuple(int(np.max(chunks.get(dim, n))) for dim, n in variable.sizes.items())
    for block in iterate_chunks(variable.shape, chunk):
        yield tuple(slice(indices.start, indices.stop) for indices in block)


def _compare_variables(
    first: xr.Variable,
    second: xr.Variable,
    rtol: float | None,
    atol: float | None,
    labels: Mapping[Any, pd.Index[Any]],
    changed: Mapping[Any, set[int]],
) -> list[str]:
    """Describe the differences of two variables, and add positions of changed labels."""
    dtypes = [_get_stored_dtype(variable) for variable in (first, second)]
    found = [f"the dtypes are {dtypes[0]} and {dtypes[1]}"] if dtypes[0] != dtypes[1] else []
    if first.shape != second.shape:
        return [*found, f"the shapes are {first.shape} and {second.shape}"]
    count, rank, largest = 0, -1.0, ""
    for key in iterate_blocks(first):
        one, other = (variable[key].values for variable in (first, second))
        same = are_close(one, other, rtol or 0, atol or 0)
        if same.all():
            continue
        count += same.size - int(np.count_nonzero(same))
        start = [part.start for part in key]
        index, distance = find_largest_difference(one, other, same)
        block_rank = np.inf if distance is None or distance != distance else distance
        if block_rank > rank:
            values = describe.to_plain((one[index], other[index]))
            by = "" if distance is None else f"by up to {float(distance):.6g}, "
            keys = zip(first.dims, map(add, index, start), strict=True)
            named = [
                f"{dim}={describe.to_plain(labels[dim][i])!r:.80}" if dim in labels else str(i)
                for dim, i in keys
            ]
            where = f" at [{', '.join(named)}]" if named else ""
            pair = " and ".join(shorten(repr(value), 80) for value in values)  # whole numbers
            rank, largest = block_rank, f"{by}{pair}{where}"
        for axis in (axis for axis, dim in enumerate(first.dims) if dim in changed):
            others = tuple({*range(first.ndim)} - {axis})
            rows = np.flatnonzero(~same.all(axis=others)) + start[axis]
            changed[first.dims[axis]].update(rows.tolist())
    if not count:  # with a tolerance, dtypes may differ, as in `xarray.testing.assert_allclose`
        return found if rtol is None and atol is None else []
    verb = "differ beyond the tolerance" if rtol or atol else "differ"
    return [*found, f"{count} of {first.size} values {verb}, {largest}"]


def _get_stored_dtype(variable: xr.Variable) -> str:
    """Return the dtype of a variable in its file, without the byte order."""
    stored = get_stored_name(variable.encoding.get("dtype"))
    is_narrow = stored in ("bfloat16", *FLOAT8_NAMES)
    return str(stored) if is_narrow else describe.format_dtype(variable.dtype).split(",")[0]


def are_close(first: Array, second: Array, rtol: float = 0, atol: float = 0) -> Array:
    """Compare elements within tolerances. NaN equals NaN."""
    same: Array = np.asarray(first == second)
    if not same.all():
        same |= (first != first) & (second != second)
    if (rtol or atol) and is_numeric(first.dtype) and is_numeric(second.dtype):
        wide = np.result_type(first, second, np.float64)
        same |= np.isclose(first.astype(wide), second.astype(wide), rtol, atol)
    return same


def find_largest_difference(
    first: Array, second: Array, same: Array
) -> tuple[tuple[int, ...], float | None]:
    """Return the index and distance of the largest difference: NaN, if any. Strings have none."""
    is_number = is_numeric(first.dtype) and is_numeric(second.dtype)
    distances: Any = 0
    if is_number:
        wide = np.result_type(first, second, np.float64)
        with np.errstate(all="ignore"):
            distances = np.abs(np.subtract(first, second, dtype=wide))
    flat = np.argmax(np.where(same, -1, distances))  # the first NaN, if there is one
    index = tuple(map(int, np.unravel_index(flat, same.shape)))
    if not is_number:
        return index, None
    difference = first[index].item() - second[index].item()
    is_exact = isinstance(difference, int)
    return index, abs(difference) if is_exact else hypot(difference.real, difference.imag)
