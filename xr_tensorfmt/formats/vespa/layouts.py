"""Layouts of blocks: their cells, their labels, and the outer product of their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents, Integers, ceil_div, contiguous_chunk
from xr_tensorfmt.core.file_format import OpenOptions
from xr_tensorfmt.core.gathered import Gathered, put_at
from xr_tensorfmt.core.header import check_size
from xr_tensorfmt.core.layout import BATCH_BYTES, EncodedBatch, Layout, view_as_bytes
from xr_tensorfmt.core.selection import Indices, Selection, indices_to_array
from xr_tensorfmt.core.source import Plan, Source, Step
from xr_tensorfmt.errors import Finding, TensorFormatError, shorten
from xr_tensorfmt.formats.vespa.spec import STRING_DTYPE, Strings, VespaHeader, Window

MAX_PRODUCT_CELLS = 1 << 32
"""Limit on the cells of an outer product, unless the user passes ``fill_value``."""

# A factor that makes the hash of a row depend on the order of its labels.
_HASH_FACTOR = 1_000_003
# Limit on repeated hashes to compare, far more than are reported.
_MAX_REPEATED_HASHES = 1 << 16


@dataclass(frozen=True, eq=False)
class Blocks(Layout):
    """The cells of all blocks. The first axis counts blocks, the others are indexed dimensions."""

    header: VespaHeader
    # Offset of every block with its labels, and the end of the last block.
    offsets: Integers

    can_write = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of blocks, and lengths of the indexed dimensions."""
        return (self.header.blocks, *self.header.lengths)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.header.element.dtype

    @property
    def stop(self) -> int:
        """Byte after the last block."""
        return int(self.offsets[-1])

    @property
    def element(self) -> Element:
        """Type of the cells."""
        return self.header.element

    @property
    def mean_bytes(self) -> int:
        """Mean size of a block."""
        count = self.header.blocks
        return ceil_div(self.stop - self.header.stop, count) if count else 1

    def find_cells(self, blocks: Indices) -> Integers:
        """Return the offsets of the cells of some blocks."""
        return self.offsets[1:][indices_to_array(blocks)] - self.header.block_bytes

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return equal numbers of blocks, or parts of a block if it is larger than `target`."""
        header = self.header
        block_bytes = max(self.mean_bytes, header.cells * self.dtype.itemsize)
        if block_bytes <= target or not header.lengths:
            return (*contiguous_chunk((header.blocks,), block_bytes, target), *header.lengths)
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def locate(self, selection: Selection) -> Extents:
        """Return a range per block, from the first to the last selected cell, or one per point."""
        header, item = self.header, self.header.element.stored.itemsize
        if selection.is_pointwise:
            cells = selection.flat % header.cells
            return Extents.uniform(self.find_cells(selection.indices[0]) + cells * item, item)
        start, stop = _select_inner(selection).runs().bounds
        starts = self.find_cells(selection.indices[0]) + start * item
        return Extents.uniform(starts, (stop - start) * item)

    def decode(self, packed: Bytes, selection: Selection, out: Array | None = None) -> Array:
        """Decode the selected cells of every block."""
        element = self.header.element
        raw = packed.view(element.stored)
        if not selection.is_pointwise:
            runs = _select_inner(selection).runs()
            start, stop = runs.bounds
            raw = raw.reshape(-1, stop - start)
            if runs.starts.size > 1:
                picked = np.add.outer(runs.starts - start, np.arange(runs.lengths[0]))
                raw = raw[:, picked.ravel()]
        if out is None:
            return element.decode(raw).reshape(selection.shape)
        element.decode_into(out, raw.reshape(out.shape))
        return out

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Encode cells without their labels, which a region does not change."""
        if not selection.size:
            return
        element, inner = self.header.element, _select_inner(selection)
        item, runs = element.stored.itemsize, inner.runs()
        offsets = self.find_cells(selection.indices[0])
        count = max(1, BATCH_BYTES // (inner.size * item))
        for first in range(0, offsets.size, count):
            starts = offsets[first : first + count, np.newaxis] + runs.starts * item
            cells = view_as_bytes(element.encode(values[first : first + count]))
            yield Extents.uniform(starts.ravel(), int(runs.lengths[0]) * item), cells


def _select_inner(selection: Selection) -> Selection:
    """Return the selection within a block."""
    return Selection(selection.tensor_shape[1:], selection.indices[1:])


@dataclass(frozen=True)
class Labels(Layout):
    """Labels of all blocks for one mapped dimension."""

    blocks: Blocks
    # Index among the mapped dimensions.
    dimension: int
    text_errors: str = "strict"

    dtype = STRING_DTYPE

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of blocks."""
        return (self.blocks.header.blocks,)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return the number of blocks in a chunk of cells."""
        return self.blocks.chunk_shape(target)[:1]

    def locate(self, selection: Selection) -> Extents:
        """Return the labels of all dimensions, because their lengths vary."""
        blocks = selection.indices[0]
        starts = self.blocks.offsets[indices_to_array(blocks)]
        return Extents(starts, self.blocks.find_cells(blocks) - starts)

    def plan_batch(self, source: Source, batch: Selection) -> Plan:
        """Plan to decode the labels of one dimension."""
        extents = self.locate(batch)

        def decode(packed: Bytes, _: Array | None) -> Array:
            starts = np.cumsum(extents.lengths) - extents.lengths
            window = Window(source.name, packed, batch.indices[0], extents.starts, starts)
            return build_strings(window.decode_labels(self.dimension, self.text_errors))

        return Plan(source, extents, decode)


def build_strings(labels: list[str]) -> Strings:
    """Return an array of Python strings."""
    return np.fromiter(labels, STRING_DTYPE, len(labels))


def validate_labels(
    path: str, blocks: Blocks, batches: Callable[[], Iterable[tuple[int, Sequence[Strings]]]]
) -> Iterator[Finding]:
    """Yield a finding for every block with the labels of an earlier one."""
    for block, earlier, labels in find_repeated_blocks(batches):
        field, actual = f"the labels of block {block}", f"{labels}, which block {earlier} has too"
        hint = "both are kept, but Vespa may refuse the file or keep only one; remove one"
        yield Finding(path, field, actual, "", hint, int(blocks.offsets[block]), "warning")


def find_repeated_blocks(
    batches: Callable[[], Iterable[tuple[int, Sequence[Strings]]]],
) -> Iterator[tuple[int, int, str]]:
    """Yield each block with all labels of an earlier block, the earlier block, and the labels.

    A batch is the first block and columns of labels.
    """
    hashes = np.concatenate([_hash_rows(columns) for _, columns in batches()])
    hashes.sort()
    repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])[:_MAX_REPEATED_HASHES]
    first_blocks: dict[tuple[str, ...], int] = {}
    for first, columns in batches() if repeated.size else ():
        for row in np.flatnonzero(np.isin(_hash_rows(columns), repeated)).tolist():
            labels = tuple(column[row] for column in columns)
            earlier = first_blocks.setdefault(labels, first + row)
            if earlier != first + row:
                yield first + row, earlier, shorten(", ".join(map(repr, labels)))


def _hash_rows(columns: Sequence[Strings]) -> Integers:
    """Hash rows of labels. Different rows rarely have the same hash."""
    mixed: Any = 0
    for strings in columns:
        # Python caches the hashes of strings, which an index needs anyway.
        hashes = np.fromiter(map(hash, strings.tolist()), np.int64, strings.size)
        mixed = mixed * _HASH_FACTOR ^ hashes
    return np.asarray(mixed)


@dataclass(frozen=True, eq=False)
class OuterProduct:
    """The places of blocks in a grid of all combinations of labels."""

    blocks: Layout
    # Number of distinct labels of every mapped dimension.
    grid: tuple[int, ...]
    # Row-major indices in the grid that have a block, sorted, and the indices of these blocks.
    grid_indices: Integers
    block_indices: Integers

    def gather(self, source: Source, selection: Selection) -> Iterator[Step]:
        """Yield the cells of the selected blocks."""
        rank = len(self.grid)
        inner, target = selection.find_rows(rank, self.grid_indices, self.block_indices)
        yield self.blocks.plan(source, inner), put_at(target)


def build_outer_product(
    source: Source,
    header: VespaHeader,
    blocks: Blocks,
    labels: Sequence[Strings],
    options: OpenOptions,
) -> tuple[Gathered, list[Strings]]:
    """Spread the blocks over the outer product of their labels, and return the distinct labels."""
    distinct, codes = zip(*map(_factorize, labels), strict=True)
    grid = tuple(column.size for column in distinct)
    fill_value = _choose_fill_value(source, header, options, has_holes=prod(grid) > header.blocks)
    cells = prod(grid) * header.cells
    if cells > MAX_PRODUCT_CELLS and options["fill_value"] is None:
        raise ValueError(
            f"{source.name}: {header.blocks} blocks belong to a tensor of {cells} cells, expected "
            f"at most {MAX_PRODUCT_CELLS}; open it with sparse='stored' (--sparse stored), or pass "
            f"fill_value={fill_value} as well to fill in all cells"
        )
    check_size(source.name, (*grid, *header.lengths), blocks.dtype.itemsize, header.stop)
    grid_indices = np.ravel_multi_index(codes, grid) if header.blocks else np.empty(0, np.int64)
    order = np.argsort(grid_indices, kind="stable")
    grid_indices = grid_indices[order]
    repeated = np.flatnonzero(grid_indices[1:] == grid_indices[:-1])
    if repeated.size:
        first, second = order[repeated[0] : repeated[0] + 2].tolist()
        raise TensorFormatError(
            source.name,
            field=f"the labels of block {second}",
            actual=f"those of block {first} as well",
            expected="labels that occur once",
            hint="no dense tensor holds both; open it with sparse='stored' (--sparse stored)",
            offset=int(blocks.offsets[second]),
        )
    product = OuterProduct(blocks, grid, grid_indices, order)
    shape = *grid, *header.lengths
    layout = Gathered(shape, blocks.dtype, product.gather, (blocks,), fill_value)
    return layout, list(distinct)


def _factorize(labels: Strings) -> tuple[Strings, Integers]:
    """Return the distinct labels in order of their first blocks, and a code per label."""
    strings = labels.tolist()
    codes = {string: code for code, string in enumerate(dict.fromkeys(strings))}
    numbers = np.fromiter(map(codes.__getitem__, strings), np.int64, labels.size)
    return build_strings(list(codes)), numbers


def _choose_fill_value(
    source: Source, header: VespaHeader, options: OpenOptions, *, has_holes: bool
) -> float:
    is_int8 = header.cell_type == "int8"
    value = options["fill_value"]
    if value is None:
        value = 0 if is_int8 and not has_holes else np.nan
    if is_int8 and value not in range(-128, 128):
        raise ValueError(
            f"{source.name}: cells of type int8 cannot hold fill_value={value!r}; "
            "pass an integer from -128 to 127"
        )
    return float(value)
