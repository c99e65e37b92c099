"""Checks of all values of a file, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import islice

import numpy as np

from xr_tensorfmt.core.chunk_grid import iterate_chunks
from xr_tensorfmt.core.container import Tensor
from xr_tensorfmt.core.elements import Boolean, Plain
from xr_tensorfmt.core.findings import Finding, finding_from_error
from xr_tensorfmt.core.layout import Dense, Layout, WholeLayout, find_offset
from xr_tensorfmt.core.reading import read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError, shorten

CHECKED_BYTES = 16 << 20
"""Bytes to check at a time."""

MAX_FINDINGS_PER_CHECK = 20
"""Limit on the findings of each kind if all findings are requested."""


def check_values(source: Source, tensors: Iterable[Tensor], limit: int) -> Iterator[Finding]:
    """Read all values that the format does not check, up to `limit` findings per variable."""
    for tensor in tensors:
        for part in tensor.layout.stored_parts:
            # A copy keeps its content only until it is checked.
            layout = deepcopy(part) if isinstance(part, WholeLayout) else part
            owner = tensor.source or source
            if isinstance(layout, Dense) and isinstance(layout.element, Boolean):
                findings = _check_booleans(owner, tensor.name, layout)
            else:
                findings = check_readable(owner, layout, shorten(repr(tensor.name)))
            yield from islice(findings, limit)


def iterate_selections(layout: Layout, target: int = CHECKED_BYTES) -> Iterator[Selection]:
    """Yield the selections of all chunks of a layout."""
    for chunk in iterate_chunks(layout.shape, layout.chunk_shape(target)):
        yield Selection(layout.shape, chunk)


def report_errors(check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check. If the reader raises an error, it is the last finding."""
    try:
        yield from check()
    except TensorFormatError as error:
        yield finding_from_error(error)


def check_readable(source: Source, layout: Layout, owner: str = "") -> Iterator[Finding]:
    """Yield a finding for every chunk that cannot be read. `owner` is the name of the tensor."""
    for selection in iterate_selections(layout):
        try:
            read(layout, source, selection)
        except TensorFormatError as error:
            yield finding_from_error(error, owner)


def _check_booleans(source: Source, name: str, layout: Dense) -> Iterator[Finding]:
    """Yield findings about bytes of booleans other than 0 and 1."""
    stored = replace(layout, element=Plain(np.dtype(np.uint8)))
    for selection in iterate_selections(stored):
        wrong = read(stored, source, selection) > 1
        if wrong.any():
            offset = find_offset(stored, selection.full_index(int(np.argmax(wrong))))
            message = (
                f"{np.count_nonzero(wrong)} bytes are neither 0 nor 1 and are read as True; "
                "rewrite the file if True is correct"
            )
            yield Finding(source.name, offset, f"the values of {name!r}", message, "warning")
