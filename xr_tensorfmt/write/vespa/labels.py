"""Labels as bytes: each text in UTF-8 after its length, without a step for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.extents import Bytes, Integers, gather_uniform, scatter_uniform
from xr_tensorfmt.layouts.labelled import LONG
from xr_tensorfmt.layouts.texts import alike


class UnwritableError(ValueError):
    """A label has no bytes from which it would be read again.

    Parameters
    ----------
    number : int
        Which of the labels.
    label : str
        The label.
    """

    def __init__(self, number: int, label: str) -> None:
        super().__init__(number, label)
        self.number = number
        self.label = label


@dataclass(frozen=True, eq=False)
class TextBytes:
    """Texts one after the other.

    Parameters
    ----------
    content : ndarray of uint8
        The bytes of all.
    lengths : ndarray of int64
        Bytes of each.
    """

    content: Bytes
    lengths: Integers

    @property
    def sizes(self) -> Integers:
        """Bytes of each with its length before it."""
        return self.lengths + np.where(self.lengths < LONG, 1, 4)

    def put(self, target: Bytes, starts: Integers) -> None:
        """Write each text, and its length before it, to a place of its own.

        Parameters
        ----------
        target : ndarray of uint8
            Where they go.
        starts : ndarray of int64
            Where in it each begins, with its length.
        """
        is_long = self.lengths >= LONG
        target[starts[~is_long]] = self.lengths[~is_long]
        words = (self.lengths[is_long] | LONG << 24).astype(">u4")
        scatter_uniform(target, starts[is_long], words.view(np.uint8), 4)
        places = starts + np.where(is_long, 4, 1)
        own = np.cumsum(self.lengths) - self.lengths
        for numbers, part in alike(self.lengths):
            length = int(self.lengths[numbers[0]])
            if length:
                texts = gather_uniform(self.content, own[part], length)
                scatter_uniform(target, places[part], texts, length)


def encode_texts(texts: NDArray[Any]) -> TextBytes:
    """Turn texts into UTF-8.

    Parameters
    ----------
    texts : ndarray of object
        Python's own texts. What ``errors="surrogateescape"`` made of bytes becomes them again.

    Returns
    -------
    TextBytes

    Raises
    ------
    UnwritableError
        A text has half a character in it, or escaped bytes that are characters together.
    """
    separate = texts.tolist()
    joined = "".join(separate)
    if joined.isascii():
        content, lengths = joined.encode(), map(len, separate)
    else:
        encoded = [_encoded(number, text) for number, text in enumerate(separate)]
        content, lengths = b"".join(encoded), map(len, encoded)
    return TextBytes(
        np.frombuffer(content, dtype=np.uint8), np.fromiter(lengths, np.int64, texts.size)
    )


def _encoded(number: int, text: str) -> bytes:
    try:
        content = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UnwritableError(number, text) from error
    if content.decode("utf-8", "surrogateescape") != text:
        raise UnwritableError(number, text)
    return content


def heads_of(labels: Sequence[TextBytes]) -> TextBytes:
    """What each block begins with: its labels, each after its length.

    Parameters
    ----------
    labels : sequence of TextBytes
        For each mapped dimension, in the order of the file, the label of each block.

    Returns
    -------
    TextBytes
        The heads of all blocks.
    """
    sizes = [each.sizes for each in labels]
    lengths: Integers = np.add.reduce(sizes, axis=0)
    content = np.empty(int(lengths.sum()), dtype=np.uint8)
    starts = np.cumsum(lengths) - lengths
    for each, size in zip(labels, sizes, strict=True):
        each.put(content, starts)
        starts = starts + size
    return TextBytes(content, lengths)
