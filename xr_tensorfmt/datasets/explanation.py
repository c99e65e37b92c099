"""Explanations of reads: ranges, requests and bytes, without reading."""

from __future__ import annotations

import html
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Protocol

import dask.array
import dask.base
from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.core.extents import Extents, size_in_words
from xr_tensorfmt.core.layout import Layout, Read
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets.dask_tasks import lazy_reads
from xr_tensorfmt.datasets.lazy_array import unwrapped

_MOST_LINES = 20
_HEADINGS = ("variable", "chunk", "values", "ranges", "requests", "needed", "fetched", "bytes")


class Plan(Protocol):
    """The plan of a read, as `core.indexing` makes it."""

    def reads(self, layout: Layout, source: Source) -> list[Read]:
        """An upper limit on what is read, for each source."""


@dataclass(frozen=True, eq=False)
class Piece:
    """The read of one chunk, or of a variable without chunks.

    Parameters
    ----------
    variable : str
        Name of the variable.
    chunk : tuple of int
        Index of the chunk along each axis; empty where there are no chunks.
    shape : tuple of int
        Shape of the values.
    extents : mapping of str to Extents
        The byte ranges of the values, by file.
    requests : tuple of (str, int, int)
        File, first byte and stop of each request.
    fetched : int
        Bytes that the requests transfer.
    """

    variable: str
    chunk: tuple[int, ...]
    shape: tuple[int, ...]
    extents: Mapping[str, Extents] = field(repr=False)
    requests: tuple[tuple[str, int, int], ...] = field(repr=False)
    fetched: int

    @property
    def ranges(self) -> list[tuple[str, int, int]]:
        """The byte ranges of the values, in the form of `requests`."""
        return [
            (name, start, start + length)
            for name, each in self.extents.items()
            for start, length in zip(each.starts.tolist(), each.lengths.tolist(), strict=True)
        ]

    @property
    def needed(self) -> int:
        """Bytes of the values in the file."""
        return sum(each.nbytes for each in self.extents.values())

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        bounds = [each.bounds for each in self.extents.values()]
        return (
            self.variable,
            ", ".join(map(str, self.chunk)) or "-",
            f"{prod(self.shape):,}",
            f"{sum(map(len, self.extents.values())):,}",
            f"{len(self.requests):,}",
            size_in_words(self.needed),
            size_in_words(self.fetched),
            "; ".join(f"{first} to {last}" for first, last in bounds) or "-",
        )


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """What reading would fetch; shown as a table, and as HTML in a notebook.

    Parameters
    ----------
    pieces : tuple of Piece
        One for each chunk that would be read, or for each variable without chunks.
    """

    pieces: tuple[Piece, ...]

    @cached_property
    def requests(self) -> int:
        """Number of requests, or of windows of a local file."""
        return sum(len(each.requests) for each in self.pieces)

    @cached_property
    def needed(self) -> int:
        """Bytes of the values in the file."""
        return sum(each.needed for each in self.pieces)

    @cached_property
    def fetched(self) -> int:
        """Bytes that the requests transfer."""
        return sum(each.fetched for each in self.pieces)

    @property
    def amplification(self) -> float:
        """Ratio of the bytes that are fetched to those that are needed."""
        return self.fetched / self.needed if self.needed else 1.0

    def __repr__(self) -> str:
        """The totals, and a table of at most 20 pieces."""
        rows = [_HEADINGS, *self._rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
        return "\n".join([self._totals, *lines, *self._rest])

    def _repr_html_(self) -> str:
        """The same table for notebooks."""
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self._rows]
        heading = "".join(f"<th>{cell}</th>" for cell in _HEADINGS)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        rest = "".join(f"<p>{line}</p>" for line in self._rest)
        return (
            f"<p>{self._totals}</p><table><thead><tr>{heading}</tr></thead>"
            f"<tbody>{body}</tbody></table>{rest}"
        )

    @property
    def _totals(self) -> str:
        requests = (
            "1 request fetches" if self.requests == 1 else f"{self.requests:,} requests fetch"
        )
        sizes = f"{size_in_words(self.fetched)} for {size_in_words(self.needed)}"
        return f"{requests} {sizes} ({self.amplification:.2f} x)"

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        return [each.cells for each in self.pieces[:_MOST_LINES]]

    @property
    def _rest(self) -> list[str]:
        more = len(self.pieces) - _MOST_LINES
        return [f"... and {more:,} more"] if more > 0 else []


def explain_piece(
    variable: str,
    chunk: Iterable[int],
    shape: tuple[int, ...],
    plan: Plan,
    layout: Layout,
    source: Source,
) -> Piece:
    """Explain one read."""
    reads = plan.reads(layout, source)
    parts = [(origin, part) for origin, read in reads for part in origin.parts(read)]
    fetched = sum(origin.fetched(part) for origin, part in parts)
    requests = tuple((origin.name, part.start, part.stop) for origin, part in parts)
    by_origin: dict[str, list[Extents]] = {}
    for origin, read in reads:
        by_origin.setdefault(origin.name, []).append(read)
    extents = {name: Extents.union(each) for name, each in by_origin.items()}
    return Piece(variable, tuple(chunk), shape, extents, requests, fetched)


def explanation(data: Dataset | DataArray) -> Explanation:
    """Explain what computing something would read."""
    return Explanation(
        tuple(piece for name, each in _variables(data) for piece in _pieces(name, each))
    )


def sources(variable: Variable) -> Iterator[Source]:
    """The files of this engine that computing a variable would read."""
    for _, lazy in _reads(variable):
        found = unwrapped(lazy)
        if found is not None:
            yield found[0].source


def _variables(data: Dataset | DataArray) -> Iterator[tuple[Hashable, Variable]]:
    if isinstance(data, Dataset):
        yield from data.variables.items()
        return
    yield data.name, data.variable
    yield from ((name, each.variable) for name, each in data.coords.items())


def _pieces(name: Hashable, variable: Variable) -> Iterator[Piece]:
    for chunk, lazy in _reads(variable):
        found = unwrapped(lazy)
        if found is not None:
            tensor, key = found
            plan = tensor.plan(key)
            yield explain_piece(str(name), chunk, lazy.shape, plan, tensor.layout, tensor.source)


def _reads(variable: Variable) -> list[tuple[tuple[int, ...], Any]]:
    """The chunks that are read, or the variable itself where it has no chunks."""
    if variable.chunks is None:
        return [((), variable)]
    if not isinstance(variable.data, dask.array.Array):
        return []  # of a chunk manager other than dask
    return sorted(lazy_reads(variable.data), key=lambda read: read[0])
