"""Which dimensions of a Dataset are mapped in Vespa, with their labels, and which are indexed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xarray import Variable

from xr_tensorfmt.errors import shortened
from xr_tensorfmt.formats.vespa.names import BLOCK
from xr_tensorfmt.write.subject import Subject

Texts = NDArray[Any]
"""Python's own texts, an element a block."""


@dataclass(frozen=True, eq=False)
class Dimensions:
    """What the dimensions of a variable are in Vespa.

    Parameters
    ----------
    along : str or None
        The dimension of the variable that counts the blocks; None where no label is written.
    labels : mapping of str to ndarray
        For each mapped dimension the label of each block.
    indexed : tuple of str
        The other dimensions of the variable.
    """

    along: str | None
    labels: Mapping[str, Texts]
    indexed: tuple[str, ...]


def dimensions_of(subject: Subject, variable: Variable) -> Dimensions:
    """Tell mapped dimensions by their labels.

    Parameters
    ----------
    subject : Subject
        What is written.
    variable : Variable
        Its one variable.

    Returns
    -------
    Dimensions
        A dimension whose own coordinate holds texts is mapped. Without one, each coordinate of
        texts along the dimension ``block`` is a mapped dimension.

    Raises
    ------
    ValueError
        Two dimensions have labels, or there is a coordinate that the format has no place for.
    """
    dims = tuple(map(str, variable.dims))
    own = _texts(subject, {dim: dim for dim in dims})
    if len(own) > 1:
        raise _outer_product(subject, tuple(own))
    along, labels = next(iter(own), None), own
    if along is None and BLOCK in dims:
        labels = _texts(subject, dict.fromkeys(subject.coordinates, BLOCK))
        along = BLOCK if labels else None
    for name in subject.coordinates:
        if name not in labels:
            _drop(subject, name, dims, along)
    return Dimensions(along, labels, tuple(dim for dim in dims if dim != along))


def _texts(subject: Subject, along: Mapping[str, str]) -> dict[str, Texts]:
    """Those coordinates of texts that lie along the given dimensions, each its own."""
    found = {}
    for name, dim in along.items():
        coordinate = subject.coordinates.get(name)
        if coordinate is not None and coordinate.dims == (dim,) and _may_be_text(coordinate):
            values = np.asarray(coordinate.values, dtype=object)
            if all(issubclass(kind, str) for kind in set(map(type, values.tolist()))):
                found[name] = values
    return found


def _may_be_text(coordinate: Variable) -> bool:
    return coordinate.dtype.kind in "UTO"


def _outer_product(subject: Subject, names: tuple[str, ...]) -> ValueError:
    listed = list(names)
    return ValueError(
        f"{subject.path}: {' and '.join(map(repr, names))} are dimensions with labels, and Vespa "
        f"stores blocks that have a label of each; call ds.stack({BLOCK}={listed})."
        f"reset_index({BLOCK!r}) to make a block of every combination, and then dropna({BLOCK!r}) "
        "to leave out those that are missing, or drop_vars() the labels of all but one"
    )


def _drop(subject: Subject, name: str, dims: tuple[str, ...], along: str | None) -> None:
    """Say of a coordinate that cannot be written what would work, unless it may be dropped."""
    coordinate = subject.coordinates[name]
    what, way_out = f"the coordinate {name!r}", f"call drop_vars({name!r})"
    dim = coordinate.dims[0] if coordinate.ndim == 1 else None
    if dim in dims and dim in (name, BLOCK) and along in (None, dim):
        what += f", as its labels are {_kinds(coordinate)} and those of Vespa are texts"
        way_out = f"make texts of them by ds.assign_coords({name}=ds.{name}.astype(str))"
    elif dim in dims and along is None and BLOCK not in dims and _may_be_text(coordinate):
        what += f", which does not label the dimension {dim!r}"
        way_out = f"call ds.rename_dims({dim}={BLOCK!r}) to make it a label of each block"
    subject.dropping("coords", what, way_out)


def _kinds(coordinate: Variable) -> str:
    if coordinate.dtype.kind != "O":
        return str(coordinate.dtype)
    names = sorted({type(each).__name__ for each in coordinate.values.tolist()})
    return shortened(" and ".join(names))
