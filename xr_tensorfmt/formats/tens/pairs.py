"""The layout of pairs of index and value, and the symmetries of a tensor, in chunks SYMMETRY."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.header import Cursor, HeaderReader
from xr_tensorfmt.core.layout import CHECKED_BYTES, WholeLayout
from xr_tensorfmt.core.locks import CachedValue
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError

if TYPE_CHECKING:
    from xr_tensorfmt.formats.tens.read import Chunk, TensHeader

# Size of the number of pairs, which precedes the first pair.
COUNT_BYTES = 8
# dtype of the global index. It is little-endian even if the values are not.
INDEX_DTYPE = np.dtype("<u8")
PAIRS_AT_ONCE = 1 << 20

# Flags, and length of the operation code. The code and the index map follow.
_FIELDS = Struct("<BB")
_PACKED_FLAG = 1
_UNPACK = "write the file without packing"
SIGNS = {"x": 1, "-x": -1}
# Limit on the size of a symmetry group: the number of permutations of 7 axes.
MAX_OPERATIONS = 5040


@dataclass(frozen=True)
class Operation:
    """The relation ``T[i] = sign * T[j]`` with ``j[p] = i[axes[p]]``."""

    axes: tuple[int, ...]
    sign: int

    def compose(self, other: Operation) -> Operation:
        """Return the operation that applies `other` and then this one."""
        return Operation(tuple(other.axes[axis] for axis in self.axes), self.sign * other.sign)

    def map_indices(self, flat: Integers, lengths: tuple[int, ...]) -> Integers:
        """Return the global indices ``j`` of the elements related to those at ``i``."""
        if self.axes == tuple(range(len(lengths))):
            return flat
        index = np.unravel_index(flat, lengths, order="F")
        related = tuple(index[axis] for axis in self.axes)
        return np.ravel_multi_index(related, lengths, order="F").astype(np.int64)


@dataclass(frozen=True)
class Pairs(WholeLayout):
    """Pairs of index and value in any order. The first read keeps all pairs in memory."""

    lengths: tuple[int, ...]
    element: Element
    components: int
    offset: int
    count: int
    # Operations of the packed symmetries, the identity first.
    group: tuple[Operation, ...] = ()
    kept: CachedValue[SortedPairs] = field(default_factory=CachedValue, compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions, and the number of components if there are several."""
        return self.lengths if self.components == 1 else (*self.lengths, self.components)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    @property
    def stride(self) -> int:
        """Bytes from one pair to the next."""
        return INDEX_DTYPE.itemsize + self.element.stored.itemsize * self.components

    @property
    def piece_bytes(self) -> int:
        """Bytes of whole pairs to read at a time."""
        return PAIRS_AT_ONCE * self.stride

    def locate(self, selection: Selection) -> Extents:
        """Return the bytes of all pairs. Any of them may belong to the selection."""
        if not self.count:
            return Extents.empty()
        return Extents.single(self.offset, self.offset + self.count * self.stride)

    def parse(self, source: Source, pieces: Iterable[Bytes]) -> SortedPairs:
        """Sort the pairs by index; raise TensorFormatError about an invalid or repeated index."""
        columns = [np.empty(0, INDEX_DTYPE)]
        values = [np.empty((0, self.components), self.dtype)]
        for piece in pieces:
            records = piece.reshape(-1, self.stride)
            columns.append(records[:, : INDEX_DTYPE.itemsize].copy().view(INDEX_DTYPE)[:, 0])
            stored = records[:, INDEX_DTYPE.itemsize :].copy().view(self.element.stored)
            values.append(self.element.decode(stored))
            batch = np.sort(columns[-1])
            if batch[-1] >= prod(self.lengths) or (batch[1:] == batch[:-1]).any():
                break  # all pairs of a corrupt file may not fit in memory
        column = np.concatenate(columns)
        order = np.argsort(column, kind="stable")
        ascending = column[order]
        is_wrong = ascending >= prod(self.lengths)
        is_wrong[1:] |= ascending[1:] == ascending[:-1]
        if is_wrong.any():
            number = int(order[is_wrong].min())
            raise self._build_index_error(source, number, int(column[number]))
        return SortedPairs(ascending.view(np.int64), np.concatenate(values)[order], order)

    def _build_index_error(self, source: Source, number: int, index: int) -> TensorFormatError:
        """Build the error about a pair whose index is out of bounds or repeated."""
        total = prod(self.lengths)
        actual, expected = str(index), f"a global index below {total}"
        hint = "the file is corrupt, or its dimension headers are wrong"
        if index < total:
            actual, expected = f"{index}, as in another pair", "an index that occurs once"
            hint = "the value there is undefined; write the file again"
        offset = self.offset + number * self.stride
        name = f"the index of pair {number}"
        return TensorFormatError(source.name, name, actual, expected, hint, offset=offset)

    def check(self, source: Source) -> None:
        """Compare all elements with those of related pairs, if there are symmetries."""
        super().check(source)
        if len(self.group) > 1:
            for part in Selection.everything(self.shape).divide(
                CHECKED_BYTES // self.dtype.itemsize
            ):
                self.plan(source, part).read()

    def pick(self, source: Source, content: SortedPairs, selection: Selection) -> Array:
        """Find the selected indices, in batches."""
        values, start = np.empty(selection.size, self.dtype), 0
        for batch in selection.divide(PAIRS_AT_ONCE):
            flat, component = np.divmod(batch.flat, self.components)
            elements, positions = flat, np.arange(flat.size)
            if self.components > 1:
                elements, positions = np.unique(flat, return_inverse=True)
            filled = self._fill_elements(source, content, elements)
            values[start : start + batch.size] = filled[positions, component]
            start += batch.size
        return values.reshape(selection.shape)

    def _fill_elements(self, source: Source, pairs: SortedPairs, flat: Integers) -> Array:
        """Return elements by global index, from their own pairs and those of related elements.

        Raise TensorFormatError if two pairs give an element different values.
        """
        filled = np.zeros((flat.size, self.components), dtype=self.dtype)
        is_set = np.zeros(flat.size, dtype=bool)
        for operation in self.group if self.count else ():
            related = operation.map_indices(flat, self.lengths[::-1])
            positions = np.minimum(np.searchsorted(pairs.indices, related), self.count - 1)
            targets = np.flatnonzero(pairs.indices[positions] == related)
            positions = positions[targets]
            values = pairs.values[positions]
            with np.errstate(invalid="ignore"):  # signalling NaNs warn
                images = values if operation.sign > 0 else 0 - values  # zero stays +0
                before = filled[targets]
                is_equal = (before == images) | ((before != before) & (images != images))
            conflicts = is_set[targets] & ~is_equal.all(axis=-1)
            if operation.sign < 0:  # the smallest integer is its own negative
                conflicts |= ((images == values) & (values != 0)).any(axis=-1)
            if conflicts.any():
                number = int(pairs.numbers[positions[conflicts]].min())
                raise self._build_conflict_error(source, number)
            filled[targets], is_set[targets] = images, True
        return filled

    def _build_conflict_error(self, source: Source, pair: int) -> TensorFormatError:
        return TensorFormatError(
            source.name,
            field=f"pair {pair}",
            actual="another value for an element than a related pair gives, or one without "
            "a negative",
            expected="one value for each element under the packed symmetries",
            hint="the pairs contradict the symmetries; write the file again",
            offset=self.offset + pair * self.stride,
        )


@dataclass(frozen=True, eq=False)
class SortedPairs:
    """Pairs in the order of their indices."""

    indices: Integers
    values: Array  # a row per pair
    # Numbers of the pairs in the file.
    numbers: Integers


@dataclass(frozen=True)
class Symmetry:
    """The relation ``T[a, b, ...] = s(T[index_map])``. The code defines the operation s."""

    code: str
    index_map: str
    packed: bool
    # Offset of the chunk.
    offset: int

    def __str__(self) -> str:
        """Return the operation code and the index map."""
        return f"{self.code} {self.index_map}"

    @classmethod
    def read(cls, reader: HeaderReader, header: TensHeader, chunk: Chunk) -> Symmetry:
        """Read and check the content of a chunk."""
        cursor, order = Cursor(reader, chunk.content_offset), len(header.lengths)
        flags, length = cursor.unpack(_FIELDS, "the symmetry flags")
        stop = cursor.offset + length + order
        expected = f"at least {stop - chunk.offset} for the code and {order} indices"
        field, fits = "the size of chunk 'SYMMETRY'", stop <= chunk.stop
        reader.check(fits, field, chunk.size, expected, offset=chunk.offset + 8)
        content = cursor.take(length + order, "the symmetry").decode("latin-1")
        code, index_map = content[:length], content[length:]
        expected = f"a permutation of the index names {header.index_names!r}"
        fits = sorted(index_map) == sorted(header.index_names)
        field = "the index map of a symmetry"
        cursor.check(fits, field, repr(index_map), expected, skip=length)
        return cls(code, index_map, bool(flags & _PACKED_FLAG), chunk.offset)

    def build_operation(self, reader: HeaderReader, header: TensHeader) -> Operation:
        """Return the operation. Raise TensorFormatError if it does not fit the tensor."""
        names = header.index_names

        def check(holds: bool, actual: str, expected: str) -> None:
            field, actual = f"the symmetry {str(self)!r}", f"packed with {actual}"
            hint = f"the other elements are not defined; {_UNPACK}"
            reader.check(holds, field, actual, expected, hint, self.offset)

        check(self.code in SIGNS, f"the operation {self.code!r}", "'x' or '-x'")
        expected = "index names that are all different"
        check(len(set(names)) == len(names), f"the index names {names!r}", expected)
        axes = tuple(map(names.index, self.index_map))
        image = tuple(header.lengths[axis] for axis in axes)
        actual = f"the lengths {header.lengths}"
        check(image == header.lengths, actual, "indices of equal lengths")
        is_unsigned = header.number_type.lower() == b"uint"
        can_negate = self.code == "x" or not is_unsigned
        check(can_negate, "unsigned numbers", "numbers that can be negative")
        return Operation(axes, SIGNS[self.code])


def build_group(
    reader: HeaderReader, header: TensHeader, symmetries: Iterable[Symmetry]
) -> tuple[Operation, ...]:
    """Return all products of the packed symmetries, the identity first."""
    packed = filter(attrgetter("packed"), symmetries)
    generators = [symmetry.build_operation(reader, header) for symmetry in packed]
    group = [Operation(tuple(range(len(header.lengths))), 1)]
    members = set(group)
    for operation in group:  # which grows
        for product in {operation.compose(generator) for generator in generators} - members:
            group.append(product)
            members.add(product)
        field, actual = "the group of the packed symmetries", f"more than {MAX_OPERATIONS}"
        expected, fits = f"at most {MAX_OPERATIONS} operations", len(group) <= MAX_OPERATIONS
        reader.check(fits, field, actual, expected, _UNPACK, header.stop)
    return tuple(group)
