"""Symmetries that a file states: what is given or was read, and whether the values have them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.base import compute
from numpy.typing import NDArray
from xarray import Variable

from xr_tensorfmt.core.chunk_grid import TARGET
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.value_checks import nearly_equal
from xr_tensorfmt.formats.tens.spec import Header
from xr_tensorfmt.formats.tens.symmetries import Symmetry, split
from xr_tensorfmt.formats.tens.write_pairs import in_chunks
from xr_tensorfmt.writing.conversion import Conversion

Symmetries = str | Collection[str]
"""As the reader gives them: ``"-x bacd"``, several in a list or in a string, after ``", "``."""


def given(path: str, symmetries: Symmetries, header: Header) -> tuple[Symmetry, ...]:
    """The symmetries that the user wants stated."""
    strings = split(symmetries) if isinstance(symmetries, str) else list(symmetries)
    if not all(isinstance(string, str) for string in strings):
        raise TypeError(f"symmetries={symmetries!r} is not a list of strings such as '-x ba'")
    stated = tuple(Symmetry.parse(string) for string in strings if string)
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
                f"{path}: the symmetry {str(each)!r} cannot hold with {obstacle.found}, expected "
                f"{obstacle.expected}; leave it out of symmetries="
            )
    return stated


def inherited(facts: Mapping[str, Any], header: Header, dims: Sequence[str]) -> Iterator[Symmetry]:
    """The symmetries of the file that a variable was opened from, as far as they still fit it.

    They are in the letters of the new header, and in the order that the dimensions have now.
    """
    was, letters = facts.get("dims", ()), facts.get("index_names", "")
    if set(was) != set(dims) or len(set(letters)) != len(was):
        return
    old = dict(zip(was, letters, strict=True))
    new = {old[dim]: name for dim, name in zip(dims, header.index_names, strict=True)}
    for each in map(Symmetry.parse, split(facts.get("symmetries", ""))):
        if sorted(each.index_map) == sorted(letters):
            image = dict(zip(was, each.index_map, strict=True))
            index_map = "".join(new[image[dim]] for dim in dims)
            renamed = Symmetry(each.code, index_map)
            if renamed.obstacle(header) is None:
                yield renamed


def check_symmetries(
    variable: Variable, header: Header, conversion: Conversion, symmetries: Sequence[Symmetry]
) -> None:
    """Compare all values with those that the symmetries relate them to, a chunk at a time.

    The axes of the variable are in the order of the file.
    """
    if not variable.size or not symmetries:
        return
    rank = len(header.dimensions)
    array = _cut_alike(variable, rank)
    images = [_image(array, each.operation(header).inverse) for each in symmetries]
    signs = [each.operation(header).sign for each in symmetries]
    wrong = [_wrong(array, *each, conversion) for each in zip(images, signs, strict=True)]
    found = compute(*(each.any() for each in wrong))  # type: ignore[no-untyped-call]
    for number in np.flatnonzero(found).tolist():
        # The values are computed anew, as none of them is kept.
        index = np.unravel_index(int(wrong[number].argmax().compute()), array.shape)
        values = compute(array[index], images[number][index])  # type: ignore[no-untyped-call]
        other = [index[axis] for axis in symmetries[number].operation(header).axes]
        dims = [str(dim) for dim in variable.dims[:rank]]
        raise ValueError(
            f"{conversion.name!r} is {values[0]} at {_place(dims, index)} and {values[1]} at "
            f"{_place(dims, other)}, which the symmetry {str(symmetries[number])!r} does not "
            "allow; pass symmetries= without it"
        )


def _cut_alike(variable: Variable, rank: int) -> Any:
    """The chunks of a variable, or chunks that are cut alike along axes of equal lengths."""
    if variable.chunks is not None:
        return variable.data
    axes = ("auto",) * rank + (-1,) * (variable.ndim - rank)  # components
    normalize: Any = da.core.normalize_chunks
    chunks = normalize(axes, variable.shape, limit=TARGET, dtype=variable.dtype)
    return in_chunks(variable, chunks)


def _image(array: Any, axes: Sequence[int]) -> Any:
    """An array with its axes in another order, cut as it is itself; components stay the last."""
    return array.transpose([*axes, *range(len(axes), array.ndim)]).rechunk(array.chunks)


def _wrong(array: Any, image: Any, sign: int, conversion: Conversion) -> Any:
    """Where an array is not what a symmetry makes of its image."""
    map_blocks: Any = da.map_blocks
    meta = np.empty((0,) * array.ndim, dtype=bool)
    compare = partial(_differ, sign=sign, conversion=conversion)
    return map_blocks(compare, array, image, dtype=bool, meta=meta)


def _differ(values: Array, images: Array, sign: int, conversion: Conversion) -> NDArray[np.bool_]:
    """Which values of a block are not those of the images, or their negatives."""
    values, images = (conversion.apply(np.asarray(each)) for each in (values, images))
    if sign > 0:
        return ~nearly_equal(values, images)
    wrong = ~nearly_equal(values, -images)
    if values.dtype.kind == "i":
        wrong |= images == np.iinfo(images.dtype).min  # its negative is itself
    return wrong


def _place(dims: Sequence[str], index: Sequence[Any]) -> str:
    """The index along each dimension, in the order of the tensor."""
    pairs = list(zip(dims, index, strict=False))  # a component has no name
    return ", ".join(f"{dim}={along}" for dim, along in reversed(pairs))
