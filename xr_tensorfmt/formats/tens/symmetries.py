"""Symmetries of a tensor, as stored in chunks SYMMETRY."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from struct import Struct

import numpy as np

from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.formats.tens.spec import Chunk, TensHeader

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
class Symmetry:
    """The relation ``T[a, b, ...] = s(T[index_map])``. The code defines the operation s."""

    code: str
    index_map: str
    packed: bool
    # Offset of the chunk, of the padding after its content, and of its end.
    offset: int
    padding: int
    stop: int

    def __str__(self) -> str:
        """Return the operation code and the index map."""
        return f"{self.code} {self.index_map}"

    @classmethod
    def read(cls, reader: HeaderReader, header: TensHeader, chunk: Chunk) -> Symmetry:
        """Read and check the content of a chunk."""
        fields = reader.read_field(chunk.content_offset, _FIELDS.size, "the symmetry flags")
        flags, length = _FIELDS.unpack(fields)
        start = chunk.content_offset + _FIELDS.size
        order = len(header.lengths)
        stop = start + length + order
        if stop > chunk.stop:
            expected = f"at least {stop - chunk.offset} for the code and {order} indices"
            hint, offset = "the file is corrupt", chunk.offset + 8
            raise reader.error("the size of chunk 'SYMMETRY'", chunk.size, expected, hint, offset)
        content = reader.read_field(start, length + order, "the symmetry").decode("latin-1")
        code, index_map = content[:length], content[length:]
        if sorted(index_map) != sorted(header.index_names):
            field, hint = "the index map of a symmetry", "the file is corrupt"
            expected = f"a permutation of the index names {header.index_names!r}"
            raise reader.error(field, repr(index_map), expected, hint, start + length)
        return cls(code, index_map, bool(flags & _PACKED_FLAG), chunk.offset, stop, chunk.stop)

    def build_operation(self, reader: HeaderReader, header: TensHeader) -> Operation:
        """Return the operation. Raise TensorFormatError if it does not fit the tensor."""
        names = header.index_names

        def check(holds: bool, actual: str, expected: str) -> None:
            if not holds:
                field, actual = f"the symmetry {str(self)!r}", f"packed with {actual}"
                hint = f"the other elements are not defined; {_UNPACK}"
                raise reader.error(field, actual, expected, hint, self.offset)

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
        if len(group) > MAX_OPERATIONS:
            field, actual = "the group of the packed symmetries", f"more than {MAX_OPERATIONS}"
            expected = f"at most {MAX_OPERATIONS} operations"
            raise reader.error(field, actual, expected, _UNPACK, header.stop)
    return tuple(group)
