"""Read the header of a TENS file."""

from __future__ import annotations

from typing import Any

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.findings import End
from xr_tensorfmt.core.header import MAX_FILLED_ELEMENTS, HeaderReader, check_size
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.open_options import OpenOptions, name_dims
from xr_tensorfmt.core.views import column_major
from xr_tensorfmt.errors import Hint
from xr_tensorfmt.formats.tens.pairs import Pairs
from xr_tensorfmt.formats.tens.spec import FIXED_BYTES
from xr_tensorfmt.formats.tens.symmetries import build_packed_group
from xr_tensorfmt.formats.tens.tens_file import TensFile, read_file

COMPONENT = "component"


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a TENS file."""
    path = reader.source.name
    options.refuse_stored(path)
    file = read_file(reader)
    header = file.header
    check_size(path, header.lengths, file.element_bytes, offset=FIXED_BYTES)
    names = name_dims(options.dims, options.name, header.dimension_names)
    if COMPONENT in (options.name, *names):
        raise ValueError(
            f"{COMPONENT!r} is reserved for a dimension of TENS files; choose another name"
        )
    has_components = file.components > 1
    layout = column_major(_build_layout(reader, file, options), trailing=int(has_components))
    dims = (*names, COMPONENT) if has_components else names
    encoding = {"tensorfmt": _build_file_info(file, names), "dtype": file.element.encoding}
    tensor = Tensor(options.name, dims, layout, encoding=encoding)
    end = End(reader.source, file.stop, "the data" if file.pair_count is None else "the pairs")
    return Container(
        (tensor,),
        ends=(end,),
        embedded=file.embedded,
        parsed=file,
    )


def _build_layout(reader: HeaderReader, file: TensFile, options: OpenOptions) -> Layout:
    """Build the layout of all elements, with axes in the order of the file."""
    header, components = file.header, file.components
    lengths = header.lengths[::-1]
    if file.pair_count is None:
        shape = (*lengths, components) if components > 1 else lengths
        return Dense(shape, file.element, file.offset)
    if options.sparse == "auto" and header.size > MAX_FILLED_ELEMENTS:
        raise reader.error(
            field=f"the tensor of {file.pair_count} stored pairs",
            actual=f"{header.size} elements",
            expected=f"at most {MAX_FILLED_ELEMENTS}",
            hint=Hint("open it with {sparse} to fill in the zeros", sparse="dense"),
            offset=FIXED_BYTES,
        )
    group = build_packed_group(reader, header, file.symmetries)
    return Pairs(lengths, file.element, components, file.offset, file.pair_count, group)


def _build_file_info(file: TensFile, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the entry ``encoding["tensorfmt"]``, without empty properties."""
    header = file.header
    sparse_dims = [
        name
        for name, dimension in zip(names, header.dimensions, strict=True)
        if dimension.is_sparse and not header.is_before_1_0
    ]
    properties = {
        "symmetries": ", ".join(map(str, file.symmetries)),
        "packed_symmetries": ", ".join(str(s) for s in file.symmetries if s.packed),
        "skipped_chunks": [chunk.magic.decode() for chunk in file.unknown_chunks],
        "sparse_dims": sparse_dims,
    }
    return {
        "format": "tens",
        "version": "0.9" if header.is_before_1_0 else "1.0",
        "shape": header.lengths,
        "storage": "dense" if file.pair_count is None else "pairs",
        "offset": file.offset,
        "order": "F",
        "byteorder": "big" if header.is_big_endian else "little",
        "dtype": file.element.name,
        "index_names": header.index_names,
        **{name: value for name, value in properties.items() if value},
    }
