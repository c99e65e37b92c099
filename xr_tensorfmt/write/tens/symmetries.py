"""Which symmetries a TENS file states: those that the user gives, or those it was opened with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from xr_tensorfmt.errors import shortened
from xr_tensorfmt.formats.tens.header import Header
from xr_tensorfmt.formats.tens.symmetry import Symmetry, obstacle, operation
from xr_tensorfmt.layouts.orbits import MOST_OPERATIONS, Operation, generated

Symmetries = str | Collection[str]
"""As the reader gives them: ``"-x bacd"``, several in a text with ``", "`` between or in a list."""

_SEPARATOR = ", "


def given(path: str, symmetries: Symmetries, header: Header) -> tuple[Symmetry, ...]:
    """The symmetries that the user wants used.

    Parameters
    ----------
    path : str
        The file, for errors.
    symmetries : str or collection of str
        As the user gave them.
    header : Header
        Of the file to be.

    Returns
    -------
    tuple of Symmetry
        All of them packed.

    Raises
    ------
    TypeError, ValueError
        One is none, or not one of such a tensor.
    """
    texts = symmetries.split(_SEPARATOR) if isinstance(symmetries, str) else list(symmetries)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"symmetries={symmetries!r} is not a list of texts such as '-x bacd'")
    found = tuple(_parsed(text, packed=True) for text in texts if text)
    for each in found:
        if sorted(each.index_map) != sorted(header.index_names):
            raise ValueError(
                f"{path}: the symmetry {str(each)!r} has no permutation of the index names "
                f"{header.index_names!r}; give 'x' or '-x' and, after a space, one that leaves "
                "the tensor as it is"
            )
        problem = obstacle(each, header)
        if problem is not None:
            raise ValueError(
                f"{path}: the symmetry {str(each)!r} would be {problem.found}, and TENS packs "
                f"{problem.expected} only; leave it out of symmetries="
            )
    return found


def inherited(
    facts: Mapping[str, Any],
    header: Header,
    was: Sequence[str],
    dims: Sequence[str],
    *,
    pack: bool,
) -> tuple[Symmetry, ...]:
    """The symmetries of the file that a variable was opened from, as far as they fit it still.

    Parameters
    ----------
    facts : mapping
        What is known of that file.
    header : Header
        Of the file to be.
    was, dims : sequence of str
        Names of the dimensions, in the order of that file and of the file to be.
    pack : bool
        Whether those that were packed are to be packed again.

    Returns
    -------
    tuple of Symmetry
        In the index names of the file to be.
    """
    letters, known = facts.get("index_names", ""), facts.get("symmetries", "")
    if not known or set(was) != set(dims) or len(set(letters)) != len(dims):
        return ()
    packed = facts.get("packed_symmetries", "").split(_SEPARATOR) if pack else []
    stated = [_parsed(text, packed=text in packed) for text in known.split(_SEPARATOR)]
    old = dict(zip(was, letters, strict=True))
    return tuple(_renamed(stated, old, dict(zip(dims, header.index_names, strict=True)), header))


def orbit_of(path: str, symmetries: Sequence[Symmetry], header: Header) -> tuple[Operation, ...]:
    """The group of the packed symmetries, as operations on the axes in file order.

    Parameters
    ----------
    path : str
        The file, for errors.
    symmetries : sequence of Symmetry
        The packed ones.
    header : Header
        Of the file to be.

    Returns
    -------
    tuple of Operation
        The identity first.

    Raises
    ------
    ValueError
        The group is too large.
    """
    operations = [operation(each, header) for each in symmetries]
    group = generated(operations, len(header.dimensions))
    if group is None:
        raise ValueError(
            f"{path}: the symmetries {shortened(', '.join(map(str, symmetries)))} make a group of "
            f"more than {MOST_OPERATIONS} operations; leave some of them out of symmetries="
        )
    return group


def _renamed(
    symmetries: Sequence[Symmetry],
    old: Mapping[str, str],
    new: Mapping[str, str],
    header: Header,
) -> Iterator[Symmetry]:
    """In other letters, and for another order of the dimensions; both give a letter to each."""
    places = list(old)
    letters = {old[dim]: letter for dim, letter in new.items()}
    for each in symmetries:
        if sorted(each.index_map) != sorted(letters):
            continue
        index_map = "".join(letters[each.index_map[places.index(dim)]] for dim in new)
        renamed = replace(each, index_map=index_map)
        if _exchanges_equal_lengths(renamed, header):
            yield replace(renamed, packed=renamed.packed and obstacle(renamed, header) is None)


def _exchanges_equal_lengths(symmetry: Symmetry, header: Header) -> bool:
    lengths = dict(zip(header.index_names, header.lengths, strict=True))
    pairs = zip(header.index_names, symmetry.index_map, strict=True)
    return all(lengths[one] == lengths[other] for one, other in pairs)


def _parsed(text: str, *, packed: bool) -> Symmetry:
    code, _, index_map = text.rpartition(" ")
    return Symmetry(code, index_map, packed, 0)
