"""Pairs of index and value, made of a tensor or of what was opened as pairs, and never gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed
from numpy.typing import NDArray
from xarray import Variable, apply_ufunc

from xr_tensorfmt.core.chunk_grid import TARGET, contiguous_chunk
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Array, Plain
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.datasets.lazy_array import wrapped_data
from xr_tensorfmt.formats.tens.pairs import COUNT_BYTES, pair_dtype
from xr_tensorfmt.formats.tens.read import ENTRY
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.file_plan import BlockGrid, FilePlan, Placed


def plan_pairs(name: str, pairs: da.Array | None, head: bytes) -> FilePlan:
    """A file of the head, the number of pairs and the pairs."""
    count = 0 if pairs is None else len(pairs)
    begin = len(head) + COUNT_BYTES
    pieces = Piece(0, head), Piece(len(head), count.to_bytes(COUNT_BYTES, "little"))
    if pairs is None:
        return FilePlan(begin, pieces, ())
    layout = Dense((count,), Plain(pairs.dtype), begin)
    conversion = Conversion(name, layout.element, exact=True)
    placed = Placed(Variable((ENTRY,), pairs), layout, conversion)
    return FilePlan(begin + count * pairs.dtype.itemsize, pieces, (placed,))


@dataclass(frozen=True)
class Pairing:
    """What pairs are made of: values of a tensor with these lengths, the first index fastest."""

    conversion: Conversion
    lengths: tuple[int, ...]
    components: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """A pair as it is in the file."""
        return pair_dtype(self.conversion.element, self.components)

    def stored(self, values: Array) -> Array:
        """Elements as they are in the file, a row each."""
        converted = self.conversion.apply(values)
        return self.conversion.element.encode(converted).reshape(-1, self.components)

    def joined(self, index: Integers, stored: Array) -> Array:
        """Pairs of global indices and elements."""
        pairs = np.empty(len(index), self.dtype)
        pairs["index"], pairs["value"] = index, stored
        return pairs


class Uncopied:
    """An array that dask slices without the copy that it makes of numpy's own arrays."""

    def __init__(self, values: Array) -> None:
        self._values = values
        self.shape = values.shape
        self.ndim = values.ndim
        self.dtype = values.dtype

    def __getitem__(self, key: Any) -> Array:
        """A view of a part."""
        part: Array = self._values[key]
        return part


def in_chunks(variable: Variable, chunks: Sequence[Any]) -> da.Array:
    """A variable as an array of dask; what is lazy is read by chunks."""
    values = wrapped_data(variable)
    # A name of its own spares dask a pass over all values.
    if isinstance(values, np.ndarray):
        array: da.Array = da.from_array(Uncopied(values), tuple(chunks), name=False)  # type: ignore[no-untyped-call]
    else:
        lengths = dict(zip(variable.dims, chunks, strict=True))
        array = variable.chunk(lengths, from_array_kwargs={"name": False}).data
    return array


def pairs_of_tensor(variable: Variable, pairing: Pairing) -> da.Array | None:
    """The pairs of a tensor whose axes are in the order of the file; None if there are none.

    All chunks are computed here to count the pairs, and once more when they are written.
    """
    rank = len(pairing.lengths)
    if variable.chunks is None:
        block = contiguous_chunk(variable.shape[:rank], pairing.dtype.itemsize, TARGET)
        array = in_chunks(variable, (*block, *variable.shape[rank:]))
    else:
        array = variable.chunk(dict.fromkeys(variable.dims[rank:], -1)).data
    layout = Dense(array.shape, pairing.conversion.element, 0)
    grid = BlockGrid(layout, pairing.conversion, array.chunks, (0,) * array.ndim)
    map_blocks: Any = da.map_blocks
    meta = np.empty((0,) * array.ndim, pairing.dtype)
    made = map_blocks(PairMaker(grid, pairing), array, dtype=pairing.dtype, meta=meta)
    blocks = made.to_delayed().ravel()
    counts = compute(*map(delayed(len), blocks))  # type: ignore[no-untyped-call]
    confirm = delayed(_confirmed)
    parts = [
        da.from_delayed(confirm(block, count), (count,), pairing.dtype)  # type: ignore[no-untyped-call]
        for block, count in zip(blocks, counts, strict=True)
        if count
    ]
    return da.concatenate(parts) if parts else None  # type: ignore[no-untyped-call]


@dataclass(frozen=True, eq=False)
class PairMaker:
    """Makes the pairs of a block: the elements that have any bit set, by ascending index."""

    grid: BlockGrid
    pairing: Pairing

    def __call__(self, values: Any, block_id: tuple[int, ...] = ()) -> Array:
        """The pairs of one block."""
        shape = tuple(map(len, self.grid.chunks))
        number = int(np.ravel_multi_index(block_id, shape)) if block_id else 0
        plain = self.grid.plain(values, self.grid.selection(number).shape)
        stored = self.pairing.stored(plain)
        positions = np.flatnonzero(_has_bits(stored))
        return self.pairing.joined(self._global(positions, number), stored[positions])

    def _global(self, positions: Integers, number: int) -> Integers:
        """Flat positions in a block as flat positions in the tensor."""
        if not positions.size or not self.pairing.lengths:
            return positions
        part = self.grid.part(number)[: len(self.pairing.lengths)]
        shape = tuple(each.stop - each.start for each in part)
        along = np.unravel_index(positions, shape)
        index = tuple(each + entry.start for each, entry in zip(along, part, strict=True))
        flat: Integers = np.ravel_multi_index(index, self.grid.layout.shape[: len(part)])
        return flat


def _has_bits(stored: Array) -> NDArray[np.bool_]:
    """Rows in which any bit is set; this keeps NaN and the negative zero."""
    words = stored.view(f"u{min(8, stored.itemsize)}")
    found = words[:, 0] != 0
    for column in range(1, words.shape[1]):
        found |= words[:, column] != 0
    return np.asarray(found)


def _confirmed(pairs: Array, count: int) -> Array:
    """The pairs of a block, after checking that they are as many as were counted."""
    if len(pairs) != count:
        raise ValueError(
            f"{count} values of a chunk were not zero when they were counted, and {len(pairs)} "
            "when they were written; they must be the same each time they are computed, so call "
            "load() or persist() first"
        )
    return pairs


def pairs_of_entries(
    variable: Variable, indices: dict[str, Variable], pairing: Pairing
) -> da.Array | None:
    """The pairs of values and of their indices along each dimension, in the order they have."""
    if not len(variable):
        return None
    step = max(1, TARGET // pairing.dtype.itemsize)
    entries: Any = {ENTRY: step} if variable.chunks is None else {}
    values = variable.chunk({**entries, **dict.fromkeys(variable.dims[1:], -1)})
    along = [each.chunk({ENTRY: values.chunksizes[ENTRY]}) for each in indices.values()]
    made: Variable = apply_ufunc(
        EntryMaker(tuple(indices), pairing),
        values,
        *along,
        input_core_dims=[variable.dims[1:], *([[]] * len(along))],
        dask="parallelized",
        output_dtypes=[pairing.dtype],
    )
    pairs: da.Array = made.data
    return pairs


@dataclass(frozen=True)
class EntryMaker:
    """Makes pairs of values and of the indices along each dimension."""

    dims: tuple[str, ...]
    pairing: Pairing

    def __call__(self, values: Array, *indices: Array) -> Array:
        """The pairs of one chunk."""
        flat = np.zeros(len(values), dtype=np.int64)
        inner = 1
        for dim, length, along in zip(self.dims, self.pairing.lengths, indices, strict=True):
            outside = (along < 0) | (along >= length)
            if outside.any():
                raise ValueError(
                    f"{self.pairing.conversion.name!r} has a pair whose index {dim!r} is "
                    f"{along[np.argmax(outside)]}; it must be from 0 to {length - 1}"
                )
            flat += along.astype(np.int64) * inner
            inner *= length
        return self.pairing.joined(flat, self.pairing.stored(np.asarray(values)))
