"""Types of tensors as strings, such as ``tensor<float>(user{},x[3])``."""

from __future__ import annotations

import re

from xr_tensorfmt.contract import MAX_DIMENSIONS, is_addressable, shorten
from xr_tensorfmt.formats.vespa.spec import CELL_TYPES, VespaHeader

_TYPE = re.compile(r"tensor(?:<(\w+)>)?\((.*)\)")
_DIMENSION = re.compile(r"([A-Za-z_]\w*)(?:\{\}|\[(\d{1,18})\])", re.ASCII)
_SCALARS = {"double": "tensor()"}


def parse_type(string: str) -> VespaHeader:
    """Parse a type; the header has no blocks. Raise ValueError if a size is missing."""
    bare = re.sub(r"\s", "", string)
    match = _TYPE.fullmatch(_SCALARS.get(bare, bare))
    parts = match[2].split(",") if match and match[2] else []
    sizes = {dim[1]: dim[2] for part in parts if (dim := _DIMENSION.fullmatch(part))}
    cell_type = (match and match[1]) or "double"
    if not match or len(sizes) < len(parts) or cell_type not in CELL_TYPES:
        raise ValueError(
            f"{shorten(repr(string))} is not the type of a tensor, expected a type such as "
            "'tensor<float>(user{},x[3])'; state the size of all indexed dimensions"
        )
    mapped = tuple(name for name in sorted(sizes) if sizes[name] is None)
    indexed = tuple(name for name in sorted(sizes) if sizes[name] is not None)
    lengths = tuple(int(sizes[name]) for name in indexed)
    if len(sizes) > MAX_DIMENSIONS or 0 in lengths or not is_addressable(lengths, 8):
        raise ValueError(
            f"{shorten(repr(string))} has a size of 0, more than {MAX_DIMENSIONS} "
            "dimensions, or more cells than can be addressed"
        )
    return VespaHeader.create(cell_type, mapped, indexed, lengths, 0)


def format_type(header: VespaHeader) -> str:
    """Format a type as in JSON, which writes ``tensor()`` for a scalar."""
    return _SCALARS.get(header.type, header.type)
