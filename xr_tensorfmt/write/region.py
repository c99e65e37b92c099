"""Values for a part of a file that is there already."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask.delayed import Delayed
from xarray import Variable

from xr_tensorfmt.extents import Bytes, Extents
from xr_tensorfmt.formats import OpenOptions, parse
from xr_tensorfmt.sources import LocalFile, Source, is_remote, open_source
from xr_tensorfmt.tensor import Tensor
from xr_tensorfmt.write.blueprint import Placed
from xr_tensorfmt.write.packing import WHOLE, element_of, settled, units
from xr_tensorfmt.write.placing import opened, write_batches
from xr_tensorfmt.write.subject import Subject
from xr_tensorfmt.write.tasks import writing

Region = Mapping[Any, slice]


@dataclass(frozen=True)
class ExistingFile:
    """A file whose header stays as it is; what is written takes the place of what was there.

    Parameters
    ----------
    path : str
        The file.
    """

    path: str

    def write(self, batches: Iterator[tuple[Extents, Bytes]]) -> None:
        """Put bytes into their places; as `Draft.write`."""
        write_batches(self.path, batches)

    def begin(self) -> ExistingFile:
        """Nothing is to be made; the file is there."""
        return self

    def sync(self, done: Sequence[Any]) -> None:
        """Wait until the disk has all of it."""
        del done  # what must come before
        with opened(self.path) as descriptor:
            os.fsync(descriptor)


def write_region(
    subject: Subject, region: Region, form: str | None, *, compute: bool
) -> Delayed | None:
    """Write over a part of a file, in place.

    Parameters
    ----------
    subject : Subject
        What is written; its variables must be in the file.
    region : mapping of str to slice
        Which part, by dimension; whole dimensions may be left out.
    form : str or None
        Name of the file's format, where its first bytes do not tell.
    compute : bool
        Whether to do it now.

    Returns
    -------
    Delayed or None
        What writes when it is computed, or None if that is done.

    Raises
    ------
    ValueError
        The file has no such variable, dimension or place, or cannot be written to in part.
    """
    if is_remote(subject.path):
        raise ValueError(
            f"{subject.path}: a store has no way to change a part of an object; write the whole "
            "of it, without region="
        )
    source = open_source(subject.path)
    assert isinstance(source, LocalFile)
    container = parse(source, OpenOptions(), form)
    tensors = {each.name: each for each in (*container.tensors, *container.coordinates)}
    _check_names(subject, tensors, region)
    target = ExistingFile(source.path)
    placed = [
        _part(subject, name, variable, _settled(tensors[name], source), region)
        for name, variable in subject.variables.items()
    ]
    tasks = writing(placed, target.begin, ExistingFile.sync)
    if not compute:
        return tasks
    tasks.compute()  # type: ignore[no-untyped-call]
    return None


def _check_names(subject: Subject, tensors: Mapping[str, Tensor], region: Region) -> None:
    for name in subject.variables:
        if name not in tensors:
            raise ValueError(
                f"{subject.path} has no variable {name!r} but {', '.join(map(repr, tensors))}; "
                "write the whole file to add one"
            )
    dims = {dim for name in subject.variables for dim in tensors[name].dims}
    for name in region:
        if name not in dims:
            raise ValueError(
                f"region={region!r} names {name!r}, which is none of the dimensions "
                f"{', '.join(map(repr, sorted(dims)))} of what is written"
            )
    for name, coordinate in subject.coordinates.items():
        if any(dim in region for dim in coordinate.dims):
            raise ValueError(
                f"the coordinate {name!r} would change with region={region!r}, and labels are not "
                f"written in part; call drop_vars({name!r}) first"
            )


def _settled(tensor: Tensor, source: Source) -> Tensor:
    return replace(tensor, layout=settled(tensor.layout, source))


def _part(
    subject: Subject, name: str, variable: Variable, tensor: Tensor, region: Region
) -> Placed:
    """A variable with the whole layout that it is a part of, and where in it it begins."""
    if set(variable.dims) != set(tensor.dims):
        raise ValueError(
            f"{name!r} has dims {variable.dims}, and {subject.path} has {tensor.dims} there; "
            "rename or transpose it"
        )
    variable = variable.transpose(*tensor.dims)
    sizes = zip(tensor.dims, variable.shape, tensor.layout.shape, strict=True)
    origin = tuple(_begin(*each, region) for each in sizes)
    try:
        element = element_of(tensor.layout)
    except TypeError as error:
        raise ValueError(
            f"{subject.path}: {name!r} cannot be written in part: {error}; write the whole file"
        ) from None
    _check_units(name, variable, tensor, origin)
    # The file says what is stored; whether that may round is the user's to say.
    wanted = {name: {"dtype": element.name}}
    conversion = replace(subject, encoding=wanted).conversion(
        name, variable, {element.name: element}
    )
    conversion = replace(conversion, exact=name not in subject.encoding)
    return Placed(variable, tensor.layout, conversion, origin)


def _check_units(name: str, variable: Variable, tensor: Tensor, origin: tuple[int, ...]) -> None:
    """Refuse a part that begins or ends within a byte."""
    lengths = tensor.layout.shape
    for axis, unit in enumerate(units(tensor.layout)):
        begin, end = origin[axis], origin[axis] + variable.shape[axis]
        whole = end == lengths[axis]
        if unit == WHOLE and (begin or not whole):
            raise ValueError(
                f"{name!r} is stored in rows whose parts share bytes; write all of the dimension "
                f"{tensor.dims[axis]!r} at once"
            )
        if unit != WHOLE and (begin % unit or (end % unit and not whole)):
            raise ValueError(
                f"{name!r} has {unit} elements of {tensor.dims[axis]!r} in a byte; begin and end "
                f"at a multiple of {unit}, not at {begin} and {end}"
            )


def _begin(dim: Hashable, length: int, whole: int, region: Region) -> int:
    wanted = region.get(dim, slice(None))
    if not isinstance(wanted, slice) or wanted.step not in (None, 1):
        raise ValueError(f"region={region!r} has {wanted!r} for {dim!r}; give a slice of step 1")
    start, stop, _ = wanted.indices(whole)
    if stop - start != length:
        raise ValueError(
            f"region={region!r} is {max(0, stop - start)} along {dim!r}, which has {whole} in the "
            f"file, but what is written has {length}; give the slice that it belongs to"
        )
    return start
