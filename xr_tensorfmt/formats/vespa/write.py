"""Which dimensions of a Dataset are mapped in Vespa, with their labels, and which are indexed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray
from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.core.chunk_grid import TARGET
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Array, Element
from xr_tensorfmt.core.extents import (
    LONG_PIECE,
    Bytes,
    Extents,
    Integers,
    gather_uniform,
    scatter_uniform,
)
from xr_tensorfmt.core.header import MOST_DIMENSIONS
from xr_tensorfmt.core.layout import BATCH, Encoded, raw_bytes
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.core.selection import Selection, entry_part
from xr_tensorfmt.errors import shortened
from xr_tensorfmt.formats.vespa import VespaFormat
from xr_tensorfmt.formats.vespa.blocks import Blocks, BlockTable, Listed
from xr_tensorfmt.formats.vespa.labels import alike
from xr_tensorfmt.formats.vespa.outer_product import repeated_block
from xr_tensorfmt.formats.vespa.spec import (
    BLOCK,
    CELL_TYPES,
    LARGEST,
    LONG,
    MOST_NAME_BYTES,
    BlockForm,
    CellType,
    Header,
    header_bytes,
    new_header,
)
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.checked_input import CheckedInput, Encoding, Part
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.file_plan import FilePlan, Placed
from xr_tensorfmt.writing.to_file import Mode, write

Texts = NDArray[Any]
"""Python's own texts, an element a block."""


@dataclass(frozen=True, eq=False)
class Dimensions:
    """What the dimensions of a variable are in Vespa."""

    along: str | None
    labels: Mapping[str, Texts]
    indexed: tuple[str, ...]


def dimensions_of(checked: CheckedInput, variable: Variable) -> Dimensions:
    """Tell mapped dimensions by their labels."""
    dims = tuple(map(str, variable.dims))
    own = _texts(checked, {dim: dim for dim in dims})
    if len(own) > 1:
        raise _outer_product(checked, tuple(own))
    along, labels = next(iter(own), None), own
    if along is None and BLOCK in dims:
        labels = _texts(checked, dict.fromkeys(checked.coordinates, BLOCK))
        along = BLOCK if labels else None
    for name in checked.coordinates:
        if name not in labels:
            _drop(checked, name, dims, along)
    return Dimensions(along, labels, tuple(dim for dim in dims if dim != along))


def _texts(checked: CheckedInput, along: Mapping[str, str]) -> dict[str, Texts]:
    """Those coordinates of texts that lie along the given dimensions, each its own."""
    found = {}
    for name, dim in along.items():
        coordinate = checked.coordinates.get(name)
        if coordinate is not None and coordinate.dims == (dim,) and _may_be_text(coordinate):
            values = np.asarray(coordinate.values, dtype=object)
            if all(issubclass(kind, str) for kind in set(map(type, values.tolist()))):
                found[name] = values
    return found


def _may_be_text(coordinate: Variable) -> bool:
    return coordinate.dtype.kind in "UTO"


def _outer_product(checked: CheckedInput, names: tuple[str, ...]) -> ValueError:
    listed = list(names)
    return ValueError(
        f"{checked.path}: {' and '.join(map(repr, names))} are dimensions with labels, and Vespa "
        f"stores blocks that have a label of each; call ds.stack({BLOCK}={listed})."
        f"reset_index({BLOCK!r}) to make a block of every combination, and then dropna({BLOCK!r}) "
        "to leave out those that are missing, or drop_vars() the labels of all but one"
    )


def _drop(checked: CheckedInput, name: str, dims: tuple[str, ...], along: str | None) -> None:
    """Say of a coordinate that cannot be written what would work, unless it may be dropped."""
    coordinate = checked.coordinates[name]
    what, way_out = f"the coordinate {name!r}", f"call drop_vars({name!r})"
    dim = coordinate.dims[0] if coordinate.ndim == 1 else None
    if dim in dims and dim in (name, BLOCK) and along in (None, dim):
        what += f", as its labels are {_kinds(coordinate)} and those of Vespa are texts"
        way_out = f"make texts of them by ds.assign_coords({name}=ds.{name}.astype(str))"
    elif dim in dims and along is None and BLOCK not in dims and _may_be_text(coordinate):
        what += f", which does not label the dimension {dim!r}"
        way_out = f"call ds.rename_dims({dim}={BLOCK!r}) to make it a label of each block"
    checked.dropping("coords", what, way_out)


def _kinds(coordinate: Variable) -> str:
    if coordinate.dtype.kind != "O":
        return str(coordinate.dtype)
    names = sorted({type(each).__name__ for each in coordinate.values.tolist()})
    return shortened(" and ".join(names))


TYPE = "vespa_type"
"""The one attribute that the format has a place for."""

# What both Java and C++ take in the words of a type.
_LEGAL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_IN_TYPE = re.compile(r"(\w+)[\[{]")


def named(
    checked: CheckedInput,
    name: str,
    variable: Variable,
    dimensions: Dimensions,
    cell_type: CellType,
) -> tuple[dict[str, str], Header]:
    """Name the dimensions in the file."""
    wanted = variable.attrs.get(TYPE)
    stored = _names_in_file((*dimensions.labels, *dimensions.indexed), wanted)
    _check_names(checked, list(stored.values()))
    mapped = [stored[dim] for dim in dimensions.labels]
    indexed = [(stored[dim], variable.sizes[dim]) for dim in dimensions.indexed]
    blocks = 1 if dimensions.along is None else variable.sizes[dimensions.along]
    header = new_header(cell_type, mapped, indexed, blocks)
    if wanted is not None and str(wanted) != header.type:
        what = f"the attribute {TYPE!r} {shortened(repr(wanted))} of a tensor that is {header.type}"
        checked.dropping("attrs", what, f"delete it, as by ds[{name!r}].attrs.pop({TYPE!r})")
    return stored, header


def _names_in_file(names: Collection[str], type_: object) -> dict[str, str]:
    """The names without the underscores that opening gives to those that would clash."""
    known = set(_NAME_IN_TYPE.findall(type_)) if isinstance(type_, str) else set()
    missing = known.difference(names)
    bare = {name: name.rstrip("_") for name in names}
    return {
        name: bare[name] if name not in known and bare[name] in missing else name for name in names
    }


def _check_names(checked: CheckedInput, names: Sequence[str]) -> None:
    if len(names) > MOST_DIMENSIONS:
        raise ValueError(
            f"{checked.path}: {len(names)} dimensions are more than the {MOST_DIMENSIONS} that can "
            "be opened again; stack some of them"
        )
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"{checked.path}: two dimensions would be called {name!r}; rename one of them"
            )
        if not _LEGAL_NAME.fullmatch(name) or len(name) > MOST_NAME_BYTES:
            raise ValueError(
                f"{checked.path}: Vespa refuses the name {shortened(repr(name))} of a dimension; "
                f"rename it to at most {MOST_NAME_BYTES} letters from a to z, digits and "
                "underscores, with no digit first"
            )


class UnwritableError(ValueError):
    """A label has no bytes from which it would be read again."""

    def __init__(self, number: int, label: str) -> None:
        super().__init__(number, label)
        self.number = number
        self.label = label


@dataclass(frozen=True, eq=False)
class TextBytes:
    """Texts one after the other."""

    content: Bytes
    lengths: Integers

    @property
    def sizes(self) -> Integers:
        """Bytes of each with its length before it."""
        return self.lengths + np.where(self.lengths < LONG, 1, 4)

    def put(self, target: Bytes, starts: Integers) -> None:
        """Write each text, and its length before it, to a place of its own."""
        is_long = self.lengths >= LONG
        target[starts[~is_long]] = self.lengths[~is_long]
        words = (self.lengths[is_long] | LONG << 24).astype(">u4")
        scatter_uniform(target, starts[is_long], words.view(np.uint8), 4)
        places = starts + np.where(is_long, 4, 1)
        own = np.cumsum(self.lengths) - self.lengths
        for numbers, part in alike(self.lengths):
            length = int(self.lengths[numbers[0]])
            if length:
                texts = gather_uniform(self.content, own[part], length)
                scatter_uniform(target, places[part], texts, length)


def encode_texts(texts: NDArray[Any]) -> TextBytes:
    """Turn texts into UTF-8."""
    separate = texts.tolist()
    joined = "".join(separate)
    if joined.isascii():
        content, lengths = joined.encode(), map(len, separate)
    else:
        encoded = [_encoded(number, text) for number, text in enumerate(separate)]
        content, lengths = b"".join(encoded), map(len, encoded)
    return TextBytes(
        np.frombuffer(content, dtype=np.uint8), np.fromiter(lengths, np.int64, texts.size)
    )


def _encoded(number: int, text: str) -> bytes:
    try:
        content = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UnwritableError(number, text) from error
    if content.decode("utf-8", "surrogateescape") != text:
        raise UnwritableError(number, text)
    return content


def heads_of(labels: Sequence[TextBytes]) -> TextBytes:
    """What each block begins with: its labels, each after its length."""
    sizes = [each.sizes for each in labels]
    lengths: Integers = np.add.reduce(sizes, axis=0)
    content = np.empty(int(lengths.sum()), dtype=np.uint8)
    starts = np.cumsum(lengths) - lengths
    for each, size in zip(labels, sizes, strict=True):
        each.put(content, starts)
        starts = starts + size
    return TextBytes(content, lengths)


@dataclass(frozen=True, eq=False)
class LabelledBlocks(Blocks):
    """Blocks of a file to be."""

    heads: Bytes

    def extents(self, selection: Selection) -> Extents:
        """The labels as well, which go with the first cell of each block."""
        cells = super().extents(selection)
        if not begins_blocks(self.inner(selection)):
            return cells
        starts = self.table.places.starts(selection.entries[0])
        return Extents.joined(starts, cells.starts + cells.lengths)

    def heads_at(self, starts: Integers, first: int) -> Integers:
        """Where the heads of blocks are among all heads."""
        cells = np.arange(first, first + starts.size) * self.table.form.cell_bytes
        return starts - self.table.offset - cells

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """Labels and cells: small blocks as one range each, large ones in pieces."""
        inner = self.inner(selection)
        is_whole = inner.shape == self.lengths
        if is_whole and self.table.form.cell_bytes < LONG_PIECE:
            count = max(1, BATCH // self.table.mean_bytes)
            for first in range(0, len(values), count):
                entry = entry_part(selection.entries[0], first, count)
                assert isinstance(entry, slice)
                yield _joined(self, entry, values[first : first + count])
            return
        if len(values) and begins_blocks(inner):
            yield _heads_of_selection(self, selection)
        yield from super().encode(selection, values)


def labelled_blocks(
    offset: int, lengths: tuple[int, ...], element: Element, labels: int, heads: TextBytes
) -> LabelledBlocks:
    """Arrange blocks one after the other."""
    form = BlockForm(labels, prod(lengths) * element.stored.itemsize)
    edges = np.full(heads.lengths.size + 1, offset, dtype=np.int64)
    edges[1:] += np.cumsum(heads.lengths + form.cell_bytes)
    table = BlockTable(form, offset, heads.lengths.size, int(edges[-1]), Listed(edges))
    return LabelledBlocks(table, lengths, element, heads.content)


def begins_blocks(inner: Selection) -> bool:
    """Whether what is selected of each block begins with its first cell."""
    return all(isinstance(entry, slice) and entry.start == 0 for entry in inner.entries)


def _heads_of_selection(layout: LabelledBlocks, selection: Selection) -> Encoded:
    entry = selection.entries[0]
    assert isinstance(entry, slice)
    starts = layout.table.places.starts(entry)
    lengths = layout.cells_at(entry) - starts
    first = int(layout.heads_at(starts[:1], entry.start)[0])
    return Extents(starts, lengths), layout.heads[first : first + int(lengths.sum())]


def _joined(layout: LabelledBlocks, entry: slice, values: Array) -> Encoded:
    """Whole blocks as the one range that they are in the file."""
    starts, cells = layout.table.places.starts(entry), layout.cells_at(entry)
    cell_bytes = layout.table.form.cell_bytes
    begin, end = int(starts[0]), int(cells[-1]) + cell_bytes
    joined = np.empty(end - begin, dtype=np.uint8)
    heads, lengths = layout.heads_at(starts, entry.start), cells - starts
    for numbers, part in alike(lengths):
        length = int(lengths[numbers[0]])
        pieces = gather_uniform(layout.heads, heads[part], length)
        scatter_uniform(joined, starts[part] - begin, pieces, length)
    scatter_uniform(joined, cells - begin, raw_bytes(layout.element.encode(values)), cell_bytes)
    return Extents.single(begin, end), joined


SMALL_BLOCK = 64 << 10
"""Bytes of cells up to which a block is written at once, however its values come."""

_CELLS = {each.element.name: each for each in CELL_TYPES}


def to_vespa(
    data: Dataset | DataArray,
    path: Any,
    *,
    mode: Mode = "w",
    compute: bool = True,
    region: Mapping[Any, slice] | None = None,
    encoding: Encoding | None = None,
    drop: Collection[Part] = (),
    storage_options: Mapping[str, Any] | None = None,
    fs: Any = None,
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
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`.

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
    return write(
        data,
        path,
        VespaFormat(),
        {},
        mode=mode,
        compute=compute,
        region=region,
        encoding=encoding,
        drop=drop,
        storage_options=storage_options,
        fs=fs,
    )


def plan(checked: CheckedInput) -> FilePlan:
    """Arrange a Dataset as a typed binary tensor."""
    name, variable = checked.only
    if name != OpenOptions.name:
        way_out = f"rename it to {OpenOptions.name!r}"
        checked.dropping("name", f"the name {name!r} of the variable", way_out)
    for other in checked.encoding:
        if other != name:
            raise ValueError(
                f"{checked.path}: encoding= names {other!r}, whose labels are texts in any case; "
                f"ask for a dtype of {name!r} alone"
            )
    dimensions = dimensions_of(checked, variable)
    _check_lengths(checked, variable, dimensions)
    conversion = _conversion(checked, name, variable)
    cell_type = _CELLS[conversion.element.name]
    stored, header = named(checked, name, variable, dimensions, cell_type)
    _check_attrs(checked, name, variable, dimensions)
    mapped = sorted(dimensions.labels, key=lambda dim: stored[dim].encode())
    indexed = sorted(dimensions.indexed, key=lambda dim: stored[dim].encode())
    along = () if dimensions.along is None else (dimensions.along,)
    variable = variable.transpose(*along, *indexed)
    piece = Piece(0, header_bytes(header))
    if not mapped:
        layout = Dense(header.lengths, header.element, header.stop)
        size = header.stop + header.block_bytes
        return FilePlan(size, (piece,), (Placed(variable, layout, conversion),))
    heads = _heads(checked, dimensions, mapped)
    blocks = labelled_blocks(header.stop, header.lengths, header.element, len(mapped), heads)
    placed = Placed(_in_whole_blocks(variable, blocks), blocks, conversion)
    return FilePlan(blocks.table.stop, (piece,), (placed,))


def _check_lengths(checked: CheckedInput, variable: Variable, dimensions: Dimensions) -> None:
    for dim, length in zip(variable.dims, variable.shape, strict=True):
        what = "blocks" if dim == dimensions.along else "elements"
        if length > LARGEST:
            raise ValueError(
                f"{checked.path}: {dim!r} has {length} {what}, and Vespa counts up to {LARGEST}; "
                "write parts of it to several files"
            )
        if not length and dim != dimensions.along:
            raise ValueError(
                f"{checked.path}: {dim!r} has no elements, and Vespa has no dimension of size 0 "
                "but those with labels; leave it out, or give it labels, as texts"
            )


def _conversion(checked: CheckedInput, name: str, variable: Variable) -> Conversion:
    elements = {name: each.element for name, each in _CELLS.items()}
    if not variable.ndim:
        # Java knows scalars of other types, C++ refuses them.
        checked = replace(checked, format="a scalar of Vespa")
        elements = {CELL_TYPES[0].element.name: CELL_TYPES[0].element}
    conversion: Conversion = checked.conversion(name, variable, elements)
    return conversion


def _check_attrs(
    checked: CheckedInput, name: str, variable: Variable, dimensions: Dimensions
) -> None:
    for owner, attribute in _attributes(checked, name, variable, dimensions):
        way_out = f"delete it, as by {owner}.attrs.pop({attribute!r})"
        checked.dropping("attrs", f"the attribute {attribute!r} of {owner}", way_out)


def _attributes(
    checked: CheckedInput, name: str, variable: Variable, dimensions: Dimensions
) -> Iterator[tuple[str, Any]]:
    yield from (("ds", each) for each in checked.attrs)
    yield from ((f"ds[{name!r}]", each) for each in variable.attrs if each != TYPE)
    for dim in dimensions.labels:
        yield from ((f"ds[{dim!r}]", each) for each in checked.coordinates[dim].attrs)


def _heads(checked: CheckedInput, dimensions: Dimensions, mapped: Sequence[str]) -> TextBytes:
    """The labels of all blocks, as bytes."""
    labels = [dimensions.labels[dim] for dim in mapped]
    repeated = repeated_block(labels)
    if repeated is not None:
        address = ", ".join(repr(each[repeated]) for each in labels)
        raise ValueError(
            f"{checked.path}: block {repeated} has the same labels as an earlier one, "
            f"{shortened(address)}, which Vespa may refuse; give each block labels of its own"
        )
    encoded = []
    for dim, texts in zip(mapped, labels, strict=True):
        try:
            encoded.append(encode_texts(texts))
        except UnwritableError as error:
            raise ValueError(
                f"{checked.path}: the label {shortened(repr(error.label))} of {dim!r} is no text "
                "that UTF-8 has bytes for; change it"
            ) from error
        longest = int(encoded[-1].lengths.max(initial=0))
        if longest > LARGEST:
            raise ValueError(
                f"{checked.path}: {dim!r} has a label of {longest} bytes, and Vespa counts up to "
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
