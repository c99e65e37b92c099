"""In what stretches a file is sent, from its first byte to its last, and what each waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xr_tensorfmt.write.draft import Piece


@dataclass(frozen=True)
class Segment:
    """Bytes of a file that are sent at once.

    Parameters
    ----------
    start, stop : int
        The bytes.
    chunks : int
        How many chunks of variables lie there: one, or several that interlock; 0 for pieces alone.
    pieces : tuple of Piece
        What is known of it already.
    """

    start: int
    stop: int
    chunks: int
    pieces: tuple[Piece, ...] = ()

    @property
    def nbytes(self) -> int:
        """Its length."""
        return self.stop - self.start


@dataclass(frozen=True)
class Contents:
    """A whole file in the order in which it is sent; bytes of no segment are zero.

    Parameters
    ----------
    size : int
        Its bytes.
    segments : tuple of Segment
        Ascending, none of them overlapping.
    """

    size: int
    segments: tuple[Segment, ...]

    @property
    def largest_chunk(self) -> int:
        """About the bytes of the largest chunk."""
        return max((each.nbytes // each.chunks for each in self.segments if each.chunks), default=0)


def arranged(size: int, pieces: Sequence[Piece], ranges: Iterable[tuple[int, int]]) -> Contents:
    """Arrange a file for sending.

    Parameters
    ----------
    size : int
        Its bytes.
    pieces : sequence of Piece
        What is known already.
    ranges : iterable of (int, int)
        For each chunk the first byte that it fills, and the one after the last.

    Returns
    -------
    Contents
        Chunks and pieces that interlock, as those of columns do, are in one segment.
    """
    parts = [Segment(start, stop, 1) for start, stop in ranges]
    parts += [
        Segment(each.offset, each.offset + len(each.data), 0, (each,))
        for each in pieces
        if each.data
    ]
    joined: list[Segment] = []
    run: list[Segment] = []
    stop = 0
    for part in sorted(parts, key=lambda each: each.start):
        if run and part.start >= stop:
            joined.append(_join(run))
            run = []
        run.append(part)
        stop = max(stop, part.stop)
    if run:
        joined.append(_join(run))
    return Contents(size, tuple(joined))


def _join(run: Sequence[Segment]) -> Segment:
    if len(run) == 1:
        return run[0]
    pieces = tuple(piece for each in run for piece in each.pieces)
    stop = max(each.stop for each in run)
    return Segment(run[0].start, stop, sum(each.chunks for each in run), pieces)
