"""Where a TENS file keeps its values: the raw files of version 0.9 and the chunks of 1.0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from xr_tensorfmt.elements import Element
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.tens.dense_data import check_dense, fits
from xr_tensorfmt.formats.tens.header import VERSION_0_9, VERSION_1_0, Header
from xr_tensorfmt.formats.tens.notechunk import NOTE, read_note
from xr_tensorfmt.formats.tens.numbers import element_of
from xr_tensorfmt.formats.tens.symmetry import Symmetry, read_symmetry
from xr_tensorfmt.formats.tens.variable_chunks import (
    DENSE_DATA,
    SYMMETRY,
    first_chunk,
    has_magic,
    variable_chunks,
)
from xr_tensorfmt.layouts.pairtable import INDEX_BYTES

COUNT_BYTES = 8


@dataclass(frozen=True)
class Storage:
    """What is known of the values' place and kind.

    Parameters
    ----------
    element : Element
        What one number, or complex number, is.
    components : int
        Numbers that make up an element of the tensor, but for complex ones.
    offset : int
        Byte at which the first value, or the first pair, begins.
    pairs : int or None
        Number of index-value pairs; None where every value is stored.
    symmetries : tuple of Symmetry
        What the file says of them.
    skipped : tuple of str
        Magics of the chunks that nobody has defined.
    warnings : tuple of str
        Rules of the format that the file breaks without harm.
    note : object
        What our writer has noted of the Dataset, if it has; not checked yet.
    """

    element: Element
    components: int
    offset: int
    pairs: int | None = None
    symmetries: tuple[Symmetry, ...] = ()
    skipped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    note: Any = None

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of the tensor."""
        return self.element.stored.itemsize * self.components

    @property
    def pair_bytes(self) -> int:
        """Bytes of one index-value pair."""
        return INDEX_BYTES + self.element_bytes


def find_storage(reader: HeaderReader, header: Header) -> Storage:
    """Find the values, and check that the file holds all of them.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    header : Header
        Its header.

    Returns
    -------
    Storage

    Raises
    ------
    TensorFormatError
        The sizes in the file contradict each other, or the data are packed in a way that the
        format does not define.
    """
    if header.version == VERSION_1_0:
        return _chunked(reader, header)
    return _raw(reader, header)


def _raw(reader: HeaderReader, header: Header) -> Storage:
    path, offset = reader.source.name, header.stop
    remaining = reader.source.size - offset
    candidates = [
        Storage(*element_of(candidate, path), offset) for candidate in _candidates(header)
    ]
    sizes = [header.total * each.element_bytes for each in candidates]
    chunk = first_chunk(reader, offset)
    if chunk is not None and chunk.magic == DENSE_DATA:
        for storage, size in zip(candidates, sizes, strict=True):
            if fits(reader, chunk, size):
                check_dense(reader, header, chunk, storage.element_bytes)
                return replace(storage, offset=chunk.body)
    if remaining in sizes:
        return candidates[sizes.index(remaining)]
    if header.version != VERSION_0_9:
        raise TensorFormatError(
            path,
            "the version",
            f"0x{header.version:08x}",
            "0x00009000 (0.9) or 0x00010000 (1.0)",
            "the file's size does not fit the layout of 0.9 either, so it cannot be read",
            offset=4,
        )
    raise TensorFormatError(
        path,
        f"the data of a tensor of shape {header.lengths}",
        f"{remaining} bytes",
        " or ".join(f"{size} bytes" for size in dict.fromkeys(sizes)),
        "something follows the values, or the header is damaged"
        if remaining > max(sizes)
        else "the file was cut off or never written completely, or its header is damaged",
        offset=offset,
    )


def _candidates(header: Header) -> Iterator[Header]:
    """The header, and before it the reading that cc4s since 2018 and sisi4s need.

    They give the bytes of a whole complex number as those of one of its two numbers, 16 or 32. No
    program gives 8 for complex64, and half of a complex128 file would pass for that.
    """
    size, is_complex = header.bytes_per_number, (header.number_type, header.numbers) == (b"IEEE", 2)
    if is_complex and size in (16, 32):
        yield replace(header, bytes_per_number=size // 2)
    if not (is_complex and size == 32):
        yield header


def _chunked(reader: HeaderReader, header: Header) -> Storage:
    storage = Storage(*element_of(header, reader.source.name), header.stop)
    remaining = reader.source.size - header.stop
    fits_raw = not header.is_index_value and remaining == header.total * storage.element_bytes
    if fits_raw and _begins_at_once(reader, header.stop):
        return _without_chunk(reader, storage)
    symmetries: list[Symmetry] = []
    skipped: list[str] = []
    end = header.stop
    for chunk in variable_chunks(reader, header.stop):
        if chunk.magic == DENSE_DATA:
            check_dense(reader, header, chunk, storage.element_bytes)
            return replace(
                storage,
                offset=chunk.body,
                symmetries=_unpacked(reader, symmetries),
                skipped=tuple(skipped),
            )
        if chunk.magic == SYMMETRY:
            symmetries.append(read_symmetry(reader, header, chunk))
        elif chunk.magic == NOTE:
            note, warnings = read_note(reader, chunk)
            storage = replace(storage, note=note, warnings=warnings)
        else:
            skipped.append(chunk.magic.decode())
        end = chunk.stop
    known = replace(storage, symmetries=tuple(symmetries), skipped=tuple(skipped))
    if header.is_index_value:
        return _pairs(reader, header, known, end)
    raise TensorFormatError(
        reader.source.name,
        "the data",
        f"missing ({reader.source.size - end} bytes remain)",
        "a chunk 'DENSDATA'",
        "the file is cut off or damaged",
        offset=end,
    )


def _begins_at_once(reader: HeaderReader, offset: int) -> bool:
    """Whether there are values where a chunk should be, and not a chunk that was cut off."""
    known = (DENSE_DATA, SYMMETRY, NOTE)
    return first_chunk(reader, offset) is None and not has_magic(reader, offset, known)


def _unpacked(reader: HeaderReader, symmetries: list[Symmetry]) -> tuple[Symmetry, ...]:
    for each in symmetries:
        if each.packed:
            raise TensorFormatError(
                reader.source.name,
                f"the symmetry {str(each)!r}",
                "packed in a file of sequential values",
                "index-value storage",
                "TENS 1.0 does not define how such values are ordered; write them as pairs",
                offset=each.offset,
            )
    return tuple(symmetries)


def _without_chunk(reader: HeaderReader, storage: Storage) -> Storage:
    warning = (
        f"{reader.source.name}: version 1.0 demands a chunk 'DENSDATA' at byte {storage.offset}, "
        "but values of exactly the right size follow at once; they are read as in version 0.9"
    )
    return replace(storage, warnings=(warning,))


def _pairs(reader: HeaderReader, header: Header, storage: Storage, end: int) -> Storage:
    count = reader.unsigned(end, COUNT_BYTES, "the number of pairs")
    room = (reader.source.size - end - COUNT_BYTES) // storage.pair_bytes
    if count > min(room, header.total):
        reason = f"{room} pairs that the file has room for"
        if header.total < room:
            reason = f"{header.total} elements of the tensor"
        raise TensorFormatError(
            reader.source.name,
            "the number of pairs",
            count,
            f"at most the {reason}",
            "the file is cut off or damaged",
            offset=end,
        )
    return replace(storage, offset=end + COUNT_BYTES, pairs=count)
