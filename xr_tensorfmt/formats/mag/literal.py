"""The tensor record of the published text, which no magnetron ever wrote.

Someone may have written files by the text alone, so that it is tried where a record as real files
have it cannot be read. Source: ``docs/mag-file-format.md`` of magnetron (August 2025).
"""

from __future__ import annotations

from struct import Struct

from xr_tensorfmt.formats.header import Cursor
from xr_tensorfmt.formats.mag.records import Record, read_key

SLOTS = 6
"""Lengths of axes that each record has room for."""

_RECORD = Struct("<6qBQQI")


def read_literal_records(cursor: Cursor, count: int) -> list[Record]:
    """Read tensor records: key, six lengths, dtype, length and offset of the data, aux.

    Parameters
    ----------
    cursor : Cursor
        Where the records begin; afterwards, where they end.
    count : int
        How many there are.

    Returns
    -------
    list of Record

    Raises
    ------
    TensorFormatError
        They are cut off, or not of this kind.
    """
    return [_read_record(cursor, number) for number in range(count)]


def _read_record(cursor: Cursor, number: int) -> Record:
    at, what = cursor.offset, f"tensor record {number}"
    key = read_key(cursor, what)
    *slots, dtype, length, offset, aux = cursor.unpack(_RECORD, what)
    rank = _rank(slots, aux)
    shape = tuple(slots[:rank])
    if rank > SLOTS or min(shape, default=1) < 1:
        raise cursor.error(
            f"the shape of {what}",
            f"{slots} with aux {aux:#x}",
            f"up to {SLOTS} lengths of 1 and more",
            "the header is damaged",
            back=_RECORD.size,
        )
    return Record(key, shape, dtype, length, offset, at)


def _rank(slots: list[int], aux: int) -> int:
    """The text does not say; the older container has it in aux, and fills up with ones."""
    stored = aux >> 8 & 0xFF
    if stored:
        return stored
    unused = next((axis for axis, length in enumerate(slots) if length < 1), None)
    if unused is not None:
        return unused
    return max((axis + 1 for axis, length in enumerate(slots) if length > 1), default=0)
