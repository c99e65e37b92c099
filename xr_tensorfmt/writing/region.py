"""Writing into a part of a local file that exists."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dask.delayed import Delayed
from xarray import Variable

from xr_tensorfmt.core.container import Container, HeaderUpdate, Tensor
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import WHOLE, Encoded
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import file_order
from xr_tensorfmt.datasets.explanation import find_sources
from xr_tensorfmt.errors import SourceChangedError, did_you_mean
from xr_tensorfmt.sources.local import LocalFile, detach
from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.writing.atomic_file import (
    check_writable,
    open_descriptor,
    write_at,
    write_batches,
)
from xr_tensorfmt.writing.block_grids import build_block_grids
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.conversion import dtype_name
from xr_tensorfmt.writing.file_plan import PlannedVariable
from xr_tensorfmt.writing.graph import plan_tasks
from xr_tensorfmt.writing.write_target import Piece

Region = Mapping[Any, slice]


class SharedFile(LocalFile):
    """A file whose values may change while its header is used."""

    is_shared = True

    def _check(self, status: os.stat_result) -> None:
        if status.st_size != self.size:
            super()._check(status)


@dataclass(frozen=True)
class ExistingFile:
    """A file that is changed in place."""

    path: str
    identity: tuple[int, ...]

    @property
    def target(self) -> str:
        """The path, as there is no other file meanwhile."""
        return self.path

    @classmethod
    def at(cls, path: str) -> ExistingFile:
        """The file at a path; values that were loaded from it will not change with it."""
        check_writable(path)
        detach_file(path)
        return cls(path, _identity(path))

    def begin(self) -> ExistingFile:
        """Keep the values that processes of a cluster have loaded, before anything is written."""
        detach_file(self.path)
        distributed = sys.modules.get("distributed")
        if distributed is not None:
            with suppress(ValueError):  # there is no cluster
                client = distributed.get_client()
                if not client.asynchronous:
                    client.run(detach_file, self.path)
        return self

    def write(self, batches: Iterator[Encoded]) -> None:
        """Write bytes at their offsets; as `AtomicFile.write`."""
        if _identity(self.path) != self.identity:
            raise SourceChangedError(
                self.path,
                "the file",
                "another one",
                "the one whose header was read",
                "it has been replaced since then; call the writer again",
            )
        detach_file(self.path)
        write_batches(self.path, batches)

    def complete(self, pieces: Sequence[Piece]) -> None:
        """Write the pieces, and wait until the disk has all bytes."""
        with open_descriptor(self.path) as descriptor:
            for piece in pieces:
                write_at(descriptor, memoryview(piece.data), piece.offset)
            os.fsync(descriptor)

    def publish(self) -> None:
        """Do nothing, because the file is there already."""

    def discard(self) -> bool:
        """Return False, because a part of the file may have been changed."""
        return False


def _complete(files: Sequence[ExistingFile]) -> None:
    for file in files:
        file.complete(())


def _complete_and_update(
    path: str, read: Callable[[HeaderReader], Container], files: Sequence[ExistingFile]
) -> None:
    """Complete files, and update the bytes of headers that depend on the values."""
    _complete(files)
    # Another process may write an older update afterwards, so look again.
    while updates := [update for update in _read_updates(path, read) if update.is_due]:
        for update in updates:
            piece = Piece(update.offset, update.current)
            ExistingFile(update.path, _identity(update.path)).complete([piece])


def _read_updates(path: str, read: Callable[[HeaderReader], Container]) -> tuple[HeaderUpdate, ...]:
    return read(HeaderReader(SharedFile.from_path(path, mapped=False))).updates


def detach_file(path: str) -> None:
    """Copy pages that values loaded in this process share with a file."""
    try:
        detach(os.stat(path))
    except FileNotFoundError:
        return
    except OSError as error:
        reason = (
            "values that were loaded from it would change with it, as they cannot be copied "
            f"({error.strerror}); delete them, or write a whole new file"
        )
        raise OSError(error.errno, reason, path) from error


def _identity(path: str) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_ino, status.st_size  # the device has another number on another machine


def write_region(
    checked: CheckedInput,
    location: Location,
    region: Region,
    read: Callable[[HeaderReader], Container],
    *,
    compute: bool,
) -> Delayed | None:
    """Write into a part of a file, in place; `read` parses its header."""
    if not location.is_local:
        raise ValueError(
            f"{location.url}: no store can change a part of an object; write all of it, "
            "without region="
        )
    source = SharedFile.from_path(checked.path, mapped=False)
    container = read(HeaderReader(source))
    if container.derived:
        raise ValueError(
            f"{checked.path} has {' and '.join(container.derived)}, which region= would leave "
            "wrong; write the whole of the file anew"
        )
    tensors = {each.name: each for each in (*container.tensors, *container.coordinates)}
    _check_names(checked, tensors, region)
    _check_coordinates(checked, source, tensors, region)
    parts: dict[str, list[PlannedVariable]] = {}
    for name, variable in checked.variables.items():
        tensor = tensors[name]
        file = tensor.source or source
        _check_overlap(checked, file.name)
        # The layout must be right, so that no other byte is overwritten.
        tensor = replace(tensor, layout=tensor.layout.checked_places(file))
        part = _part(checked, name, variable, tensor, region)
        parts.setdefault(file.name, []).append(part)
    files = [(ExistingFile.at(path).begin, build_block_grids(part)) for path, part in parts.items()]
    for update in container.updates:
        check_writable(update.path)
    finish = partial(_complete_and_update, checked.path, read) if container.updates else _complete
    tasks = plan_tasks(files, finish)
    if not compute:
        return tasks
    tasks.compute()  # type: ignore[no-untyped-call]
    return None


def _check_names(checked: CheckedInput, tensors: Mapping[str, Tensor], region: Region) -> None:
    for name in checked.variables:
        if name not in tensors:
            raise ValueError(
                f"{checked.path} has no variable {name!r}{did_you_mean(name, tensors)} but "
                f"{', '.join(map(repr, tensors))}; "
                "write the whole file to add one"
            )
    dims = {dim for name in checked.variables for dim in tensors[name].dims}
    for name in region:
        if name not in dims:
            raise ValueError(
                f"region={region!r} names {name!r}{did_you_mean(name, dims)}, which is not one of "
                f"the dimensions {', '.join(map(repr, sorted(dims)))} of what is written"
            )


def _check_coordinates(
    checked: CheckedInput,
    source: Source,
    tensors: Mapping[str, Tensor],
    region: Region,
) -> None:
    """Refuse coordinates that differ from those of the file, since they are not written."""
    for name, coordinate in checked.coordinates.items():
        advice = f"call drop_vars({name!r}) first"
        if any(dim in region for dim in coordinate.dims):
            raise ValueError(
                f"the coordinate {name!r} lies along region={region!r}, and coordinates are not "
                f"written in part; {advice}"
            )
        if name in tensors:
            known = tensors[name]
            whole = Selection.everything(known.layout.shape)
            values = known.layout.read(known.source or source, whole)
            if coordinate.equals(Variable(known.dims, values)):  # type: ignore[no-untyped-call]
                continue
        raise ValueError(
            f"the coordinate {name!r} is not the same in {checked.path}, and region= does not "
            f"write coordinates; {advice}"
        )


def _check_overlap(checked: CheckedInput, path: str) -> None:
    """Refuse values that are yet to be read from the file that is changed in place."""
    for name, variable in checked.variables.items():
        for source in {source.name for source in find_sources(variable)}:
            with suppress(OSError):  # a URL, or a name of something without a path
                if os.path.samefile(source, path):
                    raise ValueError(
                        f"{name!r} is still to be read from {checked.path}, which region= changes "
                        "in place; call load() first, or write the whole of another file"
                    )


def _part(
    checked: CheckedInput,
    name: str,
    variable: Variable,
    tensor: Tensor,
    region: Region,
) -> PlannedVariable:
    """A variable with the layout of the whole tensor, and the index where it begins in it."""
    if set(variable.dims) != set(tensor.dims):
        raise ValueError(
            f"{name!r} has dims {variable.dims}, and {checked.path} has {tensor.dims} there; "
            "rename or transpose it"
        )
    variable = variable.transpose(*tensor.dims)
    sizes = zip(tensor.dims, variable.shape, tensor.layout.shape, strict=True)
    origin = tuple(_begin(*each, region) for each in sizes)
    try:
        layout, axes = file_order(tensor.layout)
        element = layout.stored_element()
    except TypeError as error:
        raise ValueError(
            f"{checked.path}: {name!r} cannot be written in part: {error}; write the whole file"
        ) from None
    units = dict(zip(axes, layout.write_units, strict=True))
    for axis, dim in enumerate(tensor.dims):
        begin, end = origin[axis], origin[axis] + variable.shape[axis]
        _check_unit(name, dim, units[axis], begin, end, is_whole=end == tensor.layout.shape[axis])
    requested = checked.encoding.get(name, {}).get("dtype", element.name)
    if dtype_name(requested) != element.name:
        raise ValueError(
            f"encoding= wants {name!r} as {dtype_name(requested)}, and {checked.path} has it as "
            f"{element.name}; region= cannot change that, but the whole file can be written anew"
        )
    # The file decides the dtype; values are rounded to it only where encoding= names it.
    wanted = {name: {"dtype": element.name}}
    conversion = replace(checked, encoding=wanted).conversion(
        name, variable, {element.name: element}
    )
    conversion = replace(conversion, exact=name not in checked.encoding)
    return PlannedVariable(variable, tensor.layout, conversion, origin)


def _check_unit(name: str, dim: str, unit: int, begin: int, end: int, *, is_whole: bool) -> None:
    """Refuse a part that begins or ends within a byte; `is_whole` if it ends with the axis."""
    if unit == WHOLE and (begin or not is_whole):
        raise ValueError(
            f"{name!r} is stored in rows whose parts share bytes; write all of the dimension "
            f"{dim!r} at once"
        )
    if unit != WHOLE and (begin % unit or (end % unit and not is_whole)):
        raise ValueError(
            f"{name!r} has {unit} elements of {dim!r} in a byte; begin and end at a multiple of "
            f"{unit}, not at {begin} and {end}"
        )


def _begin(dim: Hashable, length: int, whole: int, region: Region) -> int:
    """Index along a dimension where a region begins; ValueError where it has another length."""
    wanted = region.get(dim, slice(None))
    try:
        start, stop, step = wanted.indices(whole)
    except (AttributeError, TypeError):
        step = 0
    if step != 1:
        raise ValueError(f"region={region!r} has {wanted!r} for {dim!r}; give a slice of step 1")
    if stop - start != length:
        raise ValueError(
            f"region={region!r} is {max(0, stop - start)} along {dim!r}, which has {whole} in the "
            f"file, but what is written has {length}; give the slice that it belongs to"
        )
    return start
