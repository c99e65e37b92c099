"""The chunk DENSDATA: all values of a tensor, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.container import Container, Tensor, named_dims
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Array, Element, ElementError
from xr_tensorfmt.core.embedded_metadata import with_embedded_metadata
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader, check_size
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import column_major
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.tens.pairs import INDEX_BYTES, Pairs, Records
from xr_tensorfmt.formats.tens.spec import (
    CHUNK_HEADER_BYTES,
    DENSE_DATA,
    EMBEDDED_CHUNK,
    FIXED_BYTES,
    MOST_OPERATIONS,
    SYMMETRY,
    VERSION_0_9,
    VERSION_1_0,
    Header,
    Symmetry,
    VariableChunk,
    element_of,
    embedded_dims,
    first_chunk,
    generated,
    has_magic,
    note_of_pairs,
    noted_name,
    packing_operations,
    read_embedded_metadata,
    read_header,
    read_symmetry,
    variable_chunks,
)


def _padded(payload: int) -> int:
    """Size of a chunk that holds so many bytes."""
    return CHUNK_HEADER_BYTES + payload + -payload % 8


def fits(reader: HeaderReader, chunk: VariableChunk, payload: int) -> bool:
    """Whether a chunk's size is right for its payload."""
    is_last = chunk.stop == reader.source.size
    is_exact = chunk.size == CHUNK_HEADER_BYTES + payload
    return chunk.size == _padded(payload) or (is_exact and is_last)


def check_dense(
    reader: HeaderReader, header: Header, chunk: VariableChunk, element_bytes: int
) -> None:
    """Check that a chunk holds all values of a tensor."""
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
    payload = header.total * element_bytes
    if not fits(reader, chunk, payload):
        raise TensorFormatError(
            path,
            "the size of chunk 'DENSDATA'",
            chunk.size,
            f"{_padded(payload)} for a tensor of shape {header.lengths}",
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


COUNT_BYTES = 8


@dataclass(frozen=True)
class Storage:
    """What is known of the values' place and kind."""

    element: Element
    components: int
    offset: int
    pairs: int | None = None
    symmetries: tuple[Symmetry, ...] = ()
    skipped: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    embedded: Any = None

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of the tensor."""
        return self.element.stored.itemsize * self.components

    @property
    def pair_bytes(self) -> int:
        """Bytes of one index-value pair."""
        return INDEX_BYTES + self.element_bytes


def find_storage(reader: HeaderReader, header: Header) -> Storage:
    """Find the values, and check that the file holds all of them."""
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
    """The header, and before it the reading that cc4s since 2018 and sisi4s need."""
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
        elif chunk.magic == EMBEDDED_CHUNK:
            embedded, findings = read_embedded_metadata(reader, chunk)
            storage = replace(storage, embedded=embedded, findings=findings)
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
    known = (DENSE_DATA, SYMMETRY, EMBEDDED_CHUNK)
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
    message = (
        "missing, but values of exactly the right size follow at once; they are read as in "
        "version 0.9"
    )
    field = "the chunk 'DENSDATA' that version 1.0 demands"
    finding = Finding(reader.source.name, storage.offset, field, message, "warning")
    return replace(storage, findings=(finding,))


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


@dataclass(frozen=True)
class IndexAlong(Element):
    """The index along one dimension, of an element given by its global index."""

    inner: int
    length: int
    total: int

    @property
    def name(self) -> str:
        """What the file holds."""
        return "uint64"

    @property
    def stored(self) -> np.dtype[Any]:
        """The global index; little-endian whatever the byte order of the values."""
        return np.dtype("<u8")

    @property
    def dtype(self) -> np.dtype[Any]:
        """As numpy's own indices."""
        return np.dtype(np.int64)

    def decode_into(self, values: Array, raw: Array) -> None:
        """Divide, after checking that the index is one of the tensor's."""
        index = raw.astype(np.uint64)
        outside = index >= np.uint64(self.total)
        if outside.any():
            position = int(np.argmax(outside))
            raise ElementError(
                position,
                f"the global index {int(index.flat[position])}",
                f"one below {self.total}",
                "the file is damaged, or its dimension headers are wrong",
            )
        along = index // np.uint64(self.inner) % np.uint64(self.length)
        np.copyto(values, along, casting="unsafe")


COMPONENT = "component"
ENTRY = "entry"

MOST_FILLED_ELEMENTS = 1 << 40
"""Limit on the tensors of index-value files that open dense unless that is asked for."""


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a TENS file."""
    source = reader.source
    header = read_header(reader)
    storage = find_storage(reader, header)
    check_size(source.name, header.lengths, storage.element_bytes, offset=FIXED_BYTES)
    names = named_dims(options.dims, options.name, header.names)
    _check_reserved(options, names)
    if storage.pairs is None:
        options.check_all_stored(source.name)
        in_file_order = _dense(header, storage)
    elif options.sparse == "stored":
        return _stored(source.name, header, storage, options, names)
    else:
        in_file_order = _filled(source, header, storage, options)
    layout = column_major(in_file_order, trailing=int(storage.components > 1))
    dims = (*names, COMPONENT) if storage.components > 1 else names
    attrs = _attrs(header, storage, names)
    encoding = _encoding(header, storage, _noted_names(storage, options, names))
    tensor = Tensor(options.name, dims, layout, attrs, encoding)
    container = Container((tensor,), findings=storage.findings, embedded=storage.embedded)
    if storage.embedded is None or storage.components == 1 or options.dims is None:
        return container
    wanted = replace(options, dims=_with_component(options.dims))
    return replace(with_embedded_metadata(source.name, container, wanted), embedded=None)


def _with_component(dims: Any) -> Any:
    """The names that the user wants, and that of the last dimension, which is never renamed."""
    if isinstance(dims, Mapping):
        return {name: (*each, COMPONENT) for name, each in dims.items()}
    return (*dims, COMPONENT)


def _noted_names(storage: Storage, options: OpenOptions, names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the dimensions: those that the user wants, else those of the note, if it has any."""
    rank = len(names)
    noted = embedded_dims(storage.embedded, rank + (storage.components > 1))
    return names if noted is None or options.dims is not None else noted[:rank]


def _check_reserved(options: OpenOptions, names: tuple[str, ...]) -> None:
    for word in (COMPONENT, ENTRY):
        if word in (options.name, *names):
            raise ValueError(f"{word!r} is a dimension that TENS files can have; choose another")


def _dense(header: Header, storage: Storage) -> Layout:
    components = (storage.components,) if storage.components > 1 else ()
    return Dense((*header.lengths[::-1], *components), storage.element, storage.offset)


def _filled(source: Source, header: Header, storage: Storage, options: OpenOptions) -> Layout:
    if options.sparse == "auto" and header.total > MOST_FILLED_ELEMENTS:
        raise ValueError(
            f"{source.name}: the {storage.pairs} stored pairs belong to a tensor of "
            f"{header.total} elements; open it with sparse='stored', or with sparse='dense' if "
            "that many zeros are wanted"
        )
    rank = len(header.lengths)
    orbit = generated(packing_operations(storage.symmetries, header, source.name), rank)
    if orbit is None:
        raise TensorFormatError(
            source.name,
            "the group of the packed symmetries",
            f"larger than {MOST_OPERATIONS} operations",
            "fewer",
            "open it with sparse='stored'",
            offset=header.stop,
        )
    return Pairs(
        header.lengths[::-1],
        storage.element,
        storage.components,
        storage.offset,
        storage.pairs or 0,
        orbit,
    )


def _stored(
    path: str, header: Header, storage: Storage, options: OpenOptions, names: tuple[str, ...]
) -> Container:
    noted = _noted_names(storage, options, names)
    hidden = {*noted, ENTRY}
    if not {ENTRY, COMPONENT, options.name, noted_name(storage.embedded)} & set(noted):
        names = noted
    stride, count = storage.pair_bytes, storage.pairs or 0
    layout = Records(
        count, storage.components, storage.element, storage.offset + INDEX_BYTES, stride
    )
    dims = (ENTRY, COMPONENT) if storage.components > 1 else (ENTRY,)
    encoding = _encoding(header, storage, names)
    tensor = Tensor(options.name, dims, layout, _attrs(header, storage, names), encoding)
    coordinates = []
    for axis, (label, length) in enumerate(zip(names, header.lengths, strict=True)):
        element = IndexAlong(prod(header.lengths[:axis]), length, header.total)
        index = Records(count, 1, element, storage.offset, stride)
        facts = {"tensorfmt": {"format": "tens", "axis": axis}}
        coordinates.append(Tensor(label, (ENTRY,), index, encoding=facts))
    container = Container((tensor,), tuple(coordinates), findings=storage.findings)
    if storage.embedded is None:
        return container
    # The dims that the user names are those of the tensor; the pairs have none of them.
    noting = replace(container, embedded=note_of_pairs(storage.embedded, hidden))
    return replace(with_embedded_metadata(path, noting, replace(options, dims=None)), embedded=None)


def _attrs(header: Header, storage: Storage, names: tuple[str, ...]) -> dict[str, Any]:
    # Texts rather than lists, which netCDF 3 cannot hold and netCDF 4 does not keep.
    attrs: dict[str, Any] = {}
    if storage.symmetries:
        attrs["symmetries"] = ", ".join(map(str, storage.symmetries))
    if storage.skipped:
        attrs["skipped_chunks"] = ", ".join(storage.skipped)
    sparse = [
        name
        for name, each in zip(names, header.dimensions, strict=True)
        if each.is_sparse and not header.is_before_1_0
    ]
    if sparse:
        attrs["sparse_dims"] = ", ".join(sparse)
    return attrs


def _encoding(header: Header, storage: Storage, names: tuple[str, ...]) -> dict[str, Any]:
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
        "dims": names,
    }
    packed = [str(each) for each in storage.symmetries if each.packed]
    if packed:
        facts["packed_symmetries"] = ", ".join(packed)
    if storage.symmetries:
        facts["symmetries"] = ", ".join(map(str, storage.symmetries))
    return {"tensorfmt": facts, "dtype": storage.element.encoding}
