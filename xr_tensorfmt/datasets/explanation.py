"""Explanations of reads: ranges, requests and bytes, without reading."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from operator import itemgetter
from typing import Any

import dask.array
from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.core.extents import Extents, format_size
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets.dask_tasks import lazy_reads
from xr_tensorfmt.datasets.lazy_array import unwrapped

_MAX_LINES = 20
_HEADINGS = ("variable", "chunk", "values", "ranges", "requests", "needed", "fetched", "bytes")


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
            for name, extents in self.extents.items()
            for start, length in zip(extents.starts.tolist(), extents.lengths.tolist(), strict=True)
        ]

    @property
    def needed(self) -> int:
        """Bytes of the values in the file."""
        return sum(extents.nbytes for extents in self.extents.values())

    def to_dict(self) -> dict[str, Any]:
        """The fields, as JSON can represent them.

        Returns
        -------
        dict
            The fields; ranges and requests are lists of file, first byte and stop.
        """
        return {
            "variable": self.variable,
            "chunk": list(self.chunk),
            "shape": list(self.shape),
            "needed": self.needed,
            "fetched": self.fetched,
            "ranges": [list(each) for each in self.ranges],
            "requests": [list(each) for each in self.requests],
        }

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        bounds = [extents.bounds for extents in self.extents.values()]
        return (
            self.variable,
            ", ".join(map(str, self.chunk)) or "-",
            f"{prod(self.shape):,}",
            f"{sum(map(len, self.extents.values())):,}",
            f"{len(self.requests):,}",
            format_size(self.needed),
            format_size(self.fetched),
            "; ".join(f"{first} to {last}" for first, last in bounds) or "-",
        )


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """What reading would fetch; shown as a table.

    Parameters
    ----------
    pieces : tuple of Piece
        One for each chunk that would be read, or for each variable without chunks.
    """

    pieces: tuple[Piece, ...]

    @cached_property
    def requests(self) -> int:
        """Number of requests, or of windows of a local file."""
        return sum(len(piece.requests) for piece in self.pieces)

    @cached_property
    def needed(self) -> int:
        """Bytes of the values in the file."""
        return sum(piece.needed for piece in self.pieces)

    @cached_property
    def fetched(self) -> int:
        """Bytes that the requests transfer."""
        return sum(piece.fetched for piece in self.pieces)

    @property
    def amplification(self) -> float:
        """Ratio of the bytes that are fetched to those that are needed."""
        return self.fetched / self.needed if self.needed else 1.0

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can represent it.

        Returns
        -------
        dict
            The totals under their names, and ``pieces``, a list of dicts with the fields of each
            ``Piece``; ranges and requests are lists of file, first byte and stop.
        """
        return {
            "requests": self.requests,
            "needed": self.needed,
            "fetched": self.fetched,
            "amplification": self.amplification,
            "pieces": [piece.to_dict() for piece in self.pieces],
        }

    def __repr__(self) -> str:
        """The totals, and a table of at most 20 pieces."""
        requests = "request fetches" if self.requests == 1 else "requests fetch"
        sizes = f"{format_size(self.fetched)} for {format_size(self.needed)}"
        rows = [_HEADINGS, *(piece.cells for piece in self.pieces[:_MAX_LINES])]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]
        more = len(self.pieces) - _MAX_LINES
        lines += [f"... and {more:,} more"] if more > 0 else []
        totals = f"{self.requests:,} {requests} {sizes} ({self.amplification:.2f} x)"
        return "\n".join([totals, *lines])


def explanation(data: Dataset | DataArray) -> Explanation:
    """Explain what computing something would read."""
    return Explanation(
        tuple(piece for name, variable in _variables(data) for piece in _pieces(name, variable))
    )


def sources(variable: Variable) -> Iterator[Source]:
    """The files of this engine that computing a variable would read."""
    for _, _, (tensor, _) in _reads(variable):
        yield tensor.source


def _variables(data: Dataset | DataArray) -> Iterator[tuple[Hashable, Variable]]:
    if isinstance(data, Dataset):
        yield from data.variables.items()
        return
    yield data.name, data.variable
    yield from ((name, coordinate.variable) for name, coordinate in data.coords.items())


def _pieces(name: Hashable, variable: Variable) -> Iterator[Piece]:
    for chunk, shape, (tensor, key) in _reads(variable):
        reads = tensor.plan(key).reads(tensor.layout, tensor.source)
        parts = [
            (source, part) for source, extents in reads for part in source.merged_ranges(extents)
        ]
        by_file: dict[str, list[Extents]] = {}
        for source, extents in reads:
            by_file.setdefault(source.name, []).append(extents)
        yield Piece(
            str(name),
            chunk,
            shape,
            {file: Extents.union(several) for file, several in by_file.items()},
            tuple((source.name, part.start, part.stop) for source, part in parts),
            sum(source.transferred_bytes(part) for source, part in parts),
        )


def _reads(variable: Variable) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], Any]]:
    """Chunk, shape, and array with key for each chunk, or for a variable without chunks."""
    lazy: list[tuple[tuple[int, ...], Any]] = [((), variable)]
    if variable.chunks is not None:
        # There are other chunk managers than dask.
        is_dask = isinstance(variable.data, dask.array.Array)
        lazy = sorted(lazy_reads(variable.data), key=itemgetter(0)) if is_dask else []
    for chunk, array in lazy:
        found = unwrapped(array)
        if found is not None:
            yield chunk, array.shape, found
