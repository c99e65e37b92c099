"""Checks of a TENS file: reserved bytes, padding, pairs, and symmetries that do not hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import cast

import numpy as np

from xr_tensorfmt.contract import (
    Container,
    Finding,
    Gap,
    HeaderReader,
    Layout,
    Selection,
    Source,
    TensorFormatError,
    check_gaps,
    finding_from_error,
    iterate_chunks,
    report_errors,
)
from xr_tensorfmt.formats._shared.symmetries import Symmetry as Claim
from xr_tensorfmt.formats._shared.symmetries import check_symmetry
from xr_tensorfmt.formats.tens.chunks import HEADER_BYTES
from xr_tensorfmt.formats.tens.pairs import BLOCK, Pairs, repeats
from xr_tensorfmt.formats.tens.read import Storage
from xr_tensorfmt.formats.tens.spec import (
    DIMENSION_BYTES,
    DIMENSION_FLAGS_AT,
    FIXED_BYTES,
    SPARSE_FLAG,
    Header,
    Offset,
)
from xr_tensorfmt.formats.tens.symmetries import SIGNS

_PAIRS_AT_ONCE = 16 * BLOCK

MAX_COMPARED = 1 << 22
"""Pairs that are compared with each other in one pass; of more, each pass takes a share."""

MAX_FILLED = 1 << 28
"""Elements of a tensor of pairs up to which its symmetries are checked; all are filled in."""


def check(reader: HeaderReader, container: Container, most: int) -> Iterator[Finding]:
    """Check a file whose header can be read."""
    source = reader.source
    storage: Storage = container.parsed
    header, layout = storage.header, container.tensors[0].layout
    yield from _check_dimensions(source, header)
    yield from _check_magics(source, storage)
    yield from check_gaps(source, _gaps(storage), most)
    if storage.pairs is not None:
        pairs = cast("Pairs", getattr(layout, "inner", layout))
        found = list(islice(_check_pairs(source, pairs), most))
        yield from found
        if found or not storage.symmetries:
            return
        if header.total > MAX_FILLED:
            message = (
                f"not checked, as the tensor has {header.total} elements, and expected at most "
                f"{MAX_FILLED}; open the file with sparse='stored' to look at the pairs"
            )
            yield Finding(source.name, header.stop, "the symmetries", message, "warning")
            return
        if len(pairs.group) > 1:
            yield from islice(_check_packed(source, pairs), most)
    yield from _check_claims(source, storage, layout)


def _check_pairs(source: Source, pairs: Pairs) -> Iterator[Finding]:
    """Look for indices out of range or twice, first near each other; then far from each other."""
    with suppress(TensorFormatError):
        if pairs.index(source).ascending:
            return
    is_right = True
    for first, index in pairs.batches(source, _PAIRS_AT_ONCE):
        for at in np.flatnonzero(repeats(index) | (index >= np.uint64(pairs.total))).tolist():
            is_right = False
            yield finding_from_error(pairs.wrong_index(source, first + at))
    shares = -(-pairs.count // MAX_COMPARED) if is_right else 0
    for share in range(shares):  # each has all pairs of an index
        indices, numbers = [], []
        for first, index in pairs.batches(source, _PAIRS_AT_ONCE):
            chosen = np.flatnonzero(index % np.uint64(shares) == share)
            indices.append(index[chosen])
            numbers.append(first + chosen)
        number = np.concatenate(numbers)
        for wrong in number[repeats(np.concatenate(indices))].tolist():
            yield finding_from_error(pairs.wrong_index(source, wrong))


def _check_packed(source: Source, pairs: Pairs) -> Iterator[Finding]:
    """Fill in all chunks; the first contradiction of each is a finding."""

    def fill(selection: Selection) -> tuple[()]:
        pairs.read(source, selection)
        return ()

    for selection in iterate_chunks(pairs):
        yield from report_errors(partial(fill, selection))


def _check_dimensions(source: Source, header: Header) -> Iterator[Finding]:
    """Bits and bytes of the dimension headers; those of version 0.9 are uninitialised memory."""
    if header.is_before_1_0:
        return
    for number, dimension in enumerate(header.dimensions):
        if dimension.flags & ~SPARSE_FLAG or dimension.reserved:
            found = dimension.pack()[DIMENSION_FLAGS_AT:].hex(" ")
            yield Finding(
                source.name,
                FIXED_BYTES + DIMENSION_BYTES * number + DIMENSION_FLAGS_AT,
                f"the flags and reserved bytes of dimension {number}",
                f"{found}, expected 00 or 01 and then zeros; the file is damaged, or of a newer "
                "version",
            )


def _check_magics(source: Source, storage: Storage) -> Iterator[Finding]:
    """Chunks that readers skip; a bit of the magic may be all that is wrong with one."""
    for chunk in storage.unknown_chunks:
        yield Finding(
            source.name,
            chunk.offset,
            "the magic of a chunk",
            f"{chunk.magic.decode()!r}, which the format does not define, so that readers "
            "skip it; if it is damaged, what the chunk says of the values is not used",
            "warning",
        )


def _gaps(storage: Storage) -> list[Gap]:
    """Return the bytes that must be zero."""
    gaps = [Gap(Offset.RESERVED, FIXED_BYTES, "the reserved word of the header")]
    stops = {each.offset: each.stop for each in storage.chunks}
    for each in storage.symmetries:
        end = each.offset + HEADER_BYTES + len(each.pack())
        gaps.append(Gap(end, stops[each.offset], "the padding of a chunk 'SYMMETRY'"))
    if storage.pairs is None and storage.is_in_chunk:
        values_stop = storage.offset + storage.nbytes
        gaps.append(Gap(values_stop, storage.stop, "the padding of the chunk 'DENSDATA'"))
    return gaps


def _check_claims(source: Source, storage: Storage, layout: Layout) -> Iterator[Finding]:
    header, names = storage.header, storage.header.index_names
    if len(set(names)) != len(names):
        return  # what the maps mean is not defined then
    for each in storage.symmetries:
        # Packed ones are what the tensor is filled in by.
        if not each.packed and each.code in SIGNS:
            operation = each.operation(header)
            # An axis of components keeps its place.
            axes = (*operation.axes, *range(len(names), len(layout.shape)))
            change = np.negative if operation.sign < 0 else np.asarray
            yield from check_symmetry(source, layout, Claim(f"'{each}'", axes, change))
