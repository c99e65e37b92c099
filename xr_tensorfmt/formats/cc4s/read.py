"""Read cc4s tensors: a YAML file, its elements, and properties of dimensions."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.embedded_metadata import apply_embedded_metadata
from xr_tensorfmt.core.file_format import (
    EMBEDDED_KEY,
    Container,
    End,
    OpenOptions,
    Tensor,
    name_dims,
)
from xr_tensorfmt.core.gathered import Gathered, scale_layout
from xr_tensorfmt.core.header import HeaderReader, check_size
from xr_tensorfmt.core.layout import Dense, InMemory, Layout, column_major
from xr_tensorfmt.core.layout import read as read_layout
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source, is_file_name, open_sibling
from xr_tensorfmt.errors import Finding, TensorFormatError, suggest_file
from xr_tensorfmt.formats.cc4s import ELEMENTS, YAML, header
from xr_tensorfmt.formats.cc4s.header import Dimension, Properties, TensorEntry, unpack_properties
from xr_tensorfmt.formats.cc4s.layouts import Blocks, Text, find_blocks
from xr_tensorfmt.formats.cc4s.yaml_text import MAX_BYTES, get_number, read_yaml, simplify

_SEARCHED_BYTES = 64 << 10
"""Bytes at both ends of a YAML file that are searched for keys of cc4s."""

ENERGY_TOLERANCE = 1e-6
"""Relative tolerance of energies in metadata, which are often rounded."""

# Only files of cc4s match all patterns. Programs write the keys in any order.
_TYPE = re.compile(rb"^type: .*\bTensor(Set)?\b", re.MULTILINE)
_TENSOR = (
    re.compile(rb"^ *version: *100\b", re.MULTILINE),
    _TYPE,
    re.compile(rb"^ *scalarType: .*\b(Real|Complex)64\b", re.MULTILINE),
)
# Files of a calculation without tensors.
_PARTS = {
    "properties of a dimension": re.compile(rb"^dimensionType:", re.MULTILINE),
    "log of cc4s": re.compile(rb"^(steps|buildDate):|^ *Coupled Cluster for Solids", re.MULTILINE),
    "input of cc4s": re.compile(rb"^- *(name|in|out):", re.MULTILINE),
}


def is_cc4s(reader: HeaderReader) -> bool:
    """Return whether a file has the keys of a cc4s tensor."""
    try:
        return describe_yaml(_find_yaml(reader)) == header.TENSOR
    except ValueError:  # a file object has no siblings, and may have another format
        return False


def describe_yaml(yaml: HeaderReader) -> str:
    """Return "Tensor", another part of a calculation, or "". Search both ends of the file."""
    size = yaml.source.size
    content = yaml.read_head(_SEARCHED_BYTES)
    if size > _SEARCHED_BYTES:
        last = min(_SEARCHED_BYTES, size - _SEARCHED_BYTES)
        content += yaml.read_field(size - last, last, "the end of the YAML")
    if all(pattern.search(content) for pattern in _TENSOR):
        return header.TENSOR
    found = (part for part, pattern in _PARTS.items() if pattern.search(content))
    return "" if _TYPE.search(content) else next(found, "")


def find_parts(
    names: Collection[str], open_reader: Callable[[str], HeaderReader]
) -> dict[str, str]:
    """Return elements that have a YAML file, and YAML files that describe no tensor."""
    elements = {name for name in names if name.casefold().endswith(ELEMENTS)}
    yaml = {*names} - elements
    complete = {*map(header.get_stem, elements)} & {*map(header.get_stem, yaml)}
    parts = {name: "elements" for name in elements if header.get_stem(name) in complete}
    for name in (name for name in yaml if header.get_stem(name) not in complete):
        with suppress(OSError, TensorFormatError):  # opening it explains why
            parts[name] = describe_yaml(open_reader(name))
    return {name: part for name, part in parts.items() if part != header.TENSOR}


def _find_yaml(reader: HeaderReader) -> HeaderReader:
    """Return the YAML file: the opened file or, for elements, their sibling."""
    source = reader.source
    if not source.file_name.casefold().endswith(ELEMENTS):
        return reader
    file, reason = header.get_stem(source.file_name), f"it describes the elements in {source.name}"
    return HeaderReader(*open_sibling(source, f"{file}{YAML}", reason))


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the YAML and the properties of dimensions, and look for the elements."""
    options.refuse_stored(reader.source.name)
    yaml = _find_yaml(reader)
    try:
        fields = read_yaml(yaml)
        entries = header.parse_entries(fields, options, header.get_stem(yaml.source.file_name))
    except TensorFormatError:
        part = describe_yaml(yaml) if yaml.source.size <= MAX_BYTES else ""
        if part not in ("", header.TENSOR):
            hint = "open a tensor of that directory"
            raise yaml.error("type", part, "Tensor or TensorSet", hint) from None
        raise
    opened = _open_all(yaml.source, entries)
    # A writer replaces the elements, then the YAML. Raise an error if it has done so meanwhile.
    yaml.source.check_unchanged()
    properties, findings = _read_properties(opened, entries)
    all_dims = header.make_dims_unique([entry.dimensions for entry in entries])
    described = {x.component: replace(x, dims=d) for x, d in zip(entries, all_dims, strict=True)}
    tensors, ends = [], []
    for entry in described.values():
        source, _ = opened[entry.elements_file]
        tensors.append(_build_tensor(entry, source, properties, options, findings))
        ends.append(End(source, source.size, "the elements"))
    listing = [f"a list of the energies of {x.name!r}" for x in entries if x.energies is not None]
    container = Container(
        tuple(tensors),
        findings=tuple(findings),
        ends=tuple(ends),
        embedded=header.get_metadata(fields).get(EMBEDDED_KEY),
        derived=tuple(listing),
        parsed=described,
    )
    if container.embedded is not None:
        container = apply_embedded_metadata(reader.source.name, container, options)
    return _finish(container, properties, options)


def _finish(container: Container, properties: Properties, options: OpenOptions) -> Container:
    """Add attributes of the file, and coordinates, after embedded metadata have been applied."""
    tensors = []
    for tensor in container.tensors:
        entry = container.parsed[tensor.encoding["tensorfmt"].get("component")]
        requested = options.dims if container.embedded is None else None
        dims = name_dims(requested, tensor.name, tensor.dims)
        stored, attrs = entry.attrs, entry.attrs
        for name, value in tensor.attrs.items():
            if name == "unit" and value is None and attrs["unit"] == 1:
                del attrs["unit"]
            # Use the embedded dtype only if another program has not changed the number.
            elif name not in stored or simplify(value) == stored[name]:
                attrs[name] = value
        if options["apply_unit"] and entry.unit != 1:
            keys = header.get_unit_keys(entry.lengths, entry.types)
            attrs |= {key: _multiply(attrs[key], entry.unit) for key in keys if key in attrs}
            attrs |= {"unit": 1.0, header.APPLIED_UNIT: entry.unit}
        encoding = dict(tensor.encoding, tensorfmt={**tensor.encoding["tensorfmt"], "dims": dims})
        tensors.append(tensor._replace(dims=dims, attrs=attrs, encoding=encoding))
    container = replace(container, tensors=tuple(tensors), embedded=None)
    labels = _build_labels(container, properties)
    return replace(container, coordinates=(*container.coordinates, *labels))


def _multiply(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [_multiply(item, factor) for item in value]
    is_number = isinstance(value, np.ndarray | np.number | int | float)
    return value * factor if is_number and not isinstance(value, bool) else value


def _open_all(source: Source, entries: Sequence[TensorEntry]) -> Mapping[str, tuple[Source, bytes]]:
    """Open the elements, and the files of properties that exist, concurrently if remote."""
    types = {dimension.type for entry in entries for dimension in entry.dimensions}
    names = (f"{name}{YAML}" for name in types if is_file_name(name))
    property_files = set(filter(is_file_name, names)) - {source.file_name}
    files = [*(entry.elements_file for entry in entries), *sorted(property_files)]

    def open_one(file: str) -> tuple[Source, bytes] | None:
        try:
            return open_sibling(source, file, f"it has the elements of {source.name}")
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            # Without permission to list a bucket, a store also denies access to missing objects.
            is_missing = not isinstance(error, PermissionError) or source.high_latency
            if file in property_files and is_missing:
                return None
            if isinstance(error, FileNotFoundError):
                raise suggest_file(error, file) from None
            raise

    opened = zip(files, source.run(open_one, files), strict=True)
    return {file: pair for file, pair in opened if pair is not None}


def _read_properties(
    opened: Mapping[str, tuple[Source, bytes]], entries: Sequence[TensorEntry]
) -> tuple[Properties, list[Finding]]:
    """Return the properties by type, and findings about damaged files, or of other lengths."""
    # Slices and amplitudes have a part of the states.
    whole = [entry for entry in entries if entry.cc4s_object in (header.VERTEX, header.ENERGIES)]
    dimensions = {dimension for entry in whole for dimension in entry.dimensions}
    findings: list[Finding] = []
    properties: Properties = {}
    for file in filter(lambda name: name.endswith(YAML), opened):
        stem, hint = header.get_stem(file), "it is left out; fetch the files of one calculation"
        lengths = [item.length for item in dimensions if item.type == stem]
        try:
            fields = read_yaml(HeaderReader(*opened[file]))
            properties |= (unpacked := unpack_properties(fields, stem))
            for (_, name), (indices, _) in unpacked.items():
                field, actual = f"propertyIndices.{name}", f"{indices.size} integers"
                expected = f"{max(lengths, default=0)}, the length of {stem}"
                fits = not lengths or indices.size in lengths
                fields.check(fits, field, actual, expected, hint)
        except TensorFormatError as error:
            findings.append(error.to_finding("warning"))
    return properties, findings


def _build_tensor(
    entry: TensorEntry,
    source: Source,
    properties: Properties,
    options: OpenOptions,
    findings: list[Finding],
) -> Tensor:
    """Return the tensor, and append findings about what is ignored."""
    check_size(entry.fields.path, entry.lengths, entry.element.dtype.itemsize, 0)
    blocks = _find_blocks(entry, source, properties)
    if blocks is not None:
        field = entry.fields.get_path("dimensions")
        options.check_filled(entry.fields.path, field, prod(entry.lengths), blocks.size, None)
    layout = column_major(_build_layout(entry, source, blocks, findings))
    if options["apply_unit"] and entry.unit != 1:
        layout = scale_layout(layout, entry.unit)
    file_info = {
        "format": "cc4s",
        "version": header.VERSION,
        "shape": entry.lengths,
        "storage": "dense" if blocks is None else "blocks",
        "order": "F",
        "byteorder": "little",
        "dtype": entry.element.name,
        "elements": entry.elements,
        "unit": entry.unit,
        "types": entry.types,
    }
    file_info |= {} if entry.elements == header.TEXT else {"offset": 0}
    file_info |= {} if entry.component is None else {"component": entry.component}
    if "unit" in entry.metadata:
        actual = "ignored, because the attribute `unit` is the unit of the tensor"
        error = entry.fields.error("metaData.unit", actual, "", "rename it")
        findings.append(error.to_finding("warning"))
    encoding = {"tensorfmt": file_info, "dtype": entry.element.encoding}
    return Tensor(entry.name, entry.dims, layout, encoding=encoding, source=source)


def _find_blocks(entry: TensorEntry, source: Source, properties: Properties) -> Blocks | None:
    """Return the stored blocks, or None if the file has all elements, as the only block."""
    if not entry.conditions:
        return None
    has_one = prod(len(rows) for _, rows in entry.conditions) == 1
    nbytes = prod(entry.lengths) * entry.element.stored.itemsize
    is_whole = source.size >= nbytes or entry.elements == header.TEXT
    needed = [(entry.types[axis], name) for pairs, _ in entry.conditions for name, axis in pairs]
    is_missing = not properties.keys() >= {*needed}
    return None if has_one and is_whole and is_missing else find_blocks(entry, properties)


def _build_layout(
    entry: TensorEntry, source: Source, blocks: Blocks | None, findings: list[Finding]
) -> Layout:
    """Return the layout of the elements; raise an error if the file is truncated."""
    shape = entry.lengths[::-1]
    lengths = shape if blocks is None else (blocks.size,)
    is_text, count = entry.elements == header.TEXT, prod(lengths)
    # Text has at least a digit and the end of the line for each element.
    min_size = max(0, 2 * count - 1) if is_text else count * entry.element.stored.itemsize
    reader, field, actual = HeaderReader(source), "the elements", f"{source.size} bytes"
    expected = f"{min_size} for {entry.fields.values['scalarType']} (numpy.{entry.element.name}) "
    expected += f"of shape {entry.lengths} as in {entry.fields.path}"
    hint = "the file is incomplete, or belongs to another YAML file; fetch both again"
    if not is_text and source.size != min_size:
        _refuse_other_formats(reader)
    reader.check(source.size >= min_size, field, actual, expected, hint, source.size)
    layout: Layout = Dense(lengths, entry.element, 0)
    if is_text:
        layout = Text(lengths, entry.element.dtype, source.size)
    elif source.size > min_size:
        # Programs overwrite a file without truncating it, so the end of a larger tensor may follow.
        field, actual = "the end of the elements", f"{source.size - min_size} more bytes"
        expected, hint = "the end of the file", "they are ignored; compare with the original size"
        error = reader.error(field, actual, expected, hint, min_size)
        findings.append(error.to_finding("warning"))
    if blocks is None:
        return layout
    return Gathered(shape, layout.dtype, partial(blocks.gather, layout), (layout,))


def _refuse_other_formats(reader: HeaderReader) -> None:
    """Raise TensorFormatError if binary elements begin as a file of another format."""
    head, title, hint = reader.head, "", "decompress or convert it, so that it has only the values"
    if reader.has_fortran_records():
        title = "a record of Fortran, with its size before and after the values"
        hint = "write the file with access='stream' in Fortran"
    elif head.startswith((b"\x93NUMPY", b"TENS", b"\x89HDF\r\n", b"\x1f\x8b\x08", b"PK\3\4")):
        title = f"a header of another format ({head[:8]!r})"
    elif head and not head.translate(None, string.printable.encode()):
        title, hint = f"text ({head[:20]!r})", "text has the elements.type TextFile in the YAML"
    reader.check(not title, "the elements", title, "only binary values", hint, 0)


def _find_occupied(entry: TensorEntry) -> Array | None:
    """Return which states are occupied by the rule of cc4s, or None if it does not apply."""
    energies, fermi = entry.energies, entry.metadata.get("fermiEnergy")
    if energies is None or energies.shape != entry.lengths or entry.component is not None:
        return None
    is_number = isinstance(fermi, int | float) and not isinstance(fermi, bool)
    return np.asarray(energies < fermi) if is_number else None


def _build_labels(container: Container, properties: Properties) -> Iterator[Tensor]:
    """Yield occupied states, and properties, as coordinates with names that are not taken."""
    taken = {name for tensor in container.tensors for name in (tensor.name, *tensor.dims)}
    taken |= {coordinate.name for coordinate in container.coordinates}
    dimensions: list[tuple[str, str, Dimension]] = []
    for tensor in container.tensors:
        entry = container.parsed[tensor.encoding["tensorfmt"].get("component")]
        dimensions += zip(tensor.dims, entry.dims, entry.dimensions, strict=True)
        occupied = _find_occupied(entry)
        if occupied is not None and header.OCCUPIED not in taken:
            yield Tensor(header.OCCUPIED, tensor.dims, InMemory(occupied))
    for (dimension_type, prop), (indices, attrs) in properties.items():
        for name, default, dimension in dimensions:
            label = f"{default}_{prop}"
            if dimension == Dimension(indices.size, dimension_type) and label not in taken:
                taken.add(label)
                yield Tensor(label, (name,), InMemory(indices), attrs)


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:  # noqa: ARG001
    """Compare tensors with the objects of cc4s, and lists of energies with the elements."""
    for tensor in container.tensors:
        entry = container.parsed[tensor.encoding["tensorfmt"].get("component")]
        types = [dimension.type for dimension in entry.dimensions]
        conflicts = {
            "dimensions": header.find_rank_conflict(entry.cc4s_object, len(types))
            or header.find_type_conflict(entry.cc4s_object, types),
            "unit": _find_unit_conflict(entry, _find_yaml(reader).source),
            "metaData.fermiEnergy": header.find_fermi_conflict(entry.cc4s_object, entry.metadata),
            "metaData.energies": _find_energy_conflict(entry, tensor),
        }
        for key, actual in conflicts.items():
            if actual is not None and (key != "dimensions" or entry.component is None):
                field = entry.fields.get_path(key)
                yield Finding(entry.fields.path, field, actual, severity="warning")


def _find_unit_conflict(entry: TensorEntry, yaml: Source) -> str | None:
    """Compare the unit with that of the energies, or of the vertex, in the same directory."""
    prefix = header.get_stem(yaml.file_name).removesuffix(entry.cc4s_object)
    for name in (header.ENERGIES, header.VERTEX):
        if entry.cc4s_object not in header.ENERGY_POWERS or entry.cc4s_object == name:
            break
        # The file is missing or damaged, or the YAML is a file object.
        with suppress(FileNotFoundError, PermissionError, IsADirectoryError, ValueError):
            sibling = open_sibling(yaml, f"{prefix}{name}{YAML}", "to compare units")
            unit = get_number(read_yaml(HeaderReader(*sibling)), "unit")
            return header.find_unit_conflict({name: unit, entry.cc4s_object: entry.unit})
    return None


def _find_energy_conflict(entry: TensorEntry, tensor: Tensor) -> str | None:
    """Return how the list of energies differs from the elements, or None."""
    energies, source, total = entry.energies, tensor.source, prod(entry.lengths)
    # Slices that cc4s makes keep the list of all energies.
    is_slice = entry.component is not None or entry.cc4s_object == header.SLICED_ENERGIES
    if energies is None or source is None or (is_slice and len(energies) != total):
        return None
    actual = f"{len(energies)} energies for {total} elements"
    if energies.shape == (total,):
        try:
            values = read_layout(tensor.layout, source, Selection.everything(tensor.layout.shape))
        except TensorFormatError:
            return None  # The check of all values reports elements that cannot be read.
        is_same = np.isclose(values, energies, rtol=ENERGY_TOLERANCE, atol=0, equal_nan=True)
        wrong = np.flatnonzero(~is_same).tolist()
        if not wrong:
            return None
        actual = f"{len(wrong)} of {len(energies)} differ from the elements, the first is number "
        actual += f"{wrong[0]}: {energies[wrong[0]]}, expected {values[wrong[0]]}"
    return f"{actual}; cc4s counts occupied states by them, so write the file again"
