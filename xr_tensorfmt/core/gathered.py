"""Layouts of values that are gathered from other layouts, or found only in all bytes of a range."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Bytes, Extents
from xr_tensorfmt.core.layout import Layout, pick_values
from xr_tensorfmt.core.locks import CachedValue
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Plan, Source, Step, plan_steps
from xr_tensorfmt.errors import Finding, TensorFormatError


@dataclass(frozen=True, eq=False)
class Gathered(Layout):
    """Values gathered from other layouts.

    Parameters
    ----------
    shape, dtype
        As in `Layout`.
    gather : callable
        Returns the plan of a selection of a file, or an iterator of the plans of its parts and of
        functions that put their values into the array of all values. It is a function of a module
        or a method, so that it pickles.
    inner : tuple of Layout
        The layouts that `validate` must read.
    fill_value : float
        Value of the elements outside all parts.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    gather: Callable[[Source, Selection], Plan | Iterator[Step]]
    inner: tuple[Layout, ...] = ()
    fill_value: float = 0

    def plan(self, source: Source, selection: Selection) -> Plan:
        """Plan the parts one by one."""
        if not selection.size:
            return super().plan(source, selection)
        gathered = self.gather(source, selection)
        if isinstance(gathered, Plan):
            return gathered
        steps: Any = partial(self.gather, source, selection)  # for explanations, too
        return plan_steps(source, selection.shape, self.dtype, steps, self.fill_value)

    def validate(self, source: Source) -> Iterator[Finding]:
        """Validate the inner layouts."""
        for layout in self.inner:
            yield from layout.validate(source)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """Return chunks as of the only inner layout, or as of a contiguous array."""
        if [layout.shape for layout in self.inner] != [self.shape]:
            return super().chunk_shape(target)
        (inner,) = self.inner
        return inner.chunk_shape(max(1, target * inner.dtype.itemsize // self.dtype.itemsize))


def scale_layout(inner: Layout, scalar: complex, *, is_conjugated: bool = False) -> Gathered:
    """Return the layout of values times a number in double precision. Zeros stay 0.0."""
    dtype = inner.dtype
    if scalar != 1:
        is_complex = dtype.kind == "c" or scalar.imag != 0
        dtype = np.dtype(np.complex128 if is_complex else np.float64)
    scale = partial(scale_values, dtype=dtype, scalar=scalar, is_conjugated=is_conjugated)
    return Gathered(inner.shape, dtype, partial(_plan_scaled, inner, scale), (inner,))


def _plan_scaled(
    inner: Layout, scale: Callable[[Array], Array], source: Source, selection: Selection
) -> Plan:
    return inner.plan(source, selection).convert(scale)


def scale_values(
    values: Array, dtype: np.dtype[Any], scalar: complex, *, is_conjugated: bool
) -> Array:
    """Multiply, then conjugate, in place if the dtypes are equal."""
    scaled = np.asarray(values, dtype=dtype)
    if not (scaled.flags.forc and scaled.flags.writeable):
        scaled = scaled.copy()
    keeps_zeros = not scalar.imag and 0 < scalar.real < np.inf
    is_zero = False if keeps_zeros else scaled == 0
    with np.errstate(invalid="ignore", over="ignore"):
        if scalar.imag:
            scaled *= scalar
        elif scalar != 1:
            parts = scaled.ravel(order="K").view(np.float64)
            parts *= scalar.real
    scaled[is_zero] = 0
    if is_conjugated and scaled.dtype.kind == "c":  # zeros keep their signs
        np.conjugate(scaled, out=scaled, where=scaled != 0)
    return scaled


PIECE_BYTES = 4 << 20
"""Bytes of a `WholeLayout` to read at once."""


@dataclass(frozen=True)
class WholeLayout(Layout):
    """Values that are found only in all bytes of a range. The first read keeps them in memory."""

    kept: CachedValue = field(default_factory=CachedValue, compare=False, repr=False, kw_only=True)
    """The parsed content."""

    @property
    @abstractmethod
    def bounds(self) -> tuple[int, int]:
        """First byte of the range, and the byte after the last one."""

    @abstractmethod
    def parse(self, source: Source, pieces: Iterable[Bytes]) -> Any:
        """Return the content of the bytes."""

    def pick(self, source: Source, content: Any, selection: Selection) -> Array:
        """Return the values of a selection, in memory of their own."""
        return pick_values(content, selection)

    def check(self, source: Source) -> None:
        """Raise TensorFormatError if a value cannot be read. Keep no values."""
        self.parse(source, self.read_pieces(source))

    def validate(self, source: Source) -> Iterator[Finding]:
        """Yield the finding about the first value that cannot be read."""
        try:
            self.check(source)
        except TensorFormatError as error:
            yield error.to_finding()

    def plan(self, source: Source, selection: Selection) -> Plan:
        """Plan to read all bytes in pieces, unless an earlier read has kept the content."""
        if not selection.size:
            return super().plan(source, selection)

        def decode(_: Bytes) -> Array:
            content = self.kept.get(lambda: self.parse(source, self.read_pieces(source)))
            values: Any = self.pick(source, content, selection)
            return np.asarray(values, self.dtype)  # not in the byte order of the file

        def plan_pieces() -> Iterable[Plan]:
            return () if self.kept.is_set else self._plan_pieces(source)

        return Plan(source, Extents.empty(), decode, parts=plan_pieces)

    def _plan_pieces(self, source: Source) -> Iterator[Plan]:
        start, stop = self.bounds
        for first in range(start, stop, PIECE_BYTES):
            piece = Extents.single(first, min(first + PIECE_BYTES, stop))
            yield Plan(source, piece, lambda packed: packed)

    def read_pieces(self, source: Source) -> Iterator[Bytes]:
        """Read all bytes in pieces."""
        return (piece.read() for piece in self._plan_pieces(source))
