"""Symmetries that a file states: what is given or was read, and whether the values have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.base import compute
from xarray import Variable

from xr_tensorfmt.core.chunk_grid import TARGET
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.value_checks import nearly_equal
from xr_tensorfmt.datasets.lazy_array import unchunked
from xr_tensorfmt.formats.tens.spec import Header
from xr_tensorfmt.formats.tens.symmetries import Symmetry, split
from xr_tensorfmt.formats.tens.write_pairs import in_chunks
from xr_tensorfmt.writing.conversion import Conversion

Symmetries = str | Collection[str]
"""As the reader gives them: ``"-x bacd"``, several in a list or in a string, after ``", "``."""


def given(path: str, symmetries: Symmetries, header: Header) -> list[Symmetry]:
    """The symmetries that the user wants stated."""
    strings = split(symmetries) if isinstance(symmetries, str) else list(symmetries)
    if not all(isinstance(string, str) for string in strings):
        raise TypeError(f"symmetries={symmetries!r} is not a list of strings such as '-x ba'")
    stated = [Symmetry.parse(string) for string in strings if string]
    for each in stated:
        if sorted(each.index_map) != sorted(header.index_names):
            raise ValueError(
                f"{path}: the symmetry {str(each)!r} has no permutation of the index names "
                f"{header.index_names!r}; give 'x' or '-x' and, after a space, one that leaves "
                "the tensor as it is"
            )
        obstacle = each.obstacle(header)
        if obstacle is not None:
            raise ValueError(
                f"{path}: the symmetry {str(each)!r} cannot hold with {obstacle[0]}, expected "
                f"{obstacle[1]}; leave it out of symmetries="
            )
    return stated


def inherited(facts: Mapping[str, Any], header: Header, dims: Sequence[Any]) -> list[Symmetry]:
    """Those of the file that a variable with the same dims was opened from, if they can hold."""
    if facts.get("dims") != dims:
        return []
    letters = str.maketrans(facts["index_names"], header.index_names)
    old = map(Symmetry.parse, split(facts.get("symmetries", "")))
    new = [Symmetry(each.code, each.index_map.translate(letters)) for each in old]
    fitting = [each for each in new if sorted(each.index_map) == sorted(header.index_names)]
    return [each for each in fitting if each.obstacle(header) is None]


def check_symmetries(
    variable: Variable, header: Header, conversion: Conversion, symmetries: Sequence[Symmetry]
) -> None:
    """Compare all values with those that the symmetries relate them to, a chunk at a time."""
    if not variable.size or not symmetries:
        return
    array = _cut_alike(unchunked(variable).transpose())
    operations = [each.operation(header) for each in symmetries]
    images = [array.transpose(each.inverse).rechunk(array.chunks) for each in operations]
    wrong = [
        da.map_blocks(  # type: ignore[no-untyped-call]
            _differ, array, image, each.sign, conversion, dtype=bool, meta=np.empty(0, dtype=bool)
        )
        for each, image in zip(operations, images, strict=True)
    ]
    found = compute(*(each.any() for each in wrong))  # type: ignore[no-untyped-call]
    for number in np.flatnonzero(found).tolist():
        # The values are computed anew, as none of them is kept.
        index = np.unravel_index(int(wrong[number].argmax().compute()), array.shape)
        values = compute(array[index], images[number][index])  # type: ignore[no-untyped-call]
        places = [index[::-1], [index[axis] for axis in operations[number].axes][::-1]]
        here, there = (
            ", ".join(f"{dim}={along}" for dim, along in zip(variable.dims, place, strict=True))
            for place in places
        )
        raise ValueError(
            f"{conversion.name!r} is {values[0]} at {here} and {values[1]} at {there}, which the "
            f"symmetry {str(symmetries[number])!r} does not allow; pass symmetries= without it"
        )


def _cut_alike(variable: Variable) -> Any:
    """The chunks of a variable, or chunks that are cut alike along axes of equal lengths."""
    if variable.chunks is not None:
        return variable.data
    axes = ("auto",) * variable.ndim
    normalize: Any = da.core.normalize_chunks
    chunks = normalize(axes, variable.shape, limit=TARGET, dtype=variable.dtype)
    return in_chunks(variable, chunks).data


def _differ(values: Array, images: Array, sign: int, conversion: Conversion) -> Array:
    """Which values of a block are not those of the images, or their negatives."""
    values, images = (conversion.apply(np.asarray(each)) for each in (values, images))
    if sign > 0:
        return ~nearly_equal(values, images)
    wrong = ~nearly_equal(values, -images)
    if values.dtype.kind == "i":
        wrong |= images == np.iinfo(images.dtype).min  # its negative is itself
    return wrong
