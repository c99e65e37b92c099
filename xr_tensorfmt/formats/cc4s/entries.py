"""The tensors that a YAML file describes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from xr_tensorfmt.contract import OpenOptions, is_file_name
from xr_tensorfmt.formats.cc4s.header import TensorHeader, check_version
from xr_tensorfmt.formats.cc4s.spec import (
    TENSOR,
    TENSOR_SET,
    get_elements_file,
    get_stem,
    get_variable_name,
)
from xr_tensorfmt.formats.cc4s.yaml_text import Fields

MAX_COMPONENTS = 1 << 10
"""Limit on the components of a TensorSet. Every component is a file."""


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of the YAML file, and the name of its file of elements."""

    name: str
    fields: Fields
    header: TensorHeader
    elements: str

    @property
    def key(self) -> str:
        """The component, or the usual name of a sole tensor."""
        return self.name if self.fields.prefix else OpenOptions.name


def parse_entries(fields: Fields, options: OpenOptions) -> list[TensorEntry]:
    """Return the tensors that the YAML file describes."""
    is_set = fields.values.get("type") == TENSOR_SET
    if not is_set or "version" in fields:  # cc4s gives a set none
        check_version(fields)
    if "dimensionType" in fields:
        actual, hint = "properties of a dimension", "open a tensor of that directory"
        raise fields.error("type", actual, f"{TENSOR} or {TENSOR_SET}", hint)
    stem = get_stem(os.path.basename(fields.path))
    if fields.choice("type", (TENSOR, TENSOR_SET)) == TENSOR_SET:
        options.check_unnamed(fields.path)
        return list(_parse_components(fields.mapping("components"), stem))
    is_default = options.name == OpenOptions.name
    name = get_variable_name(stem) if is_default else options.name
    return [TensorEntry(name, fields, TensorHeader.unpack(fields), get_elements_file(stem))]


def _parse_components(components: Fields, stem: str) -> Iterator[TensorEntry]:
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
        yield TensorEntry(name, fields, TensorHeader.unpack(fields), get_elements_file(stem, name))
