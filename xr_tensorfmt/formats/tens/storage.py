"""Where a TENS file keeps its values: the raw files of version 0.9 and the chunks of 1.0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from xr_tensorfmt.elements import Element
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.tens.header import VERSION_0_9, VERSION_1_0, Header
from xr_tensorfmt.formats.tens.numbers import element_of
from xr_tensorfmt.formats.tens.symmetry import Symmetry, read_symmetry
from xr_tensorfmt.formats.tens.variable_chunks import (
    CHUNK_HEADER_BYTES,
    DENSE_DATA,
    SYMMETRY,
    VariableChunk,
    variable_chunks,
)

COUNT_BYTES = 8
INDEX_BYTES = 8


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
    """

    element: Element
    components: int
    offset: int
    pairs: int | None = None
    symmetries: tuple[Symmetry, ...] = ()
    skipped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of the tensor."""
        return self.element.stored.itemsize * self.components


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
    sizes = []
    for candidate in _candidates(header):
        storage = Storage(*element_of(candidate, path), offset)
        sizes.append(header.total * storage.element_bytes)
        if sizes[-1] == remaining:
            return storage
    begins = reader.bytes_at(offset, min(8, remaining), "the data")
    if begins == DENSE_DATA:
        return _chunked(reader, header)
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

    They give the bytes of a whole complex number as those of one of its two numbers.
    """
    size, is_complex = header.bytes_per_number, (header.number_type, header.numbers) == (b"IEEE", 2)
    if is_complex and size in (16, 32):
        yield replace(header, bytes_per_number=size // 2)
    if not (is_complex and size == 32):
        yield header


def _chunked(reader: HeaderReader, header: Header) -> Storage:
    storage = Storage(*element_of(header, reader.source.name), header.stop)
    symmetries: list[Symmetry] = []
    skipped: list[str] = []
    end = header.stop
    for chunk in variable_chunks(reader, header.stop):
        if chunk.magic == DENSE_DATA:
            _check_dense(reader, header, chunk, storage.element_bytes)
            return replace(
                storage,
                offset=chunk.body,
                symmetries=_unpacked(reader, symmetries),
                skipped=tuple(skipped),
            )
        if chunk.magic == SYMMETRY:
            symmetries.append(read_symmetry(reader, header, chunk))
        else:
            skipped.append(chunk.magic.decode())
        end = chunk.stop
    known = replace(storage, symmetries=tuple(symmetries), skipped=tuple(skipped))
    if header.is_index_value:
        return _pairs(reader, header, known, end)
    return _without_chunk(reader, header, storage, end)


def _check_dense(
    reader: HeaderReader, header: Header, chunk: VariableChunk, element_bytes: int
) -> None:
    path, size = reader.source.name, reader.source.size
    if header.is_index_value:
        raise TensorFormatError(
            path,
            "a chunk 'DENSDATA'",
            "in a file whose flags say index-value storage",
            "one of the two",
            "the header is damaged",
            offset=chunk.offset,
        )
    needed = CHUNK_HEADER_BYTES + header.total * element_bytes
    padded = needed + -needed % 8
    unpadded_at_end = chunk.size == needed and chunk.stop == size
    if chunk.size != padded and not unpadded_at_end:
        raise TensorFormatError(
            path,
            "the size of chunk 'DENSDATA'",
            chunk.size,
            f"{padded} for a tensor of shape {header.lengths}",
            "the file is damaged, or its data are packed in a way that the format does not define",
            offset=chunk.offset + 8,
        )
    if chunk.stop > size:
        raise TensorFormatError(
            path,
            "the data",
            f"cut off by the end of the file at byte {size}",
            f"{chunk.size} bytes of chunk 'DENSDATA'",
            "the file is incomplete; fetch it again",
            offset=chunk.offset,
        )


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


def _without_chunk(reader: HeaderReader, header: Header, storage: Storage, end: int) -> Storage:
    remaining = reader.source.size - end
    if end == header.stop and remaining == header.total * storage.element_bytes:
        warning = (
            f"{reader.source.name}: version 1.0 demands a chunk 'DENSDATA' at byte {end}, but "
            "values of exactly the right size follow at once; they are read as in version 0.9"
        )
        return replace(storage, warnings=(warning,))
    raise TensorFormatError(
        reader.source.name,
        "the data",
        f"missing ({remaining} bytes remain)",
        "a chunk 'DENSDATA'",
        "the file is cut off or damaged",
        offset=end,
    )


def _pairs(reader: HeaderReader, header: Header, storage: Storage, end: int) -> Storage:
    count = reader.unsigned(end, COUNT_BYTES, "the number of pairs")
    stride = INDEX_BYTES + storage.element_bytes
    room = (reader.source.size - end - COUNT_BYTES) // stride
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
