"""Find the values of a TENS file: after the header, in a chunk, or as pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from xr_tensorfmt.contract import Element, Finding, HeaderReader
from xr_tensorfmt.formats.tens.chunks import (
    DEFINED_MAGICS,
    DENSE_DATA,
    EMBEDDED,
    SYMMETRY,
    Chunk,
    compute_chunk_size,
    is_chunk,
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
class Storage:
    """The parsed header of a file, with the type of the values and their range of bytes.

    The range includes the padding of a chunk. `pairs` is the number of pairs, or None if all values
    are stored.
    """

    header: TensHeader
    element: Element
    components: int
    offset: int
    stop: int
    pairs: int | None = None
    chunks: tuple[Chunk, ...] = ()
    symmetries: tuple[Symmetry, ...] = ()
    embedded: bytes | None = None
    findings: tuple[Finding, ...] = ()

    @classmethod
    def raw(cls, header: TensHeader, reader: HeaderReader) -> Storage:
        """Return the storage of values that follow the header directly."""
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


def read_storage(reader: HeaderReader) -> Storage:
    """Read the header of a file, and locate its values."""
    header = TensHeader.read(reader)
    return (_read_0_9 if header.is_before_1_0 else _read_1_0)(reader, header)


def _read_0_9(reader: HeaderReader, header: TensHeader) -> Storage:
    """Find values that follow the header directly, as in version 0.9."""
    candidates = [Storage.raw(candidate, reader) for candidate in _find_candidates(header)]
    chunk = Chunk.read(reader, header.stop)
    for storage in candidates:
        if chunk is not None and chunk.magic == DENSE_DATA and _fits(reader, chunk, storage.nbytes):
            return _read_dense(reader, replace(storage, chunks=(chunk,)))
    for storage in candidates:
        if storage.stop == reader.source.size:
            return storage
    if header.version != VERSION_0_9:
        hint = "the file's size does not fit version 0.9 either"
        raise build_version_error(reader, header.version, hint)
    remaining, sizes = reader.source.size - header.stop, [storage.nbytes for storage in candidates]
    raise reader.error(
        field=f"the data of a tensor of shape {header.lengths}",
        actual=f"{remaining} bytes",
        expected=" or ".join(f"{size} bytes" for size in sizes),
        hint="the file has trailing bytes, or its header is corrupt"
        if remaining > max(sizes)
        else "the file is truncated, or its header is corrupt",
        offset=header.stop,
    )


def _find_candidates(header: TensHeader) -> Iterator[TensHeader]:
    """Yield the possible meanings of a header.

    cc4s since 2018 and sisi4s state the size of a complex number as the bytes per number.
    """
    size = header.bytes_per_number
    is_complex = (header.number_type, header.numbers_per_element) == (b"IEEE", 2)
    if is_complex and size in (16, 32):
        yield replace(header, bytes_per_number=size // 2)
    if not (is_complex and size == 32):
        yield header


def _read_1_0(reader: HeaderReader, header: TensHeader) -> Storage:
    """Read chunks and find the values after them, as in version 1.0."""
    storage = Storage.raw(header, reader)
    fits_raw = reader.source.size == storage.stop
    if fits_raw and not (header.is_index_value or is_chunk(reader, header.stop)):
        message = (
            "missing, but values of exactly the right size follow the header; they are read as in "
            "version 0.9"
        )
        field = "the chunk 'DENSDATA' that version 1.0 requires"
        finding = Finding(reader.source.name, storage.offset, field, message, "warning")
        return replace(storage, findings=(finding,))
    chunks, symmetries, embedded = [], [], None
    for chunk in read_chunks(reader, header.stop):
        chunks.append(chunk)
        if chunk.magic == SYMMETRY:
            symmetries.append(Symmetry.read(reader, header, chunk))
        elif chunk.magic == EMBEDDED:
            embedded = read_embedded_metadata(reader, chunk)
    storage = replace(
        storage,
        offset=chunks[-1].stop if chunks else header.stop,
        chunks=tuple(chunks),
        symmetries=tuple(symmetries),
        embedded=embedded,
    )
    if chunks and chunks[-1].magic == DENSE_DATA:
        _check_not_packed(reader, symmetries)
        return _read_dense(reader, storage)
    if header.is_index_value:
        return _read_pairs(reader, storage)
    raise reader.error(
        field="the data",
        actual=f"missing ({reader.source.size - storage.offset} bytes remain)",
        expected="a chunk 'DENSDATA'",
        hint="the file is truncated or corrupt",
        offset=storage.offset,
    )


def _read_dense(reader: HeaderReader, storage: Storage) -> Storage:
    """Find the values in the last chunk, DENSDATA, and check its size."""
    header, chunk = storage.header, storage.chunks[-1]
    if header.is_index_value:
        raise reader.error(
            field="a chunk 'DENSDATA'",
            actual="in a file whose flags say index-value storage",
            expected="one of the two",
            hint="the header is corrupt",
            offset=chunk.offset,
        )
    if not _fits(reader, chunk, storage.nbytes):
        raise reader.error(
            field="the size of chunk 'DENSDATA'",
            actual=chunk.size,
            expected=f"{compute_chunk_size(storage.nbytes)} for a tensor of shape {header.lengths}",
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
    return replace(storage, offset=chunk.content_offset, stop=chunk.stop)


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


def _read_pairs(reader: HeaderReader, storage: Storage) -> Storage:
    """Read the number of pairs, which precedes the pairs."""
    start, total = storage.offset, storage.header.size
    count = reader.read_unsigned(start, COUNT_BYTES, "the number of pairs")
    pair_bytes = build_pair_dtype(storage.element, storage.components).itemsize
    offset = start + COUNT_BYTES
    room = (reader.source.size - offset) // pair_bytes
    if count > min(room, total):
        limit = f"{total} elements of the tensor"
        if room <= total:
            limit = f"{room} pairs that fit in the file"
        raise reader.error(
            field="the number of pairs",
            actual=count,
            expected=f"at most the {limit}",
            hint="the file is truncated or corrupt",
            offset=start,
        )
    return replace(storage, offset=offset, stop=offset + count * pair_bytes, pairs=count)
