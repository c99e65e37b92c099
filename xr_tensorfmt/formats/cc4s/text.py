"""Elements as text: one value a line, complex ones as ``(re,im)``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.layout import SearchedLayout
from xr_tensorfmt.core.locks import CachedValue
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError, shorten

PIECE = 4 << 20
"""Bytes of text to parse at a time."""

_COMPLEX = re.compile(rb"\([ \t]*+([^\s(),]++)[ \t]*+,[ \t]*+([^\s(),]++)[ \t]*+\)")


@dataclass(frozen=True)
class Text(SearchedLayout):
    """A row-major array as text. The first read parses the whole text and keeps the values."""

    lengths: tuple[int, ...]
    is_complex: bool
    size: int
    _values: CachedValue[Array] = field(default_factory=CachedValue, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the values, which can be many."""
        return {**self.__dict__, "_values": CachedValue()}

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the dimensions, in file order."""
        return self.lengths

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64 or complex128."""
        return np.dtype(np.complex128 if self.is_complex else np.float64)

    def locate(self, selection: Selection) -> Extents:
        """Return the whole text, because lines have any width."""
        return Extents.single(0, self.size) if self.size else Extents.empty()

    def search(self, source: Source, selection: Selection) -> Array:
        """Select from the values of the whole text."""
        runs = selection.runs()
        flat = np.add.outer(runs.starts, np.arange(runs.lengths[0]))
        values = self._values.get(lambda: self._parse_file(source))
        return np.asarray(values[flat.reshape(selection.shape)])

    def _parse_file(self, source: Source) -> Array:
        """Parse the text in pieces of whole lines."""
        pieces = [np.empty(0, self.dtype)]
        start, rest = 0, b""
        while start < self.size:
            stop = min(self.size, start + max(PIECE, len(rest)))
            raw = rest + source.read(Extents.single(start, stop)).tobytes()
            end = len(raw) if stop == self.size else raw.rfind(b"\n") + 1
            start, rest = stop, raw[end:]
            try:
                pieces.append(self._parse(raw[:end]))
            except ValueError:
                raise self._build_value_error(source, raw[:end], stop - len(raw)) from None
        values, expected = np.concatenate(pieces), prod(self.lengths)
        if values.size != expected:
            raise TensorFormatError(
                source.name,
                field="the elements",
                actual=f"{values.size} values",
                expected=f"{expected} for a tensor of shape {self.lengths[::-1]}",
                hint="the file is incomplete, or belongs to another YAML file; fetch both again",
                offset=self.size if values.size < expected else 0,
            )
        return values

    def _parse(self, raw: bytes) -> Array:
        """Parse lines; raise ValueError if one has no value."""
        words: Sequence[bytes] = raw.split()
        if self.is_complex:
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
