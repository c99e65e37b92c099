"""Write typed binary tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import Any, Literal

import numpy as np
import orjson
from xarray import Variable

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.extents import DEFAULT_CHUNK_BYTES, Extents, ceil_div
from xr_tensorfmt.core.file_format import OpenOptions
from xr_tensorfmt.core.header import MAX_DIMENSIONS
from xr_tensorfmt.core.layout import BATCH_BYTES, WHOLE, Dense, EncodedBatch, view_as_bytes
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.errors import did_you_mean, shorten, warn
from xr_tensorfmt.formats.vespa.json_forms import Form, build_tensor, is_type
from xr_tensorfmt.formats.vespa.read import Blocks, find_repeated_blocks
from xr_tensorfmt.formats.vespa.spec import (
    BLOCK,
    CELL_TYPES,
    ID_START,
    MAX_INTEGER,
    MAX_NAME_BYTES,
    TYPE,
    Names,
    Strings,
    VespaHeader,
    pack_string,
)
from xr_tensorfmt.writing.checked_input import CheckedInput, get_file_info
from xr_tensorfmt.writing.file_plan import Conversion, FilePlan, Piece, PlannedVariable

_CELL_TYPE_BY_ELEMENT = {element.name: name for name, element in CELL_TYPES.items()}

# Names that both type parsers of Vespa accept, in Java and in C++.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

BATCH_DOCUMENTS = 1024
"""Number of documents of a feed that are written at a time."""

Operation = Literal["put", "update"]


def plan(checked: CheckedInput) -> FilePlan:
    """Plan a typed binary tensor."""
    name, _ = checked.single_variable
    if name != OpenOptions.name:
        hint = f"rename it to {OpenOptions.name!r}"
        checked.refuse_losses(("name", f"the name {name!r}", hint))
    tensor = arrange_tensor(checked)
    header, variable, conversion = tensor.header, tensor.variable, tensor.conversion
    layout: Dense | LabelledBlocks = Dense(header.lengths, header.element, header.stop)
    if header.mapped:
        layout = pack_blocks(checked, header, tensor.rows)
        variable = _rechunk_to_blocks(variable, layout)
    planned = PlannedVariable(variable, layout, conversion)
    return FilePlan(layout.stop, (Piece(0, header.pack()),), (planned,))


@dataclass(frozen=True, eq=False)
class Arranged:
    """A tensor in the order of the file."""

    header: VespaHeader
    # Labels of each block.
    rows: list[Names]
    variable: Variable
    conversion: Conversion

    def encode(self, values: Array) -> Array:
        """Convert values to stored cells."""
        return self.header.element.encode(self.conversion.apply(np.asarray(values)))


def arrange_tensor(checked: CheckedInput) -> Arranged:
    """Create the header, and transpose the variable to the order of the file."""
    name, variable = checked.single_variable
    if others := set(checked.encoding) - {name}:
        raise ValueError(
            f"{checked.path}: encoding= names {min(others)!r}, but labels are always written as "
            f"strings; give a dtype for {name!r} alone"
        )
    block_dims, labels = _find_block_labels(checked, variable)
    indexed = [str(dim) for dim in variable.dims if dim not in block_dims]
    taken = {name, OpenOptions.name, BLOCK}
    name_in_file = _find_file_names(checked, variable, (*labels, *indexed), taken)
    order = sorted(name_in_file, key=lambda dim: name_in_file[dim].encode())
    labels = {dim: labels[dim] for dim in order if dim in labels}
    indexed = [dim for dim in order if dim in indexed]
    for dim, length in variable.sizes.items():
        if length > MAX_INTEGER or not (length or dim in block_dims):
            expected = f"1 to {MAX_INTEGER}, or 0 if it has a coordinate of strings"
            raise ValueError(f"{checked.path}: {dim!r} has length {length}, expected {expected}")
    elements = {element.name: element for element in CELL_TYPES.values()}
    if not variable.ndim:
        # The C++ code of Vespa refuses scalars of other types.
        elements = {"float64": CELL_TYPES["double"]}
        checked = replace(checked, format="a scalar of Vespa")
    conversion = checked.choose_conversion(name, variable, elements)
    header = VespaHeader.create(
        _CELL_TYPE_BY_ELEMENT[conversion.element.name],
        tuple(name_in_file[dim] for dim in labels),
        tuple(name_in_file[dim] for dim in indexed),
        tuple(variable.sizes[dim] for dim in indexed),
        prod(variable.sizes[dim] for dim in block_dims),
    )
    _check_attrs(checked, name, variable, labels)
    rows: list[Names] = list(zip(*labels.values(), strict=True)) if labels else [()]
    for block, earlier in find_repeated_blocks(rows):
        same = f"block {earlier}, {shorten(', '.join(map(repr, rows[block])))}"
        reason = "which Vespa may refuse; use different labels"
        raise ValueError(f"{checked.path}: block {block} has the same labels as {same}, {reason}")
    return Arranged(header, rows, variable.transpose(*block_dims, *indexed), conversion)


def _find_block_labels(
    checked: CheckedInput, variable: Variable
) -> tuple[list[str], dict[str, Strings]]:
    """Return the dimension that counts blocks, if any, and the labels by mapped dimension."""
    dims = tuple(map(str, variable.dims))
    labels = _find_labels(checked, {dim: dim for dim in dims})
    block_dims = list(labels)
    if len(labels) > 1:
        raise ValueError(
            f"{checked.path}: {' and '.join(map(repr, labels))} are dimensions with labels, but "
            f"Vespa stores blocks; call ds.stack({BLOCK}={block_dims}).reset_index({BLOCK!r}) to "
            f"make a block of every combination, and then dropna({BLOCK!r}) to leave out those "
            "that are missing, drop_vars() the labels of all but one, or choose another format"
        )
    if not labels and BLOCK in dims:
        labels = _find_labels(checked, dict.fromkeys(checked.coordinates, BLOCK))
        block_dims = [BLOCK] if labels else []
    for name in checked.coordinates:
        if name not in labels:
            _check_dropped(checked, name, dims, block_dims)
    return block_dims, labels


def _find_labels(checked: CheckedInput, dims: Mapping[str, str]) -> dict[str, Strings]:
    """Return the named coordinates that contain strings along the given dimensions."""
    labels = {}
    for name, dim in dims.items():
        coordinate = checked.coordinates.get(name)
        if coordinate is not None and coordinate.dims == (dim,) and coordinate.dtype.kind in "UTO":
            # An index contains Python strings. ``.values`` would copy them.
            index = coordinate.to_index()
            if index.inferred_type == "categorical":
                index = index.astype(object)
            has_missing = index.dtype != object and index.hasnans
            if index.inferred_type in ("string", "empty") and not has_missing:
                labels[name] = np.asarray(index, dtype=object)
    return labels


def _check_dropped(
    checked: CheckedInput, name: str, dims: tuple[str, ...], block_dims: list[str]
) -> None:
    """Raise an error for a coordinate that cannot be written, unless it may be dropped."""
    coordinate = checked.coordinates[name]
    subject, hint = f"the coordinate {name!r}", f"call drop_vars({name!r})"
    dim = coordinate.dims[0] if coordinate.ndim == 1 else None
    if name not in dims and dim in dims and not block_dims and coordinate.dtype.kind in "UTO":
        hint += f", or rename({{{dim!r}: {BLOCK!r}}}) if these are the labels of blocks"
    if dim in dims and (dim == name or (dim == BLOCK and block_dims in ([], [dim]))):
        subject += f", because some of its labels ({coordinate.dtype}) are not str"
        hint = f"ds.assign_coords({name}=ds[{name!r}].astype(str))"
        if coordinate.dtype.kind in "iu":
            hint = f"call drop_vars({name!r}) if they are positions, or convert them by {hint}"
        else:
            hint = f"select labels that are not missing, and convert them by {hint}"
    checked.refuse_losses(("coords", subject, hint))


def _find_file_names(
    checked: CheckedInput, variable: Variable, names: tuple[str, ...], taken: Collection[str]
) -> dict[str, str]:
    """Return checked names in the file, without underscores that the reader appended."""
    type_ = get_file_info(variable, "vespa").get(TYPE, variable.attrs.get(TYPE, ""))
    typed = set(re.findall(r"(\w+)[\[{]", str(type_)))
    names_in_file = {name: name for name in names}
    for name in set(names) - typed:
        if (stem := name.rstrip("_")) in typed.difference(names) and stem in taken:
            names_in_file[name] = stem
    if len(names) > MAX_DIMENSIONS:
        raise ValueError(
            f"{checked.path}: {len(names)} dimensions are more than the {MAX_DIMENSIONS} that can "
            "be opened again; stack some of them"
        )
    own = list(names_in_file.values())
    for name in own:
        is_valid = _NAME.fullmatch(name) and len(name) <= MAX_NAME_BYTES
        if not is_valid or own.count(name) > 1:
            raise ValueError(
                f"{checked.path}: Vespa refuses the name {shorten(repr(name))} of a dimension; "
                f"rename it to a unique one of at most {MAX_NAME_BYTES} letters from a to z, "
                "digits and underscores, with no digit first"
            )
    return names_in_file


def _check_attrs(
    checked: CheckedInput, name: str, variable: Variable, labels: Iterable[str]
) -> None:
    data = {"ds": checked.attrs, f"ds[{name!r}]": variable.attrs}
    coordinates = {f"ds[{dim!r}]": checked.coordinates[dim].attrs for dim in labels}
    for owner, attributes in (data | coordinates).items():
        for attribute, value in attributes.items():
            if attribute == TYPE and owner in data and is_type(value):
                continue  # made by the reader, and copied by xarray in `ds / ds.tensor.sum()`
            hint = f"delete it from {owner}.attrs or {owner}.encoding"
            checked.refuse_losses(("attrs", f"the attribute {attribute!r} of {owner}", hint))


def _rechunk_to_blocks(variable: Variable, layout: LabelledBlocks) -> Variable:
    """Merge chunks that divide blocks into chunks of whole blocks."""
    chunks = variable.chunks
    if not chunks or all(len(lengths) == 1 for lengths in chunks[1:]):
        return variable
    block_dim, *inner = variable.dims
    count = max(1, min(max(chunks[0]), DEFAULT_CHUNK_BYTES // layout.mean_bytes))
    return variable.chunk({block_dim: count, **dict.fromkeys(inner, -1)})


@dataclass(frozen=True, eq=False)
class LabelledBlocks(Blocks):
    """Blocks of a new file, with the packed labels of each block."""

    labels: list[bytes]

    @property
    def write_units(self) -> tuple[int, ...]:
        """Whole blocks with their labels."""
        return (1, *(WHOLE,) * len(self.header.lengths))

    def locate(self, selection: Selection) -> Extents:
        """Return one range for consecutive whole blocks."""
        blocks = selection.indices[0]
        return Extents.single(int(self.offsets[blocks[0]]), int(self.offsets[blocks[-1] + 1]))

    def encode(self, selection: Selection, values: Array) -> Iterator[EncodedBatch]:
        """Encode labels and cells of consecutive whole blocks."""
        blocks, step = selection.indices[0], max(1, BATCH_BYTES // self.mean_bytes)
        for batch in range(0, len(blocks), step):
            first, last = blocks[batch], blocks[min(batch + step, len(blocks)) - 1]
            cells = view_as_bytes(self.header.element.encode(values[batch : batch + step]))
            rows: Any = cells.reshape(-1, self.header.block_bytes)
            pairs = zip(self.labels[first : last + 1], rows, strict=True)
            joined = b"".join(part for pair in pairs for part in pair)
            extents = Extents.single(int(self.offsets[first]), int(self.offsets[last + 1]))
            yield extents, np.frombuffer(joined, np.uint8)


def pack_blocks(checked: CheckedInput, header: VespaHeader, rows: list[Names]) -> LabelledBlocks:
    """Pack the labels of all blocks, and compute the offsets of the blocks."""
    try:
        packed = [b"".join(map(pack_string, row)) for row in rows]
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{checked.path}: the label {shorten(repr(error.object))} cannot be encoded as UTF-8; "
            "change it"
        ) from None
    offsets = np.full(len(rows) + 1, header.stop, dtype=np.int64)
    sizes = np.fromiter(map(len, packed), np.int64, len(rows))
    offsets[1:] += np.cumsum(sizes + header.block_bytes)
    return LabelledBlocks(header, offsets, packed)


def format_feed(
    tensor: Arranged, field: str, dim: str, prefix: str, form: Form, operation: Operation
) -> Iterator[bytes]:
    """Yield the lines of a feed."""
    mapped = [*tensor.header.mapped]
    if dim not in mapped:
        dims = mapped or [*map(str, tensor.variable.dims)]
        hint = f"; call assign_coords({dim}=...)" if dim in tensor.variable.dims else ""
        raise ValueError(
            f"dim={dim!r}{did_you_mean(dim, set(dims) - {dim})} has no labels, expected one of "
            f"{dims} with ids as labels{hint}"
        )
    position = mapped.index(dim)
    del mapped[position]
    header = replace(tensor.header, mapped=tuple(mapped))
    others = [row[:position] + row[position + 1 :] for row in tensor.rows]
    documents: dict[str, list[int]] = {}
    for block, row in enumerate(tensor.rows):
        documents.setdefault(row[position], []).append(block)
    if prefix and (label := next((x for x in documents if x.startswith(prefix)), None)):
        raise ValueError(f"the label {label!r} already begins with prefix={prefix!r}; omit prefix=")
    if label := next((x for x in documents if not ID_START.match(prefix + x)), None):
        warn(f"Vespa requires ids such as 'id:shop:user::ann', not {prefix + label!r}; use prefix=")
    # A batch has whole chunks, because each is computed for every batch that needs it.
    chunk = max((tensor.variable.chunks or [[1]])[0])
    size = ceil_div(BATCH_DOCUMENTS, chunk) * chunk
    size = max(1, size * len(documents) // max(1, len(tensor.rows)))
    remaining, masked = iter(documents.items()), list[int]()
    while batch := dict(islice(remaining, size)):
        blocks = np.array([block for own in batch.values() for block in own])
        # Selecting a range of a dask array is faster.
        is_range = (np.diff(blocks) == 1).all()
        key = slice(int(blocks[0]), int(blocks[-1]) + 1) if is_range else blocks
        values = tensor.variable[key].values
        masked += blocks[(values != values).reshape(len(blocks), -1).all(axis=1)].tolist()
        cells, start = tensor.encode(values), 0
        for label, own in batch.items():
            part, start = slice(start, start + len(own)), start + len(own)
            rows = [others[block] for block in own]
            content = build_tensor(header, rows, cells[part], form)
            value = {"assign": content} if operation == "update" else content
            try:
                yield orjson.dumps({operation: prefix + label, "fields": {field: value}}) + b"\n"
            except orjson.JSONEncodeError as error:
                raise ValueError(f"the document {label!r} has a wrong label: {error}") from error
    _warn_of_masked(tensor, masked)


def _warn_of_masked(tensor: Arranged, masked: list[int]) -> None:
    """Warn of blocks without values, which `Dataset.where` leaves."""
    if not masked:
        return
    found = f"{len(masked)}, the first is {', '.join(map(repr, tensor.rows[masked[0]]))}"
    hint = f"call dropna({tensor.variable.dims[0]!r}, how='all') to leave them out"
    warn(f"blocks contain only NaN: {shorten(found)}; {hint}")
