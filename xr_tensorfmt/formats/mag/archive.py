"""Archive: the container of magnetron 0.1.2, and what came shortly before and after it.

A header of 24 bytes, metadata records, tensor records, data. The published text gives the header
and the metadata, but another tensor record than any magnetron ever wrote (see `literal`). Source:
``magnetron.c`` of the commits from 6bc9747 (August 2025) to 60b52cd (December 2025), and files
that they wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct, unpack

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.base import OpenOptions
from xr_tensorfmt.formats.header import Cursor, HeaderReader
from xr_tensorfmt.formats.mag.checksum import check_checksum
from xr_tensorfmt.formats.mag.contents import Contents
from xr_tensorfmt.formats.mag.dtypes import ELEVEN, FOUR, Numbering
from xr_tensorfmt.formats.mag.literal import read_literal_records
from xr_tensorfmt.formats.mag.placement import first_that_fits, follow_each_other, round_up
from xr_tensorfmt.formats.mag.records import ALIGNMENT, Record, place, read_record, take_key

HEADER = Struct("<4sIIIII")
_CHECKSUM_AT, _CHECKED_FROM = 8, 12
METADATA = Struct("<IQI")
INT64, FLOAT64 = 1, 2


def read_archive(reader: HeaderReader, options: OpenOptions) -> Contents:
    """Read an archive of version 1 or 100.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    options : OpenOptions
        Whether a wrong checksum is an error.

    Returns
    -------
    Contents

    Raises
    ------
    TensorFormatError
        The header is damaged or cut off.
    """
    header = reader.bytes_at(0, HEADER.size, "the MAG header")
    _, version, checksum, tensor_count, metadata_count, aux = HEADER.unpack(header)
    cursor = Cursor(reader, HEADER.size)
    if aux:
        raise cursor.error("aux", aux, "0", "no magnetron reads such a file either", back=4)
    metadata = _read_metadata(cursor, metadata_count)
    records, candidates = _read_records(cursor, tensor_count, version)

    stop = cursor.offset
    warnings = check_checksum(reader, options, checksum, _CHECKSUM_AT, _CHECKED_FROM, stop)
    data_start = round_up(stop, ALIGNMENT)
    # Data begin after the header, so that an offset of 0 cannot count from the start of the file.
    base = data_start if records and records[0].offset == 0 else 0

    def reading(numbering: Numbering) -> tuple[Contents, bool]:
        tensors = tuple(place(reader.source.name, each, numbering, base) for each in records)
        fits = follow_each_other(tensors, data_start, ALIGNMENT) is not None
        facts = {"checksum": checksum}
        return Contents("archive", version, tensors, stop, metadata, facts, warnings), fits

    contents, _ = first_that_fits([partial(reading, each) for each in candidates])
    return contents


def _read_metadata(cursor: Cursor, count: int) -> dict[str, int | float]:
    metadata: dict[str, int | float] = {}
    for number in range(count):
        what = f"metadata record {number}"
        tag, payload, length = cursor.unpack(METADATA, what)
        if tag not in (INT64, FLOAT64):
            raise cursor.error(
                f"the type tag of {what}",
                tag,
                f"{INT64} for int64 or {FLOAT64} for float64",
                "the header is damaged, or the file is of another format",
                back=METADATA.size,
            )
        key = take_key(cursor, length, what)
        if key in metadata:
            raise cursor.error(
                "the key", f"{key!r} twice", "one metadata record for each key", "it is damaged"
            )
        (metadata[key],) = unpack("<q" if tag == INT64 else "<d", payload.to_bytes(8, "little"))
    return metadata


def _read_records(
    cursor: Cursor, count: int, version: int
) -> tuple[list[Record], Sequence[Numbering]]:
    """The tensor records, and the numberings that their dtypes may be of."""
    start = cursor.offset
    try:
        records = [read_record(cursor, number) for number in range(count)]
    except TensorFormatError as error:
        cursor.offset = start
        try:
            return read_literal_records(cursor, count), (FOUR, ELEVEN)
        except TensorFormatError:
            raise error from None
    if version == 1:
        return records, (FOUR,)
    if any(each.dtype >= len(FOUR) for each in records):
        return records, (ELEVEN,)
    return records, (FOUR, ELEVEN)
