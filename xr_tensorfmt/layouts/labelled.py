"""Blocks that begin with labels: a length, a text, and so on, then cells of a fixed size.

A length is one byte, or four big-endian ones of which the first has its upper bit set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.extents import Bytes, Integers

LONG = 0x80
"""The bit that says that a length has four bytes."""


@dataclass(frozen=True)
class BlockForm:
    """What every block of a file has in common.

    Parameters
    ----------
    labels : int
        Labels of a block; at least 1.
    cell_bytes : int
        Bytes of its cells; at least 1.
    """

    labels: int
    cell_bytes: int

    def after(self, window: Bytes, starts: Integers) -> tuple[Integers, NDArray[np.bool_]]:
        """Step over one block at each of several positions.

        Parameters
        ----------
        window : ndarray of uint8
            Bytes of the file.
        starts : ndarray of int64
            Where in the window the blocks begin.

        Returns
        -------
        stops : ndarray of int64
            The bytes after the blocks, perhaps beyond the window.
        within : ndarray of bool
            Whether all lengths are in the window, without which the stop means nothing.
        """
        within = np.ones(starts.shape, dtype=np.bool_)
        for _ in range(self.labels):
            texts, lengths = label_at(window, starts)
            within &= texts <= window.size
            starts = texts + lengths
        return starts + self.cell_bytes, within


def label_at(window: Bytes, starts: Integers) -> tuple[Integers, Integers]:
    """The texts of the labels whose lengths are at some positions.

    Parameters
    ----------
    window : ndarray of uint8
        Bytes of the file.
    starts : ndarray of int64
        Where in the window the lengths are.

    Returns
    -------
    texts, lengths : ndarray of int64
        Where each text begins, and its bytes. Where a text would begin beyond the window's end,
        its length means nothing.
    """
    first = window.take(starts, mode="clip")
    if not first.size or first.max() < LONG:
        return starts + 1, first.astype(np.int64)
    long = first >= LONG
    word = (first & (LONG - 1)).astype(np.int64)
    for number in range(1, 4):
        word = (word << 8) | window.take(starts + number, mode="clip")
    return starts + np.where(long, 4, 1), np.where(long, word, first)


def walk(window: Bytes, start: int, end: int, form: BlockForm, most: int) -> tuple[list[int], int]:
    """Step from block to block, one at a time.

    Parameters
    ----------
    window : ndarray of uint8
        Bytes of the file.
    start, end : int
        Where in the window the first block begins, and where blocks no longer matter.
    form : BlockForm
        What the blocks are.
    most : int
        Most blocks to step over.

    Returns
    -------
    starts : list of int
        Where the blocks begin that begin before `end` and whose lengths are in the window.
    stop : int
        The byte after the last of them.
    """
    view, size = window.data, window.size
    labels, cell_bytes = range(form.labels), form.cell_bytes
    starts: list[int] = []
    while start < end and len(starts) < most:
        position = start
        for _ in labels:
            if position >= size:
                return starts, start
            length = view[position]
            if length < LONG:
                position += 1 + length
                continue
            if position + 4 > size:
                return starts, start
            length = int.from_bytes(view[position : position + 4], "big") & 0x7FFFFFFF
            position += 4 + length
        starts.append(start)
        start = position + cell_bytes
    return starts, start
