"""Reading a TENS file: from its header to the tensor, or to the pairs that are stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from xr_tensorfmt.contract import (
    MAX_FILLED_ELEMENTS,
    Container,
    Dense,
    Element,
    End,
    Finding,
    HeaderReader,
    Layout,
    OpenOptions,
    Tensor,
    check_size,
    column_major,
    name_dims,
)
from xr_tensorfmt.formats.tens.chunks import (
    DENSE_DATA,
    EMBEDDED,
    KNOWN,
    SYMMETRY,
    Chunk,
    begins_with_chunk,
    embedded_metadata,
    padded_size,
    walk,
)
from xr_tensorfmt.formats.tens.pairs import COUNT_BYTES, IndexAlong, Pairs, ValueOfPair, pair_dtype
from xr_tensorfmt.formats.tens.spec import (
    FIXED_BYTES,
    VERSION_0_9,
    Header,
    element_of,
    unknown_version,
)
from xr_tensorfmt.formats.tens.symmetries import Symmetry, group_of_packed, joined

COMPONENT = "component"
ENTRY = "entry"


@dataclass(frozen=True)
class Storage:
    """The header of a file, the chunks before its values, and where and what these are."""

    header: Header
    element: Element
    components: int
    offset: int
    pairs: int | None = None
    chunks: tuple[Chunk, ...] = ()
    symmetries: tuple[Symmetry, ...] = ()
    embedded: bytes | None = None
    findings: tuple[Finding, ...] = ()

    @classmethod
    def after(cls, header: Header, reader: HeaderReader) -> Storage:
        """All values, directly after the header."""
        return cls(header, *element_of(header, reader), header.stop)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of the tensor."""
        return self.element.stored.itemsize * self.components

    @property
    def nbytes(self) -> int:
        """Bytes of all elements of the tensor."""
        return self.header.total * self.element_bytes

    @property
    def pair_bytes(self) -> int:
        """Bytes of one pair of index and value."""
        return pair_dtype(self.element, self.components).itemsize

    @property
    def is_in_chunk(self) -> bool:
        """Whether the values are in a chunk 'DENSDATA'."""
        return bool(self.chunks) and self.chunks[-1].magic == DENSE_DATA

    @property
    def stop(self) -> int:
        """The byte after the last one that the format defines."""
        if self.pairs is not None:
            return self.offset + self.pairs * self.pair_bytes
        return self.chunks[-1].stop if self.is_in_chunk else self.offset + self.nbytes

    @property
    def unknown_chunks(self) -> list[Chunk]:
        """The chunks that the format does not define."""
        return [each for each in self.chunks if each.magic not in KNOWN]


def _raw(reader: HeaderReader, header: Header) -> Storage:
    """Values that follow the header at once, as in version 0.9."""
    remaining = reader.source.size - header.stop
    candidates = [Storage.after(each, reader) for each in _candidates(header)]
    sizes = [each.nbytes for each in candidates]
    chunk = Chunk.at(reader, header.stop)
    if chunk is not None and chunk.magic == DENSE_DATA:
        for storage in candidates:
            if _fits(reader, chunk, storage.nbytes):
                return _in_chunk(reader, replace(storage, chunks=(chunk,)))
    if remaining in sizes:
        return candidates[sizes.index(remaining)]
    if header.version != VERSION_0_9:
        hint = "the file's size does not fit the layout of 0.9 either, so it cannot be read"
        raise unknown_version(reader, header.version, hint)
    raise reader.error(
        f"the data of a tensor of shape {header.lengths}",
        f"{remaining} bytes",
        " or ".join(f"{size} bytes" for size in dict.fromkeys(sizes)),
        "something follows the values, or the header is damaged"
        if remaining > max(sizes)
        else "the file was cut off or never written completely, or its header is damaged",
        header.stop,
    )


def _candidates(header: Header) -> Iterator[Header]:
    """The header, and before it the reading that cc4s since 2018 and sisi4s need."""
    size, is_complex = header.bytes_per_number, (header.number_type, header.numbers) == (b"IEEE", 2)
    if is_complex and size in (16, 32):
        yield replace(header, bytes_per_number=size // 2)
    if not (is_complex and size == 32):
        yield header


def _chunked(reader: HeaderReader, header: Header) -> Storage:
    """Values that chunks stand before, as in version 1.0."""
    storage = Storage.after(header, reader)
    fits_raw = reader.source.size - header.stop == storage.nbytes
    if fits_raw and not (header.is_index_value or begins_with_chunk(reader, header.stop)):
        message = (
            "missing, but values of exactly the right size follow at once; they are read as in "
            "version 0.9"
        )
        field = "the chunk 'DENSDATA' that version 1.0 demands"
        finding = Finding(reader.source.name, storage.offset, field, message, "warning")
        return replace(storage, findings=(finding,))
    chunks, symmetries, embedded = [], [], None
    for chunk in walk(reader, header.stop):
        chunks.append(chunk)
        if chunk.magic == SYMMETRY:
            symmetries.append(Symmetry.read(reader, header, chunk))
        elif chunk.magic == EMBEDDED:
            embedded = embedded_metadata(reader, chunk)
    storage = replace(
        storage,
        offset=chunks[-1].stop if chunks else header.stop,
        chunks=tuple(chunks),
        symmetries=tuple(symmetries),
        embedded=embedded,
    )
    if chunks and chunks[-1].magic == DENSE_DATA:
        _check_not_packed(reader, symmetries)
        return _in_chunk(reader, storage)
    if header.is_index_value:
        return _pairs(reader, storage)
    raise reader.error(
        "the data",
        f"missing ({reader.source.size - storage.offset} bytes remain)",
        "a chunk 'DENSDATA'",
        "the file is cut off or damaged",
        storage.offset,
    )


def _in_chunk(reader: HeaderReader, storage: Storage) -> Storage:
    """Values in the last chunk, which is DENSDATA, after checking that it holds all of them."""
    header, chunk = storage.header, storage.chunks[-1]
    if header.is_index_value:
        raise reader.error(
            "a chunk 'DENSDATA'",
            "in a file whose flags say index-value storage",
            "one of the two",
            "the header is damaged",
            chunk.offset,
        )
    if not _fits(reader, chunk, storage.nbytes):
        raise reader.error(
            "the size of chunk 'DENSDATA'",
            chunk.size,
            f"{padded_size(storage.nbytes)} for a tensor of shape {header.lengths}",
            "the file is damaged, or its data are packed in a way that the format does not define",
            chunk.size_at,
        )
    if chunk.stop > reader.source.size:
        raise reader.error(
            "the data",
            f"cut off by the end of the file at byte {reader.source.size}",
            f"{chunk.size} bytes of chunk 'DENSDATA'",
            "the file is incomplete; fetch it again",
            chunk.offset,
        )
    return replace(storage, offset=chunk.body)


def _fits(reader: HeaderReader, chunk: Chunk, payload: int) -> bool:
    """Whether a chunk's size is right for its content, which may lack padding at the end."""
    is_last = chunk.stop == reader.source.size
    return chunk.size == padded_size(payload) or (is_last and chunk.stop == chunk.body + payload)


def _check_not_packed(reader: HeaderReader, symmetries: Iterable[Symmetry]) -> None:
    for each in symmetries:
        if each.packed:
            raise reader.error(
                f"the symmetry {str(each)!r}",
                "packed in a file of sequential values",
                "index-value storage",
                "TENS 1.0 does not define how such values are ordered; write them as pairs",
                each.offset,
            )


def _pairs(reader: HeaderReader, storage: Storage) -> Storage:
    """Pairs of index and value behind the chunks, after their number."""
    start, total = storage.offset, storage.header.total
    count = reader.read_unsigned(start, COUNT_BYTES, "the number of pairs")
    room = (reader.source.size - start - COUNT_BYTES) // storage.pair_bytes
    if count > min(room, total):
        reason = f"{room} pairs that the file has room for"
        if total < room:
            reason = f"{total} elements of the tensor"
        raise reader.error(
            "the number of pairs",
            count,
            f"at most the {reason}",
            "the file is cut off or damaged",
            start,
        )
    return replace(storage, offset=start + COUNT_BYTES, pairs=count)


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a TENS file."""
    path = reader.source.name
    header = Header.read(reader)
    storage = (_raw if header.is_before_1_0 else _chunked)(reader, header)
    check_size(path, header.lengths, storage.element_bytes, offset=FIXED_BYTES)
    names = name_dims(options.dims, options.name, header.names)
    for reserved in (COMPONENT, ENTRY):
        if reserved in (options.name, *names):
            raise ValueError(
                f"{reserved!r} is a dimension that TENS files can have; choose another name"
            )
    if storage.pairs is None:
        options.check_all_stored(path)
    elif options.sparse == "stored" and storage.components > 1:
        raise ValueError(
            f"{path}: elements of {storage.components} numbers cannot be opened with "
            "sparse='stored', expected one number; omit sparse= to open all elements"
        )
    has_components = storage.components > 1
    layout = column_major(_layout(reader, storage, options), trailing=int(has_components))
    dims = (*names, COMPONENT) if has_components else names
    encoding = {"tensorfmt": _facts(storage), "dtype": storage.element.encoding}
    tensor = Tensor(options.name, dims, layout, _attrs(storage, names), encoding)
    end = End(reader.source, storage.stop, "the data" if storage.pairs is None else "the pairs")
    return Container(
        (tensor,),
        findings=storage.findings,
        ends=(end,),
        embedded=storage.embedded,
        parsed=storage,
    )


def _layout(reader: HeaderReader, storage: Storage, options: OpenOptions) -> Layout:
    """All elements of the tensor, in the order of the file."""
    header, components = storage.header, storage.components
    lengths = header.lengths[::-1]
    if storage.pairs is None:
        shape = (*lengths, components) if components > 1 else lengths
        return Dense(shape, storage.element, storage.offset)
    if options.sparse == "auto" and header.total > MAX_FILLED_ELEMENTS:
        raise reader.error(
            f"the tensor of {storage.pairs} stored pairs",
            f"{header.total} elements",
            f"at most {MAX_FILLED_ELEMENTS}",
            "open it with sparse='stored', or with sparse='dense' if that many zeros are wanted",
            FIXED_BYTES,
        )
    is_stored = options.sparse == "stored"
    group = () if is_stored else group_of_packed(reader, header, storage.symmetries)
    return Pairs(lengths, storage.element, components, storage.offset, storage.pairs, group)


def select_stored(container: Container) -> Container:
    """Return the pairs of a file, with a coordinate for the index along each dimension."""
    storage: Storage = container.parsed
    header = storage.header
    (tensor,) = container.tensors
    names = header.names if {ENTRY, tensor.name} & {*tensor.dims} else tensor.dims
    count, offset = (storage.pairs or 0,), storage.offset
    opened = {**tensor.encoding["tensorfmt"], "sparse": "stored"}
    coordinates = []
    for axis, (name, length) in enumerate(zip(names, header.lengths, strict=True)):
        element = IndexAlong(storage.element, prod(header.lengths[:axis]), length, header.total)
        facts = {"tensorfmt": {"format": "tens", "axis": axis}}
        coordinates.append(Tensor(name, (ENTRY,), Dense(count, element, offset), encoding=facts))
    # What labels whole dimensions has no place among pairs.
    labelled = {ENTRY, *names, *tensor.dims}
    others = [each for each in container.coordinates if not labelled & {each.name, *each.dims}]
    layout = Dense(count, ValueOfPair(storage.element), offset)
    encoding = {**tensor.encoding, "tensorfmt": opened}
    values = replace(tensor, dims=(ENTRY,), layout=layout, encoding=encoding)
    return replace(container, tensors=(values,), coordinates=(*coordinates, *others))


def _attrs(storage: Storage, names: tuple[str, ...]) -> dict[str, Any]:
    # Strings rather than lists, which netCDF 3 cannot hold and netCDF 4 does not keep.
    attrs: dict[str, Any] = {}
    if storage.symmetries:
        attrs["symmetries"] = joined(storage.symmetries)
    if storage.unknown_chunks:
        attrs["skipped_chunks"] = ", ".join(each.magic.decode() for each in storage.unknown_chunks)
    sparse = [
        name
        for name, each in zip(names, storage.header.dimensions, strict=True)
        if each.is_sparse and not storage.header.is_before_1_0
    ]
    if sparse:
        attrs["sparse_dims"] = ", ".join(sparse)
    return attrs


def _facts(storage: Storage) -> dict[str, Any]:
    header = storage.header
    facts = {
        "format": "tens",
        "version": "0.9" if header.is_before_1_0 else "1.0",
        "shape": header.lengths,
        "storage": "dense" if storage.pairs is None else "pairs",
        "offset": storage.offset,
        "order": "F",
        "byteorder": "big" if header.is_big_endian else "little",
        "dtype": storage.element.name,
        "index_names": header.index_names,
    }
    packed = [each for each in storage.symmetries if each.packed]
    if packed:
        facts["packed_symmetries"] = joined(packed)
    if storage.symmetries:
        facts["symmetries"] = joined(storage.symmetries)
    return facts
