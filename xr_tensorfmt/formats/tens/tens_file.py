"""Find the values of a TENS file: after the header, in a chunk, or as pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from xr_tensorfmt.core.elements import Element
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.formats.tens.chunks import (
    DEFINED_MAGICS,
    DENSE_DATA,
    EMBEDDED,
    SYMMETRY,
    Chunk,
    compute_chunk_size,
    read_chunks,
    read_embedded_metadata,
)
from xr_tensorfmt.formats.tens.pairs import COUNT_BYTES, build_pair_dtype
from xr_tensorfmt.formats.tens.spec import (
    VERSION_0_9,
    TensHeader,
    build_element,
    build_version_error,
)
from xr_tensorfmt.formats.tens.symmetries import Symmetry


@dataclass(frozen=True)
class TensFile:
    """Parsed header of a file, and the type and location of its values.

    The values are in the bytes ``[offset, stop)``, which include the padding of a chunk.
    `pair_count` is None if all values are stored.
    """

    header: TensHeader
    element: Element
    components: int
    offset: int
    stop: int
    pair_count: int | None = None
    chunks: tuple[Chunk, ...] = ()
    symmetries: tuple[Symmetry, ...] = ()
    embedded: bytes | None = None

    @classmethod
    def with_raw_values(cls, header: TensHeader, reader: HeaderReader) -> TensFile:
        """Return a file whose values follow the header directly."""
        element, components = build_element(header, reader)
        nbytes = header.size * components * element.stored.itemsize
        return cls(header, element, components, header.stop, header.stop + nbytes)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return self.element.stored.itemsize * self.components

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.header.size * self.element_bytes

    @property
    def unknown_chunks(self) -> list[Chunk]:
        """Chunks that the format does not define."""
        return [chunk for chunk in self.chunks if chunk.magic not in DEFINED_MAGICS]


def read_file(reader: HeaderReader) -> TensFile:
    """Read the header of a file, and locate its values."""
    header = TensHeader.read(reader)
    return (_read_0_9 if header.is_before_1_0 else _read_1_0)(reader, header)


def _read_0_9(reader: HeaderReader, header: TensHeader) -> TensFile:
    """Find values that follow the header directly, as in version 0.9."""
    candidates = [TensFile.with_raw_values(header, reader) for header in _list_meanings(header)]
    chunk = Chunk.read(reader, header.stop)
    for file in candidates:
        if chunk is not None and chunk.magic == DENSE_DATA and _fits(reader, chunk, file.nbytes):
            return _read_dense(reader, replace(file, chunks=(chunk,)))
    for file in candidates:
        if file.stop == reader.source.size:
            return file
    if header.version != VERSION_0_9:
        hint = "the file's size does not fit version 0.9 either"
        raise build_version_error(reader, header.version, hint)
    remaining = reader.source.size - header.stop
    sizes = [file.nbytes for file in candidates]
    hint = "the file is truncated, or its header is corrupt"
    if remaining > max(sizes):
        hint = "the file has trailing bytes, or its header is corrupt"
    raise reader.error(
        field=f"the data of a tensor of shape {header.lengths}",
        actual=f"{remaining} bytes",
        expected=" or ".join(f"{size} bytes" for size in sizes),
        hint=hint,
        offset=header.stop,
    )


def _list_meanings(header: TensHeader) -> Iterator[TensHeader]:
    """Yield the possible meanings of a header.

    cc4s since 2018 and sisi4s write 16, the size of a complex number, as the bytes per number.
    """
    size = header.bytes_per_number
    is_complex = (header.number_type, header.numbers_per_element) == (b"IEEE", 2)
    if is_complex and size in (16, 32):
        yield replace(header, bytes_per_number=size // 2)
    if not (is_complex and size == 32):
        yield header


def _read_1_0(reader: HeaderReader, header: TensHeader) -> TensFile:
    """Read chunks and find the values after them, as in version 1.0."""
    file = TensFile.with_raw_values(header, reader)
    chunks, symmetries = [], []
    embedded = None
    for chunk in read_chunks(reader, header.stop):
        chunks.append(chunk)
        if chunk.magic == SYMMETRY:
            symmetries.append(Symmetry.read(reader, header, chunk))
        elif chunk.magic == EMBEDDED:
            embedded = read_embedded_metadata(reader, chunk)
    file = replace(
        file,
        offset=chunks[-1].stop if chunks else header.stop,
        chunks=tuple(chunks),
        symmetries=tuple(symmetries),
        embedded=embedded,
    )
    if chunks and chunks[-1].magic == DENSE_DATA:
        _check_not_packed(reader, symmetries)
        return _read_dense(reader, file)
    if header.is_index_value:
        return _read_pairs(reader, file)
    raise reader.error(
        field="the data",
        actual=f"missing ({reader.source.size - file.offset} bytes remain)",
        expected="a chunk 'DENSDATA'",
        hint="the file is truncated or corrupt",
        offset=file.offset,
    )


def _read_dense(reader: HeaderReader, file: TensFile) -> TensFile:
    """Find the values in the last chunk, DENSDATA, and check its size."""
    header, chunk = file.header, file.chunks[-1]
    if header.is_index_value:
        raise reader.error(
            field="a chunk 'DENSDATA'",
            actual="in a file whose flags say index-value storage",
            expected="one of the two",
            hint="the header is corrupt",
            offset=chunk.offset,
        )
    if not _fits(reader, chunk, file.nbytes):
        raise reader.error(
            field="the size of chunk 'DENSDATA'",
            actual=chunk.size,
            expected=f"{compute_chunk_size(file.nbytes)} for a tensor of shape {header.lengths}",
            hint="the file is corrupt, or its data are packed in a way that the format does not "
            "define",
            offset=chunk.size_offset,
        )
    if chunk.stop > reader.source.size:
        raise reader.error(
            field="the data",
            actual=f"truncated by the end of the file at byte {reader.source.size}",
            expected=f"{chunk.size} bytes of chunk 'DENSDATA'",
            hint="the file is truncated; fetch it again",
            offset=chunk.offset,
        )
    return replace(file, offset=chunk.content_offset, stop=chunk.stop)


def _fits(reader: HeaderReader, chunk: Chunk, payload: int) -> bool:
    """Return whether a chunk has the size of its content. The last chunk may lack padding."""
    is_last = chunk.stop == reader.source.size
    return chunk.size == compute_chunk_size(payload) or (
        is_last and chunk.stop == chunk.content_offset + payload
    )


def _check_not_packed(reader: HeaderReader, symmetries: Iterable[Symmetry]) -> None:
    for symmetry in symmetries:
        if symmetry.packed:
            raise reader.error(
                field=f"the symmetry {str(symmetry)!r}",
                actual="packed in a file of sequential values",
                expected="index-value storage",
                hint="TENS 1.0 does not define the order of such values; write them as pairs",
                offset=symmetry.offset,
            )


def _read_pairs(reader: HeaderReader, file: TensFile) -> TensFile:
    """Read the number of pairs, which precedes the pairs."""
    field = "the number of pairs"
    count = reader.read_unsigned(file.offset, COUNT_BYTES, field)
    pair_bytes = build_pair_dtype(file.element, file.components).itemsize
    offset = file.offset + COUNT_BYTES
    room = (reader.source.size - offset) // pair_bytes
    total = file.header.size
    if count > min(room, total):
        limit = f"{room} pairs that fit in the file"
        if room > total:
            limit = f"{total} elements of the tensor"
        hint = "the file is truncated or corrupt"
        raise reader.error(field, count, f"at most the {limit}", hint, file.offset)
    return replace(file, offset=offset, stop=offset + count * pair_bytes, pair_count=count)
