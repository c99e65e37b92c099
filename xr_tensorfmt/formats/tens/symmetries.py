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
        """Return the global indices ``i`` of the elements related to those at ``j``."""
        if self.axes == tuple(range(len(lengths))):
            return flat
        stored = np.unravel_index(flat, lengths, order="F")
        image = tuple(stored[self.axes.index(axis)] for axis in range(len(lengths)))
        return np.ravel_multi_index(image, lengths, order="F").astype(np.int64)


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

    def find_mismatch(self, header: TensHeader) -> tuple[str, str] | None:
        """Return the actual and the expected value if the symmetry does not fit a tensor."""
        names = header.index_names
        if self.code not in SIGNS:
            return f"the operation {self.code!r}", "'x' or '-x'"
        if len(set(names)) != len(names):
            return f"the index names {names!r}", "index names that are all different"
        lengths = dict(zip(names, header.lengths, strict=True))
        if any(lengths[a] != lengths[b] for a, b in zip(names, self.index_map, strict=True)):
            return f"the lengths {header.lengths}", "indices of equal lengths"
        if header.number_type.lower() == b"uint" and self.code == "-x":
            return "unsigned numbers", "numbers that can be negative"
        return None

    def build_operation(self, header: TensHeader) -> Operation:
        """Return the operation on the axes of a tensor that fits."""
        axes = map(header.index_names.index, self.index_map)
        return Operation(tuple(axes), SIGNS[self.code])


def build_group(
    reader: HeaderReader, header: TensHeader, symmetries: Iterable[Symmetry]
) -> tuple[Operation, ...]:
    """Return all products of the packed symmetries, the identity first."""
    generators = []
    for symmetry in filter(attrgetter("packed"), symmetries):
        mismatch = symmetry.find_mismatch(header)
        if mismatch is not None:
            raise reader.error(
                field=f"the symmetry {str(symmetry)!r}",
                actual=f"packed with {mismatch[0]}",
                expected=mismatch[1],
                hint=f"the other elements are not defined; {_UNPACK}",
                offset=symmetry.offset,
            )
        generators.append(symmetry.build_operation(header))
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
