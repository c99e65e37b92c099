"""Explanations of reads: byte ranges and requests."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from operator import itemgetter
from typing import Any

import dask.array
from xarray import DataArray, Dataset, DataTree, Variable

from xr_tensorfmt.core.extents import Extents, format_size
from xr_tensorfmt.core.locks import cached_property
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets.dask_tasks import find_lazy_reads
from xr_tensorfmt.datasets.lazy_array import TensorArray, find_lazy_tensor

_MAX_LINES = 20


@dataclass(frozen=True, eq=False)
class ChunkRead:
    """The read of a chunk: an index and the `shape` of values, and Extents by file."""

    variable: str
    chunk: tuple[int, ...]
    shape: tuple[int, ...]
    extents: Mapping[str, Extents] = field(repr=False)
    requests: tuple[tuple[str, Extents], ...] = field(repr=False)

    @property
    def ranges(self) -> list[tuple[str, int, int]]:
        """Byte ranges of the values, as tuples of file, first byte and stop."""
        return _list_ranges(self.extents.items())

    @property
    def request_ranges(self) -> list[tuple[str, int, int]]:
        """Byte ranges of the requests, as tuples of file, first byte and stop."""
        return _list_ranges(self.requests)

    @property
    def request_count(self) -> int:
        """Number of requests."""
        return sum(len(extents) for _, extents in self.requests)

    @property
    def fetched_bytes(self) -> int:
        """Bytes that the requests transfer."""
        return sum(extents.nbytes for _, extents in self.requests)

    @property
    def needed_bytes(self) -> int:
        """Bytes of the values in the file."""
        return sum(extents.nbytes for extents in self.extents.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values that JSON supports."""
        return {
            "variable": self.variable,
            "chunk": list(self.chunk),
            "shape": list(self.shape),
            "needed_bytes": self.needed_bytes,
            "fetched_bytes": self.fetched_bytes,
            "ranges": list(map(list, self.ranges)),
            "request_ranges": list(map(list, self.request_ranges)),
        }

    def describe(self) -> dict[str, str]:
        """Return the cells of a table."""
        bounds = [extents.bounds for extents in self.extents.values()]
        return {
            "file": ", ".join(name.rpartition("/")[2] for name in self.extents) or "-",
            "variable": self.variable,
            "chunk": ", ".join(map(str, self.chunk)) or "-",
            "values": f"{prod(self.shape):,}",
            "ranges": f"{sum(map(len, self.extents.values())):,}",
            "requests": f"{self.request_count:,}",
            "needed": format_size(self.needed_bytes),
            "fetched": format_size(self.fetched_bytes),
            "bytes": "; ".join(f"{start} to {stop}" for start, stop in bounds) or "-",
        }


def _list_ranges(extents: Iterable[tuple[str, Extents]]) -> list[tuple[str, int, int]]:
    return [
        (name, start, start + length)
        for name, ranges in extents
        for start, length in zip(ranges.starts.tolist(), ranges.lengths.tolist(), strict=True)
    ]


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The byte ranges and requests of the `reads` of chunks, shown as a list or a table."""

    reads: tuple[ChunkRead, ...]

    @cached_property
    def requests(self) -> int:
        """Number of requests, or of memory maps of a local file."""
        return sum(read.request_count for read in self.reads)

    @cached_property
    def needed_bytes(self) -> int:
        """Bytes of the values in the file."""
        return sum(read.needed_bytes for read in self.reads)

    @cached_property
    def fetched_bytes(self) -> int:
        """Bytes that the requests transfer."""
        return sum(read.fetched_bytes for read in self.reads)

    @property
    def amplification(self) -> float:
        """Ratio of fetched to needed bytes."""
        return self.fetched_bytes / self.needed_bytes if self.needed_bytes else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return totals, and the fields of every read, as values that JSON supports."""
        return {
            "requests": self.requests,
            "needed_bytes": self.needed_bytes,
            "fetched_bytes": self.fetched_bytes,
            "amplification": self.amplification,
            "reads": [read.to_dict() for read in self.reads],
        }

    def __repr__(self) -> str:
        """Return the totals, and the properties of a read or a table of up to 20 reads."""
        if not self.reads:
            return "0 requests: no values are read from files of this engine"
        requests = "request fetches" if self.requests == 1 else "requests fetch"
        sizes = f"{format_size(self.fetched_bytes)} for {format_size(self.needed_bytes)}"
        totals = f"{self.requests:,} {requests} {sizes} ({self.amplification:.2f} x)"
        lines = self._format_table() if len(self.reads) > 1 else self._format_read()
        return "\n".join([totals, *lines])

    def _format_read(self) -> list[str]:
        """Return a line per property of the only read, except those in the totals."""
        columns = self._get_columns()
        names = [name for name in columns if name not in ("requests", "needed", "fetched")]
        width = max(map(len, names)) + 2
        return [f"{name}:".ljust(width) + columns[name][0] for name in names]

    def _format_table(self) -> list[str]:
        """Return a heading and a line per read."""
        columns = [(name, *cells) for name, cells in self._get_columns().items()]
        widths = [max(map(len, column)) for column in columns]
        rows = zip(*columns, strict=True)
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
        more = len(self.reads) - _MAX_LINES
        return [*lines, f"... and {more:,} more"] if more > 0 else lines

    def _get_columns(self) -> dict[str, tuple[str, ...]]:
        """Return the cells of each column, without columns that add no information."""
        rows = [read.describe() for read in self.reads[:_MAX_LINES]]
        columns = {name: tuple(row[name] for row in rows) for name in rows[0]}
        if len({name for read in self.reads for name in read.extents}) <= 1:
            del columns["file"]
        if set(columns["chunk"]) == {"-"}:
            del columns["chunk"]
        if set(columns["ranges"]) == {"1"}:
            del columns["ranges"]
        if columns["fetched"] == columns["needed"]:
            del columns["fetched"]
        return columns


def explain(data: Dataset | DataArray | DataTree) -> Explanation:
    """Explain what computing data would read."""
    reads = (read for named in _get_variables(data) for read in _find_chunk_reads(*named))
    return Explanation(tuple(reads))


def find_sources(variable: Variable) -> Iterator[Source]:
    """Yield the files of this engine that computing a variable would read."""
    return (tensor.source for _, _, tensor, _ in _find_lazy_chunks(variable))


def _get_variables(data: Dataset | DataArray | DataTree) -> Iterator[tuple[Hashable, Variable]]:
    if isinstance(data, DataTree):
        for node in data.subtree:
            for name, variable in node.to_dataset(inherit=False).variables.items():
                yield f"{node.path}/{name}".lstrip("/"), variable
    elif isinstance(data, Dataset):
        yield from data.variables.items()
    else:
        yield "<this-array>" if data.name is None else data.name, data.variable
        yield from ((name, coordinate.variable) for name, coordinate in data.coords.items())


def _find_chunk_reads(name: Hashable, variable: Variable) -> Iterator[ChunkRead]:
    for chunk, shape, tensor, key in _find_lazy_chunks(variable):
        parts = tensor.plan(key).locate(tensor.layout, tensor.source)
        extents: dict[str, list[Extents]] = {}
        for source, ranges in parts:
            extents.setdefault(source.name, []).append(ranges)
        merged = {file: Extents.union(ranges) for file, ranges in extents.items()}
        requests = tuple((source.name, source.plan_requests(ranges)) for source, ranges in parts)
        yield ChunkRead(str(name), chunk, shape, merged, requests)


_Index = tuple[int, ...]


def _find_lazy_chunks(variable: Variable) -> Iterator[tuple[_Index, _Index, TensorArray, Any]]:
    """Yield index, shape, tensor and key of the chunks that read files of this engine."""
    reads: list[tuple[_Index, Any]] = [((), variable)]
    if variable.chunks is not None:
        # Other chunk managers than dask have no graph.
        is_dask = isinstance(variable.data, dask.array.Array)
        reads = sorted(find_lazy_reads(variable.data), key=itemgetter(0)) if is_dask else []
    for chunk, array in reads:
        lazy = find_lazy_tensor(array)
        if lazy is not None:
            yield chunk, array.shape, lazy.array, lazy.key
