"""Read cc4s tensors: a YAML file, its elements, and properties of dimensions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.embedded_metadata import EmbeddedMetadata, EmbeddedVariable
from xr_tensorfmt.core.file_format import Container, End, OpenOptions, Tensor, name_dims
from xr_tensorfmt.core.header import Fields, HeaderReader, check_size, parse_json
from xr_tensorfmt.core.layout import Dense, InMemory, Layout, column_major, scale_layout
from xr_tensorfmt.core.reading import read as read_layout
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source, is_file_name, open_sibling
from xr_tensorfmt.errors import Finding, TensorFormatError
from xr_tensorfmt.formats.cc4s import ELEMENTS, YAML, header
from xr_tensorfmt.formats.cc4s.header import (
    Dimension,
    Properties,
    TensorEntry,
    complete_types,
    find_length_conflict,
)
from xr_tensorfmt.formats.cc4s.layouts import Blocks, Text, find_blocks
from xr_tensorfmt.formats.cc4s.yaml_text import MAX_BYTES, read_yaml, simplify

_SEARCHED_BYTES = 64 << 10
"""Bytes at both ends of a YAML file that are searched for keys of cc4s."""

ENERGY_TOLERANCE = 1e-6
"""Relative tolerance of energies in metadata, which are often rounded."""

OpenedFiles = Mapping[str, tuple[Source, bytes]]
"""Sources and first bytes of files, by name."""

# Only files of cc4s match all patterns. Programs write the keys in any order.
_VERSION = re.compile(rb"^ *version: *100\b", re.MULTILINE)
_TYPE = re.compile(rb"^type: .*\bTensor(Set)?\b", re.MULTILINE)
_SCALAR_TYPE = re.compile(rb"^ *scalarType: .*\b(Real|Complex)64\b", re.MULTILINE)


# Files of a calculation without tensors. Their names count, too.
_PARTS = {
    "properties of a dimension": re.compile(rb"^dimensionType:", re.MULTILINE),
    "log of a calculation": re.compile(rb"^(steps|buildDate):", re.MULTILINE),
    "input of a calculation": re.compile(rb"^- *(name|in|out):", re.MULTILINE),
}
_PART_NAMES = {"cc4s.in.yaml": "input of cc4s", "cc4s.out.yaml": "log of cc4s"}


def is_cc4s(reader: HeaderReader) -> bool:
    """Return whether a file has the keys of a cc4s tensor."""
    try:
        content = _read_ends(_find_yaml(reader))
    except ValueError:  # a file object has no siblings, and may have another format
        return False
    return all(pattern.search(content) for pattern in (_VERSION, _TYPE, _SCALAR_TYPE))


def _read_ends(yaml: HeaderReader) -> bytes:
    """Return both ends of a YAML file."""
    size = yaml.source.size
    content = yaml.read_head(_SEARCHED_BYTES)
    if size > _SEARCHED_BYTES:
        last = min(_SEARCHED_BYTES, size - _SEARCHED_BYTES)
        content += yaml.read_field(size - last, last, "the end of the YAML")
    return content


def find_parts(
    names: Collection[str], open_reader: Callable[[str], HeaderReader]
) -> dict[str, str]:
    """Return elements that have a YAML file, and YAML files that describe no tensor."""
    elements, yaml = (
        {name: header.get_stem(name) for name in names if name.casefold().endswith(suffix)}
        for suffix in (ELEMENTS, YAML)
    )
    complete = {*elements.values()} & {*yaml.values()}
    parts = {name: "elements" for name, stem in elements.items() if stem in complete}
    for name in (name for name, stem in yaml.items() if stem not in complete):
        with suppress(OSError, TensorFormatError):  # opening it explains why
            reader = open_reader(name)
            if not is_cc4s(reader):
                parts[name] = describe_part(reader)
    return parts


def describe_part(yaml: HeaderReader) -> str:
    """Return which part of a calculation a YAML file without tensors is, otherwise ""."""
    content = _read_ends(yaml) if yaml.source.size <= MAX_BYTES else b""
    if _TYPE.search(content):  # a corrupt tensor
        return ""
    found = (part for part, pattern in _PARTS.items() if pattern.search(content))
    return _PART_NAMES.get(yaml.source.file_name.casefold()) or next(found, "")


def _find_yaml(reader: HeaderReader) -> HeaderReader:
    """Return the YAML file: the opened file or, for elements, their sibling."""
    source = reader.source
    file = source.file_name
    if not file.casefold().endswith(ELEMENTS):
        return reader
    reason = f"it describes the elements in {source.name}"
    return HeaderReader(*open_sibling(source, f"{header.get_stem(file)}{YAML}", reason))


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the YAML and the properties of dimensions, and look for the elements."""
    options.refuse_stored(reader.source.name)
    yaml = _find_yaml(reader)
    try:
        fields = read_yaml(yaml)
        entries = header.parse_entries(fields, options, header.get_stem(yaml.source.file_name))
    except TensorFormatError:
        if part := describe_part(yaml):
            hint = "open a tensor of that directory"
            raise yaml.error("type", part, "Tensor or TensorSet", hint) from None
        raise
    opened = _open_all(yaml.source, entries)
    # A writer replaces the elements, then the YAML. Raise an error if it has done so meanwhile.
    yaml.source.check_unchanged()
    return _build_container(fields, entries, opened, options)


def _build_container(
    fields: Fields, entries: Sequence[TensorEntry], opened: OpenedFiles, options: OpenOptions
) -> Container:
    properties, findings = _read_properties(opened)
    embedded, note = _read_note(fields)
    noted_tensors = dict(note.tensors)
    tensors: list[Tensor] = []
    ends: list[End] = []
    defaults = header.make_dims_unique([entry.dimensions for entry in entries])
    for entry, default_dims in zip(entries, defaults, strict=True):
        key = entry.name if entry.name in note.tensors else OpenOptions.name
        noted = note.tensors.get(key, EmbeddedVariable())
        dims = noted.dims
        if dims is None or not all(dims) or not len({*dims}) == len(dims) == len(default_dims):
            dims = name_dims(options.dims, entry.name, default_dims)
        source, _ = opened[entry.elements_file]
        tensor, end = _build_tensor(entry, source, properties, dims, options)
        tensors.append(tensor)
        ends.append(End(source, source.size, "the elements"))
        # Programs overwrite a file without truncating it, so the end of a larger tensor may follow.
        try:
            end.check()
        except TensorFormatError as error:
            findings.append(error.to_finding("warning"))
        if noted.attrs is not None:
            noted_tensors[key] = replace(noted, attrs=_merge_attrs(tensor.attrs, noted.attrs))
        if "unit" in entry.metadata:
            field, path = "metaData.unit", entry.fields.path
            actual = "ignored, because the attribute `unit` is the unit of the tensor"
            findings.append(Finding(path, field, actual, hint="rename it", severity="warning"))
    # Embedded variables replace the coordinates of the reader.
    taken = {*note.coordinates, *(noted.name for noted in noted_tensors.values())}
    labels = _build_labels(entries, tensors, defaults, properties)
    return Container(
        tuple(tensors),
        tuple(label for label in labels if label.name not in taken & {header.OCCUPIED}),
        findings=tuple(findings),
        ends=tuple(ends),
        embedded=replace(note, tensors=noted_tensors).to_dict() if noted_tensors else embedded,
        derived=tuple(
            f"a list of the energies of {entry.name!r}"
            for entry in entries
            if entry.energies is not None
        ),
        parsed=entries,
    )


def _read_note(fields: Fields) -> tuple[Any, EmbeddedMetadata]:
    embedded: Any = header.get_metadata(fields).get(header.EMBEDDED)
    note = EmbeddedMetadata()
    with suppress(KeyError, TypeError, ValueError, AttributeError, RecursionError):
        embedded = parse_json(embedded)
        note = EmbeddedMetadata.from_dict(embedded)
    return embedded, note


def _merge_attrs(attrs: Mapping[str, Any], noted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the file and the embedded ones."""
    merged = dict(attrs)
    for name, value in noted.items():
        if name == "unit" and value is None and attrs["unit"] == 1:
            del merged["unit"]
        # Use the dtype only if another program has not changed the number.
        elif name not in attrs or simplify(value) == attrs[name]:
            merged[name] = value
    return merged


def convert_attrs(container: Container) -> Container:
    """Convert attributes of the tensors, embedded ones included."""
    tensors = []
    for tensor in container.tensors:
        file_info = tensor.encoding["tensorfmt"]
        keys = header.get_unit_keys(file_info["shape"], file_info["types"])
        attrs = {
            key: _multiply(value, file_info["unit"]) if key in keys else value
            for key, value in tensor.attrs.items()
        }
        if "unit" in attrs:
            attrs["unit"] = 1.0
        if file_info["unit"] != 1:
            attrs[header.APPLIED_UNIT] = file_info["unit"]
        tensors.append(tensor._replace(attrs=attrs))
    return replace(container, tensors=tuple(tensors))


def _multiply(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [_multiply(item, factor) for item in value]
    is_number = isinstance(value, np.ndarray | np.number | int | float)
    return value * factor if is_number and not isinstance(value, bool) else value


def _open_all(source: Source, entries: Sequence[TensorEntry]) -> OpenedFiles:
    """Open the elements, and the files of properties that exist, concurrently if remote."""
    types = {dimension.type for entry in entries for dimension in entry.dimensions}
    names = (f"{name}{YAML}" for name in types if is_file_name(name))
    property_files = set(filter(is_file_name, names))
    property_files.discard(source.file_name)
    files = [*(entry.elements_file for entry in entries), *sorted(property_files)]

    def open_one(file: str) -> tuple[Source, bytes] | None:
        try:
            return open_sibling(source, file, f"it has the elements of {source.name}")
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            # Without permission to list a bucket, a store also denies access to missing objects.
            is_missing = not isinstance(error, PermissionError) or source.high_latency
            if file in property_files and is_missing:
                return None
            raise

    opened = zip(files, source.run(open_one, files), strict=True)
    return {file: pair for file, pair in opened if pair is not None}


def _read_properties(opened: OpenedFiles) -> tuple[Mapping[str, Properties], list[Finding]]:
    """Return the properties by type, and findings about damaged files."""
    findings: list[Finding] = []
    properties: dict[str, Properties] = {}
    for file in filter(lambda name: name.endswith(YAML), opened):
        try:
            fields = read_yaml(HeaderReader(*opened[file]))
            properties[header.get_stem(file)] = Properties.unpack(fields)
        except TensorFormatError as error:
            findings.append(error.to_finding("warning"))
    return properties, findings


def _build_tensor(
    entry: TensorEntry,
    source: Source,
    properties: Mapping[str, Properties],
    dims: tuple[str, ...],
    options: OpenOptions,
) -> tuple[Tensor, End]:
    check_size(entry.fields.path, entry.lengths, entry.element.dtype.itemsize, 0)
    blocks = _find_blocks(entry, source, properties)
    if blocks is not None:
        field = entry.fields.get_path("dimensions")
        options.check_filled(entry.fields.path, field, entry.total, prod(blocks.inner.shape), None)
    layout, end = _build_layout(entry, source, blocks)
    layout = column_major(layout)
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
        "dims": dims,
        "types": entry.types,
    }
    if entry.elements != header.TEXT:
        file_info["offset"] = 0
    if entry.fields.prefix:
        file_info["component"] = entry.name
    # A selection of the values would make the list of energies stale.
    left_out = {header.EMBEDDED} if entry.energies is None else {header.EMBEDDED, "energies"}
    attrs = {key: value for key, value in entry.metadata.items() if key not in left_out}
    attrs["unit"] = entry.unit
    encoding = {"tensorfmt": file_info, "dtype": entry.element.encoding}
    return Tensor(entry.name, dims, layout, attrs, encoding, source), end


def _find_occupied(entry: TensorEntry) -> Array | None:
    """Return which states are occupied by the rule of cc4s, or None if it does not apply."""
    fermi: Any = entry.metadata.get("fermiEnergy")
    if entry.energies is None or isinstance(fermi, bool | list) or entry.fields.prefix:
        return None
    with suppress(TypeError, ValueError):  # not numbers
        energies = np.asarray(entry.energies, dtype=np.float64)
        return np.asarray(energies < fermi) if energies.shape == entry.lengths else None
    return None


def _find_blocks(
    entry: TensorEntry, source: Source, properties: Mapping[str, Properties]
) -> Blocks | None:
    """Return the stored blocks, or None if the file has all elements, as the only block."""
    if not entry.conditions:
        return None
    has_one = prod(len(condition.non_zeros) for condition in entry.conditions) == 1
    nbytes = entry.total * entry.element.stored.itemsize
    is_whole = source.size >= nbytes or entry.elements == header.TEXT
    needed = [pair for condition in entry.conditions for pair in condition.properties]
    of_dims = [properties.get(kind or "") for kind in entry.types]
    is_missing = any(name not in getattr(of_dims[axis], "indices", ()) for name, axis in needed)
    return None if has_one and is_whole and is_missing else find_blocks(entry, properties)


def _build_layout(entry: TensorEntry, source: Source, blocks: Blocks | None) -> tuple[Layout, End]:
    """Return the layout of the elements; raise an error if the file is truncated."""
    lengths = entry.lengths[::-1] if blocks is None else blocks.inner.shape
    is_text, count = entry.elements == header.TEXT, prod(lengths)
    # Text has at least a digit and the end of the line for each element.
    min_size = max(0, 2 * count - 1) if is_text else count * entry.element.stored.itemsize
    if source.size < min_size:
        raise TensorFormatError(
            source.name,
            field="the elements",
            actual=f"{source.size} bytes",
            expected=f"{min_size} for {entry.scalar_type} of shape {entry.lengths} "
            f"as in {entry.fields.path}",
            hint="the file is incomplete, or belongs to another YAML file; fetch both again",
            offset=source.size,
        )
    if not is_text and source.size > min_size:
        _refuse_records(source)
    end = End(source, min_size, "the elements")
    layout: Layout = Dense(lengths, entry.element, 0)
    if is_text:
        end = End(source, source.size, "the elements")
        layout = Text(lengths, entry.element.dtype, source.size)
    return layout if blocks is None else replace(blocks, inner=layout).layout, end


def _refuse_records(source: Source) -> None:
    """Raise TensorFormatError if elements are a record of Fortran: size, values, size again."""
    reader = HeaderReader(source)
    for width in (4, 8):
        start = reader.read_bytes(0, width)
        # gfortran divides long records, and a negative size says that another part follows.
        size = abs(int.from_bytes(start, "little", signed=True))
        if not 0 < size <= source.size - 2 * width:
            continue
        end = reader.read_bytes(width + size, size + 2 * width)
        if size == abs(int.from_bytes(end, "little", signed=True)):
            raise reader.error(
                "the elements",
                f"a record of Fortran, with its size of {size} bytes before and after the values",
                "only the values",
                "write the file with access='stream' in Fortran",
                0,
            )


def _build_labels(
    entries: Sequence[TensorEntry],
    tensors: Sequence[Tensor],
    default_dims: Sequence[tuple[str, ...]],
    properties: Mapping[str, Properties],
) -> Iterator[Tensor]:
    """Yield occupied states, and properties, as coordinates of the dimensions."""
    taken = {name for tensor in tensors for name in (tensor.name, *tensor.dims)}
    dimensions: list[tuple[str, str, Dimension]] = []
    for entry, tensor, defaults in zip(entries, tensors, default_dims, strict=True):
        dimensions += zip(tensor.dims, defaults, entry.dimensions, strict=True)
        occupied = _find_occupied(entry)
        if occupied is not None and header.OCCUPIED not in taken:
            yield Tensor(header.OCCUPIED, tensor.dims, InMemory(occupied))
    for dimension_type, of_type in properties.items():
        for prop, indices in of_type.indices.items():
            attrs = {"values": of_type.values[prop]} if prop in of_type.values else {}
            for name, default, dimension in dimensions:
                label = f"{default}_{prop}"
                if dimension == Dimension(indices.size, dimension_type) and label not in taken:
                    taken.add(label)
                    yield Tensor(label, (name,), InMemory(indices), attrs)


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:  # noqa: ARG001
    """Check the tensors of a YAML file."""
    for entry, tensor in zip(container.parsed, container.tensors, strict=True):
        yield from _check_energies(entry, tensor)
        for name in header.COMPARED:
            if name != entry.cc4s_object:
                yield from _compare_with(reader.source, entry, name)


def _compare_with(source: Source, entry: TensorEntry, name: str) -> Iterator[Finding]:
    """Compare unit and lengths with another object in the same directory."""
    fields, own = entry.fields, entry.cc4s_object
    stem = header.get_stem(os.path.basename(fields.path)).removesuffix(own) + name
    try:
        sibling = open_sibling(source, f"{stem}{YAML}", "it belongs to the calculation")
        other = TensorEntry.unpack(read_yaml(HeaderReader(*sibling)), stem, name)
    except (OSError, ValueError):
        return
    if conflict := header.find_unit_conflict({own: entry.unit, name: other.unit}):
        yield Finding(fields.path, fields.get_path("unit"), conflict)
    items = {own: entry, name: other}
    conflict = find_length_conflict(
        {key: complete_types(key, item.lengths, item.types) for key, item in items.items()}
    )
    if conflict:
        yield Finding(fields.path, fields.get_path("dimensions"), conflict)


def _check_energies(entry: TensorEntry, tensor: Tensor) -> Iterator[Finding]:
    energies, source = entry.energies, tensor.source
    # Slices that cc4s makes keep the list of all energies.
    is_slice = entry.fields.prefix or entry.cc4s_object == header.SLICED_ENERGIES
    if energies is None or source is None or (is_slice and len(energies) != entry.total):
        return
    if len(energies) == entry.total:
        try:
            values = read_layout(tensor.layout, source, Selection.everything(tensor.layout.shape))
            listed = np.asarray(energies, dtype=float)
        except (TypeError, ValueError, TensorFormatError):
            return  # The check of all values reports elements that cannot be read.
        is_same = np.isclose(values, listed, rtol=ENERGY_TOLERANCE, atol=0, equal_nan=True)
        wrong = np.flatnonzero(~is_same)
        if not wrong.size:
            return
        first = int(wrong[0])
        actual = f"{wrong.size} of {len(energies)} differ from the elements, the first is number "
        actual += f"{first}: {energies[first]}, expected {values[first]}"
    else:
        actual = f"{len(energies)} energies for {entry.total} elements"
    hint = "cc4s counts occupied states by them, so write the file again"
    field = entry.fields.get_path("metaData.energies")
    yield Finding(entry.fields.path, field, actual, hint=hint, severity="warning")
