"""Build cc4s files as VASP, MOLGW and cc4s write them, independently of the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np

BINARY, TEXT = "IeeeBinaryFile", "TextFile"

Conditions = Sequence[tuple[Sequence[tuple[str, int]], Sequence[Sequence[int]]]]
"""For each condition the pairs of property and dimension, and the tuples of property indices."""


def make_values(shape: Sequence[int], *, is_complex: bool = False) -> np.ndarray:
    """Return element i, the first dimension fastest: (i + 1) * 0.75 + sin(i)."""
    i = np.arange(int(np.prod(shape)))
    values = (i + 1) * 0.75 + np.sin(i)
    if is_complex:
        values = values - 1j * np.cos(i) * (i + 1)
    return values.reshape(shape, order="F")


def pack_binary(values: np.ndarray) -> bytes:
    return values.astype("<c16" if values.dtype.kind == "c" else "<f8").tobytes(order="F")


def format_text(values: np.ndarray, *, form: str = " {} \n") -> bytes:
    """Return the values as text, one per line in the given form."""
    flat = values.ravel(order="F").tolist()
    if values.dtype.kind == "c":
        return "".join(form.format(f"({x.real!r},{x.imag!r})") for x in flat).encode()
    return "".join(form.format(repr(x)) for x in flat).encode()


def format_dimensions(
    lengths: Sequence[int], types: Sequence[str | None] | None, indent: str
) -> str:
    """Return the dimensions as a list, as VASP writes them."""
    if not lengths:
        return f"{indent}dimensions: []\n"
    lines = [f"{indent}dimensions:\n"]
    for length, dimension_type in zip(lengths, types or [None] * len(lengths), strict=True):
        lines.append(f"{indent}- length:      {length}\n")
        if dimension_type is not None:
            lines.append(f"{indent}  type: {dimension_type}\n")
    return "".join(lines)


def format_condition(conditions: Conditions) -> str:
    """Return the blocks that are not zero, as VASP writes them."""
    lines = ["nonZeroCondition:", "  all:"]
    for number, (pairs, tuples) in enumerate(conditions):
        lines += [f"  - name: Condition{number}", "    properties:"]
        for name, dimension in pairs:
            lines += [f"    - property: {name}", f"      dimension: {dimension}"]
        lines.append("    nonZeros:" if tuples else "    nonZeros: []")
        lines += [f"    - [{', '.join(map(str, values))}]" for values in tuples]
    return "\n".join(lines) + "\n"


def format_yaml(
    lengths: Sequence[int],
    types: Sequence[str | None] | None = None,
    *,
    scalar: str = "Real64",
    elements: str = BINARY,
    unit: object = 1,
    more: str = "",
    indent: str = "",
) -> str:
    """Return the YAML of a tensor, followed by `more`."""
    head = f"version: 100\ntype: Tensor\nscalarType: {scalar}\n"
    tail = f"elements:\n  type: {elements}\nunit: {unit}\n"
    indented = "".join(f"{indent}{line}\n" for line in head.splitlines())
    ending = "".join(f"{indent}{line}\n" for line in (tail + more).splitlines())
    return indented + format_dimensions(lengths, types, indent) + ending


def format_sorted_yaml(lengths: Sequence[int], *, scalar: str = "Real64", unit: object = 1) -> str:
    """Return YAML as cc4s writes it: sorted keys, a map of dimensions, no types."""
    keys = sorted(map(str, range(len(lengths))))
    dims = "".join(f"  {key}:\n    length: {lengths[int(key)]}\n" for key in keys)
    return (
        f"dimensions:\n{dims}elements:\n  type: {BINARY}\nmetaData:\n  halfGrid: 0\n"
        f"scalarType: {scalar}\ntype: Tensor\nunit: {unit}\nversion: 100\n"
    )


def format_properties(
    dimension_type: str,
    indices: Mapping[str, Sequence[int]],
    values: Mapping[str, str] | None = None,
) -> str:
    """Return the YAML of the properties of a dimension type."""
    lines = ["version: 100", f"dimensionType: {dimension_type}"]
    if values:
        lines += ["properties:", *(f"  {name}: {item}" for name, item in values.items())]
    lines.append("propertyIndices:" if indices else "propertyIndices: {}")
    for name, item in indices.items():
        empty = "" if item else " []"
        lines += [f"  {name}:{empty}", *(f"  - {index}" for index in item)]
    return "\n".join(lines) + "\n"


def save(
    directory: Path,
    stem: str,
    values: np.ndarray,
    types: Sequence[str | None] | None = None,
    *,
    elements: str = BINARY,
    unit: object = 1,
    more: str = "",
) -> Path:
    """Write a tensor and its elements, and return the path of the YAML file."""
    scalar = "Complex64" if values.dtype.kind == "c" else "Real64"
    path = directory / f"{stem}.yaml"
    path.write_text(
        format_yaml(values.shape, types, scalar=scalar, elements=elements, unit=unit, more=more)
    )
    content = format_text(values) if elements == TEXT else pack_binary(values)
    (directory / f"{stem}.elements").write_bytes(content)
    return path


def save_set(
    directory: Path, stem: str, components: Mapping[str, tuple[np.ndarray, Sequence[str]]]
) -> Path:
    """Write a set of tensors with dimension types."""
    lines = "version: 100\ntype: TensorSet\ncomponents:\n"
    for key, (values, types) in components.items():
        scalar = "Complex64" if values.dtype.kind == "c" else "Real64"
        lines += f"  {key}:\n" + format_yaml(values.shape, types, scalar=scalar, indent="    ")
        (directory / f"{stem}.components.{key}.elements").write_bytes(pack_binary(values))
    path = directory / f"{stem}.yaml"
    path.write_text(lines)
    return path


def make_blocks(
    full: np.ndarray,
    conditions: Conditions,
    properties_of: Sequence[Mapping[str, Sequence[int]]],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements of a block-sparse file, and the full tensor."""
    stored: list[complex] = []
    filled = np.zeros_like(full)
    # The first condition varies fastest.
    for chosen in product(*(tuples for _, tuples in reversed(conditions))):
        requested = [
            (name, dimension, index)
            for (pairs, _), indices in zip(conditions, reversed(chosen), strict=True)
            for (name, dimension), index in zip(pairs, indices, strict=True)
        ]
        for backwards in product(*(range(length) for length in reversed(full.shape))):
            address = backwards[::-1]
            if all(properties_of[d][name][address[d]] == index for name, d, index in requested):
                stored.append(full[address])
                filled[address] = full[address]
    return np.array(stored, dtype=full.dtype), filled


def save_blocks(
    directory: Path,
    full: np.ndarray,
    types: Sequence[str],
    labels: Mapping[str, Mapping[str, Sequence[int]]],
    conditions: Conditions,
    *,
    elements: str = BINARY,
) -> tuple[Path, np.ndarray]:
    """Write a tensor of blocks and the properties of its types. Return path and values."""
    for dimension_type, indices in labels.items():
        (directory / f"{dimension_type}.yaml").write_text(
            format_properties(dimension_type, indices)
        )
    stored, filled = make_blocks(
        full, conditions, [labels.get(dimension_type, {}) for dimension_type in types]
    )
    path = save(directory, "Blocks", stored, ["State"], elements=elements)
    scalar = "Complex64" if full.dtype.kind == "c" else "Real64"
    path.write_text(
        format_yaml(
            full.shape, types, scalar=scalar, elements=elements, more=format_condition(conditions)
        )
    )
    return path, filled
