"""From Datasets to the reads that computing them takes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import dask.array
from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.daskreads import lazy_reads
from xr_tensorfmt.explanation import Explanation, Piece, explain_piece
from xr_tensorfmt.lazyarray import unwrapped
from xr_tensorfmt.sources import Source


def explanation(data: Dataset | DataArray) -> Explanation:
    """Say what computing something would read, without reading any of it.

    Parameters
    ----------
    data : Dataset or DataArray
        What would be computed.

    Returns
    -------
    Explanation
    """
    return Explanation(
        tuple(piece for name, each in _variables(data) for piece in _pieces(name, each))
    )


def sources(variable: Variable) -> Iterator[Source]:
    """Find the files of this engine that computing a variable would read.

    Parameters
    ----------
    variable : Variable
        What would be computed.

    Yields
    ------
    Source
        One for each read, so that most are found more than once.
    """
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
    """What is read at once: each chunk, or the variable itself where it has none."""
    if variable.chunks is None:
        return [((), variable)]
    if not isinstance(variable.data, dask.array.Array):
        return []  # of another chunk manager, whose plans are its own
    return sorted(lazy_reads(variable.data), key=lambda read: read[0])
