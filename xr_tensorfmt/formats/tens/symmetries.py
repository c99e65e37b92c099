"""Symmetries of a tensor: the content of a chunk SYMMETRY, and what it means for the elements."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.contract import Array, HeaderReader, Integers
from xr_tensorfmt.formats._shared.symmetries import nearly_equal
from xr_tensorfmt.formats.tens.chunks import Chunk
from xr_tensorfmt.formats.tens.spec import Header

# Flags, and length of the operation code; the code and the index map follow.
_FIELDS = Struct("<BB")
_PACKED_FLAG = 1
SIGNS = {"x": 1, "-x": -1}
"""The operation codes whose meaning the format defines."""

_SEPARATOR = ", "

MAX_OPERATIONS = 5040
"""Limit on the size of a group: all permutations of 7 axes."""


@dataclass(frozen=True)
class Symmetry:
    """``T[a, b, ...] = s(T[index_map])``, where the code stands for the operation s."""

    code: str
    index_map: str
    packed: bool = False
    offset: int = 0

    def __str__(self) -> str:
        """As it is in the file, operation code first."""
        return f"{self.code} {self.index_map}"

    @classmethod
    def parse(cls, string: str) -> Symmetry:
        """The inverse of `str`."""
        code, _, index_map = string.rpartition(" ")
        return cls(code, index_map)

    def pack(self) -> bytes:
        """The content of its chunk, without padding."""
        code, index_map = self.code.encode("latin-1"), self.index_map.encode("latin-1")
        return _FIELDS.pack(self.packed, len(code)) + code + index_map

    @classmethod
    def read(cls, reader: HeaderReader, header: Header, chunk: Chunk) -> Symmetry:
        """Read and check the content of its chunk."""
        fields = reader.read_field(chunk.body, _FIELDS.size, "the symmetry flags")
        flags, length = _FIELDS.unpack(fields)
        start, order = chunk.body + _FIELDS.size, len(header.dimensions)
        needed = start + length + order
        if needed > chunk.stop:
            raise reader.error(
                "the size of chunk 'SYMMETRY'",
                chunk.size,
                f"at least {needed - chunk.offset} for {length} characters of code and "
                f"{order} indices",
                "the file is damaged",
                chunk.size_at,
            )
        content = reader.read_field(start, length + order, "the symmetry").decode("latin-1")
        code, index_map = content[:length], content[length:]
        if sorted(index_map) != sorted(header.index_names):
            raise reader.error(
                "the index map of a symmetry",
                repr(index_map),
                f"a permutation of the index names {header.index_names!r}",
                "the file is damaged",
                start + length,
            )
        return cls(code, index_map, bool(flags & _PACKED_FLAG), chunk.offset)

    def obstacle(self, header: Header) -> tuple[str, str] | None:
        """Why the symmetry has no meaning for a tensor, if it has none: found, expected."""
        names = header.index_names
        if self.code not in SIGNS:
            return f"the operation {self.code!r}", "'x' or '-x'"
        if sorted(self.index_map) != sorted(names):
            return f"the index map {self.index_map!r}", f"a permutation of the names {names!r}"
        if len(set(names)) != len(names):
            return f"the index names {names!r}", "index names that are all different"
        lengths = dict(zip(names, header.lengths, strict=True))
        if any(
            lengths[one] != lengths[other] for one, other in zip(names, self.index_map, strict=True)
        ):
            return f"the lengths {header.lengths}", "indices of equal lengths"
        if header.is_unsigned and self.code == "-x":
            return "unsigned numbers", "numbers that can be negative"
        return None

    def operation(self, header: Header) -> Operation:
        """A symmetry without obstacle as an operation on the axes."""
        axes = map(header.index_names.index, self.index_map)
        return Operation(tuple(axes), SIGNS[self.code])


def joined(symmetries: Iterable[Symmetry]) -> str:
    """Symmetries in one string, as they are in attributes."""
    return _SEPARATOR.join(map(str, symmetries))


def split(string: str) -> list[str]:
    """The inverse of `joined`: a string for each symmetry."""
    return string.split(_SEPARATOR) if string else []


def still_holding(symmetries: str, index_names: str, header: Header) -> list[Symmetry]:
    """The symmetries of another file that can hold with a header, by its index names."""
    letters = str.maketrans(dict(zip(index_names, header.index_names, strict=False)))
    old = map(Symmetry.parse, split(symmetries))
    new = [Symmetry(each.code, each.index_map.translate(letters)) for each in old]
    return [each for each in new if each.obstacle(header) is None]


@dataclass(frozen=True)
class Operation:
    """``T[i] = sign * T[j]`` with ``j[p] = i[axes[p]]``."""

    axes: tuple[int, ...]
    sign: int

    @property
    def inverse(self) -> tuple[int, ...]:
        """The axes by which ``T.transpose`` has at ``i`` what T has at ``j``."""
        return tuple(self.axes.index(axis) for axis in range(len(self.axes)))

    def after(self, other: Operation) -> Operation:
        """The operation that applies `other` and then this one."""
        return Operation(tuple(other.axes[axis] for axis in self.axes), self.sign * other.sign)

    def images(self, flat: Integers, lengths: tuple[int, ...]) -> Integers:
        """Global indices ``i`` of the elements that stored elements at ``j`` determine."""
        if self.axes == tuple(range(len(lengths))):
            return flat
        stored = np.unravel_index(flat, lengths, order="F")
        image = tuple(stored[axis] for axis in self.inverse)
        return np.ravel_multi_index(image, lengths, order="F").astype(np.int64)


def check_images(
    name: str,
    dims: Sequence[Hashable],
    symmetry: Symmetry,
    operation: Operation,
    values: Array,
    images: Array,
    starts: Sequence[int],
) -> NDArray[np.bool_]:
    """Compare values with their images; ValueError at the first that differs."""
    wrong = ~nearly_equal(values, images if operation.sign > 0 else -images)
    if operation.sign < 0 and values.dtype.kind == "i":
        wrong |= images == np.iinfo(images.dtype).min  # its negative is itself
    if wrong.any():
        within = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        index = np.add(starts, within).tolist()
        here, there = (
            ", ".join(f"{dim}={along}" for dim, along in zip(dims, place, strict=True))
            for place in (index, [index[axis] for axis in operation.axes])
        )
        raise ValueError(
            f"{name!r} is {values[within]} at {here} and {images[within]} at {there}, which the "
            f"symmetry '{symmetry}' does not allow; pass symmetries= without it"
        )
    return wrong


def group_of_packed(
    reader: HeaderReader, header: Header, symmetries: Iterable[Symmetry]
) -> tuple[Operation, ...]:
    """The group of the packed symmetries, the identity first."""
    packed = [each for each in symmetries if each.packed]
    for each in packed:
        obstacle = each.obstacle(header)
        if obstacle is not None:
            raise reader.error(
                f"the symmetry {str(each)!r}",
                f"packed with {obstacle[0]}",
                obstacle[1],
                "the format does not say which elements such a file stands for; open it with "
                "sparse='stored'",
                each.offset,
            )
    group = generated((each.operation(header) for each in packed), len(header.dimensions))
    if group is None:
        raise reader.error(
            "the group of the packed symmetries",
            f"larger than {MAX_OPERATIONS} operations",
            "fewer",
            "open it with sparse='stored'",
            header.stop,
        )
    return group


def generated(operations: Iterable[Operation], rank: int) -> tuple[Operation, ...] | None:
    """All products of operations, the identity first; None where they are too many."""
    group = {Operation(tuple(range(rank)), 1): None}
    generators: list[Operation] = []
    for operation in operations:
        # One that the others generate adds nothing; any other at least doubles the group.
        if operation in group:
            continue
        generators.append(operation)
        todo = list(group)
        while todo:
            made = todo.pop()
            for product in (made.after(other) for other in generators):
                if product not in group:
                    group[product] = None
                    todo.append(product)
                    if len(group) > MAX_OPERATIONS:
                        return None
    return tuple(group)
