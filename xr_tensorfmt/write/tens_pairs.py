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
from xr_tensorfmt.write.blocks import Blocks, cut
from xr_tensorfmt.write.blueprint import Blueprint, Placed, Survey
from xr_tensorfmt.write.draft import Piece
from xr_tensorfmt.write.notes import encoded, one_tensor
from xr_tensorfmt.write.pairing import CountedPairs, count
from xr_tensorfmt.write.subject import Subject
from xr_tensorfmt.write.surveying import as_dask, each_block
from xr_tensorfmt.write.symmetrychecks import Invariance, checked, even_chunks
from xr_tensorfmt.write.tens_bytes import before_pair_count
from xr_tensorfmt.write.tens_symmetries import orbit_of
from xr_tensorfmt.write.tens_tensor import TensTensor


@dataclass(frozen=True, eq=False)
class PairPlan:
    """A file of pairs, but for their number.

    Parameters
    ----------
    head : bytes
        What comes before the number.
    variable : Variable
        The values, axes in the order of the file.
    blocks : Blocks
        Their blocks; the layout is `Pairs`, as if no element were zero.
    invariance : Invariance
        What must hold for the values.
    """

    head: bytes
    variable: Variable
    blocks: Blocks
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
        total, bound = int(counts.sum()), self._bound
        layout = CountedPairs(replace(bound, count=total), self.blocks.chunks, counts)
        number = Piece(len(self.head), total.to_bytes(COUNT_BYTES, "little"))
        return Blueprint(
            bound.offset + total * bound.table.stride,
            (Piece(0, self.head), number),
            (Placed(self.variable, layout, self.blocks.conversion),),
        )

    @property
    def _bound(self) -> Pairs:
        assert isinstance(self.blocks.layout, Pairs)
        return self.blocks.layout

    def _check(self) -> None:
        item = self.variable.dtype.itemsize
        even = even_chunks(self.blocks.chunks, item, self.invariance.operations)
        checked(as_dask(self.variable, even), self.invariance).compute()  # type: ignore[no-untyped-call]

    def _counts(self) -> Integers:
        array = as_dask(self.variable, self.blocks.chunks)
        counts: Any = each_block(self._count, np.int64, array)
        return np.ravel(counts.compute())

    def _count(self, values: Any, block_id: tuple[int, ...] = ()) -> NDArray[np.int64]:
        """How many pairs a block has."""
        shape = tuple(map(len, self.blocks.chunks))
        number = int(np.ravel_multi_index(block_id, shape)) if block_id else 0
        selection = self.blocks.selection(number)
        plain = self.blocks.plain(values, selection.shape)
        found = count(self._bound, selection, self.blocks.conversion.apply(plain))
        return np.full((1,) * len(block_id), found, dtype=np.int64)


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
    variable, blocks = cut(Placed(tensor.variable, inner, tensor.conversion))
    operations = [operation(each, tensor.header) for each in packed]
    dims, texts = tensor.dims[::-1], list(map(str, packed))
    invariance = Invariance(tensor.conversion, dims, operations, texts)
    return Survey(PairPlan(head, variable, blocks, invariance).blueprint)
