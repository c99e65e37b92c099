"""Build typed binary tensors from the specification, independently of the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

CELL_TYPES = {"double": ">f8", "float": ">f4", "bfloat16": ">u2", "int8": "i1"}


def pack_integer(value: int, *, long: bool = False) -> bytes:
    """Return a byte below 128, otherwise four bytes with the first bit set."""
    if value < 128 and not long:
        return bytes([value])
    return (value | 1 << 31).to_bytes(4, "big")


def pack_string(value: str | bytes, *, long: bool = False) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return pack_integer(len(raw), long=long) + raw


def pack_header(
    cells: str | None = None,
    mapped: Sequence[str] | None = None,
    indexed: Mapping[str, int] | Sequence[tuple[str, int]] | None = None,
    blocks: int | None = None,
    *,
    tag: int | None = None,
) -> bytes:
    """Return a header of the given parts, in the order of the format."""
    sized = list(indexed.items()) if isinstance(indexed, Mapping) else indexed
    if tag is None:
        tag = (mapped is not None) | (indexed is not None) << 1 | (cells is not None) << 2
    content = pack_integer(tag)
    if cells is not None:
        content += pack_integer(list(CELL_TYPES).index(cells))
    if mapped is not None:
        content += pack_integer(len(mapped)) + b"".join(map(pack_string, mapped))
    if sized is not None:
        content += pack_integer(len(sized)) + b"".join(
            pack_string(n) + pack_integer(m) for n, m in sized
        )
    return content + (b"" if blocks is None else pack_integer(blocks))


def pack_cells(values: np.ndarray, cells: str) -> bytes:
    """Return big-endian cells; for bfloat16, the upper halves of float32."""
    if cells == "bfloat16":
        return (np.array(values, ">f4", ndmin=1).view(">u4") >> 16).astype(">u2").tobytes()
    return np.asarray(values).astype(CELL_TYPES[cells]).tobytes()


def make_tensor(
    cells: str,
    mapped: Sequence[str],
    indexed: Mapping[str, int],
    addresses: Sequence[Sequence[str | bytes]],
    values: np.ndarray,
    *,
    long: bool = False,
) -> bytes:
    """Return a tensor in the mixed form, with any cell type."""
    blocks = len(addresses) if mapped else None
    content = pack_header(cells, mapped, indexed, blocks)
    for address, block in zip(addresses if mapped else [()], values, strict=True):
        content += b"".join(pack_string(label, long=long) for label in address) + pack_cells(
            block, cells
        )
    return content


def make_values(cells: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return numbers that the cell type represents exactly."""
    numbers = np.random.default_rng(seed).integers(-128, 128, shape)
    return numbers.astype("i1" if cells == "int8" else "f8" if cells == "double" else "f4")


@st.composite
def tensors(draw):
    """Content, cell type, mapped and indexed dimensions, addresses and values of a tensor."""
    cells = draw(st.sampled_from(list(CELL_TYPES)))
    names = draw(st.lists(st.text("abcxyz_", min_size=1, max_size=3), max_size=6, unique=True))
    split = draw(st.integers(max(0, len(names) - 3), min(3, len(names))))
    mapped = sorted(names[:split])
    indexed = {name: draw(st.integers(1, 4)) for name in sorted(names[split:])}
    label = st.one_of(st.text(max_size=5), st.text("ab", min_size=126, max_size=130))
    address = st.tuples(*(label for _ in mapped))
    addresses = draw(st.lists(address, max_size=6, unique=True)) if mapped else [()]
    shape = (len(addresses), *indexed.values())
    values = make_values(cells, shape, draw(st.integers(0, 9)))
    content = make_tensor(cells, mapped, indexed, addresses, values, long=draw(st.booleans()))
    return content, cells, mapped, indexed, addresses, values
