"""Read the header of a TENS file."""

from __future__ import annotations

from typing import Any

from xr_tensorfmt.contract import (
    MAX_FILLED_ELEMENTS,
    Container,
    Dense,
    End,
    HeaderReader,
    Layout,
    OpenOptions,
    Tensor,
    check_size,
    column_major,
    name_dims,
)
from xr_tensorfmt.formats.tens.pairs import Pairs
from xr_tensorfmt.formats.tens.spec import FIXED_BYTES
from xr_tensorfmt.formats.tens.storage import Storage, read_storage
from xr_tensorfmt.formats.tens.symmetries import build_packed_group, format_symmetries

COMPONENT = "component"


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a TENS file."""
    path = reader.source.name
    options.refuse_stored(path)
    storage = read_storage(reader)
    header = storage.header
    check_size(path, header.lengths, storage.element_bytes, offset=FIXED_BYTES)
    names = name_dims(options.dims, options.name, header.dimension_names)
    if COMPONENT in (options.name, *names):
        raise ValueError(
            f"{COMPONENT!r} is reserved for a dimension of TENS files; choose another name"
        )
    has_components = storage.components > 1
    layout = column_major(_build_layout(reader, storage, options), trailing=int(has_components))
    dims = (*names, COMPONENT) if has_components else names
    encoding = {"tensorfmt": _build_file_info(storage, names), "dtype": storage.element.encoding}
    tensor = Tensor(options.name, dims, layout, encoding=encoding)
    end = End(reader.source, storage.stop, "the data" if storage.pairs is None else "the pairs")
    return Container(
        (tensor,),
        findings=storage.findings,
        ends=(end,),
        embedded=storage.embedded,
        parsed=storage,
    )


def _build_layout(reader: HeaderReader, storage: Storage, options: OpenOptions) -> Layout:
    """Build the layout of all elements, with axes in the order of the file."""
    header, components = storage.header, storage.components
    lengths = header.lengths[::-1]
    if storage.pairs is None:
        shape = (*lengths, components) if components > 1 else lengths
        return Dense(shape, storage.element, storage.offset)
    if options.sparse == "auto" and header.size > MAX_FILLED_ELEMENTS:
        raise reader.error(
            field=f"the tensor of {storage.pairs} stored pairs",
            actual=f"{header.size} elements",
            expected=f"at most {MAX_FILLED_ELEMENTS}",
            hint="open it with sparse='dense' to fill in the zeros",
            offset=FIXED_BYTES,
        )
    group = build_packed_group(reader, header, storage.symmetries)
    return Pairs(lengths, storage.element, components, storage.offset, storage.pairs, group)


def _build_file_info(storage: Storage, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the entry ``encoding["tensorfmt"]``, without empty properties."""
    header = storage.header
    packed = [symmetry for symmetry in storage.symmetries if symmetry.packed]
    sparse_dims = [
        name
        for name, dimension in zip(names, header.dimensions, strict=True)
        if dimension.is_sparse and not header.is_before_1_0
    ]
    properties = {
        "symmetries": format_symmetries(storage.symmetries),
        "packed_symmetries": format_symmetries(packed),
        "skipped_chunks": [chunk.magic.decode() for chunk in storage.unknown_chunks],
        "sparse_dims": sparse_dims,
    }
    return {
        "format": "tens",
        "version": "0.9" if header.is_before_1_0 else "1.0",
        "shape": header.lengths,
        "storage": "dense" if storage.pairs is None else "pairs",
        "offset": storage.offset,
        "order": "F",
        "byteorder": "big" if header.is_big_endian else "little",
        "dtype": storage.element.name,
        "index_names": header.index_names,
        **{name: value for name, value in properties.items() if value},
    }
