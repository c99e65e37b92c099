"""Checks of a TENS file: reserved bytes, padding, pairs, and symmetries that do not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

import numpy as np

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.findings import Finding, Gap, check_gaps, trailing
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import MOST_OF_ONE, check_symmetry, check_values, nearly_equal
from xr_tensorfmt.core.value_checks import Symmetry as Claim
from xr_tensorfmt.formats.tens.chunks import DENSE_DATA, HEADER_BYTES
from xr_tensorfmt.formats.tens.pairs import BLOCK, INDEX_BYTES, Pairs, Records, equal_rows
from xr_tensorfmt.formats.tens.read import Storage, find_storage
from xr_tensorfmt.formats.tens.spec import (
    DIMENSION_BYTES,
    DIMENSION_FLAGS_AT,
    FIXED_BYTES,
    SPARSE_FLAG,
    Header,
    Offset,
)
from xr_tensorfmt.formats.tens.symmetries import SIGNS, Symmetry

_PAIRS_AT_ONCE = 16 * BLOCK

MOST_COMPARED = 1 << 22
"""Pairs that are compared with each other in one pass; of more, each pass takes a share."""


def check_pairs(source: Source, pairs: Pairs) -> Iterator[Finding]:
    """Check all pairs."""
    column = Records(
        pairs.count, pairs.components, pairs.element, pairs.offset + INDEX_BYTES, pairs.table.stride
    )
    undecodable = list(check_values(source, [Tensor("values of pairs", (), column)]))
    yield from undecodable
    yield from islice(_out_of_range(source, pairs), MOST_OF_ONE)
    if not undecodable and not (len(pairs.group) == 1 and _ascend(source, pairs)):
        shares = -(-pairs.count // MOST_COMPARED)
        found = (_compared(source, pairs, share, shares) for share in range(shares))
        yield from islice(chain.from_iterable(found), MOST_OF_ONE)


def _batches(source: Source, pairs: Pairs) -> Iterator[tuple[int, Array]]:
    """Pairs in the order of the file, with the number of the first."""
    for first in range(0, pairs.count, _PAIRS_AT_ONCE):
        yield first, pairs.table.read(source, first, min(first + _PAIRS_AT_ONCE, pairs.count))


def _out_of_range(source: Source, pairs: Pairs) -> Iterator[Finding]:
    total = pairs.table.total
    for first, batch in _batches(source, pairs):
        for number in np.flatnonzero(batch["index"] >= np.uint64(total)).tolist():
            index = int(batch["index"][number])
            message = f"{index}, expected a global index below {total}; the file is damaged"
            yield _about(source, pairs, first + number, "the index of", message)


def _ascend(source: Source, pairs: Pairs) -> bool:
    last = -1
    for _, batch in _batches(source, pairs):
        index = batch["index"]
        if int(index[0]) <= last or not (index[1:] > index[:-1]).all():
            return False
        last = int(index[-1])
    return True


def _compared(source: Source, pairs: Pairs, share: int, shares: int) -> Iterator[Finding]:
    """Compare the pairs of one share, which holds all pairs that are related to each other."""
    stored, numbers, values, first_of = [], [], [], []
    for first, batch in _batches(source, pairs):
        within = np.flatnonzero(batch["index"] < np.uint64(pairs.table.total))
        index = batch["index"][within].astype(np.int64)
        smallest, signs = _smallest(pairs, index)
        chosen = smallest % shares == share
        stored.append(index[chosen])
        numbers.append(first + within[chosen])
        first_of.append(smallest[chosen])
        raw = batch["value"][within[chosen]]
        decoded = pairs.element.decode(raw.view(pairs.element.stored).reshape(-1, pairs.components))
        if len(pairs.group) > 1:
            yield from _of_itself(source, pairs, numbers[-1], stored[-1], decoded)
        flipped = signs[chosen] < 0
        decoded[flipped] = -decoded[flipped]
        values.append(decoded)
    if numbers:
        joined = map(np.concatenate, (stored, numbers, first_of, values))
        yield from _alike(source, pairs, *joined)


def _smallest(pairs: Pairs, index: Integers) -> tuple[Integers, Integers]:
    """The smallest index among those that each pair stands for, and the sign of its value there."""
    smallest, signs = index.copy(), np.ones(index.size, dtype=np.int64)
    for operation in pairs.group[1:]:
        image = operation.images(index, pairs.lengths)
        less = image < smallest
        smallest[less], signs[less] = image[less], operation.sign
    return smallest, signs


def _of_itself(
    source: Source, pairs: Pairs, numbers: Integers, index: Integers, values: Array
) -> Iterator[Finding]:
    """Elements that an antisymmetry maps to themselves, which can only be zero."""
    for operation in pairs.group[1:]:
        if operation.sign < 0:
            fixed = operation.images(index, pairs.lengths) == index
            wrong = fixed & (values != 0).any(axis=-1)
            for number in numbers[wrong].tolist():
                yield _contradiction(source, pairs, number)
            if pairs.dtype.kind == "i":
                lowest = (values == np.iinfo(pairs.dtype).min).any(axis=-1)
                for number in numbers[lowest & ~wrong].tolist():
                    message = f"{np.iinfo(pairs.dtype).min}, whose negative {pairs.dtype} lacks"
                    yield _about(source, pairs, number, "the value of", message, INDEX_BYTES)


def _alike(
    source: Source,
    pairs: Pairs,
    stored: Integers,
    numbers: Integers,
    first_of: Integers,
    values: Array,
) -> Iterator[Finding]:
    """Neighbours after sorting: the same index twice, or different values for related elements."""
    order = np.lexsort((numbers, stored, first_of))
    stored, numbers, values = stored[order], numbers[order], values[order]
    related = first_of[order][1:] == first_of[order][:-1]
    twice = stored[1:] == stored[:-1]
    for later in (np.flatnonzero(twice) + 1).tolist():
        message = (
            f"{int(stored[later])}, as in pair {int(numbers[later - 1])}, expected an index that "
            "occurs once; the value there is undefined: open with sparse='stored' to see all pairs"
        )
        yield _about(source, pairs, int(numbers[later]), "the index of", message)
    other = related & ~twice & ~equal_rows(values[1:], values[:-1])
    for later in (np.flatnonzero(other) + 1).tolist():
        yield _contradiction(source, pairs, int(max(numbers[later - 1 : later + 1])))


def _contradiction(source: Source, pairs: Pairs, number: int) -> Finding:
    message = (
        "another value for an element than a related pair gives, expected one value for each under "
        "the packed symmetries; open with sparse='stored' to see the pairs"
    )
    return _about(source, pairs, number, "", message)


def _about(
    source: Source, pairs: Pairs, number: int, what: str, message: str, within: int = 0
) -> Finding:
    place = pairs.offset + number * pairs.table.stride + within
    return Finding(source.name, place, f"{what} pair {number}".strip(), message)


def check(reader: HeaderReader, container: Container) -> Iterator[Finding]:
    """Check a file whose header can be read."""
    source = reader.source
    header = Header.read(reader)
    storage = find_storage(reader, header)
    yield from _check_dimensions(source, header)
    yield from _check_magics(source, storage)
    gaps, stop = _gaps(header, storage)
    yield from check_gaps(source, gaps)
    yield from trailing(source, stop, "the data" if storage.pairs is None else "the pairs")
    layout = container.tensors[0].layout
    inner = getattr(layout, "inner", layout)
    found = list(check_pairs(source, inner)) if isinstance(inner, Pairs) else []
    yield from found
    if not any(each.severity == "error" for each in found):
        yield from _check_claims(source, header, storage, layout)


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


def _gaps(header: Header, storage: Storage) -> tuple[list[Gap], int]:
    """The bytes that must be zero, and where the file should end."""
    gaps = [Gap(Offset.RESERVED, FIXED_BYTES, "the reserved word of the header")]
    stops = {each.offset: each.stop for each in storage.chunks}
    for each in storage.symmetries:
        end = each.offset + HEADER_BYTES + len(each.pack())
        gaps.append(Gap(end, stops[each.offset], "the padding of a chunk 'SYMMETRY'"))
    if storage.pairs is not None:
        return gaps, storage.offset + storage.pairs * storage.pair_bytes
    stop = storage.offset + header.total * storage.element_bytes
    if storage.chunks and storage.chunks[-1].magic == DENSE_DATA:
        end = storage.chunks[-1].stop
        gaps.append(Gap(stop, end, "the padding of the chunk 'DENSDATA'"))
        return gaps, end
    return gaps, stop


def _check_claims(
    source: Source, header: Header, storage: Storage, layout: Layout
) -> Iterator[Finding]:
    names = [chr(each.index) for each in header.dimensions]
    if len(set(names)) != len(names):
        return  # what the maps mean is not defined then
    for each in storage.symmetries:
        # Packed ones are what the tensor is filled in by.
        if not each.packed and each.code in SIGNS:
            claim = _claim(each, names, len(layout.shape))
            if storage.pairs is None:
                yield from check_symmetry(source, layout, claim)
            else:
                yield from _check_of_pairs(source, layout, claim, header)


def _claim(symmetry: Symmetry, names: Sequence[str], rank: int) -> Claim:
    axes = [names.index(name) for name in symmetry.index_map]
    # An axis of components keeps its place.
    axes += range(len(names), rank)
    change: Callable[[Array], Array] = np.negative if SIGNS[symmetry.code] < 0 else np.asarray
    return Claim(f"'{symmetry}'", tuple(axes), change)


def _check_of_pairs(
    source: Source, layout: Layout, claim: Claim, header: Header
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
            wrong |= ~nearly_equal(here, there)
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
