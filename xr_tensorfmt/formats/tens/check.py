"""Check a TENS file: reserved bytes, padding, pairs and symmetries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import numpy as np

from xr_tensorfmt.core.chunk_grid import ceil_div
from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.findings import Finding, Gap, check_gaps, finding_from_error
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import check_readable
from xr_tensorfmt.core.views import get_stored_layout
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats._shared.symmetries import MAX_CHECKED_ELEMENTS, check_symmetry
from xr_tensorfmt.formats.tens.pairs import BLOCK, Pairs, is_repeated
from xr_tensorfmt.formats.tens.spec import (
    DIMENSION_BYTES,
    DIMENSION_FLAGS_OFFSET,
    FIXED_BYTES,
    SPARSE_FLAG,
    Offset,
    TensHeader,
)
from xr_tensorfmt.formats.tens.symmetries import SIGNS
from xr_tensorfmt.formats.tens.tens_file import TensFile

_PAIRS_AT_ONCE = 16 * BLOCK

MAX_COMPARED_PAIRS = 1 << 22
"""Limit on the pairs that one pass compares with each other. Larger files need several passes."""


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
    """Check a file after its header is read."""
    source = reader.source
    file: TensFile = container.parsed
    header, layout = file.header, container.tensors[0].layout
    yield from _check_dimensions(source, header)
    yield from _check_magics(source, file)
    yield from check_gaps(source, _find_gaps(file), limit)
    pairs = get_stored_layout(layout)
    if isinstance(pairs, Pairs):
        findings = list(islice(_check_pairs(source, pairs), limit))
        yield from findings
        if findings or not file.symmetries:
            return
        if header.size > MAX_CHECKED_ELEMENTS:
            message = (
                f"not checked, because the tensor has {header.size} elements, expected at most "
                f"{MAX_CHECKED_ELEMENTS}; compare a part with its image instead"
            )
            yield Finding(source.name, header.stop, "the symmetries", message, "warning")
            return
        if len(pairs.group) > 1:
            yield from islice(check_readable(source, pairs), limit)
    yield from _check_claims(source, file, layout)


def _check_pairs(source: Source, pairs: Pairs) -> Iterator[Finding]:
    """Find indices that are out of bounds or repeated."""
    with suppress(TensorFormatError):
        if pairs.get_block_index(source).ascending:
            return
    is_valid = True
    for first, column in pairs.iterate_columns(source, _PAIRS_AT_ONCE):
        wrong = is_repeated(column) | (column >= np.uint64(pairs.total))
        for position in np.flatnonzero(wrong).tolist():
            is_valid = False
            yield finding_from_error(pairs.build_index_error(source, first + position))
    if is_valid:
        yield from _check_distant_pairs(source, pairs)


def _check_distant_pairs(source: Source, pairs: Pairs) -> Iterator[Finding]:
    """Find repeated indices in the whole file. A pass compares the indices of one remainder."""
    passes = ceil_div(pairs.count, MAX_COMPARED_PAIRS)
    for remainder in range(passes):
        indices, positions = [], []
        for first, column in pairs.iterate_columns(source, _PAIRS_AT_ONCE):
            compared = np.flatnonzero(column % np.uint64(passes) == remainder)
            indices.append(column[compared])
            positions.append(first + compared)
        repeated = is_repeated(np.concatenate(indices))
        for pair in np.concatenate(positions)[repeated].tolist():
            yield finding_from_error(pairs.build_index_error(source, pair))


def _check_dimensions(source: Source, header: TensHeader) -> Iterator[Finding]:
    """Check reserved bits and bytes of the dimension headers. Version 0.9 leaves them undefined."""
    if header.is_before_1_0:
        return
    for axis, dimension in enumerate(header.dimensions):
        if dimension.flags & ~SPARSE_FLAG or dimension.reserved:
            actual = dimension.pack()[DIMENSION_FLAGS_OFFSET:].hex(" ")
            yield Finding(
                source.name,
                FIXED_BYTES + DIMENSION_BYTES * axis + DIMENSION_FLAGS_OFFSET,
                f"the flags and reserved bytes of dimension {axis}",
                f"{actual}, expected 00 or 01 and then zeros; the file is corrupt, or has a newer "
                "version",
            )


def _check_magics(source: Source, file: TensFile) -> Iterator[Finding]:
    """Report chunks that the format does not define. A defined magic number may be corrupt."""
    for chunk in file.unknown_chunks:
        yield Finding(
            source.name,
            chunk.offset,
            "the magic of a chunk",
            f"{chunk.magic.decode()!r}, which the format does not define, so that readers "
            "skip it; if it is corrupt, the content of the chunk is lost",
            "warning",
        )


def _find_gaps(file: TensFile) -> list[Gap]:
    gaps = [Gap(Offset.RESERVED, FIXED_BYTES, "the reserved word of the header")]
    stops = {chunk.offset: chunk.stop for chunk in file.chunks}
    for symmetry in file.symmetries:
        stop = stops[symmetry.offset]
        gaps.append(Gap(symmetry.stop, stop, "the padding of a chunk 'SYMMETRY'"))
    if file.pair_count is None:
        values_stop = file.offset + file.nbytes
        gaps.append(Gap(values_stop, file.stop, "the padding of the chunk 'DENSDATA'"))
    return gaps


def _check_claims(source: Source, file: TensFile, layout: Layout) -> Iterator[Finding]:
    """Check the symmetries that are not packed. The reader applies packed ones."""
    header, names = file.header, file.header.index_names
    if len(set(names)) != len(names):
        return  # the index maps are ambiguous
    for symmetry in file.symmetries:
        if not symmetry.packed and symmetry.code in SIGNS:
            operation = symmetry.build_operation(header)
            # The axis of components stays last.
            axes = (*operation.axes, *range(len(names), len(layout.shape)))
            change = np.negative if operation.sign < 0 else np.asarray
            yield from check_symmetry(source, layout, f"'{symmetry}'", axes, change)
