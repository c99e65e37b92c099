"""Read cc4s tensors: a YAML file, its elements, and properties of dimensions."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.contract import (
    MAX_FILLED_ELEMENTS,
    Array,
    Container,
    Dense,
    Elementwise,
    EmbeddedMetadata,
    EmbeddedVariable,
    End,
    Finding,
    HeaderReader,
    HeaderUpdate,
    InMemory,
    Layout,
    OpenOptions,
    Source,
    SourceChangedError,
    Tensor,
    TensorFormatError,
    check_size,
    column_major,
    finding_from_error,
    is_file_name,
    name_dims,
    no_directory_error,
    open_sibling,
    parse_json,
)
from xr_tensorfmt.formats.cc4s.blocks import Blocks, Filled, IndexOfStored, find_blocks
from xr_tensorfmt.formats.cc4s.checksums import (
    MAX_REGION_BYTES,
    ChecksumError,
    Checksums,
    find_checksums,
    format_checksums,
)
from xr_tensorfmt.formats.cc4s.spec import (
    ELEMENTS,
    EMBEDDED,
    TENSOR,
    TENSOR_SET,
    TEXT,
    VERSION,
    YAML,
    Dimension,
    Properties,
    TensorHeader,
    apply_unit,
    check_version,
    elements_file,
    get_metadata,
    get_stem,
    get_unit_keys,
    unique_dims,
    variable_name,
)
from xr_tensorfmt.formats.cc4s.text import Text
from xr_tensorfmt.formats.cc4s.yaml_text import Fields

ENTRY = "entry"
"""Dimension of the stored elements of a tensor of blocks."""

MAX_COMPONENTS = 1 << 10
"""Limit on the components of a TensorSet. Every component is a file."""

PAUSE = 0.1
"""Seconds to wait for a writer that has replaced the elements, and not yet the YAML file."""

_MIN_TEXT = 2  # a digit and the end of the line

_SEARCHED_BYTES = 64 << 10
"""Bytes at both ends of a YAML file that are searched for keys of cc4s."""

# Only files of cc4s match all patterns. Programs write the keys in any order.
_VERSION = re.compile(rb"^ *version: *100\b", re.MULTILINE)
_TYPE = re.compile(rb"^type: .*\bTensor(Set)?\b", re.MULTILINE)
_SCALAR_TYPE = re.compile(rb"^ *scalarType: .*\b(Real|Complex)64\b", re.MULTILINE)


def is_cc4s(reader: HeaderReader) -> bool:
    """Return whether a file has the keys of a cc4s tensor."""
    yaml = _find_yaml(reader)
    if yaml is None:
        return False
    size = yaml.source.size
    content = yaml.read_head(_SEARCHED_BYTES)
    if size > _SEARCHED_BYTES:
        last = min(_SEARCHED_BYTES, size - _SEARCHED_BYTES)
        content += yaml.read_field(size - last, last, "the end of the YAML")
    return all(pattern.search(content) for pattern in (_VERSION, _TYPE, _SCALAR_TYPE))


def _find_yaml(reader: HeaderReader) -> HeaderReader | None:
    """Return the YAML file: the opened file or, for elements, their sibling."""
    source = reader.source
    file = os.path.basename(source.name)
    if not file.casefold().endswith(ELEMENTS):
        return reader
    sibling = source.sibling(f"{get_stem(file)}{YAML}")
    return None if sibling is None else HeaderReader(*sibling)


@dataclass(frozen=True)
class Part:
    """A tensor of the YAML file, and the name of its file of elements."""

    name: str
    fields: Fields
    header: TensorHeader
    elements: str
    checksums: Checksums | None = None

    @property
    def key(self) -> str:
        """The component, or the usual name of a sole tensor."""
        return self.name if self.fields.within else OpenOptions.name


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the YAML and the properties of dimensions, and look for the elements."""
    yaml = _find_yaml(reader)
    if yaml is None:
        raise no_directory_error(reader.source)
    source = reader.source
    try:
        return _read(source, yaml, options, is_strict=not source.is_shared)
    except ChecksumError:
        time.sleep(PAUSE)
    except (SourceChangedError, FileNotFoundError):
        pass
    # A writer may have replaced the elements and then the YAML file meanwhile.
    sibling = source.sibling(os.path.basename(yaml.source.name))
    yaml = yaml if sibling is None else HeaderReader(*sibling)
    return _read(source, yaml, options, is_strict=options.verify and not source.is_shared)


def _read(
    source: Source, yaml: HeaderReader, options: OpenOptions, *, is_strict: bool
) -> Container:
    """Read the files once. Raise ChecksumError if `is_strict`, else report it."""
    fields = Fields.read(yaml)
    offset, checksums = find_checksums(yaml.read_head(yaml.source.size))
    parts = [replace(part, checksums=checksums.get(part.key)) for part in _parts(fields, options)]
    opened = _open_all(source, parts, fields.path)
    mismatches: list[Finding] = []
    updates: tuple[HeaderUpdate, ...] = ()
    if source.is_shared and checksums:
        updates = (_compute_update(fields.path, offset, checksums, parts, opened),)
    elif not source.is_shared:
        mismatches = _compare_checksums(parts, opened, is_strict=is_strict)
    if not yaml.source.high_latency:
        # Writers replace the elements before the YAML. Raise an error if it has been replaced.
        yaml.source.read_bytes(0, 1)
    properties, findings = _properties(opened)
    embedded, names = _embedded_dims(fields, parts)
    defaults = unique_dims([part.header.dimensions for part in parts])
    variables = [
        _variable(part, opened[part.elements][0], properties, (default, names[part.name]), options)
        for part, default in zip(parts, defaults, strict=True)
    ]
    labels, unfitting = _labels(variables, properties)
    return Container(
        tuple(variable.tensor for variable in variables),
        (*chain.from_iterable(variable.indices for variable in variables), *labels),
        siblings=tuple(source for source, _ in opened.values()),
        findings=(
            *mismatches,
            *findings,
            *chain.from_iterable(variable.findings for variable in variables),
            *unfitting,
        ),
        ends=tuple(variable.end for variable in variables),
        embedded=embedded,
        decoded=True,
        updates=updates,
        parsed=parts,
    )


def _embedded_dims(
    fields: Fields, parts: Sequence[Part]
) -> tuple[Any, dict[str, tuple[str, ...] | None]]:
    """Return the embedded metadata, parsed if possible, and its dims by tensor."""
    embedded: Any = get_metadata(fields).get(EMBEDDED)
    tensors: Mapping[str, EmbeddedVariable] = {}
    with suppress(KeyError, TypeError, ValueError, AttributeError, RecursionError):
        embedded = parse_json(embedded)
        tensors = EmbeddedMetadata.from_dict(embedded).tensors
    dims = {}
    for part in parts:
        variable = tensors.get(part.name) or tensors.get(OpenOptions.name) or EmbeddedVariable()
        names, rank = variable.dims, len(part.header.dimensions)
        is_usable = names is not None and all(names) and len(set(names)) == len(names) == rank
        dims[part.name] = names if is_usable else None
    return embedded, dims


def convert_attrs(container: Container) -> Container:
    """Convert attributes of the tensors, embedded ones included."""
    tensors = []
    for tensor in container.tensors:
        file_info = tensor.encoding["tensorfmt"]
        keys = get_unit_keys(file_info["shape"], file_info["types"])
        attrs = apply_unit(tensor.attrs, keys, file_info["unit"])
        tensors.append(replace(tensor, attrs=attrs | ({"unit": 1.0} if "unit" in attrs else {})))
    return replace(container, tensors=tuple(tensors))


def _compare_checksums(parts: Sequence[Part], opened: Opened, *, is_strict: bool) -> list[Finding]:
    """Return findings about elements that differ from their checksums, or raise the first one."""
    findings = []
    for part in parts:
        if part.checksums is None:
            continue
        try:
            part.checksums.check_opened(*opened[part.elements], part.fields.path)
        except ChecksumError as error:
            if is_strict:
                raise
            findings.append(finding_from_error(error))
    return findings


def _compute_update(
    path: str,
    offset: int,
    checksums: Mapping[str, Checksums],
    parts: Sequence[Part],
    opened: Opened,
) -> HeaderUpdate:
    """Return the checksums in the file and the checksums of the present elements."""
    sources = {part.key: opened[part.elements][0] for part in parts}
    current = {
        key: Checksums.compute(sources[key], MAX_REGION_BYTES) if key in sources else stored
        for key, stored in checksums.items()
    }
    return HeaderUpdate(path, offset, format_checksums(checksums), format_checksums(current))


def _parts(fields: Fields, options: OpenOptions) -> list[Part]:
    """Return the tensors that the YAML file describes."""
    is_set = fields.values.get("type") == TENSOR_SET
    if not is_set or "version" in fields:  # cc4s gives a set none
        check_version(fields)
    if "dimensionType" in fields:
        actual, hint = "properties of a dimension", "open a tensor beside it, which gets them"
        raise fields.error("type", actual, f"{TENSOR} or {TENSOR_SET}", hint)
    stem = get_stem(os.path.basename(fields.path))
    if fields.choice("type", (TENSOR, TENSOR_SET)) == TENSOR_SET:
        options.check_unnamed(fields.path)
        return list(_components(fields.mapping("components"), stem))
    is_default = options.name == OpenOptions.name
    name = variable_name(stem) if is_default else options.name
    return [Part(name, fields, TensorHeader.unpack(fields), elements_file(stem))]


def _components(components: Fields, stem: str) -> Iterator[Part]:
    count = len(components.values)
    if count > MAX_COMPONENTS:
        expected = f"at most {MAX_COMPONENTS}"
        raise components.error("", f"{count} components", expected, "split the set")
    for key in components.values:
        name = str(key)
        if not is_file_name(name):
            raise components.error(key, repr(name), "a part of a file name", "correct the file")
        if name != key and name in components:
            raise components.error(key, f"{name} twice", "different keys", "correct the file")
        fields = components.mapping(key)
        yield Part(name, fields, TensorHeader.unpack(fields), elements_file(stem, name))


Opened = Mapping[str, tuple[Source, bytes]]
"""Sources and first bytes of files, by name."""


def _open_all(source: Source, parts: Sequence[Part], path: str) -> Opened:
    """Open the elements, and the files of properties that exist, concurrently if remote."""
    types = {dimension.type for part in parts for dimension in part.header.dimensions}
    of_properties = sorted(f"{name}{YAML}" for name in types if is_file_name(name))
    files = [*(part.elements for part in parts), *of_properties]
    opened: dict[str, tuple[Source, bytes]] = {}

    def open_one(number: int) -> None:
        file = files[number]
        try:
            opened[file] = open_sibling(source, file, f"it has the elements of {path}")
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            # Without permission to list a bucket, a store also denies access to missing objects.
            is_missing = not isinstance(error, PermissionError) or source.high_latency
            if number < len(parts) or not is_missing:
                raise

    source.run(open_one, range(len(files)))
    return {file: opened[file] for file in files if file in opened}


def _properties(opened: Opened) -> tuple[Mapping[str, Properties], list[Finding]]:
    """Return the properties by type, and findings about damaged files."""
    findings = []
    properties = {}
    for file, source_and_head in opened.items():
        if not file.endswith(YAML):
            continue
        try:
            properties[get_stem(file)] = Properties.unpack(
                Fields.read(HeaderReader(*source_and_head))
            )
        except TensorFormatError as error:
            findings.append(replace(finding_from_error(error), severity="warning"))
    return properties, findings


@dataclass(frozen=True)
class InAtomicUnits(Elementwise):
    """Values multiplied by the unit of the file."""

    unit: float

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the values."""
        return self.inner.dtype

    def apply(self, values: Array) -> Array:
        """Multiply in place, because the reader owns the array."""
        values *= self.unit
        return values


@dataclass(frozen=True)
class ReadVariable:
    """A variable, and its dimensions as (name, default name, dimension)."""

    tensor: Tensor
    dimensions: list[tuple[str, str, Dimension]]
    # Coordinates of the stored elements with sparse="stored".
    indices: list[Tensor]
    findings: list[Finding]
    end: End


def _variable(
    part: Part,
    source: Source,
    properties: Mapping[str, Properties],
    dims: tuple[tuple[str, ...], tuple[str, ...] | None],
    options: OpenOptions,
) -> ReadVariable:
    """Build the variable of a tensor. `dims` are the default and the embedded names."""
    default, embedded = dims
    header, path = part.header, part.fields.path
    check_size(path, header.lengths, header.element.dtype.itemsize, 0)
    names = embedded or name_dims(options.dims, part.name, default)
    blocks = _blocks(part, properties, options)
    layout, end = _stored(part, source, blocks)
    findings: list[Finding] = []
    axes, indices = names, list[Tensor]()
    if blocks is not None and options.sparse == "stored":
        axes, last = (ENTRY,), len(names) - 1  # the blocks have the slowest axis first
        along = (IndexOfStored(blocks, last - number) for number in range(len(names)))
        indices = [Tensor(name, axes, layout) for name, layout in zip(names, along, strict=True)]
    else:
        layout = column_major(layout if blocks is None else Filled(layout, blocks))
    if options.apply_unit and header.unit != 1:
        layout = InAtomicUnits(layout, header.unit)
    attrs = {name: value for name, value in header.metadata.items() if name != EMBEDDED}
    if header.has_stale_energies:
        message = (
            f"{len(attrs['energies'])} energies, and the tensor has {header.total}; cc4s counts "
            "occupied states by them, so write the file again with to_cc4s"
        )
        findings.append(Finding(path, None, "metaData.energies", message, "warning"))
    if "unit" in attrs:
        message = "it has the name of the unit of the tensor, and is left out; rename it"
        findings.append(Finding(path, None, "metaData.unit", message, "warning"))
    attrs = {**attrs, "unit": header.unit}
    tensor = Tensor(part.name, axes, layout, attrs, _encoding(part, names, blocks), source)
    dimensions = list(zip(names, default, header.dimensions, strict=True))
    return ReadVariable(tensor, dimensions, indices, findings, end)


def _blocks(
    part: Part, properties: Mapping[str, Properties], options: OpenOptions
) -> Blocks | None:
    """Return the blocks of a tensor, or None if all elements are stored."""
    if not part.header.conditions:
        options.check_all_stored(part.fields.path)
        return None
    blocks = find_blocks(part.fields, part.header, properties)
    if options.sparse == "auto" and part.header.total > MAX_FILLED_ELEMENTS:
        raise part.fields.error(
            "dimensions",
            f"{part.header.total} elements, of which {blocks.stored} are stored",
            f"at most {MAX_FILLED_ELEMENTS}",
            "open it with sparse='stored', or with sparse='dense' to fill in the zeros",
        )
    return blocks


def _stored(part: Part, source: Source, blocks: Blocks | None) -> tuple[Layout, End]:
    """Return the layout of the elements; raise an error if the file is truncated."""
    header = part.header
    lengths = header.lengths[::-1] if blocks is None else (blocks.stored,)
    count, is_text = prod(lengths), header.elements == TEXT
    min_size = count * header.element.stored.itemsize
    if is_text:
        min_size = count * _MIN_TEXT - 1 if count else 0
    if source.size < min_size:
        raise TensorFormatError(
            source.name,
            "the elements",
            f"{source.size} bytes",
            f"{min_size} for {header.scalar_type} of shape {header.lengths} "
            f"as in {part.fields.path}",
            "the file is incomplete, or belongs to another YAML file; fetch both again",
            offset=source.size,
        )
    if is_text:
        end = End(source, source.size, "the elements")
        return Text(lengths, header.element.dtype.kind == "c", source.size), end
    # Programs do not truncate the file, so bytes of a larger tensor may follow.
    return Dense(lengths, header.element, 0), End(source, min_size, "the elements", "warning")


def _encoding(part: Part, names: tuple[str, ...], blocks: Blocks | None) -> dict[str, Any]:
    header = part.header
    file_info = {
        "format": "cc4s",
        "version": VERSION,
        "shape": header.lengths,
        "storage": "dense" if blocks is None else "blocks",
        "order": "F",
        "byteorder": "little",
        "dtype": header.element.name,
        "elements": header.elements,
        "unit": header.unit,
        "dims": names,
        "types": tuple(dimension.type for dimension in header.dimensions),
    }
    if header.elements != TEXT:
        file_info["offset"] = 0
    if part.fields.within:
        file_info["component"] = part.name
    return {"tensorfmt": file_info, "dtype": header.element.encoding}


def _labels(
    variables: Sequence[ReadVariable], properties: Mapping[str, Properties]
) -> tuple[list[Tensor], list[Finding]]:
    """Return properties as coordinates, and findings about properties that do not fit."""
    labels: dict[str, Tensor] = {}
    findings = []
    every = [dimension for variable in variables for dimension in variable.dimensions]
    for dimension_type, of_type in properties.items():
        lengths = {
            dimension.length for _, _, dimension in every if dimension.type == dimension_type
        }
        for prop, indices in of_type.indices.items():
            attrs = {"values": of_type.values[prop]} if prop in of_type.values else {}
            for name, default, dimension in every:
                if dimension == Dimension(indices.size, dimension_type):
                    label = f"{default}_{prop}"
                    labels[label] = Tensor(label, (name,), InMemory(indices), attrs)
            # Slices of cc4s, such as DeltaIntegrals, have fewer states than the calculation.
            if indices.size not in lengths and indices.size < max(lengths):
                message = (
                    f"{indices.size} integers, expected {max(lengths)} "
                    "for the length of the dimension; they are not used, since the file is of "
                    "another calculation"
                )
                field = f"propertyIndices.{prop}"
                findings.append(Finding(of_type.path, None, field, message, "warning"))
    present = {dim for variable in variables for dim in variable.tensor.dims}
    taken = present | {variable.tensor.name for variable in variables}
    usable = (label for label in labels.values() if present.issuperset(label.dims))
    return [label for label in usable if label.name not in taken], findings
