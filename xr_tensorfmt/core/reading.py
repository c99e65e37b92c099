"""Read selections of layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Array, ElementError
from xr_tensorfmt.core.extents import Bytes, Extents, gather_uniform
from xr_tensorfmt.core.layout import Layout, SearchedLayout
from xr_tensorfmt.core.selection import Points, Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import Composite, View

# Bytes of values to decode at a time. A remote file gets enough concurrent requests.
_BATCH_BYTES, _REMOTE_BATCH_BYTES = 8 << 20, 256 << 20
# Mean bytes of gaps up to which reading the gaps is faster than gathering the ranges between them.
_SHORT_GAP = 512
# Bytes of a memory map to copy values from. Its pages count as memory once they are read.
_MAX_SPAN = 64 << 20


def read(layout: Layout, source: Source, selection: Selection) -> Array:
    """Read a selection into new memory. `Points` may have any order, and repetitions."""
    if not selection.size:
        return np.empty(selection.shape, dtype=layout.dtype)
    if isinstance(layout, View):
        parts = (read(layout.inner, source, part) for part in layout.select(selection))
        return layout.apply(selection, *parts)
    if isinstance(layout, Composite):
        filled = np.full(selection.shape, layout.fill_value, dtype=layout.dtype)
        for part in layout.split(selection):
            stored = read(part.layout, part.source or source, part.selection)
            layout.put(filled, part.target, stored)
        return filled
    if isinstance(selection, Points):
        unique, positions = selection.sort()
        return np.asarray(_read_stored(layout, source, unique)[positions])
    return _read_stored(layout, source, selection)


def read_stacks(source: Source, groups: Sequence[Sequence[Dense]]) -> Iterator[Array]:
    """Read whole tensors with few requests. Yield each group, of one shape and element, at once."""
    starts = [np.array([layout.offset for layout in group]) for group in groups]
    sizes = [group[0].stop - group[0].offset for group in groups]
    extents = Extents.union(list(map(Extents.uniform, starts, sizes)))
    shifts = np.cumsum(extents.lengths) - extents.lengths - extents.starts
    packed = source.read(extents)
    for group, firsts, size in zip(groups, starts, sizes, strict=True):
        stack = Dense((len(group), *group[0].lengths), group[0].element, 0)
        positions = firsts + shifts[np.searchsorted(extents.starts, firsts, side="right") - 1]
        rows = gather_uniform(packed, positions, size)
        try:
            yield stack.decode(rows, Selection.everything(stack.shape))
        except ElementError:  # the error of a single tensor names its offset
            yield np.stack([read(x, source, Selection.everything(x.shape)) for x in group])


def locate(layout: Layout, source: Source, selection: Selection) -> list[tuple[Source, Extents]]:
    """Return the byte ranges that `read` fetches, by source."""
    if not selection.size:
        return []
    if isinstance(layout, View):
        parts = layout.select(selection)
        return [found for part in parts for found in locate(layout.inner, source, part)]
    if isinstance(layout, Composite):
        return [
            found
            for part in layout.split(selection)
            for found in locate(part.layout, part.source or source, part.selection)
        ]
    if isinstance(selection, Points):
        selection, _ = selection.sort()
    extents = layout.locate(selection)
    return [(source, extents)] if len(extents) else []


def _read_stored(layout: Layout, source: Source, selection: Selection) -> Array:
    """Fetch and decode a selection, batch by batch if that needs less memory."""
    if isinstance(layout, SearchedLayout):
        return layout.search(source, selection)
    max_bytes = _REMOTE_BATCH_BYTES if source.high_latency else _BATCH_BYTES
    batch_size = layout.batch_size(selection, max_bytes)
    if selection.size <= batch_size:
        return _read_batch(layout, source, selection)
    values = np.empty(selection.size, dtype=layout.dtype)
    position = 0
    for batch in selection.divide(batch_size):
        target = values[position : position + batch.size].reshape(batch.shape)
        decoded = _read_batch(layout, source, batch, target)
        if decoded is not target:
            target[...] = decoded
        position += batch.size
    return values.reshape(selection.shape)


def _read_batch(
    layout: Layout, source: Source, batch: Selection, out: Array | None = None
) -> Array:
    packed, span = None, layout.locate_span(batch)
    if span is not None and (source.io == "mmap" or span.nbytes <= _MAX_SPAN):
        packed = source.map(*span.bounds)
    if packed is None:
        if span is not None and batch.mean_gap * (span.nbytes // batch.span) <= _SHORT_GAP:
            extents = span
        else:
            extents = layout.locate(batch)
        packed = source.read(extents) if len(extents) else np.empty(0, dtype=np.uint8)
    elif out is None:
        is_view = source.io == "mmap" and batch.is_compact
        out = None if is_view else np.empty(batch.shape, dtype=layout.dtype)
    return _decode(layout, source, packed, batch, out)


def _decode(
    layout: Layout, source: Source, packed: Bytes, batch: Selection, out: Array | None = None
) -> Array:
    """Decode bytes. Raise TensorFormatError with the offset of an element without a value."""
    try:
        return layout.decode(packed, batch, out)
    except ElementError as error:
        offset = error.offset
        if offset is None:
            offset = find_offset(layout, batch.full_index(error.position))
        raise error.in_file(source.name, offset) from None


def find_offset(layout: Layout, index: Sequence[int]) -> int | None:
    """Return the offset of an element, or None if it is not stored."""
    extents = layout.locate(Selection(layout.shape, tuple(range(i, i + 1) for i in index)))
    return extents.bounds[0] if len(extents) else None
