"""Pairs of index and value: of a tensor, made chunk by chunk, or as they were opened, sorted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import Delayed, delayed
from xarray import Variable

from xr_tensorfmt.core.chunk_grid import TARGET, contiguous_chunk
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Array, Element, Plain
from xr_tensorfmt.core.embedded_metadata import EmbeddedMetadata
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.formats.tens.chunks import TENSOR
from xr_tensorfmt.formats.tens.pairs import COUNT_BYTES, pair_dtype
from xr_tensorfmt.formats.tens.read import ENTRY
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.embedded_metadata import one_tensor
from xr_tensorfmt.writing.file_plan import BlockGrid, FilePlan, Placed, cut_evenly


def plan_pairs(name: str, pairs: Any, head: bytes) -> FilePlan:
    """A file of the head, the number of pairs and the pairs."""
    begin = len(head) + COUNT_BYTES
    pieces = Piece(0, head), Piece(len(head), len(pairs).to_bytes(COUNT_BYTES, "little"))
    layout = Dense((len(pairs),), Plain(pairs.dtype), begin)
    placed = Placed(Variable((ENTRY,), pairs), layout, Conversion(name, layout.element, exact=True))
    return FilePlan(begin + len(pairs) * pairs.dtype.itemsize, pieces, (placed,))


def facts_of(variable: Variable) -> Mapping[str, Any]:
    """What is known of the TENS file that a variable was opened from; nothing if there is none."""
    facts = variable.encoding.get("tensorfmt")
    return facts if isinstance(facts, Mapping) and facts.get("format") == "tens" else {}


def pairs_of_tensor(variable: Variable, conversion: Conversion) -> Any:
    """The pairs of a tensor: of the elements with any bit set, as NaN and the negative zero have.

    All chunks are computed here to count the pairs, and once more when they are written.
    """
    variable = variable.transpose()
    dtype = pair_dtype(conversion.element, 1)
    if not variable.size:
        return np.empty(0, dtype)
    block = contiguous_chunk(variable.shape, dtype.itemsize, TARGET)
    chunks = variable.chunks or cut_evenly(variable.shape, block)
    layout = Dense(variable.shape, conversion.element, 0)
    grid = BlockGrid(layout, conversion, chunks, (0,) * variable.ndim)
    blocks = _blocks(variable, grid)
    maker = PairMaker(grid)
    count, make = delayed(maker.count), delayed(maker.pairs)
    counts = compute(*(count(block, number) for number, block in enumerate(blocks)))  # type: ignore[no-untyped-call]
    parts = [
        da.from_delayed(make(blocks[number], number, counts[number]), (counts[number],), dtype)  # type: ignore[no-untyped-call]
        for number in np.flatnonzero(counts).tolist()
    ]
    return da.concatenate(parts) if parts else np.empty(0, dtype)  # type: ignore[no-untyped-call]


def _blocks(variable: Variable, grid: BlockGrid) -> Sequence[Delayed]:
    """The values of each block, when they are asked for; dask would copy an array as a whole."""
    if variable.chunks is not None:
        return list(variable.data.to_delayed().ravel())
    load = delayed(_loaded)
    return [load(variable[grid.part(number)]) for number in range(grid.count)]


def _loaded(part: Variable) -> Array:
    # Indexing makes a copy of a lazy variable, since the variable keeps what it has read.
    values: Array = part[...].values
    return values


def in_chunks(variable: Variable, chunks: Iterable[Any]) -> Variable:
    """A variable in chunks of dask; a name of its own spares dask a pass over all values."""
    lengths = dict(zip(variable.dims, chunks, strict=True))
    chunked: Variable = variable.chunk(lengths, from_array_kwargs={"name": False})
    return chunked


@dataclass(frozen=True, eq=False)
class PairMaker:
    """Makes the pairs of blocks: of the elements that have any bit set, by ascending index."""

    grid: BlockGrid

    def count(self, values: Any, number: int) -> int:
        """How many pairs a block has."""
        # In the order of memory, which spares a copy.
        return int(np.count_nonzero(_bits(self._stored(values, number, "K"))))

    def pairs(self, values: Any, number: int, count: int) -> Array:
        """The pairs of a block, after checking that they are as many as were counted."""
        stored = self._stored(values, number, "C")
        positions = np.flatnonzero(_bits(stored))
        if positions.size != count:
            raise ValueError(
                f"{count} values of a chunk were not zero when they were counted, and "
                f"{positions.size} when they were written; they must be the same each time they "
                "are computed, so call load() or persist() first"
            )
        runs = self.grid.selection(number).runs()
        run, within = np.divmod(positions, runs.length)
        return _joined(runs.starts[run] + within, stored[positions], self.grid.conversion.element)

    def _stored(self, values: Any, number: int, order: Literal["C", "K"]) -> Array:
        plain = self.grid.plain(values, self.grid.selection(number).shape)
        conversion = self.grid.conversion
        return conversion.element.encode(conversion.apply(plain).ravel(order))


def _bits(stored: Array) -> Array:
    """An unsigned integer for each element that is zero where no bit is set."""
    words = stored.view(f"u{min(8, stored.itemsize)}")
    bits: Array = words if words.size == stored.size else words[::2] | words[1::2]
    return bits


def _joined(index: Integers, stored: Array, element: Element) -> Array:
    pairs = np.empty(index.size, pair_dtype(element, 1))
    pairs["index"], pairs["value"] = index, stored[:, np.newaxis]
    return pairs


def are_stored_pairs(variable: Variable) -> bool:
    """Whether values are pairs that were opened as they are in a file."""
    facts = facts_of(variable)
    is_along_entry = variable.dims == (ENTRY,) and ENTRY not in facts.get("dims", ())
    return facts.get("storage") == "pairs" and is_along_entry


def index_coordinates(checked: CheckedInput) -> dict[str, Variable]:
    """The coordinates that say where each stored pair belongs, in the order of the dimensions."""
    facts = facts_of(checked.only[1])
    packed = facts.get("packed_symmetries")
    if packed:
        raise ValueError(
            f"{checked.path}: each of the pairs stands for others by the packed symmetries "
            f"{packed!r}, which are not written; open the file without sparse='stored', and write "
            "it with sparse=True"
        )
    found = {
        facts_of(each).get("axis"): coordinate
        for coordinate, each in checked.coordinates.items()
        if each.dims == (ENTRY,)
    }
    missing = [axis for axis in range(len(facts["shape"])) if axis not in found]
    if missing:
        raise ValueError(
            f"{checked.path}: the pairs have lost the coordinates that were opened with them (for "
            f"dimension {', '.join(map(str, missing))} of {len(facts['shape'])}); keep them, or "
            "open the file without sparse='stored'"
        )
    return {found[axis]: checked.coordinates[found[axis]] for axis in range(len(facts["shape"]))}


def embedded_with_pairs(checked: CheckedInput, indices: Mapping[str, Variable]) -> EmbeddedMetadata:
    """The embedded metadata of the tensor that stored pairs belong to."""
    others = {}
    for other, each in checked.coordinates.items():
        if other in indices:
            if each.attrs:
                what = f"the attributes {', '.join(map(repr, each.attrs))} of the index {other!r}"
                checked.dropping("attrs", what, "move them to the variable")
        elif {ENTRY, *indices} & set(each.dims):
            what = f"the coordinate {other!r} of pairs"
            checked.dropping("coords", what, f"call drop_vars({other!r})")
        else:
            others[other] = each
    return one_tensor(checked, TENSOR, dims=list(indices), coordinates=others)


def sorted_pairs(
    variable: Variable, indices: Mapping[str, Variable], conversion: Conversion
) -> Array:
    """Stored pairs by ascending index, which are loaded; ValueError where one has no place."""
    name, lengths = conversion.name, facts_of(variable)["shape"]
    flat, inner = np.zeros(len(variable), dtype=np.int64), 1
    for (dim, coordinate), length in zip(indices.items(), lengths, strict=True):
        along = np.asarray(coordinate.values)
        outside = np.flatnonzero(~((along >= 0) & (along < length)))  # NaN is outside too
        if outside.size:
            raise ValueError(
                f"{name!r} has a pair whose index {dim!r} is {along[outside[0]]}; it must be from "
                f"0 to {length - 1}"
            )
        flat += along.astype(np.int64) * inner
        inner *= length
    order = np.argsort(flat, kind="stable")
    twice = np.flatnonzero(flat[order[1:]] == flat[order[:-1]])
    if twice.size:
        pair = int(order[twice[0] + 1])
        index = {dim: int(coordinate.values[pair]) for dim, coordinate in indices.items()}
        raise ValueError(f"{name!r} has two pairs for the element {index}; drop one of them")
    stored = conversion.element.encode(conversion.apply(np.asarray(variable.values)[order]))
    return _joined(flat[order], stored, conversion.element)
