"""What can be wrong with a TENS file beside what its reader refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from xr_tensorfmt.elements import Array
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.tens.header import DIMENSION_BYTES, FIXED_BYTES, Header, read_header
from xr_tensorfmt.formats.tens.notechunk import NOTE
from xr_tensorfmt.formats.tens.storage import Storage, find_storage
from xr_tensorfmt.formats.tens.symmetry import Symmetry as StoredSymmetry
from xr_tensorfmt.formats.tens.variable_chunks import DENSE_DATA, SYMMETRY, variable_chunks
from xr_tensorfmt.layouts import Layout, Pairs
from xr_tensorfmt.layouts.pairtable import BLOCK
from xr_tensorfmt.sources import Source
from xr_tensorfmt.tensor import Container
from xr_tensorfmt.validation.claims import Symmetry, check_symmetry
from xr_tensorfmt.validation.finding import Finding
from xr_tensorfmt.validation.gaps import Gap, check_gaps, trailing
from xr_tensorfmt.validation.pairs import check_pairs

_RESERVED = slice(28, FIXED_BYTES)
_FLAGS_AT, _RESERVED_AT = 5, 6
_SYMMETRY_FIELDS = 2
_CHANGES: dict[str, Callable[[Array], Array]] = {"x": np.asarray, "-x": np.negative}


def check_tens(source: Source, container: Container) -> Iterator[Finding]:
    """Check a file whose header can be read.

    Parameters
    ----------
    source : Source
        The file.
    container : Container
        What its reader makes of it, all elements filled in.

    Yields
    ------
    Finding
    """
    reader = HeaderReader(source)
    header = read_header(reader)
    storage = find_storage(reader, header)
    yield from _check_reserved(reader, header)
    gaps = [Gap(_RESERVED.start, _RESERVED.stop, "the reserved word of the header")]
    stop = storage.offset + header.total * storage.element_bytes
    if storage.pairs is not None:
        stop = storage.offset + storage.pairs * storage.pair_bytes
    if not header.is_before_1_0 or storage.offset > header.stop:
        more, stop = _chunk_gaps(reader, header, stop)
        gaps += more
        yield from _check_magics(reader, header)
    yield from check_gaps(source, gaps)
    yield from trailing(source, stop, "the pairs" if storage.pairs is not None else "the data")
    layout = container.tensors[0].layout
    inner = getattr(layout, "inner", layout)
    found = list(check_pairs(source, inner)) if isinstance(inner, Pairs) else []
    yield from found
    if not any(each.severity == "error" for each in found):
        yield from _check_claims(source, header, storage, layout)


def _check_reserved(reader: HeaderReader, header: Header) -> Iterator[Finding]:
    """Bits and bytes of the dimension headers; those of version 0.9 are uninitialised memory."""
    if header.is_before_1_0:
        return
    for number in range(len(header.dimensions)):
        start = FIXED_BYTES + DIMENSION_BYTES * number
        raw = reader.bytes_at(start, DIMENSION_BYTES, "a dimension header")
        if raw[_FLAGS_AT] > 1 or any(raw[_RESERVED_AT:]):
            yield Finding(
                reader.source.name,
                start + _FLAGS_AT,
                f"the flags and reserved bytes of dimension {number}",
                f"{raw[_FLAGS_AT:].hex(' ')}, expected 00 or 01 and then zeros; the file is "
                "damaged, or of a newer version",
            )


def _check_magics(reader: HeaderReader, header: Header) -> Iterator[Finding]:
    """Chunks that readers skip; a bit of the magic may be all that is wrong with one."""
    for chunk in variable_chunks(reader, header.stop):
        if chunk.magic not in (SYMMETRY, NOTE, DENSE_DATA):
            yield Finding(
                reader.source.name,
                chunk.offset,
                "the magic of a chunk",
                f"{chunk.magic.decode()!r}, which the format does not define, so that readers "
                "skip it; if it is damaged, what the chunk says of the values is not used",
                "warning",
            )


def _chunk_gaps(reader: HeaderReader, header: Header, stop: int) -> tuple[list[Gap], int]:
    """The padding of the chunks that the format defines, and where the last one ends."""
    gaps = []
    for chunk in variable_chunks(reader, header.stop):
        if chunk.magic == SYMMETRY:
            code = reader.bytes_at(chunk.body, _SYMMETRY_FIELDS, "a symmetry")[1]
            end = chunk.body + _SYMMETRY_FIELDS + code + len(header.dimensions)
            gaps.append(Gap(end, chunk.stop, "the padding of a chunk 'SYMMETRY'"))
        elif chunk.magic == DENSE_DATA:
            gaps.append(Gap(stop, chunk.stop, "the padding of the chunk 'DENSDATA'"))
            stop = chunk.stop
    return gaps, stop


def _check_claims(
    source: Source, header: Header, storage: Storage, layout: Layout
) -> Iterator[Finding]:
    names = [chr(each.index) for each in header.dimensions]
    if len(set(names)) != len(names):
        return  # what the maps mean is not defined then
    for each in storage.symmetries:
        # Packed ones are what the tensor is filled in by.
        if not each.packed and each.code in _CHANGES:
            claim = _claim(each, names, len(layout.shape))
            if storage.pairs is None:
                yield from check_symmetry(source, layout, claim)
            else:
                yield from _check_of_pairs(source, layout, claim, header)


def _claim(symmetry: StoredSymmetry, names: Sequence[str], rank: int) -> Symmetry:
    axes = [names.index(name) for name in symmetry.index_map]
    # An axis of components keeps its place.
    axes += range(len(names), rank)
    return Symmetry(f"'{symmetry}'", tuple(axes), _CHANGES[symmetry.code])


def _check_of_pairs(
    source: Source, layout: Layout, claim: Symmetry, header: Header
) -> Iterator[Finding]:
    """Compare what is stored with what is stored of its image; all else is zero on both sides."""
    if any(header.lengths[a] != n for a, n in zip(claim.axes, header.lengths, strict=False)):
        yield from check_symmetry(source, layout, claim)
        return
    inner = getattr(layout, "inner", layout)
    assert isinstance(inner, Pairs)
    for first in range(0, inner.count, BLOCK):
        pairs = inner.table.read(source, first, min(first + BLOCK, inner.count))
        flat = pairs["index"].astype(np.int64)
        points = np.unravel_index(flat, header.lengths, order="F")
        wrong = np.zeros(flat.size, dtype=np.bool_)
        for component in range(inner.components):
            extra = (np.full(flat.size, component),) if inner.components > 1 else ()
            here = layout.read_points(source, (*points, *extra))
            moved = tuple([*points, *extra][axis] for axis in claim.axes)
            there: Array = claim.change(layout.read_points(source, moved))
            wrong |= (here != there) & ~((here != here) & (there != there))
        if wrong.any():
            number = first + int(np.argmax(wrong))
            yield Finding(
                source.name,
                inner.offset + number * inner.table.stride,
                f"the claim {claim.name}",
                f"it does not hold for pair {number}; programs that rely on it compute wrong "
                "results: write the file without it",
            )
            return
