"""The elements of a tensor: as text with a value a line, or as blocks, with zeros elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array, Element, Plain
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.gathered import Gathered, WholeLayout, put_at
from xr_tensorfmt.core.layout import Dense, Layout
from xr_tensorfmt.core.locks import CachedValue
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source, Step
from xr_tensorfmt.errors import TensorFormatError, shorten
from xr_tensorfmt.formats.cc4s.header import Properties, TensorEntry

_COMPLEX = re.compile(rb"\([ \t]*+([^\s(),]++)[ \t]*+,[ \t]*+([^\s(),]++)[ \t]*+\)")

MAX_BLOCKS = 1 << 22
"""Limit on the blocks of a tensor: enough for 160 points if momentum is conserved."""

MAX_INDICES = 1 << 24
"""Limit on the lengths of dimensions of a tensor of blocks. Indices are kept in memory."""

_ELEMENTS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Text(WholeLayout):
    """A row-major array as text. The first read parses the whole text and keeps the values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int
    kept: CachedValue[Array] = field(default_factory=CachedValue, repr=False, compare=False)

    def locate(self, selection: Selection) -> Extents:
        """Return the whole text, because lines have any width."""
        return Extents.single(0, self.size) if self.size else Extents.empty()

    def parse(self, source: Source, pieces: Iterable[Bytes]) -> Array:
        """Parse the text."""
        values = np.concatenate([np.empty(0, self.dtype), *self.parse_lines(source, pieces)])
        self.check_count(source, values.size)
        return values.reshape(self.shape)

    def check(self, source: Source) -> None:
        """Parse the text without keeping the values."""
        values = self.parse_lines(source, self.read_pieces(source))
        self.check_count(source, sum(piece.size for piece in values))

    def parse_lines(self, source: Source, pieces: Iterable[Bytes]) -> Iterator[Array]:
        """Yield the values of each piece, of whole lines."""
        stop, pending = 0, list[bytes]()
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
            yield values

    def check_count(self, source: Source, count: int) -> None:
        """Raise TensorFormatError if the number of values is not the number of elements."""
        expected = prod(self.shape)
        if count != expected:
            raise TensorFormatError(
                source.name,
                field="the elements",
                actual=f"{count} values",
                expected=f"{expected} for a tensor of shape {self.shape[::-1]}",
                hint="the file is incomplete, or belongs to another YAML file; fetch both again",
                offset=self.size if count < expected else 0,
            )

    def _parse(self, raw: bytes) -> Array:
        """Parse lines; raise ValueError if one has no value."""
        words: Sequence[bytes] = raw.split()
        if self.dtype.kind == "c":
            words = [*chain.from_iterable(_COMPLEX.findall(raw))]
            if _COMPLEX.sub(b"", raw).strip():
                raise ValueError
        if b"_" in raw:  # Python allows underscores between digits
            raise ValueError
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
        expected = "(re,im)" if self.dtype.kind == "c" else "a number"
        return TensorFormatError(
            source.name,
            field="a line of the elements",
            actual=shorten(repr(line.strip())),
            expected=f"one value, {expected}",
            hint="the file is corrupt, or its YAML file should say IeeeBinaryFile",
            offset=offset,
        )


@dataclass(frozen=True)
class TextLine(Plain):
    """A number as a line of text. Its fixed width lets chunks be written in parallel."""

    @property
    def stored(self) -> np.dtype[Any]:
        """Strings: ``-1.2345678901234567e+100`` and a newline, or two of them in parentheses."""
        return np.dtype("S52" if self.dtype.kind == "c" else "S25")

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
class Axis:
    """Disjoint sets of indices along an axis. A block covers one set."""

    # Number of the set of every index, and its position in the set.
    labels: Integers
    positions: Integers
    sizes: Integers

    @classmethod
    def from_labels(cls, labels: Integers, count: int) -> Axis:
        """Count the indices of `count` sets."""
        sizes = np.bincount(labels, minlength=count)
        order = np.argsort(labels, kind="stable")
        positions = np.empty_like(order)
        positions[order] = np.arange(order.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return cls(labels, positions, sizes)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The places of elements in blocks. Elements outside the blocks are zero."""

    inner: Layout  # the stored elements, block by block
    # The slowest axis comes first.
    axes: tuple[Axis, ...]
    # A number per block that identifies its sets of indices, ascending.
    keys: Integers
    # Index of the first stored element of every block, and its strides along the axes.
    offsets: Integers
    strides: Integers

    @classmethod
    def from_labels(
        cls, axes: tuple[Axis, ...], labels: Sequence[Integers], element: Element
    ) -> Blocks:
        """Find the blocks. The labels, one array per axis, are in the order of the file."""
        strides = [np.ones_like(labels[0])]
        for axis, label in zip(axes[::-1], labels[::-1], strict=True):
            strides.append(strides[-1] * axis.sizes[label])
        sizes = strides.pop()
        keys = np.ravel_multi_index(tuple(labels), [axis.sizes.size for axis in axes])
        order = np.argsort(keys)
        offsets = (np.cumsum(sizes) - sizes)[order]
        inner = Dense((int(sizes.sum()),), element, 0)
        return cls(inner, axes, keys[order], offsets, np.stack(strides[::-1])[:, order])

    @property
    def layout(self) -> Gathered:
        """The layout of all elements of the tensor."""
        shape = tuple(axis.labels.size for axis in self.axes)
        return Gathered(shape, self.inner.dtype, self.gather, (self.inner,))

    def gather(self, source: Source, selection: Selection) -> Iterator[Step]:
        """Yield the selected elements that are stored."""
        start = 0
        for batch in selection.divide(_ELEMENTS_AT_ONCE) if self.inner.shape[0] else ():
            inside, flat = self._find_stored(batch.mesh)
            if flat.size:
                points = Selection(self.inner.shape, (flat,), is_pointwise=True)
                target = np.unravel_index(start + inside, selection.shape)
                yield self.inner.plan(source, points), put_at(target)
            start += batch.size

    def _find_stored(self, indices: Sequence[Integers]) -> tuple[Integers, Integers]:
        """Return the flat positions of elements in a block, and their indices in the file."""
        pairs = list(zip(self.axes, indices, strict=True))
        labels = tuple(axis.labels[index] for axis, index in pairs)
        keys = np.asarray(np.ravel_multi_index(labels, [axis.sizes.size for axis in self.axes]))
        block = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        inside = np.flatnonzero(self.keys[block] == keys)
        block = block.ravel()[inside]
        flat = self.offsets[block]
        for (axis, index), strides in zip(pairs, self.strides, strict=True):
            positions = np.broadcast_to(axis.positions[index], keys.shape)
            flat += positions.ravel()[inside] * strides[block]
        return inside, flat


def find_blocks(entry: TensorEntry, properties: Mapping[str, Properties]) -> Blocks:
    """Return the blocks of a tensor. The first condition varies fastest."""
    fields, lengths, key = entry.fields, entry.lengths, "nonZeroCondition"
    count = prod(len(condition.non_zeros) for condition in entry.conditions)
    expected = f"at most {MAX_BLOCKS}"
    fields.check(count <= MAX_BLOCKS, key, f"{count} blocks", expected, "split the file")
    actual, fits = f"blocks of a tensor of shape {lengths}", max(lengths, default=0) <= MAX_INDICES
    fields.check(fits, key, actual, f"lengths up to {MAX_INDICES}")
    # Block k is the k-th combination of rows. Without rows, max() avoids a division by zero.
    numbers = np.arange(count)
    # Per dimension, a property of its indices and of the blocks.
    constraints: list[list[tuple[Integers, Integers]]] = [[] for _ in lengths]
    for condition in entry.conditions:
        rows = condition.non_zeros
        chosen = rows[numbers % max(1, len(rows))]
        numbers //= max(1, len(rows))
        for (name, dimension), column in zip(condition.properties, chosen.T, strict=True):
            indices = _find_indices(entry, dimension, name, properties)
            constraints[dimension].append((indices, column))
    axes, labels = [], []
    for length, columns in zip(lengths[::-1], constraints[::-1], strict=True):
        # Equal rows of properties have equal labels.
        table = np.zeros((length + count, 1 + len(columns)), dtype=np.int64)
        for number, pair in enumerate(columns):
            table[:, number] = np.concatenate(pair)
        distinct, label = np.unique(table, axis=0, return_inverse=True)
        label = label.ravel()
        axes.append(Axis.from_labels(label[:length], len(distinct)))
        labels.append(label[length:])
    kinds, expected = prod(axis.sizes.size for axis in axes), f"fewer than {1 << 63}"
    fields.check(kinds < 1 << 63, key, f"{kinds} kinds of blocks", expected, "split the file")
    blocks = Blocks.from_labels(tuple(axes), labels, entry.element)
    is_unique = bool(np.diff(blocks.keys).all())
    fields.check(is_unique, key, "a block twice", "different blocks")
    return blocks


def _find_indices(
    entry: TensorEntry, dimension: int, name: str, properties: Mapping[str, Properties]
) -> Integers:
    """Return a property of a dimension as an array with one integer per index."""
    length, kind = entry.lengths[dimension], entry.types[dimension]
    of_type = properties.get(kind or "")
    indices = None if of_type is None else of_type.indices.get(name)
    if indices is None or indices.size != length:
        state = "missing" if indices is None else f"given for {indices.size} indices"
        raise entry.fields.error(
            "nonZeroCondition",
            actual=f"the property {name!r} of dimension {dimension}, which is {state}",
            expected=f"the property for {length} indices in {kind}.yaml in the same directory",
            hint="fetch that file too",
        )
    return indices
