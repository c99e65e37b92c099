"""Reading a TENS file: from its header to the tensor, or to the pairs that are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from xr_tensorfmt.core.container import Container, Tensor, named_dims
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Element
from xr_tensorfmt.core.embedded_metadata import with_embedded_metadata
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader, check_size
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.core.views import column_major
from xr_tensorfmt.formats.tens.chunks import (
    DENSE_DATA,
    EMBEDDED,
    KNOWN,
    SYMMETRY,
    Chunk,
    embedded_for_pairs,
    embedded_tensor,
    padded_size,
    read_embedded_metadata,
    walk,
)
from xr_tensorfmt.formats.tens.pairs import COUNT_BYTES, IndexAlong, Pairs, ValueOfPair, pair_dtype
from xr_tensorfmt.formats.tens.spec import FIXED_BYTES, Header, element_of
from xr_tensorfmt.formats.tens.symmetries import Symmetry, group_of_packed, joined

COMPONENT = "component"
ENTRY = "entry"

MOST_FILLED_ELEMENTS = 1 << 40
"""Limit on the tensors of index-value files that open dense unless that is asked for."""


@dataclass(frozen=True)
class Storage:
    """Where the values of a file are, what they are, and the chunks before them."""

    element: Element
    components: int
    offset: int
    pairs: int | None = None
    chunks: tuple[Chunk, ...] = ()
    symmetries: tuple[Symmetry, ...] = ()
    findings: tuple[Finding, ...] = ()
    embedded: Any = None

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of the tensor."""
        return self.element.stored.itemsize * self.components

    @property
    def pair_bytes(self) -> int:
        """Bytes of one pair of index and value."""
        return pair_dtype(self.element, self.components).itemsize

    @property
    def unknown_chunks(self) -> list[Chunk]:
        """The chunks that the format does not define."""
        return [each for each in self.chunks if each.magic not in KNOWN]


def _without_chunks(reader: HeaderReader, header: Header) -> Storage:
    """Values that follow the header at once, as in version 0.9."""
    remaining = reader.source.size - header.stop
    candidates = [Storage(*element_of(each, reader), header.stop) for each in _candidates(header)]
    sizes = [header.total * each.element_bytes for each in candidates]
    if remaining in sizes:
        return candidates[sizes.index(remaining)]
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


def _after_chunks(reader: HeaderReader, header: Header) -> Storage:
    """Values that chunks stand before, as in version 1.0."""
    storage = Storage(*element_of(header, reader), header.stop)
    end = header.stop
    for chunk in walk(reader, header.stop):
        if chunk.magic == DENSE_DATA:
            return _dense(reader, header, storage, chunk)
        storage = _with_chunk(reader, header, storage, chunk)
        end = chunk.stop
    if header.is_index_value:
        return _pairs(reader, header, storage, end)
    raise reader.error(
        "the data",
        f"missing ({reader.source.size - end} bytes remain)",
        "a chunk 'DENSDATA'",
        "the file is cut off or damaged",
        end,
    )


def _with_chunk(reader: HeaderReader, header: Header, storage: Storage, chunk: Chunk) -> Storage:
    """What is known after one more chunk before the data."""
    known = replace(storage, chunks=(*storage.chunks, chunk))
    if chunk.magic == SYMMETRY:
        symmetry = Symmetry.read(reader, header, chunk)
        return replace(known, symmetries=(*storage.symmetries, symmetry))
    if chunk.magic == EMBEDDED:
        embedded, findings = read_embedded_metadata(reader, chunk)
        return replace(known, embedded=embedded, findings=findings)
    return known


def _dense(reader: HeaderReader, header: Header, storage: Storage, chunk: Chunk) -> Storage:
    """Values in a chunk DENSDATA, after checking that it holds all of them."""
    if header.is_index_value:
        raise reader.error(
            "a chunk 'DENSDATA'",
            "in a file whose flags say index-value storage",
            "one of the two",
            "the header is damaged",
            chunk.offset,
        )
    for each in storage.symmetries:
        if each.packed:
            raise reader.error(
                f"the symmetry {str(each)!r}",
                "packed in a file of sequential values",
                "index-value storage",
                "TENS 1.0 does not define how such values are ordered; write them as pairs",
                each.offset,
            )
    payload, size = header.total * storage.element_bytes, reader.source.size
    # The padding may be missing at the end of the file.
    if chunk.size != padded_size(payload) and not chunk.stop == size == chunk.body + payload:
        raise reader.error(
            "the size of chunk 'DENSDATA'",
            chunk.size,
            f"{padded_size(payload)} for a tensor of shape {header.lengths}",
            "the file is damaged, or its data are packed in a way that the format does not define",
            chunk.size_at,
        )
    if chunk.stop > size:
        raise reader.error(
            "the data",
            f"cut off by the end of the file at byte {size}",
            f"{chunk.size} bytes of chunk 'DENSDATA'",
            "the file is incomplete; fetch it again",
            chunk.offset,
        )
    return replace(storage, offset=chunk.body, chunks=(*storage.chunks, chunk))


def _pairs(reader: HeaderReader, header: Header, storage: Storage, end: int) -> Storage:
    count = reader.unsigned(end, COUNT_BYTES, "the number of pairs")
    room = (reader.source.size - end - COUNT_BYTES) // storage.pair_bytes
    if count > min(room, header.total):
        reason = f"{room} pairs that the file has room for"
        if header.total < room:
            reason = f"{header.total} elements of the tensor"
        raise reader.error(
            "the number of pairs",
            count,
            f"at most the {reason}",
            "the file is cut off or damaged",
            end,
        )
    return replace(storage, offset=end + COUNT_BYTES, pairs=count)


@dataclass(frozen=True)
class TensContainer(Container):
    """A container, and what its header says."""

    header: Header = field(kw_only=True)
    storage: Storage = field(kw_only=True)


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a TENS file."""
    source = reader.source
    header = Header.read(reader)
    storage = (_without_chunks if header.is_before_1_0 else _after_chunks)(reader, header)
    check_size(source.name, header.lengths, storage.element_bytes, offset=FIXED_BYTES)
    names = named_dims(options.dims, options.name, header.names)
    _check_reserved(options, names)
    if storage.pairs is None:
        options.check_all_stored(source.name)
        components = (storage.components,) if storage.components > 1 else ()
        shape = (*header.lengths[::-1], *components)
        in_file_order: Layout = Dense(shape, storage.element, storage.offset)
    elif options.sparse == "stored":
        return _stored(source.name, header, storage, options, names)
    else:
        in_file_order = _filled(reader, header, storage, options)
    layout = column_major(in_file_order, trailing=int(storage.components > 1))
    dims = (*names, COMPONENT) if storage.components > 1 else names
    attrs = _attrs(header, storage, names)
    encoding = _encoding(header, storage, _dims_with_embedded(storage, options, names))
    tensor = Tensor(options.name, dims, layout, attrs, encoding)
    return TensContainer(
        (tensor,),
        findings=storage.findings,
        embedded=storage.embedded,
        header=header,
        storage=storage,
    )


def _dims_with_embedded(
    storage: Storage, options: OpenOptions, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Names of the dimensions: those that the user wants, else the embedded ones, if any."""
    dims = embedded_tensor(storage.embedded).get("dims")
    if options.dims is not None or not isinstance(dims, list) or len(dims) != len(names):
        return names
    fits = all(isinstance(dim, str) for dim in dims) and len(set(dims)) == len(dims)
    return tuple(dims) if fits else names


def _check_reserved(options: OpenOptions, names: tuple[str, ...]) -> None:
    for reserved in (COMPONENT, ENTRY):
        if reserved in (options.name, *names):
            raise ValueError(
                f"{reserved!r} is a dimension that TENS files can have; choose another name"
            )


def _filled(reader: HeaderReader, header: Header, storage: Storage, options: OpenOptions) -> Layout:
    """The full tensor of a file of pairs."""
    if options.sparse == "auto" and header.total > MOST_FILLED_ELEMENTS:
        raise reader.error(
            f"the tensor of {storage.pairs} stored pairs",
            f"{header.total} elements",
            f"at most {MOST_FILLED_ELEMENTS}",
            "open it with sparse='stored', or with sparse='dense' if that many zeros are wanted",
            FIXED_BYTES,
        )
    return Pairs(
        header.lengths[::-1],
        storage.element,
        storage.components,
        storage.offset,
        storage.pairs or 0,
        group_of_packed(reader, header, storage.symmetries),
    )


def _stored(
    path: str, header: Header, storage: Storage, options: OpenOptions, names: tuple[str, ...]
) -> Container:
    """The pairs of a file, with a coordinate for the index along each dimension."""
    if storage.components > 1:
        raise ValueError(
            f"{path}: each element has {storage.components} numbers, and sparse='stored' is for "
            "pairs of one; leave it out to open all elements"
        )
    embedded = storage.embedded
    wanted = _dims_with_embedded(storage, options, names)
    taken = [ENTRY, COMPONENT, options.name, embedded_tensor(embedded).get("name")]
    if not any(each in taken for each in wanted):
        names = wanted
    count, offset = (storage.pairs or 0,), storage.offset
    layout = Dense(count, ValueOfPair(storage.element), offset)
    encoding = _encoding(header, storage, names)
    tensor = Tensor(options.name, (ENTRY,), layout, _attrs(header, storage, names), encoding)
    coordinates = []
    for axis, (label, length) in enumerate(zip(names, header.lengths, strict=True)):
        element = IndexAlong(storage.element, prod(header.lengths[:axis]), length, header.total)
        facts = {"tensorfmt": {"format": "tens", "axis": axis}}
        index = Dense(count, element, offset)
        coordinates.append(Tensor(label, (ENTRY,), index, encoding=facts))
    container = TensContainer(
        (tensor,),
        tuple(coordinates),
        findings=storage.findings,
        embedded=embedded_for_pairs(embedded, {*wanted, ENTRY}),
        header=header,
        storage=storage,
    )
    if embedded is None:
        return container
    # The dims that the user names are those of the tensor; the pairs have none of them.
    applied = with_embedded_metadata(path, container, replace(options, dims=None))
    return replace(applied, embedded=None)


def _attrs(header: Header, storage: Storage, names: tuple[str, ...]) -> dict[str, Any]:
    # Strings rather than lists, which netCDF 3 cannot hold and netCDF 4 does not keep.
    attrs: dict[str, Any] = {}
    if storage.symmetries:
        attrs["symmetries"] = joined(storage.symmetries)
    if storage.unknown_chunks:
        attrs["skipped_chunks"] = ", ".join(each.magic.decode() for each in storage.unknown_chunks)
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
    packed = [each for each in storage.symmetries if each.packed]
    if packed:
        facts["packed_symmetries"] = joined(packed)
    if storage.symmetries:
        facts["symmetries"] = joined(storage.symmetries)
    return {"tensorfmt": facts, "dtype": storage.element.encoding}
