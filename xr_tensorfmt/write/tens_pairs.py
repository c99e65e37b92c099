"""TENS files of index-value pairs: a first pass counts them, a second one writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray

from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Extents
from xr_tensorfmt.formats.tens.notechunk import TENSOR
from xr_tensorfmt.formats.tens.storage import COUNT_BYTES
from xr_tensorfmt.formats.tens.symmetry import Symmetry, operation
from xr_tensorfmt.layouts import Pairs, column_major
from xr_tensorfmt.write.blocks import Blocks, cut
from xr_tensorfmt.write.blueprint import Blueprint, Placed
from xr_tensorfmt.write.draft import Draft, Piece
from xr_tensorfmt.write.notes import encoded, one_tensor
from xr_tensorfmt.write.pairing import Box, count, pack_pairs
from xr_tensorfmt.write.passes import after, as_dask, each_block, finished, reduced
from xr_tensorfmt.write.subject import Subject
from xr_tensorfmt.write.symmetrychecks import Invariance, checked, even_chunks
from xr_tensorfmt.write.tens_bytes import before_pair_count
from xr_tensorfmt.write.tens_symmetries import orbit_of
from xr_tensorfmt.write.tens_tensor import TensTensor

NOTHING: NDArray[np.uint8] = np.zeros(1, dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class PairPlaces:
    """Where the pairs of each block go, once they are counted.

    Parameters
    ----------
    file : Draft
        The file, with space for all of them.
    counts, firsts : ndarray of int64
        For each block how many pairs it has, and the number of the first.
    """

    file: Draft
    counts: NDArray[np.int64]
    firsts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PairWriter:
    """What is done with each block.

    Parameters
    ----------
    blocks : Blocks
        The blocks; their layout is `Pairs`, whose number of pairs is a limit.
    """

    blocks: Blocks

    @property
    def layout(self) -> Pairs:
        """Where the pairs begin, and what they are."""
        assert isinstance(self.blocks.layout, Pairs)
        return self.blocks.layout

    def count(self, values: Array, block_id: tuple[int, ...] = ()) -> NDArray[np.int64]:
        """How many pairs a block has, with as many axes as the block."""
        number = count(self.layout, self._box(values, block_id))
        return np.full((1,) * len(block_id), number, dtype=np.int64)

    def placed(self, begin: Callable[[], Draft], counts: Sequence[NDArray[np.int64]]) -> PairPlaces:
        """Give each block its place, in the order of the file, and write how many pairs there are.

        Parameters
        ----------
        begin : callable
            Makes the file, up to the first pair.
        counts : sequence of ndarray
            Pairs of each block, one element an array.

        Returns
        -------
        PairPlaces
        """
        flat = np.array([int(each.sum()) for each in counts], dtype=np.int64)
        total, stride = int(flat.sum()), self.layout.table.stride
        first = self.layout.offset
        # Begun once more, it asks for the space that is known to be needed now.
        file = replace(begin(), size=first + total * stride).begin()
        number = np.frombuffer(total.to_bytes(COUNT_BYTES, "little"), dtype=np.uint8)
        file.write(iter([(Extents.single(first - COUNT_BYTES, first), number)]))
        return PairPlaces(file, flat, np.cumsum(flat) - flat)

    def write(
        self, values: Array, places: PairPlaces, block_id: tuple[int, ...] = ()
    ) -> NDArray[np.uint8]:
        """Put the pairs of a block into their place."""
        number = self._number(block_id)
        first, expected = int(places.firsts[number]), int(places.counts[number])
        box = self._box(values, block_id)
        places.file.write(pack_pairs(self.layout, box, first, expected))
        return NOTHING.reshape((1,) * len(block_id))

    def _number(self, block_id: tuple[int, ...]) -> int:
        shape = tuple(map(len, self.blocks.chunks))
        return int(np.ravel_multi_index(block_id, shape)) if block_id else 0

    def _box(self, values: Array, block_id: tuple[int, ...]) -> Box:
        converted = self.blocks.conversion.apply(np.asarray(values))
        part = self.blocks.part(self._number(block_id))
        return Box(tuple(each.start for each in part[: len(self.layout.lengths)]), converted)


def plan_pairs(subject: Subject, tensor: TensTensor, symmetries: Sequence[Symmetry]) -> Blueprint:
    """Arrange a Dataset as a file of pairs.

    Parameters
    ----------
    subject : Subject
        What is written.
    tensor : TensTensor
        Its variable.
    symmetries : sequence of Symmetry
        What is known of it; of elements that the packed ones relate, one is stored.

    Returns
    -------
    Blueprint
    """
    note = encoded(subject, one_tensor(subject, TENSOR))
    head = before_pair_count(tensor.header, symmetries, note)
    begin = len(head) + COUNT_BYTES
    lengths, element = tensor.header.lengths[::-1], tensor.conversion.element
    packed = [each for each in symmetries if each.packed]
    orbit = orbit_of(subject.path, packed, tensor.header)
    # There are as many pairs as elements at most; the layout with the true number is the reader's.
    layout = Pairs(lengths, element, tensor.components, begin, prod(lengths), orbit)
    inner = column_major(layout, trailing=int(tensor.components > 1))
    placed = Placed(tensor.variable, inner, tensor.conversion)
    invariance = Invariance(
        tensor.conversion,
        tensor.dims[::-1],
        [operation(each, tensor.header) for each in packed],
        list(map(str, packed)),
    )
    return Blueprint(begin, (Piece(0, head),), (), partial(writing_pairs, placed, invariance))


def writing_pairs(
    placed: Placed,
    invariance: Invariance,
    begin: Callable[[], Draft],
    finish: Callable[[Draft, Sequence[Any]], None],
) -> Delayed:
    """Plan to count and to write pairs; as `tasks.writing`.

    Every pass computes the chunks anew, and none begins before the last one has ended. So
    no chunk is kept for the next pass.

    Parameters
    ----------
    placed : Placed
        The tensor.
    invariance : Invariance
        What must hold for it.
    begin, finish : callable
        As for `tasks.writing`.

    Returns
    -------
    Delayed
    """
    if not placed.variable.size:
        begun = delayed(begin, pure=False)()
        nothing: Delayed = delayed(finish, pure=False)(begun, [])
        return nothing
    variable, blocks = cut(placed)
    array, writer = as_dask(variable, blocks.chunks), PairWriter(blocks)
    even = even_chunks(blocks.chunks, variable.dtype.itemsize, invariance.operations)
    done = checked(as_dask(variable, even), invariance) if invariance.operations else None
    counts = each_block(after(array, done), writer.count, np.int64)
    places = reduced(partial(writer.placed, begin), counts)
    written = each_block(after(array, places), writer.write, np.uint8, places=places)
    return finished(partial(_finish, finish), places, written)


def _finish(
    finish: Callable[[Draft, Sequence[Any]], None], places: PairPlaces, done: Sequence[Any]
) -> None:
    finish(places.file, done)
