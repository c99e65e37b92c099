"""The layout of elements as text: one value a line, complex ones as ``(re,im)``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.layout import SearchedLayout
from xr_tensorfmt.core.locks import CachedValue
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError, shorten

PIECE = 4 << 20
"""Bytes of text that are searched for values at a time."""

GROUP = 1 << 14
"""Number of values in a group. The offsets of groups are known after the first read."""

_MAX_VALUES = 1 << 19
_BLANK = ord(" ")
_COMPLEX = re.compile(rb"\([ \t]*+([^\s(),]++)[ \t]*+,[ \t]*+([^\s(),]++)[ \t]*+\)")


@dataclass(frozen=True)
class Text(SearchedLayout):
    """A row-major array as text.

    The first read scans the whole text and records the offsets of groups of values. Later reads
    fetch only the groups that contain selected values.
    """

    lengths: tuple[int, ...]
    is_complex: bool
    size: int
    _offsets: CachedValue[Integers] = field(default_factory=CachedValue, repr=False, compare=False)

    prefers_points = True  # neighbouring points share a range of the text

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the dimensions, in file order."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64 or complex128."""
        return np.dtype(np.complex128 if self.is_complex else np.float64)

    def locate(self, selection: Selection) -> Extents:
        """Return the whole text, because offsets are unknown before the first read."""
        return Extents.single(0, self.size) if self.size else Extents.empty()

    def search(self, source: Source, selection: Selection) -> Array:
        """Parse the groups that contain the selection, in batches of a few MiB."""
        runs = selection.runs()
        flat = np.add.outer(runs.starts, np.arange(runs.lengths[0])).ravel()
        cuts = np.flatnonzero(np.diff(flat // _MAX_VALUES)) + 1
        values = np.empty(flat.size, dtype=self.dtype)
        for begin, end in pairwise([0, *cuts.tolist(), flat.size]):
            values[begin:end] = self._read_flat(source, flat[begin:end])
        return values.reshape(selection.shape)

    def _read_flat(self, source: Source, flat: Integers) -> Array:
        """Return values at ascending flat indices."""
        offsets = self._offsets.get(lambda: self._find_groups(source))
        first, stop = int(flat[0]) // GROUP, int(flat[-1]) // GROUP + 1
        start = int(offsets[first])
        raw = source.read(Extents.single(start, int(offsets[stop]))).tobytes()
        count = min(stop * GROUP, prod(self.lengths)) - first * GROUP
        try:
            return self._parse(raw, count)[flat - first * GROUP]
        except ValueError:
            raise self._build_value_error(source, raw, start) from None

    def _find_groups(self, source: Source) -> Integers:
        """Return the offsets of the groups, and the end of the text."""
        groups: list[Integers] = []
        count, before = 0, _BLANK
        for start in range(0, self.size, PIECE):
            text = source.read(Extents.single(start, min(self.size, start + PIECE)))
            offsets = _find_values(text, before, is_complex=self.is_complex)
            groups.append(start + offsets[-count % GROUP :: GROUP])
            count += offsets.size
            before = int(text[-1])
        expected = prod(self.lengths)
        if count != expected:
            raise TensorFormatError(
                source.name,
                field="the elements",
                actual=f"{count} values",
                expected=f"{expected} for a tensor of shape {self.lengths[::-1]}",
                hint="the file is incomplete, or belongs to another YAML file; fetch both again",
                offset=self.size if count < expected else 0,
            )
        offsets = np.concatenate([*groups, [self.size]])
        offsets[0] = 0  # bytes before the first value are parsed with it
        return offsets

    def _parse(self, raw: bytes, count: int) -> Array:
        """Parse a text of `count` values; raise ValueError if it has others."""
        words: Sequence[bytes] = raw.split()
        if self.is_complex:
            pairs = _COMPLEX.findall(raw)
            if len(pairs) != count or _COMPLEX.sub(b"", raw).strip():
                raise ValueError
            words = [*chain.from_iterable(pairs)]
        numbers = np.fromiter(map(_parse_number, words), np.float64, len(words))
        return numbers.view(self.dtype).reshape(count)

    def _build_value_error(self, source: Source, raw: bytes, offset: int) -> TensorFormatError:
        """Return the error about the first invalid line."""
        line = b""
        for line in raw.splitlines(keepends=True):
            try:
                self._parse(line, 1 if line.strip() else 0)
            except ValueError:
                break
            offset += len(line)
        expected = "(re,im)" if self.is_complex else "a number"
        return TensorFormatError(
            source.name,
            field="a line of the elements",
            actual=shorten(repr(line.strip())),
            expected=f"one value, {expected}",
            hint="the file is corrupt, or its YAML file should say IeeeBinaryFile",
            offset=offset,
        )


@dataclass(frozen=True)
class TextLine(Element):
    """A number as a line of text. Its fixed width lets chunks be written in parallel."""

    number: Element

    @property
    def name(self) -> str:
        """Name of the dtype of the values."""
        return self.number.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64 or complex128."""
        return self.number.dtype

    @property
    def stored(self) -> np.dtype[Any]:
        """Strings: ``-1.2345678901234567e+100`` and a newline, or two of them in parentheses."""
        return np.dtype("S52" if self.dtype.kind == "c" else "S25")

    def decode_into(self, values: Array, raw: Array) -> None:
        """Raise NotImplementedError, because `Text` parses lines of any width."""
        raise NotImplementedError("text is read with the layout Text")

    def encode(self, values: Array) -> Array:
        """Format values with 17 digits, which are exact."""
        flat = values.ravel().tolist()
        if self.dtype.kind == "c":
            lines = [f"({z.real:.16e},{z.imag:.16e})".ljust(51) for z in flat]
        else:
            lines = [f"{x:24.16e}" for x in flat]
        raw = "\n".join([*lines, ""]).encode()
        return np.frombuffer(raw, self.stored).reshape(values.shape)


def _parse_number(word: bytes) -> float:
    if b"_" in word:  # Python allows underscores between digits
        raise ValueError
    return float(word)


def _find_values(text: Bytes, before: int, *, is_complex: bool) -> Integers:
    """Return the offsets of values. They start with a parenthesis or after a blank."""
    if is_complex:
        return np.flatnonzero(text == ord("("))
    blank: NDArray[np.bool_] = text <= _BLANK
    after = np.empty_like(blank)
    after[:1] = before <= _BLANK
    after[1:] = blank[:-1]
    return np.flatnonzero(after & ~blank)
