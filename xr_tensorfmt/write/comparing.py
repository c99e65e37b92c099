"""A second look at what is written, where a chunk alone cannot tell whether the file holds it.

All is written first, and then every chunk is computed once more and compared with what a reader of
the file will see. That takes the time twice, but never more than a few chunks of memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import dask.config
from dask.system import CPU_COUNT

from xr_tensorfmt.elements import Array
from xr_tensorfmt.sources import open_source
from xr_tensorfmt.write.blocks import BlockGrid, cut_all
from xr_tensorfmt.write.blueprint import Placed
from xr_tensorfmt.write.draft import Draft
from xr_tensorfmt.write.tasks import itself, writing


class Comparison(BlockGrid):
    """Blocks that are compared with what is in a file, in place of being written to it."""

    def write(self, number: int, values: Array, file: Any) -> None:
        """Compare a block with the file; ValueError where the file gives back other values."""
        selection = self.selection(number)
        converted = self.conversion.apply(self.plain(values, selection.shape))
        self.layout.compare(open_source(file.path), selection, converted)


def compare_written(placed: Iterable[Placed], draft: Draft) -> None:
    """Compare variables with the unfinished file that they have been written to.

    This is a computation of its own, within the last task of the writing: as a part of the same
    one, chunks would be kept from the first time on, all of them.
    """
    comparison = writing(cut_all(placed, Comparison), partial(itself, draft), _nothing)
    # Below a thread of its own, dask would take more threads than there are processors.
    workers = dask.config.get("num_workers", None) or CPU_COUNT
    comparison.compute(scheduler="threads", num_workers=workers)  # type: ignore[no-untyped-call]


def _nothing(draft: Draft) -> None:
    del draft
