"""Explanations of reads: byte ranges and requests."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from operator import attrgetter
from typing import Any

import dask
import dask.array
import numpy as np
from dask.callbacks import Callback
from xarray import DataArray, Dataset, DataTree, Variable

from xr_tensorfmt.core.extents import format_size
from xr_tensorfmt.core.source import Plan
from xr_tensorfmt.datasets.lazy_array import find_lazy_tensor, plan_recorder

_MAX_LINES = 20


@dataclass(frozen=True, eq=False)
class ChunkRead:
    """The read of a chunk: an index and the `shape` of values, and what the read fetches.

    Requests are memory maps for a local file.
    """

    variable: str
    chunk: tuple[int, ...]
    shape: tuple[int, ...]
    plan: Plan = field(repr=False)
    range_count: int
    request_count: int
    needed_bytes: int
    fetched_bytes: int

    @property
    def request_ranges(self) -> list[tuple[str, int, int]]:
        """Byte ranges of the requests and memory maps, as tuples of file, first byte and stop."""
        ranges: list[tuple[str, int, int]] = []
        for fetch in self.plan.iterate_fetches():
            requests, _ = fetch.source.explain_read(fetch.extents)
            pairs = zip(requests.starts.tolist(), requests.lengths.tolist(), strict=True)
            ranges += [(fetch.source.name, start, start + length) for start, length in pairs]
        return ranges

    def describe(self) -> dict[str, str]:
        """Return the cells of a table."""
        bounds: dict[str, list[int]] = {}
        for fetch in self.plan.iterate_fetches():
            bounds.setdefault(fetch.source.name, []).extend(fetch.extents.bounds)
        spans = (f"{min(offsets)} to {max(offsets)}" for offsets in bounds.values())
        return {
            "file": ", ".join(name.rpartition("/")[2] for name in bounds) or "-",
            "variable": self.variable,
            "chunk": ", ".join(map(str, self.chunk)) or "-",
            "values": f"{prod(self.shape):,}",
            "ranges": f"{self.range_count:,}",
            "requests": f"{self.request_count:,}",
            "needed": format_size(self.needed_bytes),
            "fetched": format_size(self.fetched_bytes),
            "bytes": "; ".join(spans) or "-",
        }


def _build_read(name: str, chunk: tuple[int, ...], shape: tuple[int, ...], plan: Plan) -> ChunkRead:
    """Count the byte ranges and requests of a plan, without keeping them."""
    counts = [0, 0, 0, 0]
    for fetch in plan.iterate_fetches():
        requests, nbytes = fetch.source.explain_read(fetch.extents)
        needed = fetch.extents.nbytes if fetch.needed_bytes < 0 else fetch.needed_bytes
        added = (len(fetch.extents), len(requests), needed, nbytes)
        counts = [total + count for total, count in zip(counts, added, strict=True)]
    return ChunkRead(name, chunk, shape, plan, *counts)


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The byte ranges and requests of the `reads` of chunks, shown as a list or a table."""

    reads: tuple[ChunkRead, ...]

    @property
    def requests(self) -> int:
        """Number of requests, or of memory maps of a local file."""
        return sum(read.request_count for read in self.reads)

    @property
    def needed_bytes(self) -> int:
        """Bytes of the values in the file."""
        return sum(read.needed_bytes for read in self.reads)

    @property
    def fetched_bytes(self) -> int:
        """Bytes that the requests transfer."""
        return sum(read.fetched_bytes for read in self.reads)

    @property
    def amplification(self) -> float:
        """Ratio of fetched to needed bytes."""
        return self.fetched_bytes / self.needed_bytes if self.needed_bytes else 1.0

    def __repr__(self) -> str:
        """Return the totals, and the properties of a read or a table of up to 20 reads."""
        if not self.reads:
            return "0 requests: no values are read from files of this engine"
        requests = "request fetches" if self.requests == 1 else "requests fetch"
        sizes = f"{format_size(self.fetched_bytes)} for {format_size(self.needed_bytes)}"
        totals = f"{self.requests:,} {requests} {sizes} ({self.amplification:.2f} x)"
        rows = [read.describe() for read in self.reads[:_MAX_LINES]]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        if len({*columns["file"]}) == 1 and "," not in columns["file"][0]:
            del columns["file"]
        for name, repeated in (("chunk", {"-"}), ("ranges", {"1"}), ("fetched", columns["needed"])):
            if {*columns[name]} == repeated or columns[name] == repeated:
                del columns[name]
        if len(rows) == 1:  # without the numbers in the totals
            names = [name for name in columns if name not in ("requests", "needed", "fetched")]
            return "\n".join([totals, *(f"{name + ':':<10}{columns[name][0]}" for name in names)])
        table = [(name, *cells) for name, cells in columns.items()]
        widths = [max(map(len, column)) for column in table]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in zip(*table, strict=True)]
        more = len(self.reads) - _MAX_LINES
        return "\n".join([totals, *lines, *([f"... and {more:,} more"] if more > 0 else [])])


def explain(
    data: Dataset | DataArray | DataTree,
    /,
    indexers: Mapping[Any, Any] | None = None,
    **indexers_kwargs: Any,
) -> Explanation:
    """Explain which bytes loading data would read, without reading them.

    Parameters
    ----------
    data : Dataset, DataArray or DataTree
        Data opened with this engine, selected, transposed or chunked. The result of another
        computation raises ValueError.
    indexers : mapping, optional
        Indices by dimension, as in ``isel``. To select labels, call ``data.sel`` first.
    **indexers_kwargs
        The keyword form of `indexers`.

    Returns
    -------
    Explanation
        The planned reads: one per dask chunk, or one per variable without chunks. Variables in
        memory or of other engines have none. For files of index-value pairs, the result is an
        upper bound, because the positions of values are only known after reading.

    Examples
    --------
    >>> from xr_tensorfmt import explain, tutorial
    >>> ds = tutorial.open_dataset("cities", chunks={})
    >>> explain(ds, x=slice(0, 2))
    1 request fetches 508 B for 208 B (2.44 x)
    variable: tensor
    chunk:    0, 0
    values:   52
    ranges:   26
    bytes:    19 to 527
    """
    if not isinstance(data, Dataset | DataArray | DataTree):
        raise TypeError(
            f"data= must be a Dataset, DataArray or DataTree, not a {type(data).__name__}; open a "
            "file with xarray.open_dataset"
        )
    try:
        selected = data.isel(indexers, **indexers_kwargs)
    except (IndexError, KeyError, TypeError) as error:
        hint = "pass positions as to isel, or select labels with sel() first"
        raise type(error)(f"{hint}: {error}") from error
    reads = (read for named in _get_variables(selected) for read in _find_chunk_reads(*named))
    return Explanation(tuple(reads))


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
    if variable.chunks is not None:
        # Other chunk managers than dask have no graph.
        is_dask = isinstance(variable.data, dask.array.Array)
        yield from _record_reads(str(name), variable.data) if is_dask else ()
        return
    lazy = find_lazy_tensor(variable)
    if lazy is not None:
        yield _build_read(str(name), (), variable.shape, lazy.array.plan(lazy.key))


# Names of dask and xarray for arrays that were opened, selected, transposed or chunked, and the
# packages of their functions, because functions of the user may have these names.
_SELECTIONS = (
    *("open_dataset", "xarray", "original", "array", "getitem", "transpose", "rechunk"),
    *("concatenate", "stack", "reshape", "broadcast_to", "vindex", "shuffle", "take"),
)


_PACKAGES = {"dask", "numpy", "_operator"}


def _find_package(node: Any) -> str:
    """Return the package of the function of a task, or an empty string for values."""
    is_old_task = isinstance(node, tuple) and len(node) > 0 and callable(node[0])
    function = node[0] if is_old_task else getattr(node, "func", None)
    return str(getattr(function, "__module__", "")).partition(".")[0]


def _record_reads(name: str, array: Any) -> list[ChunkRead]:
    """Compute a dask array from zeros instead of values, and return the recorded reads."""
    layers = getattr(array.dask, "layers", {array.name: array.dask})
    for layer, tasks in layers.items():
        packages = {*map(_find_package, dict(tasks).values())} - {""}
        is_selection = layer.partition("-")[0] in _SELECTIONS and packages <= _PACKAGES
        if packages and not is_selection:
            raise ValueError(
                f"{name!r} is the result of a computation ({layer.rpartition('-')[0] or layer}), "
                "expected a variable that was opened, and only selected, transposed or chunked; "
                "explain the variables before the computation"
            )
    reads: list[ChunkRead] = []
    chunk: tuple[int, ...] = ()

    def note_task(key: Any, *_: object) -> None:
        nonlocal chunk
        chunk = key[1:] if isinstance(key, tuple) else ()

    def record(plan: Plan, shape: tuple[int, ...]) -> None:
        reads.append(_build_read(name, chunk, shape, plan))

    empty = np.empty(0)
    dropped = array.map_blocks(lambda _: empty, meta=empty)  # the zeros of all chunks are not kept
    optimized = dask.optimize(dropped)[0]  # type: ignore[attr-defined,no-untyped-call]
    token = plan_recorder.set(record)
    try:
        with Callback(pretask=note_task):  # type: ignore[no-untyped-call]
            dask.get(dict(optimized.dask), optimized.__dask_keys__())  # type: ignore[attr-defined]
    finally:
        plan_recorder.reset(token)
    return sorted(reads, key=attrgetter("chunk"))
