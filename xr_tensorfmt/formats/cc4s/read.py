"""Read cc4s tensors: a YAML file, its elements, and properties of dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.embedded_metadata import EmbeddedMetadata, EmbeddedVariable
from xr_tensorfmt.core.fields import Fields
from xr_tensorfmt.core.findings import End, Finding, finding_from_error
from xr_tensorfmt.core.header import MAX_FILLED_ELEMENTS, HeaderReader, check_size
from xr_tensorfmt.core.json_text import parse_json
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.open_options import OpenOptions, name_dims
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source, is_file_name, open_sibling
from xr_tensorfmt.core.views import InMemory, View, column_major
from xr_tensorfmt.errors import Hint, TensorFormatError
from xr_tensorfmt.formats.cc4s.blocks import StoredBlocks, ZeroFilledBlocks, find_blocks
from xr_tensorfmt.formats.cc4s.header import (
    Dimension,
    Properties,
    TensorEntry,
    get_metadata,
    make_dims_unique,
    parse_entries,
)
from xr_tensorfmt.formats.cc4s.spec import (
    ELEMENTS,
    EMBEDDED,
    OCCUPIED,
    SLICED_ENERGIES,
    TEXT,
    VERSION,
    YAML,
    get_stem,
    get_unit_keys,
)
from xr_tensorfmt.formats.cc4s.text import Text
from xr_tensorfmt.formats.cc4s.yaml_text import read_yaml, simplify

_SEARCHED_BYTES = 64 << 10
"""Bytes at both ends of a YAML file that are searched for keys of cc4s."""

OpenedFiles = Mapping[str, tuple[Source, bytes]]
"""Sources and first bytes of files, by name."""

# Only files of cc4s match all patterns. Programs write the keys in any order.
_VERSION = re.compile(rb"^ *version: *100\b", re.MULTILINE)
_TYPE = re.compile(rb"^type: .*\bTensor(Set)?\b", re.MULTILINE)
_SCALAR_TYPE = re.compile(rb"^ *scalarType: .*\b(Real|Complex)64\b", re.MULTILINE)


def is_cc4s(reader: HeaderReader) -> bool:
    """Return whether a file has the keys of a cc4s tensor."""
    try:
        yaml = _find_yaml(reader)
    except ValueError:  # a file object has no siblings, and may have another format
        return False
    size = yaml.source.size
    content = yaml.read_head(_SEARCHED_BYTES)
    if size > _SEARCHED_BYTES:
        last = min(_SEARCHED_BYTES, size - _SEARCHED_BYTES)
        content += yaml.read_field(size - last, last, "the end of the YAML")
    return all(pattern.search(content) for pattern in (_VERSION, _TYPE, _SCALAR_TYPE))


def _find_yaml(reader: HeaderReader) -> HeaderReader:
    """Return the YAML file: the opened file or, for elements, their sibling."""
    source = reader.source
    file = source.file_name
    if not file.casefold().endswith(ELEMENTS):
        return reader
    reason = f"it describes the elements in {source.name}"
    return HeaderReader(*open_sibling(source, f"{get_stem(file)}{YAML}", reason))


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the YAML and the properties of dimensions, and look for the elements."""
    options.refuse_stored(reader.source.name)
    yaml = _find_yaml(reader)
    fields = read_yaml(yaml)
    entries = parse_entries(fields, options, get_stem(yaml.source.file_name))
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
    defaults = make_dims_unique([entry.header.dimensions for entry in entries])
    variables: list[Container] = []
    dimensions: list[tuple[str, str, Dimension]] = []
    for entry, default_dims in zip(entries, defaults, strict=True):
        key = entry.name if entry.name in note.tensors else OpenOptions.name
        noted = note.tensors.get(key, EmbeddedVariable())
        names = _get_dims(noted, len(default_dims))
        names = names or name_dims(options.dims, entry.name, default_dims)
        source, _ = opened[entry.elements]
        variable = _build_variable(entry, source, properties, names, options)
        # Embedded variables replace the coordinates of the reader.
        taken = {noted.name, *note.coordinates}
        coordinates = tuple(item for item in variable.coordinates if item.name not in taken)
        variables.append(replace(variable, coordinates=coordinates))
        if noted.attrs is not None:
            attrs = _merge_attrs(variable.tensors[0].attrs, noted.attrs)
            noted_tensors[key] = replace(noted, attrs=attrs)
        dimensions += zip(names, default_dims, entry.header.dimensions, strict=True)
        findings += variables[-1].findings
    tensors = tuple(tensor for variable in variables for tensor in variable.tensors)
    labels, label_findings = _build_labels(tensors, dimensions, properties)
    return Container(
        tensors,
        (*(index for variable in variables for index in variable.coordinates), *labels),
        siblings=tuple(source for source, _ in opened.values()),
        findings=(*findings, *label_findings),
        ends=tuple(end for variable in variables for end in variable.ends),
        embedded=replace(note, tensors=noted_tensors).to_dict() if noted_tensors else embedded,
        derived=tuple(
            f"a list of the energies of {tensor.name!r}"
            for entry, tensor in zip(entries, tensors, strict=True)
            if entry.energies is not None
        ),
        parsed=entries,
    )


def _read_note(fields: Fields) -> tuple[Any, EmbeddedMetadata]:
    embedded: Any = get_metadata(fields).get(EMBEDDED)
    note = EmbeddedMetadata()
    with suppress(KeyError, TypeError, ValueError, AttributeError, RecursionError):
        embedded = parse_json(embedded)
        note = EmbeddedMetadata.from_dict(embedded)
    return embedded, note


def _get_dims(noted: EmbeddedVariable, rank: int) -> tuple[str, ...] | None:
    """Return the embedded names of dimensions if they can be used."""
    names = noted.dims
    is_usable = names is not None and all(names) and len(set(names)) == len(names) == rank
    return names if is_usable else None


def _merge_attrs(attrs: Mapping[str, Any], noted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the file and the embedded ones, which it cannot hold."""
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
        keys = get_unit_keys(file_info["shape"], file_info["types"])
        attrs = {
            key: _multiply(value, file_info["unit"]) if key in keys else value
            for key, value in tensor.attrs.items()
        }
        if "unit" in attrs:
            attrs["unit"] = 1.0
        tensors.append(replace(tensor, attrs=attrs))
    return replace(container, tensors=tuple(tensors))


def _multiply(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [_multiply(item, factor) for item in value]
    if isinstance(value, np.ndarray | np.number | int | float) and not isinstance(value, bool):
        return value * factor
    return value


def _open_all(source: Source, entries: Sequence[TensorEntry]) -> OpenedFiles:
    """Open the elements, and the files of properties that exist, concurrently if remote."""
    types = {dimension.type for entry in entries for dimension in entry.header.dimensions}
    property_files = {f"{name}{YAML}" for name in types if is_file_name(name)}
    property_files.discard(source.file_name)
    files = [*(entry.elements for entry in entries), *sorted(property_files)]
    opened: dict[str, tuple[Source, bytes]] = {}

    def open_one(index: int) -> None:
        file = files[index]
        try:
            opened[file] = open_sibling(source, file, f"it has the elements of {source.name}")
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            # Without permission to list a bucket, a store also denies access to missing objects.
            is_missing = not isinstance(error, PermissionError) or source.high_latency
            if index < len(entries) or not is_missing:
                raise

    source.run(open_one, range(len(files)))
    return {file: opened[file] for file in files if file in opened}


def _read_properties(opened: OpenedFiles) -> tuple[Mapping[str, Properties], list[Finding]]:
    """Return the properties by type, and findings about damaged files."""
    findings: list[Finding] = []
    properties: dict[str, Properties] = {}
    for file, source_and_head in opened.items():
        if not file.endswith(YAML):
            continue
        try:
            fields = read_yaml(HeaderReader(*source_and_head))
            properties[get_stem(file)] = Properties.unpack(fields)
        except TensorFormatError as error:
            findings.append(replace(finding_from_error(error), severity="warning"))
    return properties, findings


_MIN_TEXT = 2  # a digit and the end of the line


@dataclass(frozen=True)
class InAtomicUnits(View):
    """Values multiplied by the unit of the file."""

    unit: float

    def apply(self, selection: Selection, *values: Array) -> Array:
        """Multiply in place, because the reader owns the array."""
        (stored,) = values
        stored *= self.unit
        return stored


def _build_variable(
    entry: TensorEntry,
    source: Source,
    properties: Mapping[str, Properties],
    names: tuple[str, ...],
    options: OpenOptions,
) -> Container:
    """Build the variable of a tensor, and the coordinate of its occupied states."""
    header, path = entry.header, entry.fields.path
    check_size(path, header.lengths, header.element.dtype.itemsize, 0)
    blocks = None
    if header.conditions and not _is_only_block_whole(entry, source, properties):
        blocks = find_blocks(entry, properties)
        if options.sparse == "auto" and header.total > MAX_FILLED_ELEMENTS:
            raise entry.fields.error(
                "dimensions",
                actual=f"{header.total} elements, of which {blocks.stored} are stored",
                expected=f"at most {MAX_FILLED_ELEMENTS}",
                hint=Hint("open it with {sparse} to fill in the zeros", sparse="dense"),
            )
    layout, end = _build_layout(entry, source, blocks)
    layout = column_major(layout)
    if options.apply_unit and header.unit != 1:
        layout = InAtomicUnits(layout, header.unit)
    attrs = {name: value for name, value in header.metadata.items() if name != EMBEDDED}
    findings: list[Finding] = []
    energies = entry.energies
    if energies is not None:
        del attrs["energies"]  # a selection of the values would make the list stale
        # Slices that cc4s makes keep the list of all energies.
        is_slice = entry.fields.prefix or entry.cc4s_object == SLICED_ENERGIES
        if len(energies) != header.total and not is_slice:
            message = (
                f"{len(energies)} energies for {header.total} elements; cc4s counts occupied "
                "states by them, so write the file again"
            )
            findings.append(Finding(path, None, "metaData.energies", message, "warning"))
    if "unit" in attrs:
        message = "ignored, because the attribute `unit` holds the unit of the tensor; rename it"
        findings.append(Finding(path, None, "metaData.unit", message, "warning"))
    attrs["unit"] = header.unit
    encoding = _build_encoding(entry, names, is_sparse=blocks is not None)
    tensor = Tensor(entry.name, names, layout, attrs, encoding, source)
    occupied = _find_occupied(entry, names)
    indices = () if occupied is None else (Tensor(OCCUPIED, names, InMemory(occupied)),)
    return Container((tensor,), indices, findings=tuple(findings), ends=(end,))


def _find_occupied(entry: TensorEntry, names: tuple[str, ...]) -> Array | None:
    """Return which states are occupied by the rule of cc4s, or None if it does not apply."""
    fermi: Any = entry.header.metadata.get("fermiEnergy")
    is_number = isinstance(fermi, int | float) and not isinstance(fermi, bool)
    if not is_number or entry.fields.prefix or OCCUPIED in (*names, entry.name):
        return None
    with suppress(TypeError, ValueError):  # not numbers
        energies = np.asarray(entry.energies, dtype=np.float64)
        return np.asarray(energies < fermi) if energies.shape == entry.header.lengths else None
    return None


def _is_only_block_whole(
    entry: TensorEntry, source: Source, properties: Mapping[str, Properties]
) -> bool:
    """Return whether a file without properties has one block, which is the whole tensor."""
    header = entry.header
    if prod(len(rows.non_zeros) for rows in header.conditions) != 1:
        return False
    constrained = {
        (header.dimensions[dimension].type or "", name)
        for condition in header.conditions
        for name, dimension in condition.properties
    }
    if all(kind in properties and name in properties[kind].indices for kind, name in constrained):
        return False
    return header.elements == TEXT or source.size >= header.total * header.element.stored.itemsize


def _build_layout(
    entry: TensorEntry, source: Source, blocks: StoredBlocks | None
) -> tuple[Layout, End]:
    """Return the layout of the elements; raise an error if the file is truncated."""
    header = entry.header
    lengths = header.lengths[::-1] if blocks is None else (blocks.stored,)
    count = prod(lengths)
    is_text = header.elements == TEXT
    min_size = count * header.element.stored.itemsize
    if is_text:
        min_size = count * _MIN_TEXT - 1 if count else 0
    if source.size < min_size:
        raise TensorFormatError(
            source.name,
            field="the elements",
            actual=f"{source.size} bytes",
            expected=f"{min_size} for {header.scalar_type} of shape {header.lengths} "
            f"as in {entry.fields.path}",
            hint="the file is incomplete, or belongs to another YAML file; fetch both again",
            offset=source.size,
        )
    # Programs overwrite a file without truncating it, so the end of a larger tensor may follow.
    end = End(source, min_size, "the elements", "warning")
    layout: Layout = Dense(lengths, header.element, 0)
    if is_text:
        end = End(source, source.size, "the elements")
        layout = Text(lengths, header.element.dtype.kind == "c", source.size)
    return layout if blocks is None else ZeroFilledBlocks(layout, blocks), end


def _build_encoding(
    entry: TensorEntry, names: tuple[str, ...], *, is_sparse: bool
) -> dict[str, Any]:
    header = entry.header
    file_info = {
        "format": "cc4s",
        "version": VERSION,
        "shape": header.lengths,
        "storage": "blocks" if is_sparse else "dense",
        "order": "F",
        "byteorder": "little",
        "dtype": header.element.name,
        "elements": header.elements,
        "unit": header.unit,
        "dims": names,
        "types": header.types,
    }
    if header.elements != TEXT:
        file_info["offset"] = 0
    if entry.fields.prefix:
        file_info["component"] = entry.name
    return {"tensorfmt": file_info, "dtype": header.element.encoding}


def _build_labels(
    tensors: Sequence[Tensor],
    dimensions: Sequence[tuple[str, str, Dimension]],
    properties: Mapping[str, Properties],
) -> tuple[list[Tensor], list[Finding]]:
    """Return properties as coordinates, and findings about properties that do not fit.

    The dimensions are given as (name, default name, dimension).
    """
    labels: dict[str, Tensor] = {}
    findings = []
    for dimension_type, of_type in properties.items():
        lengths = {
            dimension.length for _, _, dimension in dimensions if dimension.type == dimension_type
        }
        for prop, indices in of_type.indices.items():
            attrs = {"values": of_type.values[prop]} if prop in of_type.values else {}
            for name, default, dimension in dimensions:
                if dimension == Dimension(indices.size, dimension_type):
                    label = f"{default}_{prop}"
                    labels[label] = Tensor(label, (name,), InMemory(indices), attrs)
            # Slices of cc4s, such as DeltaIntegrals, have fewer states than the calculation.
            if indices.size not in lengths and indices.size < max(lengths):
                message = (
                    f"{indices.size} integers, expected {max(lengths)} "
                    "for the length of the dimension; they are ignored, because the file "
                    "belongs to another calculation"
                )
                field = f"propertyIndices.{prop}"
                findings.append(Finding(of_type.path, None, field, message, "warning"))
    taken = {name for tensor in tensors for name in (tensor.name, *tensor.dims)}
    return [label for label in labels.values() if label.name not in taken], findings
