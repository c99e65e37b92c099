"""``xr-tensorfmt diff``: what differs between two files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from xr_tensorfmt.cli.info import dtype_name, plain
from xr_tensorfmt.cli.messages import errors_in_one_line, one_line, print_json, print_lines
from xr_tensorfmt.cli.options import group_options, source_options, verify_option
from xr_tensorfmt.core.chunk_grid import DEFAULT_CHUNK_BYTES, contiguous_chunk
from xr_tensorfmt.core.elements import Array, StoredDtype
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.writing.conversion import is_numeric

if TYPE_CHECKING:
    from xarray import Dataset, Variable


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="A JSON object.")
@group_options
@source_options
@verify_option
def diff(first: str, second: str, as_json: bool, separator: str, **options: Any) -> None:
    """Compare the variables of two files: names, dtypes, shapes and all values.

    The formats may differ, and zarr and netCDF are read as well. Names of dimensions and attributes
    are not compared. The exit code is 0 if nothing differs, 1 if something does, 2 for an error.
    """
    try:
        both = [_open(file, separator, **options) for file in (first, second)]
        with errors_in_one_line(first, second):
            comparison = compare(*both)
    except click.ClickException as error:
        error.show()
        raise SystemExit(2) from error
    first, second = one_line(first), one_line(second)
    if as_json:
        print_json({"first": first, "second": second, **comparison})
    else:
        print_lines(_lines(comparison, first, second))
    raise SystemExit(int(not comparison["equal"]))


def _open(file: str, separator: str, **options: Any) -> Dataset:
    """Open a file as one Dataset, whatever its groups."""
    from xr_tensorfmt.cli.files import flat, opened  # noqa: PLC0415  # xarray takes its time

    with errors_in_one_line(file):
        return flat(file, opened(file, file, separator=separator, **options), separator, ["attrs"])


def compare(first: Dataset, second: Dataset) -> dict[str, Any]:
    """Compare all variables, of which two chunks at a time are in memory, for JSON."""
    common = [name for name in first.variables if name in second.variables]
    found = {str(name): _difference(first[name].variable, second[name].variable) for name in common}
    different = {name: each for name, each in found.items() if each}
    only_first = [str(name) for name in first.variables if name not in second.variables]
    only_second = [str(name) for name in second.variables if name not in first.variables]
    return {
        "equal": not (only_first or only_second or different),
        "only_first": only_first,
        "only_second": only_second,
        "variables": different,
        "equal_variables": len(found) - len(different),
    }


def _lines(document: Mapping[str, Any], first: str, second: str) -> Iterator[str]:
    """A line for each difference, and a summary."""
    alone = [(name, first) for name in document["only_first"]]
    alone += [(name, second) for name in document["only_second"]]
    for name, file in alone:
        yield f"{shorten(name)}: only in {file}"
    for name, difference in document["variables"].items():
        for each in _sentences(difference):
            yield f"{shorten(name)}: {each}"
    yield (
        f"{shorten(first)} and {shorten(second)}: variables: {document['equal_variables']} equal, "
        f"{len(document['variables'])} different, {len(alone)} in one file alone"
    )


def _sentences(facts: Mapping[str, Any]) -> Iterator[str]:
    """What differs."""
    for what in ("dtypes", "shapes"):
        one, other = facts[what]
        if one != other:
            yield f"the {what} are {one} and {other}"
    if facts["different_values"]:
        total, largest, index = prod(facts["shapes"][0]), facts["largest"], facts["index"]
        most = "" if largest is None else f"by up to {float(largest):.6g}, "
        pair = " and ".join(shorten(repr(value), 40) for value in facts["values"])
        place = f" at {index}" if index else ""
        yield f"{facts['different_values']} of {total} values differ, {most}{pair}{place}"


def _difference(first: Variable, second: Variable) -> dict[str, Any]:
    """How a variable differs between two files; empty where it does not."""
    dtypes, shapes = (_stored_dtype(first), _stored_dtype(second)), (first.shape, second.shape)
    facts: dict[str, Any] = {"dtypes": dtypes, "shapes": shapes, "different_values": None}
    if first.shape != second.shape:
        return facts
    found = _different_values(first, second)
    if found is None and dtypes[0] == dtypes[1]:
        return {}
    return facts | ({"different_values": 0} if found is None else plain(asdict(found)))


def _stored_dtype(variable: Variable) -> str:
    """The dtype of a variable in its file, whatever the byte order is there."""
    stored = variable.encoding.get("dtype")
    return dtype_name(stored if isinstance(stored, StoredDtype) else variable.dtype).split(",")[0]


@dataclass(frozen=True)
class Different:
    """Values that differ: how many, the largest difference, and the two values at its index.

    The difference is NaN where one value is, and None where values are no numbers.
    """

    different_values: int
    largest: Any
    index: tuple[int, ...]
    values: tuple[Any, Any]

    @property
    def rank(self) -> float:
        """How large the difference is; a NaN beside a number is the largest."""
        is_number = self.largest is not None and self.largest == self.largest
        return float(self.largest if is_number else "inf")


def _different_values(first: Variable, second: Variable) -> Different | None:
    """Compare two variables of one shape."""
    found = []
    for block in blocks(first):
        different = compare_values(first[block].values, second[block].values)
        if different is not None:
            place = zip(block, different.index, strict=True)
            found.append(replace(different, index=tuple(part.start + i for part, i in place)))
    if not found:
        return None
    count = sum(each.different_values for each in found)
    return replace(max(found, key=attrgetter("rank")), different_values=count)


def blocks(variable: Variable) -> Iterator[tuple[slice, ...]]:
    """Blocks of a variable that are read at once."""
    default = contiguous_chunk(variable.shape, max(1, variable.dtype.itemsize), DEFAULT_CHUNK_BYTES)
    chunks = variable.encoding.get("preferred_chunks") or {}
    if set(chunks) != set(variable.dims):
        chunks = dict(zip(variable.dims, default, strict=True))
    steps = [max(1, int(np.max(chunks[dim]))) for dim in variable.dims]
    starts = (range(0, length, step) for length, step in zip(variable.shape, steps, strict=True))
    for start in itertools.product(*starts):
        yield tuple(slice(a, a + step) for a, step in zip(start, steps, strict=True))


def compare_values(first: Array, second: Array) -> Different | None:
    """Compare two arrays of one shape; None where they are equal, and NaN equals NaN."""
    same = _equal(first, second)
    if not same.all():
        same |= (first != first) & (second != second)
    if same.all():
        return None
    flat, largest = int(np.argmin(same)), None
    if is_numeric(first.dtype) and is_numeric(second.dtype):
        distances = _distances(first, second)
        distances[same] = 0
        flat = int(np.argmax(distances))  # which takes the first NaN for the largest
        largest = distances.flat[flat].item()
    index = tuple(map(int, np.unravel_index(flat, same.shape)))
    count = same.size - int(np.count_nonzero(same))
    return Different(count, largest, index, (first[index], second[index]))


def _equal(first: Array, second: Array) -> Array:
    """Compare elements exactly: numpy rounds 64-bit integers to float64 beside floats."""
    if first.dtype.kind in "fc" and second.dtype.kind in "iu":
        first, second = second, first
    if first.dtype.kind in "iu" and second.dtype.kind in "fc":
        integers, is_integer = _as_integers(second, first.dtype)
        return np.asarray(is_integer & (first == integers))
    return np.asarray(first == second)


def _as_integers(values: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Convert floats or complex numbers to integers, and return which are such integers."""
    limits, real = np.iinfo(dtype), values.real.astype(np.float64)
    is_integer = (real >= float(limits.min)) & (real < 2.0 ** (limits.max.bit_length()))
    is_integer &= (np.floor(real) == real) & (values.imag == 0)
    return np.where(is_integer, real, 0).astype(dtype), is_integer


def _distances(first: Array, second: Array) -> Array:
    """The differences without their signs, exact for integers."""
    if first.dtype.kind in "fc" and second.dtype.kind in "iu":
        first, second = second, first
    if first.dtype.kind in "iu" and second.dtype.kind in "fc":
        integers, is_integer = _as_integers(second, first.dtype)
        wide = np.complex128 if second.dtype.kind == "c" else np.float64
        rounded = np.abs(np.subtract(first, second, dtype=wide))
        return np.where(is_integer, _distances(first, integers), rounded)
    with np.errstate(all="ignore"):
        if first.dtype.kind in "iu" and second.dtype.kind == first.dtype.kind:
            # Modulo 2**64 the difference of the larger and the smaller one is exact.
            high, low = (f(first, second).astype(np.uint64) for f in (np.maximum, np.minimum))
            return np.asarray(high - low)
        is_complex = "c" in (first.dtype.kind, second.dtype.kind)
        wide = np.complex128 if is_complex else np.float64
        return np.asarray(np.abs(np.subtract(first, second, dtype=wide)))
