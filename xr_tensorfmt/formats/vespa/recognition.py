"""Whether a file that is named ``.tbf`` looks like a typed binary tensor at all."""

from __future__ import annotations

from xr_tensorfmt.formats.limits import MOST_DIMENSIONS
from xr_tensorfmt.formats.vespa.header import DENSE, SPARSE, WITH_CELL_TYPE
from xr_tensorfmt.formats.vespa.names import USUAL_NAME

_TAGS = (1, 2, 3, 5, 6, 7)
_CELL_TYPES = 4
# A tag, a cell type, two numbers of dimensions or blocks, and a cell of eight bytes.
_LARGEST_SCALAR = 12


def recognises(head: bytes, size: int) -> bool:
    """Look at the tag, the number of dimensions and the first name.

    Parameters
    ----------
    head : bytes
        First bytes of the file.
    size : int
        Bytes of the whole file.

    Returns
    -------
    bool
        Whether they can be those of a tensor; so can those of many other files.
    """
    if not head or head[0] not in _TAGS:
        return False
    tag, rest = head[0], head[1:]
    if tag & WITH_CELL_TYPE:
        if not rest or rest[0] >= _CELL_TYPES:
            return False
        rest = rest[1:]
    if tag & SPARSE and tag & DENSE and rest[:1] == b"\0":
        # No mapped dimensions; the indexed ones follow.
        rest = rest[1:]
    if rest[:1] == b"\0":
        return size <= _LARGEST_SCALAR
    return bool(rest) and rest[0] <= MOST_DIMENSIONS and _begins_with_name(rest[1:])


def _begins_with_name(text: bytes) -> bool:
    name = text[1 : 1 + text[0]] if text else b""
    return bool(USUAL_NAME.fullmatch(name.decode("latin-1")))
