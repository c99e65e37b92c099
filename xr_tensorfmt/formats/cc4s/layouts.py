"""The elements of a tensor: as text with a value a line, or as blocks, with zeros elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array, Element, Plain
from xr_tensorfmt.core.extents import Bytes, Integers
from xr_tensorfmt.core.gathered import WholeLayout
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source, Step, put_at
from xr_tensorfmt.errors import TensorFormatError, shorten
from xr_tensorfmt.formats.cc4s.header import Properties, TensorEntry

_COMPLEX = re.compile(rb"\([ \t]*+([^\s(),]++)[ \t]*+,[ \t]*+([^\s(),]++)[ \t]*+\)")

MAX_BLOCKS = 1 << 22
"""Limit on the blocks of a tensor: enough for 160 points if momentum is conserved."""

MAX_INDICES = 1 << 24
"""Limit on the lengths of dimensions of a tensor of blocks. Indices are kept in memory."""

_ELEMENTS_AT_ONCE = 1 << 20
_HINT = "the file is incomplete, corrupt or binary, or has another YAML file; fetch both again"


@dataclass(frozen=True)
class Text(WholeLayout):
    """A row-major array as text. The first read parses the whole text and keeps the values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The whole text, because lines have any width."""
        return 0, self.size

    def parse(self, source: Source, pieces: Iterable[Bytes]) -> Array:
        """Parse the text."""
        values = [np.empty(0, self.dtype), *self._parse_lines(source, pieces)]
        return np.concatenate(values).reshape(self.shape)

    def check(self, source: Source) -> None:
        """Parse the text without keeping the values."""
        for _ in self._parse_lines(source, self.read_pieces(source)):
            pass

    def _parse_lines(self, source: Source, pieces: Iterable[Bytes]) -> Iterator[Array]:
        """Yield the values of whole lines. Raise TensorFormatError if their number is wrong."""
        stop, pending, count, total = 0, list[bytes](), 0, prod(self.shape)
        for piece in pieces:
            stop += piece.size
            pending.append(piece.tobytes())
            if stop < self.size and b"\n" not in pending[-1]:
                continue
            raw = b"".join(pending)
            end = len(raw) if stop == self.size else raw.rfind(b"\n") + 1
            pending = [raw[end:]]
            try:
                values = self._parse(raw[:end])
            except ValueError:
                raise self._build_value_error(source, raw[:end], stop - len(raw)) from None
            count += values.size
            yield values
        if count != total:
            actual, expected = (
                f"{count} values",
                f"{total} for a tensor of shape {self.shape[::-1]}",
            )
            offset = self.size if count < total else 0
            raise HeaderReader(source).error("the elements", actual, expected, _HINT, offset)

    def _parse(self, raw: bytes) -> Array:
        """Parse lines; raise ValueError if one has no value."""
        is_complex = self.dtype.kind == "c"
        # Python allows underscores between digits.
        if b"_" in raw or (is_complex and _COMPLEX.sub(b"", raw).strip()):
            raise ValueError
        words = [*chain.from_iterable(_COMPLEX.findall(raw))] if is_complex else raw.split()
        return np.fromiter(map(float, words), np.float64, len(words)).view(self.dtype)

    def _build_value_error(self, source: Source, raw: bytes, offset: int) -> TensorFormatError:
        """Return the error about the first invalid line."""
        line = b""
        for line in raw.splitlines(keepends=True):
            try:
                self._parse(line)
            except ValueError:
                break
            offset += len(line)
        field, actual = "a line of the elements", shorten(repr(line.strip()))
        expected = f"one value, {'(re,im)' if self.dtype.kind == 'c' else 'a number'}"
        return HeaderReader(source).error(field, actual, expected, _HINT, offset)


class TextLine(Plain):
    """A number as a line of text. Its fixed width lets chunks be written in parallel.

    A line is ``-1.2345678901234567e+100`` and a newline, or two of these numbers in parentheses.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        Element.__init__(self, dtype.name, np.dtype("S52" if dtype.kind == "c" else "S25"), dtype)

    def encode(self, values: Array) -> Array:
        """Format values with 17 digits, which are exact."""
        flat = values.ravel().tolist()
        if self.dtype.kind == "c":
            lines = [f"({z.real:.16e},{z.imag:.16e})".ljust(51) for z in flat]
        else:
            lines = [f"{x:24.16e}" for x in flat]
        raw = "\n".join([*lines, ""]).encode()
        return np.frombuffer(raw, self.stored).reshape(values.shape)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The places of elements in blocks. Elements outside the blocks are zero.

    Along an axis, a block covers one of several disjoint sets of indices.
    """

    # Along each axis, the slowest first: the set of every index, its position in the set, and the
    # number of sets.
    labels: tuple[Integers, ...]
    positions: tuple[Integers, ...]
    kinds: tuple[int, ...]
    # A number per block that identifies its sets of indices, ascending.
    keys: Integers
    # Index of the first stored element of every block, and its strides along the axes.
    offsets: Integers
    strides: Integers
    # Number of stored elements.
    size: int

    def gather(self, stored: Layout, source: Source, selection: Selection) -> Iterator[Step]:
        """Yield the selected elements that are stored, block by block."""
        start = 0
        for batch in selection.divide(_ELEMENTS_AT_ONCE) if self.size else ():
            inside, flat = self._find_stored(batch.mesh)
            if flat.size:
                points = Selection(stored.shape, (flat,), is_pointwise=True)
                target = np.unravel_index(start + inside, selection.shape)
                yield stored.plan(source, points), put_at(target)
            start += batch.size

    def _find_stored(self, indices: Sequence[Integers]) -> tuple[Integers, Integers]:
        """Return the flat positions of elements in a block, and their indices in the file."""
        labels = tuple(axis[index] for axis, index in zip(self.labels, indices, strict=True))
        keys = np.asarray(np.ravel_multi_index(labels, self.kinds))
        block = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        inside = np.flatnonzero(self.keys[block] == keys)
        block = block.ravel()[inside]
        flat = self.offsets[block]
        for axis, index, strides in zip(self.positions, indices, self.strides, strict=True):
            positions = np.broadcast_to(axis[index], keys.shape)
            flat += positions.ravel()[inside] * strides[block]
        return inside, flat


def find_blocks(entry: TensorEntry, properties: Properties) -> Blocks:
    """Return the blocks of a tensor. The first condition varies fastest."""
    fields, lengths, key = entry.fields, entry.lengths, "nonZeroCondition"
    count = prod(len(rows) for _, rows in entry.conditions)
    fields.check(count <= MAX_BLOCKS, key, f"{count} blocks", f"at most {MAX_BLOCKS}")
    actual, fits = f"blocks of a tensor of shape {lengths}", max(lengths, default=0) <= MAX_INDICES
    fields.check(fits, key, actual, f"lengths up to {MAX_INDICES}")
    # Block k is the k-th combination of rows. Without rows, max() avoids a division by zero.
    remaining = np.arange(count)
    # Per dimension, a property of its indices and of the blocks.
    constraints: list[list[tuple[Integers, Integers]]] = [[] for _ in lengths]
    for pairs, rows in entry.conditions:
        chosen = rows[remaining % max(1, len(rows))]
        remaining //= max(1, len(rows))
        for (name, dimension), column in zip(pairs, chosen.T, strict=True):
            indices = _find_indices(entry, dimension, name, properties)
            constraints[dimension].append((indices, column))
    labels, positions, kinds, numbers, strides = [], [], [], [], [np.ones(count, np.int64)]
    for length, columns in zip(lengths, constraints, strict=True):
        # Equal rows of properties have equal labels.
        column = np.zeros(length + count, np.int64)
        table = np.stack([column, *map(np.concatenate, columns)], axis=1)
        distinct, label = np.unique(table, axis=0, return_inverse=True)
        of_indices, of_blocks = np.split(label.ravel(), [length])
        sizes = np.bincount(of_indices, minlength=len(distinct))
        labels.append(of_indices)
        positions.append(_count_within(of_indices, sizes))
        kinds.append(len(distinct))
        numbers.append(of_blocks)
        strides.append(strides[-1] * sizes[of_blocks])
    total = prod(kinds)
    fields.check(total < 1 << 63, key, f"{total} kinds of blocks", f"fewer than {1 << 63}")
    keys = np.ravel_multi_index(tuple(numbers[::-1]), kinds[::-1])
    block_sizes, order = strides.pop(), np.argsort(keys)
    fields.check(bool(np.diff(keys[order]).all()), key, "a block twice", "different blocks")
    return Blocks(
        tuple(labels[::-1]),
        tuple(positions[::-1]),
        tuple(kinds[::-1]),
        keys[order],
        (np.cumsum(block_sizes) - block_sizes)[order],
        np.stack(strides[::-1])[:, order],
        int(block_sizes.sum()),
    )


def _count_within(labels: Integers, sizes: Integers) -> Integers:
    """Return the position of every index among those with the same label."""
    order = np.argsort(labels, kind="stable")
    positions = np.empty_like(order)
    positions[order] = np.arange(labels.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return positions


def _find_indices(
    entry: TensorEntry, dimension: int, name: str, properties: Properties
) -> Integers:
    """Return a property of a dimension as an array with one integer per index."""
    length, kind = entry.lengths[dimension], entry.types[dimension]
    indices, _ = properties.get((kind, name), (None, {}))
    if indices is None or indices.size != length:
        state = "missing" if indices is None else f"given for {indices.size} indices"
        actual = f"the property {name!r} of dimension {dimension}, which is {state}"
        expected = f"the property for {length} indices in {kind}.yaml in the same directory"
        raise entry.fields.error("nonZeroCondition", actual, expected, "fetch that file too")
    return indices
