"""Checks of cc4s files: rules of cc4s, other files of the calculation, and repeated elements."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.reading import read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source, open_sibling
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.cc4s.header import (
    TensorEntry,
    TensorHeader,
    complete_types,
    find_length_conflict,
)
from xr_tensorfmt.formats.cc4s.spec import COMPARED, YAML, find_unit_conflict, get_stem
from xr_tensorfmt.formats.cc4s.yaml_text import get_mappings, read_yaml

ENERGY_TOLERANCE = 1e-6
"""Relative tolerance of energies in metadata, which are often rounded."""


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:  # noqa: ARG001
    """Check the tensors of a YAML file."""
    source, entries = reader.source, container.parsed
    for entry, tensor in zip(entries, container.tensors, strict=True):
        yield from _check_conditions(entry)
        yield from _check_energies(entry, tensor)
        for name in COMPARED:
            if name != entry.cc4s_object:
                yield from _compare_with(source, entry, name)


def _compare_with(source: Source, entry: TensorEntry, other: str) -> Iterator[Finding]:
    """Compare unit and lengths with another object in the same directory."""
    fields, own, header = entry.fields, entry.cc4s_object, entry.header
    prefix = get_stem(os.path.basename(fields.path)).removesuffix(own)
    try:
        sibling = open_sibling(source, f"{prefix}{other}{YAML}", "it belongs to the calculation")
        other_header = TensorHeader.unpack(read_yaml(HeaderReader(*sibling)))
    except (OSError, ValueError):
        return
    conflict = find_unit_conflict({own: header.unit, other: other_header.unit})
    if conflict:
        message = f"{conflict}; cc4s converts no units, so write both in the same units"
        yield Finding(fields.path, None, fields.get_path("unit"), message)
    dimensions = {
        name: complete_types(name, item.lengths, item.types)
        for name, item in ((own, header), (other, other_header))
    }
    conflict = find_length_conflict(dimensions)
    if conflict:
        message = f"{conflict}; the files belong to different calculations"
        yield Finding(fields.path, None, fields.get_path("dimensions"), message)


def _check_conditions(entry: TensorEntry) -> Iterator[Finding]:
    fields = entry.fields
    if "nonZeroCondition" not in fields:
        return
    for condition in get_mappings(fields.get_fields("nonZeroCondition"), "all"):
        if "name" not in condition:
            message = "no such key, expected a str; cc4s requires it, so add any name"
            yield Finding(fields.path, None, condition.get_path("name"), message)


def _check_energies(entry: TensorEntry, tensor: Tensor) -> Iterator[Finding]:
    energies, source = entry.energies, tensor.source
    # The reader reports another length.
    if energies is None or source is None or len(energies) != entry.header.total:
        return
    try:
        values = read(tensor.layout, source, Selection.everything(tensor.layout.shape))
        listed = np.asarray(energies, dtype=float)
    except (TypeError, ValueError, TensorFormatError):
        return  # The check of all values reports elements that cannot be read.
    is_same = np.isclose(values, listed, rtol=ENERGY_TOLERANCE, atol=0, equal_nan=True)
    wrong = np.flatnonzero(~is_same)
    if wrong.size:
        first = int(wrong[0])
        message = (
            f"{wrong.size} of {len(energies)} differ from the elements, the first is "
            f"number {first}: {energies[first]}, expected {values[first]}; cc4s counts occupied "
            "states by them, so correct them"
        )
        field = entry.fields.get_path("metaData.energies")
        yield Finding(entry.fields.path, None, field, message, "warning")
