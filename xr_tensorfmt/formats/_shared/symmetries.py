"""Check symmetries of the values of a file, one chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.reading import find_offset, read
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import CHECKED_BYTES, iterate_selections

# Limit on the elements of a checked tensor that stores few of them.
MAX_CHECKED_ELEMENTS = 1 << 28


def check_symmetry(
    source: Source,
    layout: Layout,
    name: str,
    axes: Sequence[int],
    change: Callable[[Array], Array],
) -> Iterator[Finding]:
    """Check ``T[i] == change(T[j])`` with ``j[p] = i[axes[p]]``, up to a chunk that differs."""
    shape = layout.shape
    if any(shape[axis] != length for axis, length in zip(axes, shape, strict=True)):
        reason = f"its shape is {shape}, expected equal lengths"
        yield _build_finding(source, None, name, reason)
        return
    inverse = [axes.index(axis) for axis in range(len(shape))]
    for selection in iterate_selections(layout, CHECKED_BYTES // 2):
        values = read(layout, source, selection)
        permuted = read(layout, source, selection.transpose(axes)).transpose(inverse)
        wrong = ~_are_nearly_equal(values, change(permuted))
        if wrong.any():
            index = selection.full_index(int(np.argmax(wrong)))
            others = np.count_nonzero(wrong) - 1
            also = f" and {others} more of its chunk" if others else ""
            reason = f"it does not hold for the element {index}{also}"
            yield _build_finding(source, find_offset(layout, index), name, reason)
            return


def _are_nearly_equal(values: Array, others: Array) -> NDArray[np.bool_]:
    """Return a mask of values that are equal up to rounding. NaN equals NaN."""
    if values.dtype.kind not in "fc":
        return np.asarray(values == others)
    # Programs compute both halves of a tensor, with different rounding.
    size = np.abs(values[np.isfinite(values)]).max(initial=0)
    tolerance = size * np.finfo(values.dtype).eps ** 0.5
    return np.isclose(values, others, rtol=0, atol=tolerance, equal_nan=True)


def _build_finding(source: Source, offset: int | None, name: str, reason: str) -> Finding:
    message = f"{reason}; programs that rely on it compute wrong results: write the file without it"
    return Finding(source.name, offset, f"the claim {name}", message)
