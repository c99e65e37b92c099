"""A comparison of two Datasets, chunk by chunk, into a document that JSON can represent."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import numpy as np
import xarray as xr

from xr_tensorfmt.cli.conversion import open_tensors
from xr_tensorfmt.cli.info import dtype_name, plain
from xr_tensorfmt.cli.options import STORES
from xr_tensorfmt.cli.stores import open_store
from xr_tensorfmt.core.chunk_grid import TARGET, contiguous_chunk
from xr_tensorfmt.core.elements import Array, StoredDtype
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.writing.conversion import is_numeric
from xr_tensorfmt.writing.tree import flattened


def opened(
    file: str, format: str | None, *, separator: str, verify: bool, **options: Any
) -> xr.Dataset:
    """A file without chunks; names of groups are a part of the names of variables."""
    if format not in STORES:
        return open_tensors(file, format=format, separator=separator, verify=verify, **options)
    data = open_store(file, format, separator=separator, **options)
    return data if isinstance(data, xr.Dataset) else flattened(file, data, separator, ("attrs",))


def compare(first: xr.Dataset, second: xr.Dataset) -> dict[str, Any]:
    """Compare all variables, of which two chunks at a time are in memory."""
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


def lines_of(document: Mapping[str, Any], first: str, second: str) -> Iterator[str]:
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


def _difference(first: xr.Variable, second: xr.Variable) -> dict[str, Any]:
    """How a variable differs between two files; empty where it does not."""
    dtypes, shapes = (_stored_dtype(first), _stored_dtype(second)), (first.shape, second.shape)
    facts: dict[str, Any] = {"dtypes": dtypes, "shapes": shapes, "different_values": None}
    if first.shape == second.shape:
        found = _different_values(first, second)
        if found is None and dtypes[0] == dtypes[1]:
            return {}
        facts |= {"different_values": 0} if found is None else plain(asdict(found))
    return facts


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
        if self.largest is None:
            return -1.0
        return float("inf") if self.largest != self.largest else float(self.largest)


def _different_values(first: xr.Variable, second: xr.Variable) -> Different | None:
    """Compare two variables of one shape."""
    worst, count = None, 0
    for start, part in blocks(first):
        found = compare_values(first[part].values, second[part].values)
        if found is None:
            continue
        count += found.different_values
        if worst is None or found.rank > worst.rank:
            index = tuple(int(a + b) for a, b in zip(start, found.index, strict=True))
            worst = replace(found, index=index)
    return worst and replace(worst, different_values=count)


def _stored_dtype(variable: xr.Variable) -> str:
    """The dtype of a variable in its file, whatever the byte order is there."""
    stored = variable.encoding.get("dtype")
    return dtype_name(stored if isinstance(stored, StoredDtype) else variable.dtype).split(",")[0]


def blocks(variable: xr.Variable) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Blocks of a variable that are read at once, after the index at which each begins."""
    default = contiguous_chunk(variable.shape, max(1, variable.dtype.itemsize), TARGET)
    chunks = variable.encoding.get("preferred_chunks") or {}
    if set(chunks) != set(variable.dims):
        chunks = dict(zip(variable.dims, default, strict=True))
    steps = [max(1, int(np.max(chunks[dim]))) for dim in variable.dims]
    starts = (range(0, length, step) for length, step in zip(variable.shape, steps, strict=True))
    for start in itertools.product(*starts):
        yield start, tuple(slice(a, a + step) for a, step in zip(start, steps, strict=True))


def compare_values(first: Array, second: Array) -> Different | None:
    """Compare two arrays of one shape; None where they are equal, and NaN equals NaN."""
    same = np.asarray(first == second)
    if same.all():
        return None
    same |= (first != first) & (second != second)
    count = same.size - int(np.count_nonzero(same))
    if not count:
        return None
    flat, largest = int(np.argmin(same)), None
    if is_numeric(first.dtype) and is_numeric(second.dtype):
        distances = _distances(first, second)
        distances[same] = 0
        flat = int(np.argmax(distances))  # which takes the first NaN for the largest
        largest = distances.flat[flat].item()
    index = tuple(map(int, np.unravel_index(flat, same.shape)))
    return Different(count, largest, index, (first[index], second[index]))


def _distances(first: Array, second: Array) -> Array:
    """The differences without their signs, exact for integers."""
    with np.errstate(all="ignore"):
        if first.dtype.kind in "iu" and second.dtype.kind == first.dtype.kind:
            # Modulo 2**64 the difference of the larger and the smaller one is exact.
            high, low = (f(first, second).astype(np.uint64) for f in (np.maximum, np.minimum))
            return np.asarray(high - low)
        is_complex = "c" in (first.dtype.kind, second.dtype.kind)
        wide = np.complex128 if is_complex else np.float64
        return np.asarray(np.abs(np.subtract(first, second, dtype=wide)))
