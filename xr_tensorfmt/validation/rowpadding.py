"""The padding of matrices whose rows are padded: bits and bytes that should be zero."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xr_tensorfmt.extents import Extents
from xr_tensorfmt.layouts import Bits, Layout, Triangle
from xr_tensorfmt.layouts.rows import Rows
from xr_tensorfmt.sources import Source
from xr_tensorfmt.validation.finding import Finding

_ROWS_AT_ONCE = 1 << 16


def check_row_padding(source: Source, layout: Layout) -> Iterator[Finding]:
    """Look at what follows the last element of each row.

    Parameters
    ----------
    source : Source
        The file.
    layout : Layout
        The values as they are stored; only those in rows have padding.

    Yields
    ------
    Finding
        A warning at the first row whose padding is not zero.
    """
    stored = layout.stored
    if isinstance(stored, Bits | Triangle):
        yield from _check_rows(source, stored.rows)


def _check_rows(source: Source, rows: Rows) -> Iterator[Finding]:
    count, columns = rows.shape
    begin, stop = rows.starts(np.array([0, count]))
    if begin == stop:  # however many rows a header may claim
        return
    for first in range(0, count, _ROWS_AT_ONCE):
        numbers = np.arange(first, min(first + _ROWS_AT_ONCE, count))
        used = np.maximum(columns - rows.firsts(numbers), 0) * rows.bits
        begins, stops = rows.starts(numbers) + used // 8, rows.starts(numbers + 1)
        padded = begins < stops
        numbers, begins, stops = numbers[padded], begins[padded], stops[padded]
        if not numbers.size:
            continue
        lengths = stops - begins
        raw = source.read(Extents(begins, lengths))
        heads = np.cumsum(lengths) - lengths
        # The lower bits of the first byte are of the last elements.
        raw[heads] >>= (used[padded] % 8).astype(np.uint8)
        if raw.any():
            place = int(np.argmax(raw != 0))
            row = int(np.searchsorted(heads, place, side="right")) - 1
            yield Finding(
                source.name,
                int(begins[row]) + place - int(heads[row]),
                f"the padding of row {int(numbers[row])}",
                "it is not zero, as after an inversion by PyCauset, which programs must ignore; "
                "write the file anew to clear it",
                "warning",
            )
            return
