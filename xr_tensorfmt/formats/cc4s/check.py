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
from xr_tensorfmt.formats.cc4s import spec
from xr_tensorfmt.formats.cc4s.header import TensorEntry, complete_types, find_length_conflict
from xr_tensorfmt.formats.cc4s.yaml_text import read_yaml

ENERGY_TOLERANCE = 1e-6
"""Relative tolerance of energies in metadata, which are often rounded."""


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:  # noqa: ARG001
    """Check the tensors of a YAML file."""
    for entry, tensor in zip(container.parsed, container.tensors, strict=True):
        yield from _check_energies(entry, tensor)
        for name in spec.COMPARED:
            if name != entry.cc4s_object:
                yield from _compare_with(reader.source, entry, name)


def _compare_with(source: Source, entry: TensorEntry, name: str) -> Iterator[Finding]:
    """Compare unit and lengths with another object in the same directory."""
    fields, own = entry.fields, entry.cc4s_object
    stem = spec.get_stem(os.path.basename(fields.path)).removesuffix(own) + name
    try:
        sibling = open_sibling(source, f"{stem}{spec.YAML}", "it belongs to the calculation")
        other = TensorEntry.unpack(read_yaml(HeaderReader(*sibling)), stem, name)
    except (OSError, ValueError):
        return
    if conflict := spec.find_unit_conflict({own: entry.unit, name: other.unit}):
        yield Finding(fields.path, None, fields.get_path("unit"), conflict)
    items = {own: entry, name: other}
    conflict = find_length_conflict(
        {key: complete_types(key, item.lengths, item.types) for key, item in items.items()}
    )
    if conflict:
        yield Finding(fields.path, None, fields.get_path("dimensions"), conflict)


def _check_energies(entry: TensorEntry, tensor: Tensor) -> Iterator[Finding]:
    energies, source = entry.energies, tensor.source
    # Slices that cc4s makes keep the list of all energies.
    is_slice = entry.fields.prefix or entry.cc4s_object == spec.SLICED_ENERGIES
    if energies is None or source is None or (is_slice and len(energies) != entry.total):
        return
    if len(energies) == entry.total:
        try:
            values = read(tensor.layout, source, Selection.everything(tensor.layout.shape))
            listed = np.asarray(energies, dtype=float)
        except (TypeError, ValueError, TensorFormatError):
            return  # The check of all values reports elements that cannot be read.
        is_same = np.isclose(values, listed, rtol=ENERGY_TOLERANCE, atol=0, equal_nan=True)
        wrong = np.flatnonzero(~is_same)
        if not wrong.size:
            return
        first = int(wrong[0])
        message = f"{wrong.size} of {len(energies)} differ from the elements, the first is number "
        message += f"{first}: {energies[first]}, expected {values[first]}"
    else:
        message = f"{len(energies)} energies for {entry.total} elements"
    message += "; cc4s counts occupied states by them, so write the file again"
    field = entry.fields.get_path("metaData.energies")
    yield Finding(entry.fields.path, None, field, message, "warning")
