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
    names = "".join(chr(each.index) for each in header.dimensions)
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
    return tuple(_operation(each, header, path) for each in symmetries if each.packed)


def _operation(symmetry: Symmetry, header: Header, path: str) -> Operation:
    names = [chr(each.index) for each in header.dimensions]
    source = [names.index(name) for name in symmetry.index_map]
    unsigned = header.number_type.lower() == b"uint"
    if symmetry.code not in _SIGNS:
        problem, wanted = f"packed by operation {symmetry.code!r}", "'x' or '-x'"
    elif len(set(names)) != len(names):
        problem, wanted = "packed", "index names that are all different"
    elif any(header.lengths[a] != header.lengths[b] for a, b in enumerate(source)):
        problem, wanted = f"packed for lengths {header.lengths}", "indices of equal lengths"
    elif unsigned and symmetry.code == "-x":
        problem, wanted = "antisymmetric", "numbers that can be negative"
    else:
        axes = tuple(len(names) - 1 - axis for axis in reversed(source))
        return Operation(axes, _SIGNS[symmetry.code])
    raise TensorFormatError(
        path,
        f"the symmetry {str(symmetry)!r}",
        problem,
        wanted,
        "the format does not say which elements such a file stands for",
        offset=symmetry.offset,
    )
