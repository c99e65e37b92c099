"""Vespa's typed binary tensors, byte for byte as Vespa's own C++ encoder writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Unpack

from dask.delayed import Delayed
from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.chunks import TARGET
from xr_tensorfmt.errors import shortened
from xr_tensorfmt.formats.base import OpenOptions
from xr_tensorfmt.formats.vespa.cells import CELL_TYPES
from xr_tensorfmt.formats.vespa.grid import repeated_block
from xr_tensorfmt.layouts import Dense
from xr_tensorfmt.write.blueprint import Blueprint, Placed
from xr_tensorfmt.write.conversion import Conversion
from xr_tensorfmt.write.draft import Piece
from xr_tensorfmt.write.job import Job, SaveOptions
from xr_tensorfmt.write.packing_blocks import LabelledBlocks, labelled_blocks
from xr_tensorfmt.write.subject import Subject
from xr_tensorfmt.write.vespa.dimensions import Dimensions, dimensions_of
from xr_tensorfmt.write.vespa.header import LARGEST, header_bytes
from xr_tensorfmt.write.vespa.labels import TextBytes, UnwritableError, encode_texts, heads_of
from xr_tensorfmt.write.vespa.names import TYPE, named

SMALL_BLOCK = 64 << 10
"""Bytes of cells up to which a block is written at once, however its values come."""

_CELLS = {each.element.name: each for each in CELL_TYPES}


def to_vespa(
    data: Dataset | DataArray, path: Any, **options: Unpack[SaveOptions]
) -> Delayed | None:
    """Write a typed binary tensor of Vespa.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write: one variable, ``"tensor"``, of float64, float32, bfloat16 or int8. A
        dimension whose coordinate holds texts is mapped, and so is each coordinate of texts along
        the dimension ``block``; dimensions without a coordinate are indexed.
    path : str or PathLike
        The file, or its URL.
    **options
        As for `to_file`: mode, compute, region, encoding, drop, storage_options, fs.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something; the message says what, and what would work.
    OSError
        The system refuses; what was there before is unchanged.
    """
    return Job.of("to_vespa", options).run(data, path, "Vespa", plan_vespa)


def plan_vespa(subject: Subject) -> Blueprint:
    """Arrange a Dataset as a typed binary tensor.

    Parameters
    ----------
    subject : Subject
        What is written.

    Returns
    -------
    Blueprint
    """
    name, variable = subject.only
    if name != OpenOptions.name:
        way_out = f"rename it to {OpenOptions.name!r}"
        subject.dropping("name", f"the name {name!r} of the variable", way_out)
    for other in subject.encoding:
        if other != name:
            raise ValueError(
                f"{subject.path}: encoding= names {other!r}, whose labels are texts in any case; "
                f"ask for a dtype of {name!r} alone"
            )
    dimensions = dimensions_of(subject, variable)
    _check_lengths(subject, variable, dimensions)
    conversion = _conversion(subject, name, variable)
    cell_type = _CELLS[conversion.element.name]
    stored, header = named(subject, name, variable, dimensions, cell_type)
    _check_attrs(subject, name, variable, dimensions)
    mapped = sorted(dimensions.labels, key=lambda dim: stored[dim].encode())
    indexed = sorted(dimensions.indexed, key=lambda dim: stored[dim].encode())
    along = () if dimensions.along is None else (dimensions.along,)
    variable = variable.transpose(*along, *indexed)
    piece = Piece(0, header_bytes(header))
    if not mapped:
        layout = Dense(header.lengths, header.element, header.stop)
        size = header.stop + header.block_bytes
        return Blueprint(size, (piece,), (Placed(variable, layout, conversion),))
    heads = _heads(subject, dimensions, mapped)
    blocks = labelled_blocks(header.stop, header.lengths, header.element, len(mapped), heads)
    placed = Placed(_in_whole_blocks(variable, blocks), blocks, conversion)
    return Blueprint(blocks.table.stop, (piece,), (placed,))


def _check_lengths(subject: Subject, variable: Variable, dimensions: Dimensions) -> None:
    for dim, length in zip(variable.dims, variable.shape, strict=True):
        what = "blocks" if dim == dimensions.along else "elements"
        if length > LARGEST:
            raise ValueError(
                f"{subject.path}: {dim!r} has {length} {what}, and Vespa counts up to {LARGEST}; "
                "write parts of it to several files"
            )
        if not length and dim != dimensions.along:
            raise ValueError(
                f"{subject.path}: {dim!r} has no elements, and Vespa has no dimension of size 0 "
                "but those with labels; leave it out, or give it labels, as texts"
            )


def _conversion(subject: Subject, name: str, variable: Variable) -> Conversion:
    elements = {name: each.element for name, each in _CELLS.items()}
    if not variable.ndim:
        # Java knows scalars of other types, C++ refuses them.
        subject = replace(subject, format="a scalar of Vespa")
        elements = {CELL_TYPES[0].element.name: CELL_TYPES[0].element}
    conversion: Conversion = subject.conversion(name, variable, elements)
    return conversion


def _check_attrs(subject: Subject, name: str, variable: Variable, dimensions: Dimensions) -> None:
    for owner, attribute in _attributes(subject, name, variable, dimensions):
        way_out = f"delete it, as by {owner}.attrs.pop({attribute!r})"
        subject.dropping("attrs", f"the attribute {attribute!r} of {owner}", way_out)


def _attributes(
    subject: Subject, name: str, variable: Variable, dimensions: Dimensions
) -> Iterator[tuple[str, Any]]:
    yield from (("ds", each) for each in subject.attrs)
    yield from ((f"ds[{name!r}]", each) for each in variable.attrs if each != TYPE)
    for dim in dimensions.labels:
        yield from ((f"ds[{dim!r}]", each) for each in subject.coordinates[dim].attrs)


def _heads(subject: Subject, dimensions: Dimensions, mapped: Sequence[str]) -> TextBytes:
    """The labels of all blocks, as bytes."""
    labels = [dimensions.labels[dim] for dim in mapped]
    repeated = repeated_block(labels)
    if repeated is not None:
        address = ", ".join(repr(each[repeated]) for each in labels)
        raise ValueError(
            f"{subject.path}: block {repeated} has the same labels as an earlier one, "
            f"{shortened(address)}, which Vespa may refuse; give each block labels of its own"
        )
    encoded = []
    for dim, texts in zip(mapped, labels, strict=True):
        try:
            encoded.append(encode_texts(texts))
        except UnwritableError as error:
            raise ValueError(
                f"{subject.path}: the label {shortened(repr(error.label))} of {dim!r} is no text "
                "that UTF-8 has bytes for; change it"
            ) from error
        longest = int(encoded[-1].lengths.max(initial=0))
        if longest > LARGEST:
            raise ValueError(
                f"{subject.path}: {dim!r} has a label of {longest} bytes, and Vespa counts up to "
                f"{LARGEST}; shorten it"
            )
    return heads_of(encoded)


def _in_whole_blocks(variable: Variable, layout: LabelledBlocks) -> Variable:
    """The same in chunks that cut no small block, which would be written in tiny pieces."""
    chunks = variable.chunks
    if not chunks or layout.table.form.cell_bytes > SMALL_BLOCK or all(map(_is_one, chunks[1:])):
        return variable
    most = max(1, TARGET // layout.table.mean_bytes)
    along, *inner = variable.dims
    # No bound of a chunk is lost, so that no new chunk needs two old ones for the same blocks.
    lengths = tuple(part for length in chunks[0] for part in _parts(length, most))
    return variable.chunk({along: lengths, **dict.fromkeys(inner, -1)})


def _parts(length: int, most: int) -> Iterator[int]:
    """As few and as equal parts of a length as can be, none above a limit."""
    count = max(1, -(-length // most))
    yield from (length * (i + 1) // count - length * i // count for i in range(count))


def _is_one(lengths: Sequence[int]) -> bool:
    return len(lengths) == 1
