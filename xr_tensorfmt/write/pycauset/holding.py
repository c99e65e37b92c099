"""Whether values in memory are such as a type of matrix implies."""

from __future__ import annotations

import numpy as np

from xr_tensorfmt.elements import Array
from xr_tensorfmt.layouts import Layout, Mirrored
from xr_tensorfmt.layouts.base import within
from xr_tensorfmt.layouts.partial import PartlyStored
from xr_tensorfmt.selection import MOST_RUNS, Selection

# Elements that are looked at, or compared with their mirror image, before the next ones.
_AT_A_TIME = 1 << 19


def holds(layout: Layout, values: Array) -> bool:
    """Whether a layout shows values as they are, once they are written.

    Parameters
    ----------
    layout : Layout
        How they are to lie in the file.
    values : ndarray
        All of them.

    Returns
    -------
    bool
    """
    if not values.size:
        return True
    if not isinstance(layout, PartlyStored):
        return True
    whole = Selection.everything(layout.shape)
    try:
        for part in whole.batches(runs=MOST_RUNS, span=_AT_A_TIME):
            layout.check_implied(part, values[within(part, whole)])
    except ValueError:
        return False
    return not isinstance(layout, Mirrored) or _is_mirrored(values, layout.sign)


def _is_mirrored(values: Array, sign: int) -> bool:
    step = max(1, _AT_A_TIME // len(values))
    return all(
        np.array_equal(values[i : i + step], sign * values[:, i : i + step].T, equal_nan=True)
        for i in range(0, len(values), step)
    )
