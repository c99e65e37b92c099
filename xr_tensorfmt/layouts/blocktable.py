"""Where the blocks of a file are: by arithmetic where that can be, else one number a block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.extents import Bytes, Extents, Integers
from xr_tensorfmt.layouts.blockscan import block_edges, length_at
from xr_tensorfmt.layouts.labelled import BlockForm
from xr_tensorfmt.once import Once
from xr_tensorfmt.selection import Entry, entry_indices
from xr_tensorfmt.sources.base import Source

PASSED_OVER = 8 << 20
"""Bytes of blocks that are always passed over when a file is opened."""

# Blocks that are looked at before it is presumed that all labels have one length.
_PROBES = 16


class Places(ABC):
    """Where each block begins and ends."""

    @abstractmethod
    def starts(self, entry: Entry) -> Integers:
        """The first byte of each of some blocks."""

    @abstractmethod
    def stops(self, entry: Entry) -> Integers:
        """The byte after each of some blocks."""


@dataclass(frozen=True)
class Regular(Places):
    """Blocks whose labels have the same lengths in all of them, which every read checks.

    Parameters
    ----------
    offset : int
        Where the first block begins.
    stride : int
        Bytes of a block.
    marks : tuple of pair of int
        The lengths: where in a block each of their bytes is, and the byte.
    lead : int
        Bytes of the labels of a block, their lengths included.
    """

    offset: int
    stride: int
    marks: tuple[tuple[int, int], ...]
    lead: int

    def starts(self, entry: Entry) -> Integers:
        """Multiples of the stride."""
        return self.offset + entry_indices(entry) * self.stride

    def stops(self, entry: Entry) -> Integers:
        """A stride further on."""
        return self.starts(entry) + self.stride

    def hold(self, heads: Bytes) -> bool:
        """Whether the labels of blocks, one a row, have the lengths that they should have."""
        return all(bool((heads[:, place] == byte).all()) for place, byte in self.marks)


@dataclass(frozen=True, eq=False)
class Listed(Places):
    """Blocks whose labels differ in length.

    Parameters
    ----------
    edges : ndarray of int64
        Where each block begins, and where the last one ends.
    """

    edges: Integers

    def starts(self, entry: Entry) -> Integers:
        """Look them up."""
        return self.edges[entry]

    def stops(self, entry: Entry) -> Integers:
        """Each block ends where the next one begins."""
        return self.edges[1:][entry]


@dataclass(frozen=True, eq=False)
class BlockTable:
    """The places of all blocks of a file.

    Parameters
    ----------
    form : BlockForm
        What the blocks are.
    offset : int
        Where the first block begins.
    count : int
        Number of blocks.
    stop : int
        Where the last block ends.
    expected : Regular or Listed
        The places. Regular ones are what the size of the file lets expect, and reads check them.
    """

    form: BlockForm
    offset: int
    count: int
    stop: int
    expected: Regular | Listed
    _listed: Once[Listed] = field(default_factory=Once, repr=False)

    @property
    def places(self) -> Regular | Listed:
        """What is known: the expectation, until a read refutes it."""
        return self._listed.known or self.expected

    @property
    def mean_bytes(self) -> int:
        """Bytes of a block on average."""
        return -(-(self.stop - self.offset) // self.count) if self.count else 1

    def refute(self, source: Source) -> Listed:
        """Pass over all blocks, as a read has found labels of other lengths than expected.

        Parameters
        ----------
        source : Source
            The file.

        Returns
        -------
        Listed
            The places from now on.

        Raises
        ------
        TensorFormatError
            The blocks do not end where the file does.
        """
        return self._listed.get(lambda: self._pass_over(source))

    def _pass_over(self, source: Source) -> Listed:
        edges = block_edges(source, self.form, self.offset, self.count)
        if edges[-1] != self.stop:
            raise TensorFormatError(
                source.name,
                "the end of the last block",
                f"byte {edges[-1]}",
                f"byte {self.stop}",
                "the length of a label is damaged; fetch the file again",
                offset=int(edges[-1]),
            )
        return Listed(edges)


def find_blocks(source: Source, form: BlockForm, offset: int, count: int) -> BlockTable:
    """Find the blocks of a file.

    Parameters
    ----------
    source : Source
        The file.
    form : BlockForm
        What the blocks are.
    offset : int
        Where the first block begins.
    count : int
        Number of blocks.

    Returns
    -------
    BlockTable
        The last block need not end with the file.

    Raises
    ------
    TensorFormatError
        The file ends before the last block does.
    """
    if not count:
        return BlockTable(form, offset, 0, offset, Regular(offset, 1, (), 0))
    first = _first_block(source, form, offset)
    stop = offset + count * first.stride
    short = 0 if source.distant else PASSED_OVER
    if stop == source.size and stop - offset > short and _probed(source, first, count):
        return BlockTable(form, offset, count, stop, first)
    edges = block_edges(source, form, offset, count)
    places = first if (np.diff(edges) == first.stride).all() else Listed(edges)
    return BlockTable(form, offset, count, int(edges[-1]), places)


def _first_block(source: Source, form: BlockForm, offset: int) -> Regular:
    marks: list[tuple[int, int]] = []
    position = offset
    for number in range(form.labels):
        length, text = length_at(source, position, 0, number)
        marks += enumerate(length, position - offset)
        position = text
    lead = position - offset
    return Regular(offset, lead + form.cell_bytes, tuple(marks), lead)


def _probed(source: Source, places: Regular, count: int) -> bool:
    numbers = np.unique(np.linspace(0, count - 1, _PROBES).astype(np.int64))
    heads = source.read(Extents.uniform(places.starts(numbers), places.lead))
    return places.hold(heads.reshape(numbers.size, -1))
