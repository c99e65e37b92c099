"""The layout of elements as text: one value a line, complex ones as ``(re,im)``."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.cached_value import CachedValue
from xr_tensorfmt.core.chunk_grid import contiguous_chunk
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import MOST_RUNS, Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError, shorten

PIECE = 4 << 20
"""Bytes of text between two places whose number of values is known."""

_MOST_VALUES = PIECE // 8
_LONGEST = 1 << 10
_BLANK = ord(" ")
_SEPARATORS = bytes.maketrans(b"(,)", b"   ")


@dataclass(frozen=True)
class Text(Layout):
    """A row-major array as text.

    Where its values begin is only known once the text before them was looked at: at first use the
    values in each piece of 4 MiB are counted. From then on only the pieces are read that hold what
    is selected.
    """

    stored_as = "as text"

    lengths: tuple[int, ...]
    is_complex: bool
    size: int
    _counts: CachedValue[Integers] = field(default_factory=CachedValue, repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64 or complex128."""
        return np.dtype(np.complex128 if self.is_complex else np.float64)

    def extents(self, selection: Selection) -> Extents:
        """All of the text, as nothing else is known before it is read."""
        return Extents.single(0, self.size) if self.size else Extents.none()

    @property
    def bytes_per_element(self) -> float:
        """The average."""
        return self.size / max(1, prod(self.lengths))

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """As if the values were in the file."""
        return contiguous_chunk(self.shape, self.dtype.itemsize, target)

    @property
    def prefers_points(self) -> bool:
        """One range of the text for all points."""
        return True

    def read(self, source: Source, selection: Selection) -> Array:
        """Parse the range of the text that holds the selection, some MiB at a time."""
        values = np.empty(selection.size, dtype=self.dtype)
        position = 0
        for batch in selection.batches(runs=MOST_RUNS, span=_MOST_VALUES) if values.size else ():
            runs = batch.runs()
            flat = np.add.outer(runs.starts, np.arange(runs.length)).ravel()
            values[position : position + batch.size] = self._flat(source, flat)
            position += batch.size
        return values.reshape(selection.shape)

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Parse the texts between the points that are near each other."""
        flat = np.ravel_multi_index(points, self.lengths)
        unique, inverse = np.unique(flat, return_inverse=True)
        cuts = np.flatnonzero(np.diff(unique // _MOST_VALUES)) + 1
        parts = [self._flat(source, part) for part in np.split(unique, cuts) if part.size]
        values: Array = np.concatenate(parts or [np.zeros(0, self.dtype)])[inverse]
        return values

    def _flat(self, source: Source, flat: Integers) -> Array:
        """Values at ascending flat indices."""
        first, stop = int(flat[0]), int(flat[-1]) + 1
        counts = self._counts.get(lambda: self._counted(source))
        piece = int(np.searchsorted(counts, first, side="right")) - 1
        end = int(np.searchsorted(counts, stop, side="left"))
        start = piece * PIECE
        # The last value may end in the piece that follows.
        upto = min(self.size, end * PIECE + _LONGEST)
        text = source.read(Extents.single(start, upto))
        places = _begins(text, self._before(source, start), is_complex=self.is_complex)
        places = places[first - int(counts[piece]) :]
        bounds = [*places[: stop - first].tolist(), *places[stop - first :][:1].tolist(), text.size]
        begin = bounds[0] if first else 0  # there is no value to which other bytes could belong
        raw = text[begin : bounds[stop - first]].tobytes()
        if upto < self.size and bounds[stop - first] == text.size and raw[-1] not in b" \t\r\n)":
            raise self._wrong_value(source, raw[bounds[stop - first - 1] - begin :], upto)
        try:
            return self._parsed(raw, stop - first)[flat - first]
        except ValueError:
            raise self._wrong_value(source, raw, start + begin) from None

    def _before(self, source: Source, start: int) -> int:
        return int(source.read(Extents.single(start - 1, start))[0]) if start else _BLANK

    def _counted(self, source: Source) -> Integers:
        """How many values begin before each piece, and in all of them."""
        counts = [0]
        before = _BLANK
        for start in range(0, self.size, PIECE):
            text = source.read(Extents.single(start, min(self.size, start + PIECE)))
            counts.append(counts[-1] + _begins(text, before, is_complex=self.is_complex).size)
            before = int(text[-1])
        expected = prod(self.lengths)
        if counts[-1] != expected:
            raise TensorFormatError(
                source.name,
                "the elements",
                f"{counts[-1]} values",
                f"{expected} for a tensor of shape {self.lengths[::-1]}",
                "the file is incomplete, or belongs to another YAML file; fetch both again",
                offset=self.size if counts[-1] < expected else 0,
            )
        return np.array(counts)

    def _parsed(self, raw: bytes, count: int) -> Array:
        """Numbers from a text of so many values; ValueError where it is not."""
        words = raw.translate(_SEPARATORS).split() if self.is_complex else raw.split()
        numbers = np.fromiter(map(_number, words), np.float64, len(words))
        if not self.is_complex:
            return numbers.reshape(count)
        if not raw.count(b"(") == raw.count(b",") == raw.count(b")") == count:
            raise ValueError
        return numbers.reshape(count, 2).view(np.complex128).reshape(count)

    def _wrong_value(self, source: Source, raw: bytes, offset: int) -> TensorFormatError:
        """The error about the first line that is not a value."""
        at, line = offset, b""
        for line in raw.splitlines(keepends=True):
            try:
                self._parsed(line, 1 if line.strip() else 0)
            except ValueError:
                break
            at += len(line)
        expected = "(re,im)" if self.is_complex else "a number"
        return TensorFormatError(
            source.name,
            "a line of the elements",
            shorten(repr(line.strip())),
            f"one value, {expected}",
            "the file is damaged, or its YAML file should say IeeeBinaryFile",
            offset=at,
        )


def _number(word: bytes) -> float:
    if b"_" in word:  # which Python allows between digits
        raise ValueError
    return float(word)


def _begins(text: Bytes, before: int, *, is_complex: bool) -> Integers:
    """Where values begin: at a parenthesis, or behind a blank."""
    if is_complex:
        return np.flatnonzero(text == ord("("))
    blank: NDArray[np.bool_] = text <= _BLANK
    after = np.empty_like(blank)
    after[:1] = before <= _BLANK
    after[1:] = blank[:-1]
    return np.flatnonzero(after & ~blank)
