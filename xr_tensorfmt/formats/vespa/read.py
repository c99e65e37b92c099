"""Read typed binary tensors: their blocks, the labels, and the outer product of the labels."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents, Integers, ceil_div, contiguous_chunk
from xr_tensorfmt.core.file_format import Container, End, OpenOptions, Tensor, name_dims
from xr_tensorfmt.core.gathered import Gathered
from xr_tensorfmt.core.header import HeaderReader, check_size
from xr_tensorfmt.core.layout import (
    BATCH_BYTES,
    Dense,
    EncodedBatch,
    InMemory,
    Layout,
    view_as_bytes,
)
from xr_tensorfmt.core.layout import read as read_layout
from xr_tensorfmt.core.selection import Indices, Selection, indices_to_array
from xr_tensorfmt.core.source import Source, Step, put_at
from xr_tensorfmt.errors import Finding, TensorFormatError, shorten, warn
from xr_tensorfmt.formats.vespa.spec import (
    BLOCK,
    STRING_DTYPE,
    TYPE,
    Names,
    Strings,
    VespaHeader,
    decode_labels,
    find_blocks,
)

MAX_BLOCKS = 1 << 26
"""Limit on the blocks of a file, because their offsets are kept in memory."""

MAX_INDEXED_LABELS = 1 << 23
"""Limit on the blocks if their labels are kept, each in about 60 bytes of memory."""

_REPEATED = "both are kept, but Vespa may refuse the file or keep only one; remove one"
# Fields of the header in the encoding.
_FIELDS = ("tag", "cell_type", "mapped", "indexed", "lengths", "blocks")
# Labels to compare at a time.
_BATCH_LABELS = 1 << 16


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a typed binary tensor, and find its blocks."""
    header = replace(VespaHeader.read(reader), decode_floats=options["decode_floats"])
    source = reader.source
    if options["fill_value"] is not None and options["sparse"] != "dense":
        raise ValueError(
            f"{source.name}: fill_value={options['fill_value']!r} requires sparse='dense', because "
            f"sparse={options['sparse']!r} does not fill in cells"
        )
    cells: Layout = Dense(header.lengths, header.element, header.stop)
    stop = header.stop + header.blocks * header.block_bytes
    coordinates: tuple[Tensor, ...] = ()
    if header.mapped:
        cells, stop, dims, coordinates = _read_blocks(header, reader, options)
    else:
        options.refuse_stored(source.name)
        dims = _name_dimensions(header, options)
        if not header.blocks:  # Vespa reads a scalar without a cell as zero
            cells = InMemory(np.zeros((), header.element.dtype))
    encoding = {
        "tensorfmt": {
            "format": "vespa",
            "offset": header.stop,
            "order": "C",
            "byteorder": "big",
            TYPE: header.type,
            "reader_attrs": [TYPE],  # attributes that are not in the file
            **{field: getattr(header, field) for field in _FIELDS},
        },
        "dtype": header.element.encoding,
    }
    tensor = Tensor(options.name, dims, cells, {TYPE: header.type}, encoding)
    return Container((tensor,), coordinates, ends=(End(source, stop, header.type),))


def _read_blocks(
    header: VespaHeader, reader: HeaderReader, options: OpenOptions
) -> tuple[Layout, int, tuple[str, ...], tuple[Tensor, ...]]:
    """Return the cells, the end of the file, the dimensions, and the labels."""
    source, count, is_dense = reader.source, len(header.mapped), options["sparse"] == "dense"
    is_index = is_dense or (count == 1 and options["sparse"] == "auto")
    # To write a region of a file, labels are not needed.
    is_loaded = is_dense or (is_index and options.loads_labels)
    limit, hint = MAX_BLOCKS, "split the file"
    if is_loaded:
        limit = MAX_INDEXED_LABELS
        hint = "open the file with sparse='stored' (--open-option sparse=stored)"
    field, is_valid = "the number of blocks", header.blocks <= limit
    reader.check(is_valid, field, header.blocks, f"at most {limit}", hint, header.stop)
    blocks, columns = _scan_blocks(header, source, count if is_loaded else 0)
    cells: Layout = blocks
    if is_loaded and not is_dense:
        for block, earlier in islice(find_repeated_blocks(columns[0]), 1):
            found = f"blocks {earlier} and {block} have the label {columns[0][block]!r:.99}"
            warn(f"{source.name}: {found}; {_REPEATED}")
    if is_dense:
        cells, columns = _build_outer_product(source, blocks, columns, options["fill_value"])
    labels: list[Layout] = [Labels(blocks, dimension) for dimension in range(count)]
    if is_loaded:
        labels = [InMemory(column) for column in columns]
    names = _name_dimensions(header, options, *(() if is_index else (BLOCK,)))
    dims = names if is_index else (BLOCK, *names[count:])
    label_dims = names if is_index else (BLOCK,) * count
    parts = zip(names, label_dims, labels, strict=False)
    return cells, blocks.stop, dims, tuple(Tensor(name, (dim,), x) for name, dim, x in parts)


def _scan_blocks(header: VespaHeader, source: Source, columns: int) -> tuple[Blocks, list[Strings]]:
    """Scan the blocks. Return the labels of the first dimensions too."""
    offsets, first = np.full(header.blocks + 1, header.stop, dtype=np.int64), 0
    labels: list[list[str]] = [[] for _ in range(columns)]
    for offset, window, positions in find_blocks(source, header):
        offsets[first : first + positions.size] = offset + positions
        first += positions.size - 1
        for dimension, column in enumerate(labels):
            column.extend(decode_labels(window, positions[:-1], dimension))
    return Blocks(header, offsets), [np.fromiter(x, STRING_DTYPE, first) for x in labels]


def _name_dimensions(header: VespaHeader, options: OpenOptions, *reserved: str) -> tuple[str, ...]:
    """Name the mapped, then the indexed dimensions. Append underscores to reserved names."""
    own = header.mapped + header.indexed
    taken = {options.name, *reserved}
    unique_names: list[str] = []
    for name in own:
        unique = name
        while unique in taken or (unique != name and unique in (*own, *unique_names)):
            unique += "_"
        unique_names.append(unique)
    names = name_dims(options.dims, options.name, tuple(unique_names))
    if not {*names}.isdisjoint(reserved):
        reason = "which is the dimension that counts the blocks; choose another name"
        raise ValueError(f"dims={options.dims!r} contains {BLOCK!r}, {reason}")
    return names


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
        return max(1, ceil_div(self.stop - self.header.stop, max(1, self.header.blocks)))

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

    def decode(self, packed: Bytes, selection: Selection) -> Array:
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
        return element.decode(raw).reshape(selection.shape)

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

    def decode(self, packed: Bytes, selection: Selection) -> Array:
        """Decode the labels of one dimension."""
        sizes = self.locate(selection).lengths
        labels = decode_labels(packed, np.cumsum(sizes) - sizes, self.dimension)
        return np.fromiter(labels, STRING_DTYPE, sizes.size)


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
    """Check in batches that no two blocks have the same labels."""
    blocks, source = container.tensors[0].layout, reader.source
    if not isinstance(blocks, Blocks):
        return
    count = blocks.header.blocks
    columns = [Labels(blocks, dimension) for dimension in range(len(blocks.header.mapped))]

    def read_rows(start: int, stop: int) -> Iterator[Names]:
        part = Selection((count,), (range(start, min(stop, count)),))
        return zip(*(read_layout(column, source, part) for column in columns), strict=True)

    batches = (read_rows(first, first + _BATCH_LABELS) for first in range(0, count, _BATCH_LABELS))
    for block, earlier in islice(find_repeated_blocks(chain.from_iterable(batches)), limit):
        labels = shorten(", ".join(map(repr, next(read_rows(block, block + 1)))))
        field, actual = f"the labels of block {block}", f"{labels}, which block {earlier} has too"
        offset = int(blocks.offsets[block])
        yield Finding(source.name, field, actual, "", _REPEATED, offset, "warning")


def find_repeated_blocks(rows: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield each block with the labels of an earlier block, and that block. Keep only hashes."""
    hashes = np.fromiter(map(hash, rows), np.int64)
    ordered = np.sort(hashes)  # far faster than numpy.unique
    if (ordered[1:] != ordered[:-1]).all():
        return
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    earlier = first[inverse]
    for block in np.flatnonzero(earlier != np.arange(earlier.size)).tolist():
        yield block, int(earlier[block])


def _build_outer_product(
    source: Source, blocks: Blocks, columns: list[Strings], fill_value: float | None
) -> tuple[Gathered, list[Strings]]:
    """Spread the blocks over the outer product of their labels, and return the distinct labels."""
    header = blocks.header
    for block, earlier in find_repeated_blocks(zip(*columns, strict=True)):
        raise TensorFormatError(
            source.name,
            field=f"the labels of block {block}",
            actual=f"those of block {earlier} as well",
            expected="labels that occur once",
            hint="no dense tensor holds both; open it with sparse='stored' (--open-option "
            "sparse=stored)",
            offset=int(blocks.offsets[block]),
        )
    known = [dict(zip(dict.fromkeys(x), range(len(x)), strict=False)) for x in columns]
    codes = [list(map(known[n].__getitem__, column)) for n, column in enumerate(columns)]
    grid = tuple(map(len, known))
    is_int8 = header.cell_type == "int8"
    if fill_value is None:
        fill_value = 0 if is_int8 and prod(grid) == header.blocks else np.nan
    if is_int8 and fill_value not in range(-128, 128):
        hint = "pass an integer from -128 to 127"
        raise ValueError(f"{source.name}: cells of type int8 cannot hold {fill_value=}; {hint}")
    shape = *grid, *header.lengths
    check_size(source.name, shape, blocks.dtype.itemsize, header.stop)
    indices = np.ravel_multi_index(codes, grid) if header.blocks else np.empty(0, np.int64)
    order = np.argsort(indices)
    gather = partial(gather_product, blocks, len(grid), indices[order], order)
    layout = Gathered(shape, blocks.dtype, gather, (blocks,), float(fill_value))
    return layout, [np.array(list(labels), STRING_DTYPE) for labels in known]


def gather_product(
    blocks: Blocks, rank: int, indices: Integers, order: Integers, source: Source, key: Selection
) -> Iterator[Step]:
    """Yield the cells of the selected blocks. The indices of blocks in the grid are sorted."""
    inner, target = key.find_rows(rank, indices, order)
    yield blocks.plan(source, inner), put_at(target)
