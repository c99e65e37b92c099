"""SYMMETRY chunks: permutations of the indices that leave a tensor invariant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.tens.header import Header
from xr_tensorfmt.formats.tens.variable_chunks import VariableChunk
from xr_tensorfmt.layouts.orbits import Operation

_PACKED_FLAG = 1
_SIGNS = {"x": 1, "-x": -1}


@dataclass(frozen=True)
class Symmetry:
    """``T[a, b, ...] = s(T[index_map])``.

    Parameters
    ----------
    code : str
        The operation ``s(x)`` on the elements: ``"x"``, ``"-x"``, or one that has no definition.
    index_map : str
        For each position on the right side the name of the index that stands there.
    packed : bool
        Whether only one element of each orbit is stored.
    offset : int
        Byte at which its chunk begins.
    """

    code: str
    index_map: str
    packed: bool
    offset: int

    def __str__(self) -> str:
        """As it stands in the file, operation code first."""
        return f"{self.code} {self.index_map}"


def read_symmetry(reader: HeaderReader, header: Header, chunk: VariableChunk) -> Symmetry:
    """Read one SYMMETRY chunk.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    header : Header
        Its header, for the index names.
    chunk : VariableChunk
        Where the chunk is; its size field decides, not the padding that it should have.

    Returns
    -------
    Symmetry

    Raises
    ------
    TensorFormatError
        The chunk is too small, or the index map is no permutation of the index names.
    """
    flags, length = reader.bytes_at(chunk.body, 2, "the symmetry flags")
    order = len(header.dimensions)
    if chunk.body + 2 + length + order > chunk.stop:
        raise TensorFormatError(
            reader.source.name,
            "the size of chunk 'SYMMETRY'",
            chunk.size,
            f"at least {18 + length + order} for {length} characters of code and {order} indices",
            "the file is damaged",
            offset=chunk.offset + 8,
        )
    text = reader.bytes_at(chunk.body + 2, length + order, "the symmetry").decode("latin-1")
    names = header.index_names
    if sorted(text[length:]) != sorted(names):
        raise TensorFormatError(
            reader.source.name,
            "the index map of a symmetry",
            repr(text[length:]),
            f"a permutation of the index names {names!r}",
            "the file is damaged",
            offset=chunk.body + 2 + length,
        )
    return Symmetry(text[:length], text[length:], bool(flags & _PACKED_FLAG), chunk.offset)


def packing_operations(
    symmetries: Iterable[Symmetry], header: Header, path: str
) -> tuple[Operation, ...]:
    """The packed symmetries, as operations on the axes in file order (last index slowest).

    Parameters
    ----------
    symmetries : iterable of Symmetry
        All symmetries of the tensor.
    header : Header
        The file's header.
    path : str
        The file, for the message.

    Returns
    -------
    tuple of Operation

    Raises
    ------
    TensorFormatError
        A packed symmetry has an operation without a definition, exchanges dimensions of different
        lengths or of the same name, or changes the sign of unsigned numbers.
    """
    packed = [each for each in symmetries if each.packed]
    for each in packed:
        problem = obstacle(each, header)
        if problem is not None:
            raise TensorFormatError(
                path,
                f"the symmetry {str(each)!r}",
                problem.found,
                problem.expected,
                "the format does not say which elements such a file stands for",
                offset=each.offset,
            )
    return tuple(operation(each, header) for each in packed)


@dataclass(frozen=True)
class Obstacle:
    """Why a symmetry cannot be packed.

    Parameters
    ----------
    found, expected : str
        What it is, and what it should be.
    """

    found: str
    expected: str


def obstacle(symmetry: Symmetry, header: Header) -> Obstacle | None:
    """Why a symmetry cannot be packed, if it cannot.

    Parameters
    ----------
    symmetry : Symmetry
        The symmetry; its map is a permutation of the index names.
    header : Header
        The header of its file.

    Returns
    -------
    Obstacle or None
    """
    names = header.index_names
    if symmetry.code not in _SIGNS:
        return Obstacle(f"packed by operation {symmetry.code!r}", "'x' or '-x'")
    if len(set(names)) != len(names):
        return Obstacle("packed", "index names that are all different")
    lengths = dict(zip(names, header.lengths, strict=True))
    if any(lengths[a] != lengths[b] for a, b in zip(names, symmetry.index_map, strict=True)):
        return Obstacle(f"packed for lengths {header.lengths}", "indices of equal lengths")
    if header.number_type.lower() == b"uint" and symmetry.code == "-x":
        return Obstacle("antisymmetric", "numbers that can be negative")
    return None


def operation(symmetry: Symmetry, header: Header) -> Operation:
    """A symmetry without obstacle, as an operation on the axes in file order.

    Parameters
    ----------
    symmetry : Symmetry
        The symmetry.
    header : Header
        The header of its file.

    Returns
    -------
    Operation
    """
    names = header.index_names
    source = [names.index(name) for name in symmetry.index_map]
    axes = tuple(len(names) - 1 - axis for axis in reversed(source))
    return Operation(axes, _SIGNS[symmetry.code])
