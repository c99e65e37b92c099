"""What can be wrong with pairs of index and value: indices out of range, twice, contradictory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.elements import Array
from xr_tensorfmt.extents import Integers
from xr_tensorfmt.layouts import Pairs, Records
from xr_tensorfmt.layouts.pairtable import BLOCK, INDEX_BYTES
from xr_tensorfmt.sources import Source
from xr_tensorfmt.tensor import Tensor
from xr_tensorfmt.validation.finding import Finding
from xr_tensorfmt.validation.values import MOST_OF_ONE, check_values

_PAIRS_AT_ONCE = 16 * BLOCK

MOST_COMPARED = 1 << 22
"""Pairs that are compared with each other in one pass; of more, each pass takes a share."""


def check_pairs(source: Source, pairs: Pairs) -> Iterator[Finding]:
    """Check all pairs.

    Parameters
    ----------
    source : Source
        The file.
    pairs : Pairs
        Where they are.

    Yields
    ------
    Finding
        At most 20 of each kind.
    """
    column = Records(
        pairs.count, pairs.components, pairs.element, pairs.offset + INDEX_BYTES, pairs.table.stride
    )
    undecodable = list(check_values(source, [Tensor("values of pairs", (), column)]))
    yield from undecodable
    yield from islice(_out_of_range(source, pairs), MOST_OF_ONE)
    if not undecodable and not (len(pairs.orbit) == 1 and _ascend(source, pairs)):
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
    """Compare the pairs of one share, which holds all that belong to one orbit."""
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
        if len(pairs.orbit) > 1:
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
    for operation in pairs.orbit[1:]:
        image = operation.images(index, pairs.lengths)
        less = image < smallest
        smallest[less], signs[less] = image[less], operation.sign
    return smallest, signs


def _of_itself(
    source: Source, pairs: Pairs, numbers: Integers, index: Integers, values: Array
) -> Iterator[Finding]:
    """Elements that an antisymmetry maps to themselves, which can only be zero."""
    for operation in pairs.orbit[1:]:
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
    """Neighbours after sorting: the same index twice, or other values of one orbit."""
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
    other = related & ~twice & ~_equal(values[1:], values[:-1])
    for later in (np.flatnonzero(other) + 1).tolist():
        yield _contradiction(source, pairs, int(max(numbers[later - 1 : later + 1])))


def _equal(left: Array, right: Array) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        same = (left == right) | ((left != left) & (right != right))
    return np.asarray(same.all(axis=-1))


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
