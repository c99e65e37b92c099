"""The layout of pairs of index and value, and the symmetries of a tensor, in chunks SYMMETRY."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Integers
from xr_tensorfmt.core.gathered import WholeLayout
from xr_tensorfmt.core.header import Cursor, HeaderReader
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source

if TYPE_CHECKING:
    from xr_tensorfmt.formats.tens.read import Chunk, TensHeader

# Size of the number of pairs, which precedes the first pair.
COUNT_BYTES = 8
ELEMENTS_AT_ONCE = 1 << 20

# Flags, and length of the operation code. The code and the index map follow.
_FIELDS = Struct("<BB")
_PACKED_FLAG = 1
SIGNS = {"x": 1, "-x": -1}
# Limit on the size of a symmetry group: the number of permutations of 7 axes.
MAX_OPERATIONS = 5040


class Operation(NamedTuple):
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

    def convert(self, values: Array) -> Array:
        """Return the values of related elements. Zero stays +0."""
        with np.errstate(invalid="ignore"):  # signalling NaNs warn
            return values if self.sign > 0 else 0 - values


@dataclass(frozen=True)
class Pairs(WholeLayout):
    """Pairs of index and value in any order. The first read keeps all pairs in memory."""

    lengths: tuple[int, ...]
    element: Element
    components: int
    offset: int
    count: int
    # Operations of the packed symmetries, the identity first.
    group: tuple[Operation, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions, and the number of components if there are several."""
        return self.lengths if self.components == 1 else (*self.lengths, self.components)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.element.dtype

    @property
    def record(self) -> np.dtype[Any]:
        """A pair. Its global index is little-endian even if the values are not."""
        return np.dtype([("index", "<u8"), ("values", self.element.stored, (self.components,))])

    @property
    def bounds(self) -> tuple[int, int]:
        """The bytes of all pairs. Any of them may belong to a selection."""
        return self.offset, self.offset + self.count * self.record.itemsize

    def parse(self, source: Source, pieces: Iterable[Bytes]) -> tuple[Integers, Array]:
        """Sort the pairs by index. Raise TensorFormatError if they contradict each other."""
        total, records = prod(self.lengths), self._join(pieces)
        order = np.argsort(records["index"], kind="stable")
        column = records["index"][order]
        is_wrong = column >= total
        is_wrong[1:] |= column[1:] == column[:-1]
        if is_wrong.any():
            number = int(order[is_wrong].min())
            index, expected = int(records["index"][number]), f"a global index below {total}"
            actual = str(index)
            if index < total:
                actual, expected = f"{index}, as in another pair", "an index that occurs once"
            field, offset = f"the index of pair {number}", self.offset + number * records.itemsize
            raise HeaderReader(source).error(field, actual, expected, offset=offset)
        indices, values = column.view(np.int64), self.element.decode(records["values"][order])
        for operation in self.group[1:]:
            related = operation.map_indices(indices, self.lengths[::-1])
            found = np.minimum(np.searchsorted(indices, related), self.count - 1)
            images, negative = operation.convert(values[found]), operation.convert(values)
            with np.errstate(invalid="ignore"):
                differ = (images != values) & ((images == images) | (values == values))
                conflicts = (differ & (indices[found] == related)[:, np.newaxis]).any(axis=1)
                if operation.sign < 0:  # the smallest integer is its own negative
                    conflicts |= ((negative == values) & (values != 0)).any(axis=1)
            if conflicts.any():
                number = int(order[conflicts].min())
                actual = "another value for an element than a related pair gives, or one without "
                actual += "a negative"
                expected = "one value for each element under the packed symmetries"
                offset = self.offset + number * self.record.itemsize
                raise HeaderReader(source).error(f"pair {number}", actual, expected, offset=offset)
        return indices, values

    def _join(self, pieces: Iterable[Bytes]) -> Array:
        """Join pieces of pairs, up to the first piece that alone contains a wrong index."""
        parts, rest = [np.empty(0, self.record)], np.empty(0, np.uint8)
        for piece in pieces:
            joined = np.concatenate([rest, piece])
            stop = joined.size - joined.size % self.record.itemsize
            parts.append(joined[:stop].view(self.record))
            rest, column = joined[stop:], np.sort(parts[-1]["index"])
            if (column[-1:] >= prod(self.lengths)).any() or (column[1:] == column[:-1]).any():
                break  # the file may be hollow, and larger than memory
        return np.concatenate(parts)

    def pick(self, source: Source, content: tuple[Integers, Array], selection: Selection) -> Array:
        """Find the selected elements and those related to them, in batches."""
        indices, stored = content
        values = np.zeros(selection.shape, self.dtype)
        for batch, key in selection.iterate_parts(ELEMENTS_AT_ONCE) if self.count else ():
            flat, component = np.divmod(batch.flat, self.components)
            filled = np.zeros(flat.size, dtype=self.dtype)
            for operation in self.group:
                related = operation.map_indices(flat, self.lengths[::-1])
                found = np.minimum(np.searchsorted(indices, related), self.count - 1)
                targets = np.flatnonzero(indices[found] == related)
                filled[targets] = operation.convert(stored[found[targets], component[targets]])
            values[key] = filled.reshape(batch.shape)
        return values


class Symmetry(NamedTuple):
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


def build_group(
    reader: HeaderReader, header: TensHeader, symmetries: Iterable[Symmetry]
) -> tuple[Operation, ...]:
    """Return all products of the packed symmetries, the identity first."""
    names, lengths, dtype = header.index_names, header.lengths, header.element.name
    codes = {"x": 1} if header.element.dtype.kind == "u" else SIGNS
    hint = "the other elements are not defined; write the file without packing"
    generators = []
    for symmetry in symmetries:
        if not symmetry.packed:
            continue
        axes = tuple(map(names.index, symmetry.index_map))
        has_equal_lengths = tuple(lengths[axis] for axis in axes) == lengths
        is_valid = symmetry.code in codes and len({*names}) == len(names) and has_equal_lengths
        actual = f"packed, with the index names {names!r}, lengths {lengths} and dtype {dtype}"
        expected = "'x', or '-x' of signed numbers, over different indices of equal lengths"
        field = f"the symmetry {str(symmetry)!r}"
        reader.check(is_valid, field, actual, expected, hint, symmetry.offset)
        generators.append(Operation(axes, codes[symmetry.code]))
    group = [Operation(tuple(range(len(lengths))), 1)]
    members = set(group)
    for operation in group:  # which grows
        products = {operation.compose(generator) for generator in generators} - members
        group += products
        members |= products
        field, actual = "the group of the packed symmetries", f"more than {MAX_OPERATIONS}"
        expected, fits = f"at most {MAX_OPERATIONS} operations", len(group) <= MAX_OPERATIONS
        reader.check(fits, field, actual, expected, hint, header.stop)
    return tuple(group)
