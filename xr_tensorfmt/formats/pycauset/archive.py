"""The zip container of the development version 0.3.0: ``metadata.json`` and ``data.bin``."""

from __future__ import annotations

from dataclasses import dataclass
from zipfile import ZipInfo

from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.json_text import parsed
from xr_tensorfmt.core.zip_members import members, stored_content
from xr_tensorfmt.formats.pycauset.container import Metadata
from xr_tensorfmt.formats.pycauset.spec import Matrix

METADATA, DATA = "metadata.json", "data.bin"

MOST_DIRECTORY = 1 << 17
"""Limit on the bytes of the directory at the end of a zip."""

MOST_METADATA = 1 << 20
"""Limit on the bytes of ``metadata.json``."""


@dataclass(frozen=True)
class Entry:
    """One entry of an archive: its bytes, and where its header is."""

    header: int
    offset: int
    size: int
    checksum: int


def read_archive(reader: HeaderReader) -> Matrix:
    """What the metadata of an archive say."""
    found = entries(reader)
    data, metadata = found[DATA], _metadata(reader, found[METADATA])
    return Matrix(
        version="zip",
        matrix_type=metadata.get("matrix_type", str),
        data_type=metadata.get("data_type", str),
        rows=metadata.length("rows"),
        columns=metadata.length("cols"),
        offset=data.offset,
        limit=data.offset + data.size,
        stated_at=metadata.offset,
        seed=metadata.get("seed", int, 0),
        scalar=metadata.scalar("scalar"),
        is_transposed=metadata.get("is_transposed", bool, False),
        derived=(f"the CRC-32 of {DATA!r}",),
    )


def _metadata(reader: HeaderReader, entry: Entry) -> Metadata:
    if entry.size > MOST_METADATA:
        found, hint = f"{entry.size} bytes", "the archive is damaged, or of another program"
        raise reader.error(METADATA, found, f"at most {MOST_METADATA}", hint, entry.header)
    raw = reader.bytes_at(entry.offset, entry.size, METADATA)
    try:
        values = parsed(raw.decode())
    except ValueError:
        values = None
    if not isinstance(values, dict):
        found, hint = repr(raw[:40]), "the archive is damaged"
        raise reader.error(METADATA, found, "an object in JSON", hint, entry.offset)
    return Metadata(values, reader.source.name, entry.offset)


def entries(reader: HeaderReader) -> dict[str, Entry]:
    """The two entries, by the directory of the zip."""
    known = {each.filename: each for each in members(reader, MOST_DIRECTORY)}
    return {name: _entry(reader, name, known) for name in (METADATA, DATA)}


def _entry(reader: HeaderReader, name: str, known: dict[str, ZipInfo]) -> Entry:
    """An entry, whose bytes follow its header."""
    field, info = f"the entry {name!r}", known.get(name)
    way_out = (
        "this zip is not a PyCauset matrix; a '.causet' archive has one as 'matrix.bin', which can "
        "be opened once it is unzipped"
    )
    if info is None:
        found = f"missing among {', '.join(map(repr, known))}"
        raise reader.error(field, found, "an entry stored without compression", way_out, 0)
    start, _ = stored_content(reader.source, info, field, way_out)
    return Entry(info.header_offset, start, info.file_size, info.CRC)
