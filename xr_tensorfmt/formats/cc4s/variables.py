"""Build the variables and coordinates of cc4s tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.findings import End, Finding
from xr_tensorfmt.core.header import MAX_FILLED_ELEMENTS, check_size
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import InMemory, View, column_major
from xr_tensorfmt.errors import Hint, TensorFormatError
from xr_tensorfmt.formats.cc4s.blocks import (
    IndexOfStored,
    StoredBlocks,
    ZeroFilledBlocks,
    find_blocks,
)
from xr_tensorfmt.formats.cc4s.header import Dimension, Properties, TensorEntry
from xr_tensorfmt.formats.cc4s.spec import (
    EMBEDDED,
    OCCUPIED,
    SLICED_ENERGIES,
    TEXT,
    VERSION,
    lists_energies,
)
from xr_tensorfmt.formats.cc4s.text import Text

ENTRY = "entry"
"""Dimension of the stored elements of a tensor of blocks."""

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


@dataclass(frozen=True)
class IsBelow(View):
    """Whether real values are below a limit."""

    limit: float

    dtype = np.dtype(np.bool_)
    layout_to_validate = None  # the values themselves are validated

    def apply(self, selection: Selection, *values: Array) -> Array:
        """Compare the values."""
        return np.asarray(values[0] < self.limit)


def build_variable(
    entry: TensorEntry,
    source: Source,
    properties: Mapping[str, Properties],
    names: tuple[str, ...],
    options: OpenOptions,
) -> Container:
    """Build the variable of a tensor. The names are of its dimensions.

    With ``sparse="stored"``, the coordinates are the indices of the stored elements.
    """
    header, path = entry.header, entry.fields.path
    check_size(path, header.lengths, header.element.dtype.itemsize, 0)
    blocks = None
    if not _is_only_block_whole(entry, source, properties):
        blocks = _find_blocks(entry, properties, options)
    layout, end = _build_layout(entry, source, blocks)
    findings: list[Finding] = []
    dims = names
    indices: list[Tensor] = []
    if blocks is not None and options.sparse == "stored":
        dims = (ENTRY,)
        for axis, name in enumerate(reversed(names)):  # the blocks have the slowest axis first
            indices.insert(0, Tensor(name, dims, IndexOfStored(blocks, axis)))
    else:
        layout = column_major(layout if blocks is None else ZeroFilledBlocks(layout, blocks))
    stored = layout
    if options.apply_unit and header.unit != 1:
        layout = InAtomicUnits(layout, header.unit)
    attrs = {name: value for name, value in header.metadata.items() if name != EMBEDDED}
    energies = entry.energies
    if energies is not None:
        del attrs["energies"]  # a selection of the values would make the list stale
    # Slices that cc4s makes keep the list of all energies.
    is_slice = entry.fields.prefix or entry.cc4s_object == SLICED_ENERGIES
    if energies is not None and len(energies) != header.total and not is_slice:
        message = (
            f"{len(energies)} energies for {header.total} elements; cc4s counts occupied "
            "states by them, so write the file again"
        )
        findings.append(Finding(path, None, "metaData.energies", message, "warning"))
    if "unit" in attrs:
        message = "ignored, because the attribute `unit` holds the unit of the tensor; rename it"
        findings.append(Finding(path, None, "metaData.unit", message, "warning"))
    attrs = {**attrs, "unit": header.unit}
    tensor = Tensor(entry.name, dims, layout, attrs, _build_encoding(entry, names, blocks), source)
    occupied = _build_occupied(entry, names, stored)
    if occupied is not None:
        indices.append(Tensor(OCCUPIED, names, occupied, source=source))
    return Container((tensor,), tuple(indices), findings=tuple(findings), ends=(end,))


def _build_occupied(entry: TensorEntry, names: tuple[str, ...], layout: Layout) -> Layout | None:
    """Return which states are occupied by the rule of cc4s, or None if it does not apply."""
    header = entry.header
    fermi = header.metadata.get("fermiEnergy")
    if not isinstance(fermi, int | float) or isinstance(fermi, bool):
        return None
    is_real = header.element.dtype.kind == "f" and not header.conditions
    if not is_real or entry.fields.prefix or OCCUPIED in (*names, entry.name):
        return None
    if not lists_energies(entry.cc4s_object, header.lengths, header.types, header.metadata):
        return None
    with suppress(TypeError, ValueError):  # not numbers
        energies = np.asarray(entry.energies, dtype=np.float64)
        if energies.shape == header.lengths:
            return InMemory(energies < fermi)
    return IsBelow(layout, float(fermi))


def _is_only_block_whole(
    entry: TensorEntry, source: Source, properties: Mapping[str, Properties]
) -> bool:
    """Return whether a file without properties has one block, which is the whole tensor."""
    header = entry.header
    if not header.conditions or prod(len(rows.non_zeros) for rows in header.conditions) != 1:
        return False
    constrained = {
        (header.dimensions[dimension].type or "", name)
        for condition in header.conditions
        for name, dimension in condition.properties
    }
    if all(kind in properties and name in properties[kind].indices for kind, name in constrained):
        return False
    return header.elements == TEXT or source.size >= header.total * header.element.stored.itemsize


def _find_blocks(
    entry: TensorEntry, properties: Mapping[str, Properties], options: OpenOptions
) -> StoredBlocks | None:
    """Return the blocks of a tensor, or None if all elements are stored."""
    if not entry.header.conditions:
        options.refuse_stored(entry.fields.path)
        return None
    blocks = find_blocks(entry, properties)
    if options.sparse == "auto" and entry.header.total > MAX_FILLED_ELEMENTS:
        raise entry.fields.error(
            "dimensions",
            actual=f"{entry.header.total} elements, of which {blocks.stored} are stored",
            expected=f"at most {MAX_FILLED_ELEMENTS}",
            hint=Hint(
                "open it with {sparse}, or with 'dense' to fill in the zeros", sparse="stored"
            ),
        )
    return blocks


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
    if is_text:
        end = End(source, source.size, "the elements")
        return Text(lengths, header.element.dtype.kind == "c", source.size), end
    # Programs overwrite a file without truncating it, so the end of a larger tensor may follow.
    return Dense(lengths, header.element, 0), End(source, min_size, "the elements", "warning")


def _build_encoding(
    entry: TensorEntry, names: tuple[str, ...], blocks: StoredBlocks | None
) -> dict[str, Any]:
    header = entry.header
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
        "types": header.types,
    }
    if header.elements != TEXT:
        file_info["offset"] = 0
    if entry.fields.prefix:
        file_info["component"] = entry.name
    return {"tensorfmt": file_info, "dtype": header.element.encoding}


def build_labels(
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
    present = {dim for tensor in tensors for dim in tensor.dims}
    taken = present | {tensor.name for tensor in tensors}
    usable = (label for label in labels.values() if present.issuperset(label.dims))
    return [label for label in usable if label.name not in taken], findings
