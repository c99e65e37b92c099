"""Many UTF-8 texts out of a window of bytes, without a step for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.extents import Bytes, Extents, Integers

_SEPARATOR = "\0"
# What tells the hash of a row from that of the same texts in another order.
_ODD = 1_000_003
# Bytes of texts decoded at a time.
_CACHED = 1 << 20


class UndecodableError(ValueError):
    """A text is not UTF-8.

    Parameters
    ----------
    number : int
        Which of the texts.
    content : bytes
        Its bytes.
    """

    def __init__(self, number: int, content: bytes) -> None:
        super().__init__(number, content)
        self.number = number
        self.content = content


def decode_texts(
    texts: NDArray[Any], window: Bytes, starts: Integers, lengths: Integers, errors: str
) -> None:
    """Decode texts that lie anywhere in a window, each with at least one byte before it.

    Parameters
    ----------
    texts : ndarray of object
        Where Python's own texts go.
    window : ndarray of uint8
        The bytes.
    starts, lengths : ndarray of int64
        Where the texts are.
    errors : str
        As for `bytes.decode`.

    Raises
    ------
    UndecodableError
        A text is not UTF-8.
    """
    for numbers, part in alike(lengths):
        # Each with the byte before it, which becomes the separator.
        pieces = Extents.uniform(starts[part] - 1, int(lengths[numbers[0]]) + 1)
        rows = pieces.gather(window, 0).reshape(numbers.size, -1)
        # numpy takes much longer to find out what a list holds.
        texts[part] = np.fromiter(_decoded(rows, numbers, errors), object, numbers.size)


def repeated_text(texts: NDArray[Any]) -> str | None:
    """A text that occurs more than once, if there is one.

    Parameters
    ----------
    texts : ndarray of object
        The texts.

    Returns
    -------
    str or None
    """
    if not may_repeat([texts]):
        return None
    seen: set[str] = set()
    for text in texts.tolist():
        if text in seen:
            return str(text)
        seen.add(text)
    return None


def may_repeat(columns: Sequence[NDArray[Any]]) -> bool:
    """Whether two rows of texts may be equal.

    Parameters
    ----------
    columns : sequence of ndarray of object
        The texts: an array for each column, at least one.

    Returns
    -------
    bool
        False is certain; True almost.
    """
    mixed: Any = 0
    for texts in columns:
        # Python keeps the hashes, which an index of these texts needs anyway.
        hashes = np.fromiter(map(hash, texts.tolist()), np.int64, texts.size)
        mixed = mixed * _ODD ^ hashes
    mixed.sort()
    return bool((mixed[1:] == mixed[:-1]).any())


def alike(lengths: Integers) -> Iterator[tuple[Integers, Integers | slice]]:
    """Texts of one length, not too many at a time.

    Parameters
    ----------
    lengths : ndarray of int64
        Bytes of each text.

    Yields
    ------
    numbers : ndarray of int64
        Some texts that are equally long.
    key : ndarray of int64 or slice
        What picks them out of arrays with an element a text.
    """
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
