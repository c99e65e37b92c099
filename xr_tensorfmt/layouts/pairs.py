"""A tensor of which only some elements are stored, each with its index; the others are zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.chunks import contiguous_chunk
from xr_tensorfmt.elements import Array, Element
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.extents import Extents, Integers
from xr_tensorfmt.layouts.base import WHOLE, Layout, values_of
from xr_tensorfmt.layouts.filling import Filling
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

        def runs_of(operation: Operation) -> Runs:
            stored = outer.permuted(operation.axes)
            return stored.runs() if stored.run_count <= self.count else self._all

        filled = self._filled(source, outer.runs(), runs_of)
        if self.components == 1:
            return filled.reshape(outer.shape)
        values = filled.reshape(*outer.shape, self.components)
        components = selection.entries[rank]
        return values if components == slice(0, self.components, 1) else values[..., components]

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Look points up, as ranges of one element each."""
        rank = len(self.lengths)
        flat = np.ravel_multi_index(points[:rank], self.lengths) if rank else 0 * points[0]
        unique, inverse = np.unique(flat, return_inverse=True)

        def runs_of(operation: Operation) -> Runs:
            if not rank or unique.size > self.count:
                return self._all
            wanted = np.unravel_index(unique, self.lengths)
            stored = tuple(wanted[axis] for axis in operation.axes)
            return Runs(np.sort(np.ravel_multi_index(stored, self.lengths)), 1)

        values = self._filled(source, Runs(unique, 1), runs_of)
        component = points[rank] if self.components > 1 else 0
        picked: Array = values[inverse, component]
        return picked

    @property
    def write_units(self) -> tuple[int, ...]:
        """A value goes with all of its components."""
        return (1,) * len(self.lengths) + (WHOLE,) * (self.components > 1)

    @property
    def bytes_per_element(self) -> float:
        """As if no element were zero."""
        return self.table.stride / self.components

    @property
    def prefers_points(self) -> bool:
        """Whether many points at once are better: each read may pass over many pairs."""
        return True

    @property
    def _all(self) -> Runs:
        return Runs(np.zeros(1, dtype=np.int64), prod(self.lengths))

    def _filled(self, source: Source, wanted: Runs, runs_of: RunsOf) -> Array:
        """The wanted elements, flat, each with its components."""
        index = self._index.get(lambda: self.table.scan(source))
        filling = Filling(wanted.size, self.components, self.dtype)
        unambiguous = index.ascending and len(self.orbit) == 1
        for operation in self.orbit:
            is_identity = operation == self.orbit[0]
            for numbers, stored, raw in self._found(source, index, runs_of(operation)):
                positions = wanted.locate(operation.images(stored, self.lengths))
                inside = np.flatnonzero(positions >= 0)
                positions, pairs = positions[inside], numbers[inside]
                if is_identity and not index.ascending:
                    again = filling.repeated(positions)
                    if again is not None:
                        raise self.table.duplicate(
                            source, int(pairs[again]), int(stored[inside][again])
                        )
                values = self._decoded(source, raw[inside], pairs)
                if operation.sign < 0:
                    values = self._negated(source, values, pairs)
                if unambiguous:
                    filling.values[positions] = values
                    continue
                conflict = filling.put(positions, values)
                if conflict is not None:
                    self._refuse_conflict(source, int(pairs[conflict]))
        return filling.values

    def _negated(self, source: Source, values: Array, pairs: Integers) -> Array:
        if self.dtype.kind == "i":
            lowest = (values == np.iinfo(self.dtype).min).any(axis=-1)
            if lowest.any():
                pair = int(pairs[np.argmax(lowest)])
                raise TensorFormatError(
                    source.name,
                    f"the value of pair {pair}",
                    np.iinfo(self.dtype).min,
                    f"a number whose negative fits {self.dtype}",
                    "the antisymmetry cannot be filled in; open with sparse='stored'",
                    offset=self.offset + pair * self.table.stride + INDEX_BYTES,
                )
        return -values

    def _refuse_conflict(self, source: Source, pair: int) -> None:
        raise TensorFormatError(
            source.name,
            f"pair {pair}",
            "another value for an element than a related pair gives",
            "one value for each element under the packed symmetries",
            "the pairs contradict the symmetries; open with sparse='stored' to see them",
            offset=self.offset + pair * self.table.stride,
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
