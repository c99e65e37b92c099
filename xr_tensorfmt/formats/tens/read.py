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
from xr_tensorfmt.formats.tens.stored_pairs import ENTRY
from xr_tensorfmt.formats.tens.symmetries import build_packed_group, format_symmetries

COMPONENT = "component"


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a TENS file."""
    path = reader.source.name
    storage = read_storage(reader)
    header = storage.header
    check_size(path, header.lengths, storage.element_bytes, offset=FIXED_BYTES)
    names = name_dims(options.dims, options.name, header.dimension_names)
    for reserved in (COMPONENT, ENTRY):
        if reserved in (options.name, *names):
            raise ValueError(
                f"{reserved!r} is reserved for a dimension of TENS files; choose another name"
            )
    if storage.pairs is None:
        options.check_all_stored(path)
    elif options.sparse == "stored" and storage.components > 1:
        raise ValueError(
            f"{path}: elements of {storage.components} numbers cannot be opened with "
            "sparse='stored', expected one number; omit sparse= to open all elements"
        )
    has_components = storage.components > 1
    layout = column_major(_build_layout(reader, storage, options), trailing=int(has_components))
    dims = (*names, COMPONENT) if has_components else names
    encoding = {"tensorfmt": _build_file_info(storage), "dtype": storage.element.encoding}
    tensor = Tensor(options.name, dims, layout, _build_attrs(storage, names), encoding)
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
            f"the tensor of {storage.pairs} stored pairs",
            f"{header.size} elements",
            f"at most {MAX_FILLED_ELEMENTS}",
            "open it with sparse='stored', or with sparse='dense' to fill in the zeros",
            FIXED_BYTES,
        )
    is_stored = options.sparse == "stored"
    group = () if is_stored else build_packed_group(reader, header, storage.symmetries)
    return Pairs(lengths, storage.element, components, storage.offset, storage.pairs, group)


def _build_attrs(storage: Storage, names: tuple[str, ...]) -> dict[str, Any]:
    # netCDF does not preserve lists of strings, so the attributes are strings.
    attrs: dict[str, Any] = {}
    if storage.symmetries:
        attrs["symmetries"] = format_symmetries(storage.symmetries)
    if storage.unknown_chunks:
        attrs["skipped_chunks"] = ", ".join(
            chunk.magic.decode() for chunk in storage.unknown_chunks
        )
    sparse_dims = [
        name
        for name, dimension in zip(names, storage.header.dimensions, strict=True)
        if dimension.is_sparse and not storage.header.is_before_1_0
    ]
    if sparse_dims:
        attrs["sparse_dims"] = ", ".join(sparse_dims)
    return attrs


def _build_file_info(storage: Storage) -> dict[str, Any]:
    header = storage.header
    file_info = {
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
    packed = [symmetry for symmetry in storage.symmetries if symmetry.packed]
    if packed:
        file_info["packed_symmetries"] = format_symmetries(packed)
    if storage.symmetries:
        file_info["symmetries"] = format_symmetries(storage.symmetries)
    return file_info
