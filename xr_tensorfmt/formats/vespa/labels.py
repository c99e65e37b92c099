"""Many UTF-8 texts out of a window of bytes, without a step for each of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Bytes, Extents, Integers
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.selection import Entry, Selection, entry_indices, entry_part
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import (
    TensorFormatError,
    TensorFormatWarning,
    shortened,
    stacklevel_of_caller,
)
from xr_tensorfmt.formats.vespa.blocks import LARGE_BLOCK, Blocks, Listed, Regular
from xr_tensorfmt.formats.vespa.spec import label_at

_SEPARATOR = "\0"
# What tells the hash of a row from that of the same texts in another order.
_ODD = 1_000_003
# Bytes of texts decoded at a time.
_CACHED = 1 << 20


class UndecodableError(ValueError):
    """A text is not UTF-8."""

    def __init__(self, number: int, content: bytes) -> None:
        super().__init__(number, content)
        self.number = number
        self.content = content


def decode_texts(
    texts: NDArray[Any], window: Bytes, starts: Integers, lengths: Integers, errors: str
) -> None:
    """Decode texts that lie anywhere in a window, each with at least one byte before it."""
    for numbers, part in alike(lengths):
        # Each with the byte before it, which becomes the separator.
        pieces = Extents.uniform(starts[part] - 1, int(lengths[numbers[0]]) + 1)
        rows = pieces.gather(window, 0).reshape(numbers.size, -1)
        # numpy takes much longer to find out what a list holds.
        texts[part] = np.fromiter(_decoded(rows, numbers, errors), object, numbers.size)


def repeated_text(texts: NDArray[Any]) -> str | None:
    """A text that occurs more than once, if there is one."""
    if not may_repeat([texts]):
        return None
    seen: set[str] = set()
    for text in texts.tolist():
        if text in seen:
            return str(text)
        seen.add(text)
    return None


def may_repeat(columns: Sequence[NDArray[Any]]) -> bool:
    """Whether two rows of texts may be equal."""
    mixed: Any = 0
    for texts in columns:
        # Python keeps the hashes, which an index of these texts needs anyway.
        hashes = np.fromiter(map(hash, texts.tolist()), np.int64, texts.size)
        mixed = mixed * _ODD ^ hashes
    mixed.sort()
    return bool((mixed[1:] == mixed[:-1]).any())


def alike(lengths: Integers) -> Iterator[tuple[Integers, Integers | slice]]:
    """Texts of one length, not too many at a time."""
    order, cuts = np.arange(lengths.size), [0, lengths.size]
    is_uniform = bool((lengths == lengths[:1]).all())
    if not is_uniform:
        # numpy sorts numbers of 16 bits several times faster.
        short = lengths.astype(np.uint16) if lengths.max() < 1 << 16 else lengths
        order = np.argsort(short, kind="stable")
        cuts[1:1] = (np.flatnonzero(np.diff(lengths[order])) + 1).tolist()
    for lower, upper in pairwise(cuts):
        step = max(1, _CACHED // (int(lengths[order[lower]]) + 1)) if upper > lower else 1
        for first in range(lower, upper, step):
            part = slice(first, min(first + step, upper))
            yield order[part], part if is_uniform else order[part]


def _decoded(rows: Bytes, numbers: Integers, errors: str) -> list[str]:
    """Decode texts of one length, a row each, of which the first byte does not matter."""
    rows[:, 0] = 0
    try:
        # No character of several bytes contains a zero, so that one pass decodes all.
        texts = rows.tobytes().decode("utf-8", errors).split(_SEPARATOR)[1:]
    except UnicodeDecodeError as error:
        row = error.start // rows.shape[1]
        raise UndecodableError(int(numbers[row]), rows[row, 1:].tobytes()) from error
    if len(texts) == len(rows):
        return texts
    return [row[1:].tobytes().decode("utf-8", errors) for row in rows]


LabelErrors = Literal["strict", "surrogateescape"]

COMPARED_AT_OPENING = 1 << 16
"""Blocks of a local file up to which repeated labels are looked for when it is opened.

Else they are when all labels of blocks with one label each are read, as for an index.
"""

# Bytes of the file that are looked at together, and labels that are.
_WINDOW = 16 << 20
_MOST_LABELS = 1 << 16

_TEXT = np.dtype(object, metadata={"element_type": str})
"""The dtype by which xarray knows arrays of texts, so that it need not look at all of them."""


@dataclass(frozen=True)
class Labels(Layout):
    """One label of each block."""

    blocks: Blocks
    number: int
    errors: LabelErrors = "strict"

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of blocks."""
        return (self.blocks.table.count,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Python's own texts."""
        return _TEXT

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """As many as there are blocks in a chunk of their cells."""
        return self.blocks.chunk_shape(target)[:1]

    def extents(self, selection: Selection) -> Extents:
        """All labels of each block, since each says where the next one is."""
        return self._extents(self.blocks.table.places, selection.entries[0])

    def _extents(self, places: Regular | Listed, entry: Entry) -> Extents:
        starts = places.starts(entry)
        if isinstance(places, Regular):
            return Extents.uniform(starts, places.lead)
        return Extents(starts, places.stops(entry) - self.blocks.table.form.cell_bytes - starts)

    def read(self, source: Source, selection: Selection) -> Array:
        """Decode all labels of one length together."""
        texts = np.empty(selection.shape, dtype=self.dtype)
        size = self.blocks.table.mean_bytes
        count = _MOST_LABELS if size > LARGE_BLOCK else min(_MOST_LABELS, _WINDOW // size)
        for first in range(0, texts.size, count):
            part = entry_part(selection.entries[0], first, count)
            self._read_batch(texts[first : first + count], source, part)
        is_index = self.blocks.table.form.labels == 1 and selection.size == self.shape[0]
        if is_index and (texts.size > COMPARED_AT_OPENING or source.distant):
            self._warn_of_repeated(source, texts)
        return texts

    @property
    def is_checked_by_format(self) -> bool:
        """The check looks at each of them."""
        return True

    def _warn_of_repeated(self, source: Source, texts: Array) -> None:
        label = repeated_text(texts)
        if label is not None:
            warnings.warn(
                f"{source.name}: more than one block has the label {shortened(repr(label))}, which "
                "Vespa may refuse; all are kept",
                TensorFormatWarning,
                stacklevel=stacklevel_of_caller(),
            )

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Fetch each label once."""
        unique, inverse = np.unique(points[0], return_inverse=True)
        picked: Array = self.read(source, Selection(self.shape, (unique,)))[inverse]
        return picked

    def _read_batch(self, texts: Array, source: Source, entry: Entry) -> None:
        places = self.blocks.table.places
        extents = self._extents(places, entry)
        window, starts = self._labels_in(source, extents, entry)
        if isinstance(places, Regular) and not _hold(places, window, starts):
            self.blocks.table.refute(source)
            self._read_batch(texts, source, entry)
            return
        begins, lengths = label_at(window, starts)
        for _ in range(self.number):
            begins, lengths = label_at(window, begins + lengths)
        try:
            decode_texts(texts, window, begins, lengths, self.errors)
        except UndecodableError as error:
            within = error.number
            offset = int(extents.starts[within] + begins[within] - starts[within])
            number = int(entry_indices(entry)[within])
            raise self._undecodable(source, number, error.content, offset) from error

    def _labels_in(self, source: Source, extents: Extents, entry: Entry) -> tuple[Bytes, Integers]:
        """Bytes with the labels of blocks, and where those of each begin."""
        is_dense = isinstance(entry, slice) and entry.step == 1
        if not is_dense or self.blocks.table.mean_bytes > LARGE_BLOCK:
            return source.read(extents), np.cumsum(extents.lengths) - extents.lengths
        first, last = extents.bounds
        window = source.read(Extents.single(first, last))
        length = int(extents.lengths[0])
        if extents.lengths.strides[0]:
            return window, extents.starts - first
        # Of one length: together they fit the cache, so that each page is touched once.
        return extents.gather(window, first), np.arange(0, len(extents) * length, length)

    def _undecodable(
        self, source: Source, number: int, content: bytes, offset: int
    ) -> TensorFormatError:
        return TensorFormatError(
            source.name,
            f"label {self.number} of block {number}",
            repr(content[:40]),
            "UTF-8",
            "open with errors='surrogateescape' to keep such bytes",
            offset=offset,
        )


def _hold(places: Regular, window: Bytes, starts: Integers) -> bool:
    return all(bool((window[starts + place] == byte).all()) for place, byte in places.marks)
