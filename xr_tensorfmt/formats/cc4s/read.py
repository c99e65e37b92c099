"""Read cc4s tensors: a YAML file, its elements, and properties of dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.embedded_metadata import EmbeddedMetadata, EmbeddedVariable
from xr_tensorfmt.core.fields import Fields
from xr_tensorfmt.core.findings import Finding, finding_from_error
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.json_text import parse_json
from xr_tensorfmt.core.open_options import OpenOptions, name_dims
from xr_tensorfmt.core.source import Source, is_file_name, open_sibling
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.cc4s.header import (
    Dimension,
    Properties,
    TensorEntry,
    get_metadata,
    make_dims_unique,
    parse_entries,
)
from xr_tensorfmt.formats.cc4s.spec import ELEMENTS, EMBEDDED, YAML, get_stem, get_unit_keys
from xr_tensorfmt.formats.cc4s.variables import build_labels, build_variable
from xr_tensorfmt.formats.cc4s.yaml_output import simplify
from xr_tensorfmt.formats.cc4s.yaml_text import read_yaml

_SEARCHED_BYTES = 64 << 10
"""Bytes at both ends of a YAML file that are searched for keys of cc4s."""

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
    """Build the variables, their indices and the labels of their dimensions."""
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
        variable = build_variable(entry, source, properties, names, options)
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
    labels, label_findings = build_labels(tensors, dimensions, properties)
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
    """Return the embedded metadata, and parsed if possible."""
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


OpenedFiles = Mapping[str, tuple[Source, bytes]]
"""Sources and first bytes of files, by name."""


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
