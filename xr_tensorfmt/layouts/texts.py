"""Many UTF-8 texts out of a window of bytes, without a step for each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.extents import Bytes, Extents, Integers

_SEPARATOR = "\0"
# Bytes of texts decoded at a time.
_CACHED = 1 << 20


def decode_texts(window: Bytes, starts: Integers, lengths: Integers, errors: str) -> NDArray[Any]:
    """Decode texts that lie anywhere in a window, each with at least one byte before it.

    Parameters
    ----------
    window : ndarray of uint8
        The bytes.
    starts, lengths : ndarray of int64
        Where the texts are.
    errors : str
        As for `bytes.decode`.

    Returns
    -------
    ndarray of object
        Python's own texts.

    Raises
    ------
    UndecodableError
        A text is not UTF-8.
    """
    texts = np.empty(starts.size, dtype=object)
    order = np.argsort(lengths, kind="stable")
    cuts = np.flatnonzero(np.diff(lengths[order])) + 1
    for alike in np.split(order, cuts) if order.size else ():
        length = int(lengths[alike[0]])
        step = max(1, _CACHED // (length + 1))
        for first in range(0, alike.size, step):
            part = alike[first : first + step]
            # Each with the byte before it, which becomes the separator.
            rows = Extents.uniform(starts[part] - 1, length + 1).gather(window, 0)
            texts[part] = _decoded(rows.reshape(part.size, -1), part, errors)
    return texts


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
