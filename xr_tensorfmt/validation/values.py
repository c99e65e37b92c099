"""A pass over all values, in chunks: whatever no reader can read is a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice, product

import numpy as np

from xr_tensorfmt.elements import Plain
from xr_tensorfmt.errors import SourceChangedError, TensorFormatError, shortened
from xr_tensorfmt.layouts import Dense, Labels, Layout, Pairs
from xr_tensorfmt.narrow import Boolean
from xr_tensorfmt.selection import Selection
from xr_tensorfmt.sources import Source
from xr_tensorfmt.tensor import Tensor
from xr_tensorfmt.validation.finding import Finding, finding_of

CHUNK_BYTES = 16 << 20
"""Most bytes of values that are looked at together."""

MOST_OF_ONE = 20
"""Limit on the findings about one variable; a damaged one has many alike."""


def check_values(source: Source, tensors: Iterable[Tensor]) -> Iterator[Finding]:
    """Read every value, but for pairs and labels, which have checks of their own.

    Parameters
    ----------
    source : Source
        The file.
    tensors : iterable of Tensor
        Its variables and coordinates.

    Yields
    ------
    Finding
        At most 20 for each of them.
    """
    for tensor in tensors:
        layout = tensor.layout.stored
        if layout is None or isinstance(layout, Labels | Pairs):
            continue
        if isinstance(layout, Dense) and isinstance(layout.element, Boolean):
            found = _check_truth(source, tensor.name, layout)
        else:
            found = _check_readable(source, tensor.name, layout)
        yield from islice(found, MOST_OF_ONE)


def chunks(layout: Layout, target: int = CHUNK_BYTES) -> Iterator[Selection]:
    """All elements of a layout, a chunk at a time.

    Parameters
    ----------
    layout : Layout
        The layout.
    target : int
        Most bytes of a chunk.

    Yields
    ------
    Selection
    """
    shape = layout.shape
    if 0 in shape:
        return
    steps = layout.chunk_shape(target)
    starts = [range(0, length, max(1, step)) for length, step in zip(shape, steps, strict=True)]
    for begins in product(*starts):
        entries = zip(begins, steps, shape, strict=True)
        yield Selection(shape, tuple(slice(b, min(b + s, n), 1) for b, s, n in entries))


def attempt(read: Callable[[], Iterable[Finding]], within: str) -> Iterator[Finding]:
    """What reading something finds, and the error that ends it, if any does.

    Parameters
    ----------
    read : callable
        Reads, and gives findings.
    within : str
        What is read, for the finding.

    Yields
    ------
    Finding

    Raises
    ------
    SourceChangedError
        The file changes while it is looked at, so that nothing can be said of it.
    """
    try:
        yield from read()
    except SourceChangedError:
        raise
    except TensorFormatError as error:
        yield finding_of(error, within)


def _check_readable(source: Source, name: str, layout: Layout) -> Iterator[Finding]:
    for selection in chunks(layout):

        def read(selection: Selection = selection) -> Iterable[Finding]:
            layout.read(source, selection)
            return ()

        yield from attempt(read, shortened(repr(name)))


def _check_truth(source: Source, name: str, layout: Dense) -> Iterator[Finding]:
    """Bytes of truth values, which are 0 and 1."""
    stored = replace(layout, element=Plain(np.dtype(np.uint8)))
    for selection in chunks(stored):
        wrong = stored.read(source, selection) > 1
        if wrong.any():
            first = int(np.argmax(wrong))
            index = np.ravel_multi_index(selection.index_of(first), layout.shape)
            yield Finding(
                source.name,
                layout.offset + int(index),
                f"the values of {name!r}",
                f"{np.count_nonzero(wrong)} bytes that are neither 0 nor 1, which are read as "
                "True; write the file anew if that is what they mean",
                "warning",
            )
