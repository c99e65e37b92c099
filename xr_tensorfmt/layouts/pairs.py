"""A tensor of which only some elements are stored, each with its index; the others are zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.chunks import contiguous_chunk
from xr_tensorfmt.elements import Array, Element
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.layouts.base import Layout, values_of
from xr_tensorfmt.layouts.orbits import Operation
from xr_tensorfmt.layouts.pairtable import INDEX_BYTES, BlockIndex, PairTable, within
from xr_tensorfmt.once import Once
from xr_tensorfmt.selection import Runs, Selection
from xr_tensorfmt.sources.base import Source

RunsOf = Callable[[Operation], Runs]
"""The stored indices that an operation maps onto the elements which are wanted."""


@dataclass(frozen=True)
class Pairs(Layout):
    """Pairs of global index and value, in any order; an element has one pair at most.

    Parameters
    ----------
    lengths : tuple of int
        Lengths of the axes that the index counts, slowest first.
    element : Element
        What one component of a value is.
    components : int
        Numbers that make up a value; more than 1 are a last axis.
    offset : int
        Byte of the file at which the first pair begins.
    count : int
        Number of pairs.
    orbit : tuple of Operation
        Each stored value stands for its images under all of these; the first is the identity.
    """

    lengths: tuple[int, ...]
    element: Element
    components: int
    offset: int
    count: int
    orbit: tuple[Operation, ...]
    _index: Once[BlockIndex] = field(default_factory=Once, compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths, and the components where there are several."""
        return self.lengths if self.components == 1 else (*self.lengths, self.components)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    @property
    def table(self) -> PairTable:
        """Where the pairs are."""
        stored = np.dtype((self.element.stored, (self.components,)))
        return PairTable(self.offset, self.count, stored, prod(self.lengths))

    def extents(self, selection: Selection) -> Extents:
        """All pairs: which of them matter is only known once they have been passed over."""
        return self.table.extents

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Chunks that are one range of global indices each."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Fill a selection, from those blocks of pairs alone that can fall in it."""
        if not selection.size:
            return np.empty(selection.shape, dtype=self.dtype)
        rank = len(self.lengths)
        outer = Selection(self.lengths, selection.entries[:rank])
        filled = self._filled(source, lambda operation: outer.permuted(operation.axes).runs())
        if self.components == 1:
            return filled.reshape(outer.shape)
        values = filled.reshape(*outer.shape, self.components)
        components = selection.entries[rank]
        return values if components == slice(0, self.components, 1) else values[..., components]

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Look points up, as ranges of one element each."""
        rank = len(self.lengths)
        unique, inverse = np.unique(
            np.ravel_multi_index(points[:rank], self.lengths) if rank else np.zeros_like(points[0]),
            return_inverse=True,
        )

        def runs_of(operation: Operation) -> Runs:
            wanted = np.unravel_index(unique, self.lengths)
            stored = tuple(wanted[axis] for axis in operation.axes)
            return Runs(np.sort(np.ravel_multi_index(stored, self.lengths)), 1)

        values = self._filled(source, runs_of if rank else lambda _: Runs(unique, 1))
        component = points[rank] if self.components > 1 else 0
        picked: Array = values[inverse, component]
        return picked

    def _filled(self, source: Source, runs_of: RunsOf) -> Array:
        """The wanted elements, flat, each with its components."""
        index = self._index.get(lambda: self.table.scan(source))
        wanted = runs_of(self.orbit[0])
        values, known = self._stored(source, index, self.orbit[0], runs_of, wanted)
        for operation in self.orbit[1:]:
            image, reached = self._stored(source, index, operation, runs_of, wanted)
            both = np.flatnonzero(known & reached)
            unequal = ~_equal(values[both], image[both])
            if unequal.any():
                self._refuse_conflict(source, wanted, int(both[np.argmax(unequal)]))
            values[reached] = image[reached]
            known |= reached
        return values

    def _stored(
        self, source: Source, index: BlockIndex, operation: Operation, runs_of: RunsOf, wanted: Runs
    ) -> tuple[Array, NDArray[np.bool_]]:
        """What the stored pairs say of the wanted elements by one operation, and of which."""
        values = np.zeros((wanted.size, self.components), dtype=self.dtype)
        reached = np.zeros(wanted.size, dtype=bool)
        for numbers, stored, raw in self._found(source, index, runs_of(operation)):
            positions = wanted.locate(operation.images(stored, self.lengths))
            inside = np.flatnonzero(positions >= 0)
            positions, numbers_inside = positions[inside], numbers[inside]
            if not index.ascending:
                self._refuse_duplicates(source, reached, positions, numbers_inside, stored[inside])
            decoded = self._decoded(source, raw[inside], numbers_inside)
            values[positions] = decoded if operation.sign > 0 else -decoded
            reached[positions] = True
        return values, reached

    def _refuse_duplicates(
        self,
        source: Source,
        reached: NDArray[np.bool_],
        positions: Integers,
        numbers: Integers,
        stored: Integers,
    ) -> None:
        repeated = reached[positions]
        order = np.argsort(positions, kind="stable")
        repeated[order[1:]] |= positions[order[1:]] == positions[order[:-1]]
        if repeated.any():
            which = int(np.argmax(repeated))
            raise self.table.duplicate(source, int(numbers[which]), int(stored[which]))

    def _refuse_conflict(self, source: Source, wanted: Runs, position: int) -> None:
        run, within = divmod(position, wanted.length)
        raise TensorFormatError(
            source.name,
            f"the element with global index {int(wanted.starts[run]) + within}",
            "given two values by pairs that the packed symmetries relate",
            "one value",
            "the stored pairs contradict the symmetries; open with sparse='stored' to see them",
            offset=self.offset,
        )

    def _found(
        self, source: Source, index: BlockIndex, runs: Runs
    ) -> Iterator[tuple[Integers, Integers, Array]]:
        """Numbers, indices and raw values of the pairs that can fall in the runs."""
        for first, stop in index.candidates(runs):
            pairs = self.table.read(source, first, min(stop, self.count))
            chosen = within(pairs["index"], runs) if index.ascending else np.arange(pairs.size)
            index_column, value_column = pairs["index"], pairs["value"]
            yield first + chosen, index_column[chosen].astype(np.int64), value_column[chosen]

    def _decoded(self, source: Source, raw: Array, numbers: Integers) -> Array:
        def offset_of(position: int) -> int:
            pair, component = divmod(position, self.components)
            value = self.offset + int(numbers[pair]) * self.table.stride + INDEX_BYTES
            return value + component * self.element.stored.itemsize

        stored = raw.view(self.element.stored).reshape(-1, self.components)
        return values_of(self.element.adopt, stored, source.name, offset_of)


def _equal(left: Array, right: Array) -> NDArray[np.bool_]:
    """Elements all of whose components are the same; NaN is the same as NaN."""
    same = (left == right) | ((left != left) & (right != right))
    return np.asarray(same.all(axis=-1))
