"""Read a TENS file: the header, the chunks, and where the values are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from xr_tensorfmt.core.chunk_grid import PAGE
from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.elements import Element
from xr_tensorfmt.core.embedded_metadata import MAX_EMBEDDED_BYTES
from xr_tensorfmt.core.findings import End
from xr_tensorfmt.core.header import HeaderReader, check_size
from xr_tensorfmt.core.layout import Dense, Layout, column_major
from xr_tensorfmt.core.open_options import OpenOptions, name_dims
from xr_tensorfmt.formats.tens import spec
from xr_tensorfmt.formats.tens.pairs import COUNT_BYTES, Pairs, Symmetry, build_group
from xr_tensorfmt.formats.tens.spec import Chunk, TensHeader

COMPONENT = "component"


@dataclass(frozen=True)
class TensFile:
    """Parsed header of a file, and the type and location of its values."""

    header: TensHeader
    element: Element
    components: int
    offset: int
    pairs: Pairs | None = None  # None if all values are stored
    chunks: tuple[Chunk, ...] = ()
    symmetries: tuple[Symmetry, ...] = ()
    embedded: bytes | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.header.size * self.element.stored.itemsize * self.components

    @property
    def stop(self) -> int:
        """Offset of the first byte after the values, and after the padding of their chunk."""
        if self.pairs is not None:
            return self.offset + self.pairs.count * self.pairs.stride
        return self.chunks[-1].stop if self.chunks else self.offset + self.nbytes

    @property
    def unknown_chunks(self) -> list[Chunk]:
        """Chunks that the format does not define."""
        return [chunk for chunk in self.chunks if chunk.magic not in spec.DEFINED_MAGICS]


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a TENS file."""
    options.refuse_stored(reader.source.name)
    header = TensHeader.read(reader)
    file = (_read_0_9 if header.is_before_1_0 else _read_1_0)(reader, header)
    header, element_bytes = file.header, file.element.stored.itemsize * file.components
    check_size(reader.source.name, header.lengths, element_bytes, offset=spec.FIXED_BYTES)
    names = name_dims(options.dims, options.name, header.dimension_names)
    if COMPONENT in (options.name, *names):
        raise ValueError(
            f"{COMPONENT!r} is reserved for a dimension of TENS files; choose another name"
        )
    has_components = file.components > 1
    layout = column_major(_build_layout(reader, file, options), trailing=int(has_components))
    dims = (*names, COMPONENT) if has_components else names
    encoding = {"tensorfmt": _build_file_info(file), "dtype": file.element.encoding}
    tensor = Tensor(options.name, dims, layout, encoding=encoding)
    end = End(reader.source, file.stop, "the data" if file.pairs is None else "the pairs")
    return Container((tensor,), ends=(end,), embedded=file.embedded, parsed=file)


def _build_layout(reader: HeaderReader, file: TensFile, options: OpenOptions) -> Layout:
    path, size, components = reader.source.name, file.header.size, file.components
    if file.pairs is not None:
        options.check_filled(path, "the tensor", size, file.pairs.count, spec.FIXED_BYTES)
        return file.pairs
    lengths = file.header.lengths[::-1]
    return Dense((*lengths, components) if components > 1 else lengths, file.element, file.offset)


def _build_file_info(file: TensFile) -> dict[str, Any]:
    """Return the entry ``encoding["tensorfmt"]``, without empty properties."""
    header = file.header
    properties = {
        "symmetries": ", ".join(map(str, file.symmetries)),
        "packed_symmetries": ", ".join(str(s) for s in file.symmetries if s.packed),
        "skipped_chunks": [chunk.magic.decode() for chunk in file.unknown_chunks],
    }
    return {
        "format": "tens",
        "version": "0.9" if header.is_before_1_0 else "1.0",
        "shape": header.lengths,
        "storage": "dense" if file.pairs is None else "pairs",
        "offset": file.offset,
        "order": "F",
        "byteorder": "big" if header.number_type in (b"UINT", b"SINT") else "little",
        "dtype": file.element.name,
        "index_names": header.index_names,
        **{name: value for name, value in properties.items() if value},
    }


def _read_0_9(reader: HeaderReader, header: TensHeader) -> TensFile:
    """Find values that follow the header directly, as in version 0.9."""
    number = header.number_type, header.bytes_per_number, header.numbers_per_element
    if number == (b"IEEE", 16, 2):
        # cc4s since 2018 and sisi4s write the size of a complex number as the bytes per number.
        header = replace(header, bytes_per_number=8)
    file = TensFile(header, *spec.build_element(header, reader), header.stop)
    if file.stop == reader.source.size:
        return file
    remaining = reader.source.size - header.stop
    fault = "has trailing bytes" if remaining > file.nbytes else "is truncated"
    raise reader.error(
        field=f"the data of a tensor of shape {header.lengths}",
        actual=f"{remaining} bytes",
        expected=f"{file.nbytes} bytes",
        hint=f"the file {fault}, or its header is corrupt",
        offset=header.stop,
    )


def _read_1_0(reader: HeaderReader, header: TensHeader) -> TensFile:
    """Read chunks and find the values after them, as in version 1.0."""
    chunks = tuple(spec.read_chunks(reader, header.stop))
    symmetries = [Symmetry.read(reader, header, c) for c in chunks if c.magic == spec.SYMMETRY]
    embedded = None
    for chunk in chunks:
        if chunk.magic == spec.EMBEDDED:  # JSON and padding; text beyond the limit is cut off
            stop = min(chunk.stop, chunk.content_offset + MAX_EMBEDDED_BYTES + PAGE)
            embedded = reader.read_bytes(chunk.content_offset, stop).rstrip(b"\0")
    file = TensFile(
        header,
        *spec.build_element(header, reader),
        offset=chunks[-1].stop if chunks else header.stop,
        chunks=chunks,
        symmetries=tuple(symmetries),
        embedded=embedded,
    )
    if chunks and chunks[-1].magic == spec.DENSE_DATA:
        return _read_dense(reader, file)
    if header.is_index_value:
        return _read_pairs(reader, file)
    actual = f"missing ({reader.source.size - file.offset} bytes remain)"
    hint = "the file is truncated or corrupt"
    raise reader.error("the data", actual, "a chunk 'DENSDATA'", hint, file.offset)


def _read_dense(reader: HeaderReader, file: TensFile) -> TensFile:
    """Find the values in the last chunk, DENSDATA, and check its size."""
    chunk, size = file.chunks[-1], reader.source.size
    if file.header.is_index_value:
        actual, hint = "in a file whose flags say index-value storage", "the header is corrupt"
        raise reader.error("a chunk 'DENSDATA'", actual, "one of the two", hint, chunk.offset)
    for symmetry in file.symmetries:
        if symmetry.packed:
            raise reader.error(
                field=f"the symmetry {str(symmetry)!r}",
                actual="packed in a file of sequential values",
                expected="index-value storage",
                hint="TENS 1.0 does not define the order of such values; write them as pairs",
                offset=symmetry.offset,
            )
    needed = spec.compute_chunk_size(file.nbytes)
    is_unpadded = chunk.stop == size == chunk.content_offset + file.nbytes
    if chunk.size != needed and not is_unpadded:
        raise reader.error(
            field="the size of chunk 'DENSDATA'",
            actual=chunk.size,
            expected=f"{needed} for a tensor of shape {file.header.lengths}",
            hint="the file is corrupt, or its data are packed in an undefined way",
            offset=chunk.offset + 8,
        )
    if chunk.stop > size:
        actual = f"truncated by the end of the file at byte {size}"
        expected, hint = f"{chunk.size} bytes of chunk 'DENSDATA'", "the file is truncated"
        raise reader.error("the data", actual, expected, hint, chunk.offset)
    return replace(file, offset=chunk.content_offset)


def _read_pairs(reader: HeaderReader, file: TensFile) -> TensFile:
    """Read the number of pairs, which precedes the pairs."""
    field, total = "the number of pairs", file.header.size
    count = reader.read_unsigned(file.offset, COUNT_BYTES, field)
    offset = file.offset + COUNT_BYTES
    group = build_group(reader, file.header, file.symmetries)
    lengths = file.header.lengths[::-1]
    pairs = Pairs(lengths, file.element, file.components, offset, count, group)
    room = (reader.source.size - offset) // pairs.stride
    if count > min(room, total):
        limit = f"{room} pairs that fit in the file"
        if room > total:
            limit = f"{total} elements of the tensor"
        hint = "the file is truncated or corrupt"
        raise reader.error(field, count, f"at most the {limit}", hint, file.offset)
    return replace(file, offset=offset, pairs=pairs)
