"""What no tensor may exceed, whatever its format says."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xr_tensorfmt.errors import TensorFormatError

MOST_DIMENSIONS = 31
"""Limit on the rank of a tensor, as numpy broadcasts up to 32 arrays."""

MOST_BYTES = 1 << 62
"""Limit on the size of a tensor; numpy counts bytes in 63 bits."""

WIDEST = 16
"""Bytes of the largest element that any value of a file becomes: a complex number."""


def check_rank(path: str, tensor: object, rank: int, offset: int) -> None:
    """Refuse a rank that numpy cannot hold.

    Parameters
    ----------
    path : str
        The file.
    tensor : object
        Whose rank it is, for the message.
    rank : int
        The number of dimensions.
    offset : int
        Where the file says so.

    Raises
    ------
    TensorFormatError
        The rank is above `MOST_DIMENSIONS`.
    """
    if rank > MOST_DIMENSIONS:
        raise TensorFormatError(
            path,
            f"the rank of {tensor}",
            rank,
            f"at most {MOST_DIMENSIONS} dimensions",
            "the header is damaged, or the file is of another format",
            offset=offset,
        )


def check_size(path: str, lengths: Sequence[int], item: int, offset: int) -> None:
    """Refuse a shape that no computer can address.

    Parameters
    ----------
    path : str
        The file.
    lengths : sequence of int
        Lengths of the axes.
    item : int
        Bytes of one element.
    offset : int
        Where the file says so.

    Raises
    ------
    TensorFormatError
        The tensor has more than `MOST_BYTES`.
    """
    if not is_addressable(lengths, item):
        raise TensorFormatError(
            path,
            "the tensor's size",
            f"{item} bytes for each element of shape {tuple(lengths)}",
            f"at most {MOST_BYTES} bytes",
            "no computer can address it; the header is damaged",
            offset=offset,
        )


def is_addressable(lengths: Sequence[int], item: int) -> bool:
    """Whether numpy can hold a shape.

    Parameters
    ----------
    lengths : sequence of int
        Lengths of the axes.
    item : int
        Bytes of one element.

    Returns
    -------
    bool
    """
    # A length of 0 does not excuse the others: numpy multiplies them all the same.
    extent = prod(lengths) or prod([max(1, length) for length in lengths])
    return extent * item <= MOST_BYTES
