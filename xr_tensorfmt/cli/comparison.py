"""A comparison of two Datasets, chunk by chunk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import xarray as xr

from xr_tensorfmt.cli.info import plain
from xr_tensorfmt.core.chunk_grid import TARGET, contiguous_chunk
from xr_tensorfmt.core.elements import Array, StoredDtype
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.writing.conversion import is_numeric


@dataclass(frozen=True)
class Difference:
    """How a variable differs between two files.

    Parameters
    ----------
    dtypes, shapes : tuple
        Those of the first and of the second file.
    count : int, optional
        How many values differ; None where they cannot be compared, as the shapes differ.
    largest : float, int or None
        The largest difference; NaN where one value is NaN, None where values are no numbers.
    index : tuple of int
        The index of the values that differ most.
    values : tuple
        These values.
    """

    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    count: int | None = None
    largest: Any = None
    index: tuple[int, ...] = ()
    values: tuple[Any, ...] = ()

    @property
    def is_none(self) -> bool:
        """Whether nothing differs."""
        return not self.count and len({*self.dtypes}) == len({*self.shapes}) == 1

    def to_dict(self) -> dict[str, Any]:
        """What JSON can represent."""
        members: dict[str, Any] = {"dtypes": self.dtypes, "shapes": self.shapes}
        members |= {"different_values": self.count}
        if self.count:
            members |= {"largest": self.largest, "index": self.index, "values": self.values}
        return {name: plain(value) for name, value in members.items()}

    def sentences(self) -> Iterator[str]:
        """What differs."""
        for what, (first, second) in (("dtypes", self.dtypes), ("shapes", self.shapes)):
            if first != second:
                yield f"the {what} are {first} and {second}"
        if self.count:
            total = prod(self.shapes[0])
            values = " and ".join(shorten(repr(plain(value)), 40) for value in self.values)
            place = f" at {list(self.index)}" if self.index else ""
            most = "" if self.largest is None else f"by up to {self.largest:.6g}, "
            yield f"{self.count} of {total} values differ, {most}{values}{place}"


@dataclass(frozen=True)
class Comparison:
    """What differs between two files."""

    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    variables: Mapping[str, Difference] = field(default_factory=dict)
    equal: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.only_first or self.only_second or self.variables)

    def to_dict(self) -> dict[str, Any]:
        """What JSON can represent."""
        return {
            "equal": self.is_equal,
            "only_first": list(self.only_first),
            "only_second": list(self.only_second),
            "variables": {name: each.to_dict() for name, each in self.variables.items()},
            "equal_variables": self.equal,
        }

    def lines(self, first: str, second: str) -> Iterator[str]:
        """A line for each difference, and a summary."""
        for name in self.only_first:
            yield f"{shorten(name)}: only in {first}"
        for name in self.only_second:
            yield f"{shorten(name)}: only in {second}"
        for name, difference in self.variables.items():
            for each in difference.sentences():
                yield f"{shorten(name)}: {each}"
        counts = ((self.equal, "equal"), (len(self.variables), "different"))
        alone = len(self.only_first) + len(self.only_second)
        parts = [f"{count} {what}" for count, what in (*counts, (alone, "in one file alone"))]
        yield f"{shorten(first)} and {shorten(second)}: variables: {', '.join(parts)}"


def compare(first: xr.Dataset, second: xr.Dataset) -> Comparison:
    """Compare all variables, of which two chunks at a time are in memory."""
    common = [name for name in first.variables if name in second.variables]
    found = {str(name): difference(first[name].variable, second[name].variable) for name in common}
    different = {name: each for name, each in found.items() if not each.is_none}
    return Comparison(
        tuple(str(name) for name in first.variables if name not in second.variables),
        tuple(str(name) for name in second.variables if name not in first.variables),
        different,
        len(found) - len(different),
    )


def difference(first: xr.Variable, second: xr.Variable) -> Difference:
    """Compare two variables."""
    dtypes = stored_dtype(first), stored_dtype(second)
    found = Difference(dtypes, (first.shape, second.shape))
    if first.shape != second.shape:
        return found
    worst, count = found, 0
    for start, part in blocks(first):
        index = tuple(part)
        block = compare_values(first[index].values, second[index].values)
        if block is None:
            continue
        count += block.count
        if worst.count is None or _rank(block.largest) > _rank(worst.largest):
            position = tuple(int(a + b) for a, b in zip(start, block.index, strict=True))
            worst = Difference(
                dtypes, found.shapes, block.count, block.largest, position, block.values
            )
    return Difference(dtypes, found.shapes, count, worst.largest, worst.index, worst.values)


def _rank(largest: Any) -> float:
    """How large a difference is; a NaN beside a number is the largest."""
    return -1.0 if largest is None else float("inf") if largest != largest else float(largest)


def stored_dtype(variable: xr.Variable) -> str:
    """The dtype of a variable in its file, whatever the byte order is there."""
    stored = variable.encoding.get("dtype")
    if isinstance(stored, StoredDtype):
        return stored.name
    return "str" if variable.dtype.kind in "OUT" else str(variable.dtype.newbyteorder("=").name)


def blocks(variable: xr.Variable) -> Iterator[tuple[tuple[int, ...], list[slice]]]:
    """Blocks of a variable that are read at once, with the index at which each begins."""
    default = contiguous_chunk(variable.shape, max(1, variable.dtype.itemsize), TARGET)
    chunks = variable.encoding.get("preferred_chunks") or {}
    if set(chunks) != set(variable.dims):
        chunks = dict(zip(variable.dims, default, strict=True))
    steps = [max(1, int(np.max(chunks[dim]))) for dim in variable.dims]
    starts = (range(0, length, step) for length, step in zip(variable.shape, steps, strict=True))
    for start in itertools.product(*starts):
        yield start, [slice(a, a + step) for a, step in zip(start, steps, strict=True)]


@dataclass(frozen=True)
class _Block:
    """What differs between two arrays."""

    count: int
    largest: Any
    index: tuple[int, ...]
    values: tuple[Any, Any]


def compare_values(first: Array, second: Array) -> _Block | None:
    """Compare two arrays of one shape; None where they are equal, and NaN equals NaN."""
    same = np.asarray(first == second)
    if same.all():
        return None
    same |= (first != first) & (second != second)
    count = same.size - int(np.count_nonzero(same))
    if not count:
        return None
    if not (is_numeric(first.dtype) and is_numeric(second.dtype)):
        index = np.unravel_index(int(np.argmin(same)), same.shape)
        largest = None
    else:
        distances = _distances(first, second)
        distances[same] = 0
        flat = int(np.argmax(distances))  # which takes the first NaN for the largest
        index = np.unravel_index(flat, same.shape)
        largest = distances.flat[flat].item()
    position = tuple(map(int, index))
    return _Block(count, largest, position, (first[position], second[position]))


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
