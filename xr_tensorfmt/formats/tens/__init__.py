"""TENS, the binary tensor files of cc4s and sisi4s: versions 0.9 and 1.0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.annotation import annotated
from xr_tensorfmt.formats.base import Format, OpenOptions
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.limits import check_size
from xr_tensorfmt.formats.tens.globalindex import IndexAlong
from xr_tensorfmt.formats.tens.header import FIXED_BYTES, MAGIC, Header, read_header, recognises
from xr_tensorfmt.formats.tens.notechunk import note_of_pairs, noted_dims, noted_name
from xr_tensorfmt.formats.tens.storage import Storage, find_storage
from xr_tensorfmt.formats.tens.symmetry import packing_operations
from xr_tensorfmt.layouts import Dense, Layout, Pairs, Records, column_major
from xr_tensorfmt.layouts.orbits import MOST_OPERATIONS, generated
from xr_tensorfmt.layouts.pairtable import INDEX_BYTES
from xr_tensorfmt.sources import Source
from xr_tensorfmt.tensor import Container, Tensor, named_dims

COMPONENT = "component"
ENTRY = "entry"

MOST_FILLED_ELEMENTS = 1 << 40
"""Limit on the tensors of index-value files that open dense unless that is asked for."""


def parse(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a TENS file.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    options : OpenOptions
        ``sparse="stored"`` gives the pairs of an index-value file as they lie there.

    Returns
    -------
    Container
        One tensor, whose dims are the index names of the file.

    Raises
    ------
    TensorFormatError
        The file is damaged, or of a kind that the format does not define.
    ValueError
        The options do not fit the file.
    """
    source = reader.source
    header = read_header(reader)
    storage = find_storage(reader, header)
    check_size(source.name, header.lengths, storage.element_bytes, offset=FIXED_BYTES)
    names = named_dims(options.dims, options.name, header.names)
    _check_reserved(options, names)
    if storage.pairs is None:
        options.check_all_stored(source.name)
        in_file_order = _dense(header, storage)
    elif options.sparse == "stored":
        return _stored(source.name, header, storage, options, names)
    else:
        in_file_order = _filled(source, header, storage, options)
    layout = column_major(in_file_order, trailing=int(storage.components > 1))
    dims = (*names, COMPONENT) if storage.components > 1 else names
    attrs = _attrs(header, storage, names)
    encoding = _encoding(header, storage, _noted_names(storage, options, names))
    tensor = Tensor(options.name, dims, layout, attrs, encoding)
    container = Container((tensor,), warnings=storage.warnings, note=storage.note)
    if storage.note is None or storage.components == 1 or options.dims is None:
        return container
    wanted = replace(options, dims=_with_component(options.dims))
    return replace(annotated(source.name, container, wanted), note=None)


def _with_component(dims: Any) -> Any:
    """The names that the user wants, and that of the last dimension, which is never renamed."""
    if isinstance(dims, Mapping):
        return {name: (*each, COMPONENT) for name, each in dims.items()}
    return (*dims, COMPONENT)


def _noted_names(storage: Storage, options: OpenOptions, names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the dimensions: those that the user wants, else those of the note, if it has any."""
    rank = len(names)
    noted = noted_dims(storage.note, rank + (storage.components > 1))
    return names if noted is None or options.dims is not None else noted[:rank]


def _check_reserved(options: OpenOptions, names: tuple[str, ...]) -> None:
    for word in (COMPONENT, ENTRY):
        if word in (options.name, *names):
            raise ValueError(f"{word!r} is a dimension that TENS files can have; choose another")


def _dense(header: Header, storage: Storage) -> Layout:
    components = (storage.components,) if storage.components > 1 else ()
    return Dense((*header.lengths[::-1], *components), storage.element, storage.offset)


def _filled(source: Source, header: Header, storage: Storage, options: OpenOptions) -> Layout:
    if options.sparse == "auto" and header.total > MOST_FILLED_ELEMENTS:
        raise ValueError(
            f"{source.name}: the {storage.pairs} stored pairs belong to a tensor of "
            f"{header.total} elements; open it with sparse='stored', or with sparse='dense' if "
            "that many zeros are wanted"
        )
    rank = len(header.lengths)
    orbit = generated(packing_operations(storage.symmetries, header, source.name), rank)
    if orbit is None:
        raise TensorFormatError(
            source.name,
            "the group of the packed symmetries",
            f"larger than {MOST_OPERATIONS} operations",
            "fewer",
            "open it with sparse='stored'",
            offset=header.stop,
        )
    return Pairs(
        header.lengths[::-1],
        storage.element,
        storage.components,
        storage.offset,
        storage.pairs or 0,
        orbit,
    )


def _stored(
    path: str, header: Header, storage: Storage, options: OpenOptions, names: tuple[str, ...]
) -> Container:
    noted = _noted_names(storage, options, names)
    hidden = {*noted, ENTRY}
    if not {ENTRY, COMPONENT, options.name, noted_name(storage.note)} & set(noted):
        names = noted
    stride, count = storage.pair_bytes, storage.pairs or 0
    layout = Records(
        count, storage.components, storage.element, storage.offset + INDEX_BYTES, stride
    )
    dims = (ENTRY, COMPONENT) if storage.components > 1 else (ENTRY,)
    encoding = _encoding(header, storage, names)
    tensor = Tensor(options.name, dims, layout, _attrs(header, storage, names), encoding)
    coordinates = []
    for axis, (label, length) in enumerate(zip(names, header.lengths, strict=True)):
        element = IndexAlong(prod(header.lengths[:axis]), length, header.total)
        index = Records(count, 1, element, storage.offset, stride)
        facts = {"tensorfmt": {"format": "tens", "axis": axis}}
        coordinates.append(Tensor(label, (ENTRY,), index, encoding=facts))
    container = Container((tensor,), tuple(coordinates), warnings=storage.warnings)
    if storage.note is None:
        return container
    # The dims that the user names are those of the tensor; the pairs have none of them.
    noting = replace(container, note=note_of_pairs(storage.note, hidden))
    return replace(annotated(path, noting, replace(options, dims=None)), note=None)


def _attrs(header: Header, storage: Storage, names: tuple[str, ...]) -> dict[str, Any]:
    # Texts rather than lists, which netCDF 3 cannot hold and netCDF 4 does not keep.
    attrs: dict[str, Any] = {}
    if storage.symmetries:
        attrs["symmetries"] = ", ".join(map(str, storage.symmetries))
    if storage.skipped:
        attrs["skipped_chunks"] = ", ".join(storage.skipped)
    sparse = [
        name
        for name, each in zip(names, header.dimensions, strict=True)
        if each.is_sparse and not header.is_before_1_0
    ]
    if sparse:
        attrs["sparse_dims"] = ", ".join(sparse)
    return attrs


def _encoding(header: Header, storage: Storage, names: tuple[str, ...]) -> dict[str, Any]:
    facts = {
        "format": "tens",
        "version": "0.9" if header.is_before_1_0 else "1.0",
        "shape": header.lengths,
        "storage": "dense" if storage.pairs is None else "pairs",
        "offset": storage.offset,
        "order": "F",
        "byteorder": "big" if header.is_big_endian else "little",
        "dtype": storage.element.name,
        "index_names": header.index_names,
        "dims": names,
    }
    packed = [str(each) for each in storage.symmetries if each.packed]
    if packed:
        facts["packed_symmetries"] = ", ".join(packed)
    if storage.symmetries:
        facts["symmetries"] = ", ".join(map(str, storage.symmetries))
    return {"tensorfmt": facts, "dtype": storage.element.encoding}


TENS = Format("tens", (MAGIC,), recognises, parse)
