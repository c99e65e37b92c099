"""TENS files of index-value pairs: a first pass counts them, a second one writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xarray import Variable

from xr_tensorfmt.extents import Integers
from xr_tensorfmt.formats.tens.notechunk import TENSOR
from xr_tensorfmt.formats.tens.storage import COUNT_BYTES
from xr_tensorfmt.formats.tens.symmetry import Symmetry, operation
from xr_tensorfmt.layouts import Pairs, column_major
from xr_tensorfmt.lazyarray import unchunked
from xr_tensorfmt.write.blocks import BlockGrid, cut, in_file_order
from xr_tensorfmt.write.blueprint import Blueprint, Placed, Survey
from xr_tensorfmt.write.draft import Piece
from xr_tensorfmt.write.notes import encoded, one_tensor
from xr_tensorfmt.write.subject import Subject
from xr_tensorfmt.write.tens.header import before_pair_count
from xr_tensorfmt.write.tens.pairing import CountedPairs, count
from xr_tensorfmt.write.tens.surveying import as_dask, each_block
from xr_tensorfmt.write.tens.symmetries import orbit_of
from xr_tensorfmt.write.tens.symmetrychecks import Invariance, checked, even_chunks
from xr_tensorfmt.write.tens.tensor import TensTensor


@dataclass(frozen=True, eq=False)
class PairPlan:
    """A file of pairs, but for their number.

    Parameters
    ----------
    head : bytes
        What comes before the number.
    variable : Variable
        The values, axes in the order of the file.
    blocks : BlockGrid
        Their blocks; the layout is `Pairs`, as if no element were zero.
    free : Variable
        The same values, which can be cut in another way without being gathered, if they are only
        to be read.
    invariance : Invariance
        What must hold for the values.
    """

    head: bytes
    variable: Variable
    blocks: BlockGrid
    free: Variable
    invariance: Invariance

    def blueprint(self) -> Blueprint:
        """Look at all values, and arrange the file.

        Each pass computes the chunks anew, so that none is kept for the next one.

        Returns
        -------
        Blueprint

        Raises
        ------
        ValueError
            The values do not have the symmetries that they should have.
        """
        if self.invariance.operations:
            self._check()
        counts = self._counts()
        total, bound = int(counts.sum()), pairs_of(self.blocks)
        layout = CountedPairs(replace(bound, count=total), self.blocks.chunks, counts)
        number = Piece(len(self.head), total.to_bytes(COUNT_BYTES, "little"))
        return Blueprint(
            bound.offset + total * bound.table.stride,
            (Piece(0, self.head), number),
            (Placed(self.variable, layout, self.blocks.conversion),),
        )

    def _check(self) -> None:
        item = self.variable.dtype.itemsize
        even = even_chunks(self.blocks.chunks, item, self.invariance.operations)
        checked(as_dask(self.free, even), self.invariance).compute()  # type: ignore[no-untyped-call]

    def _counts(self) -> Integers:
        array = as_dask(self.variable, self.blocks.chunks)
        # What is called must not hold the values, or dask would take them for a part of it.
        counts: Any = each_block(counted, np.int64, array, blocks=self.blocks)
        return np.ravel(counts.compute())


def pairs_of(blocks: BlockGrid) -> Pairs:
    """The layout of blocks, which is `Pairs`."""
    assert isinstance(blocks.layout, Pairs)
    return blocks.layout


def counted(values: Any, *, blocks: BlockGrid, block_id: tuple[int, ...] = ()) -> NDArray[np.int64]:
    """How many pairs a block has.

    Parameters
    ----------
    values : ndarray, or what numpy can make one of
        Its values.
    blocks : BlockGrid
        All blocks.
    block_id : tuple of int
        Its number along each axis.

    Returns
    -------
    ndarray
        One element, and as many axes as the block.
    """
    shape = tuple(map(len, blocks.chunks))
    selection = blocks.selection(int(np.ravel_multi_index(block_id, shape)) if block_id else 0)
    converted = blocks.conversion.apply(blocks.plain(values, selection.shape))
    number = count(pairs_of(blocks), selection, converted)
    return np.full((1,) * len(block_id), number, dtype=np.int64)


def plan_pairs(
    subject: Subject, tensor: TensTensor, symmetries: Sequence[Symmetry]
) -> Blueprint | Survey:
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
    Blueprint or Survey
        The first where there is nothing to look at.
    """
    note = encoded(subject, one_tensor(subject, TENSOR))
    head = before_pair_count(tensor.header, symmetries, note)
    lengths, element = tensor.header.lengths[::-1], tensor.conversion.element
    packed = [each for each in symmetries if each.packed]
    orbit = orbit_of(subject.path, packed, tensor.header)
    begin = len(head) + COUNT_BYTES
    if not tensor.variable.size:
        return Blueprint(begin, (Piece(0, head),), ())
    layout = Pairs(lengths, element, tensor.components, begin, prod(lengths), orbit)
    inner = column_major(layout, trailing=int(tensor.components > 1))
    placed = Placed(tensor.variable, inner, tensor.conversion)
    variable, blocks = cut(placed)
    free = in_file_order(replace(placed, variable=unchunked(tensor.variable))).variable
    operations = [operation(each, tensor.header) for each in packed]
    dims, texts = tensor.dims[::-1], list(map(str, packed))
    invariance = Invariance(tensor.conversion, dims, operations, texts)
    return Survey(PairPlan(head, variable, blocks, free, invariance).blueprint)
