"""Plan a safetensors file, with data in the order of the package safetensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from json import dumps
from typing import Any

from xr_tensorfmt.contract import (
    EMBEDDED_KEY,
    CheckedInput,
    FilePlan,
    Piece,
    check_header_size,
    encode_metadata,
)
from xr_tensorfmt.formats._shared import keyed_writing as keyed
from xr_tensorfmt.formats._shared.keyed import StoredTensor
from xr_tensorfmt.formats.safetensors.spec import (
    DTYPES,
    ELEMENTS,
    INDEX,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    METADATA,
)

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def plan(checked: CheckedInput) -> FilePlan:
    """Plan a file. The widest elements are first, so all data are aligned."""
    if checked.path.casefold().endswith(INDEX):
        raise ValueError(
            f"{checked.path}: an index of several files cannot be written; use a name that ends "
            "with .safetensors"
        )
    entries, others = keyed.collect_entries(checked, ELEMENTS, empty=True)
    for entry in entries:
        if entry.key == METADATA:
            raise ValueError(f"{checked.path}: {METADATA!r} is the name of the metadata; rename it")
        checked.check_rank(entry.key, entry.variable)
    metadata = _build_metadata(checked, entries, others)
    ordered = sorted(
        entries, key=lambda entry: (-entry.conversion.element.stored.itemsize, entry.key)
    )
    tensors = keyed.place_tensors(ordered)
    by_key = {tensor.key: tensor for tensor in tensors}
    header = _pack_header([by_key[entry.key] for entry in entries], metadata)
    check_header_size(checked, header, MAX_HEADER_BYTES)
    size = len(header) + sum(tensor.nbytes for tensor in tensors)
    planned = keyed.plan_variables(ordered, tensors, len(header))
    return FilePlan(size, (Piece(0, header),), planned)


def _build_metadata(
    checked: CheckedInput, entries: Sequence[keyed.Entry], others: keyed.Coordinates
) -> dict[str, str]:
    """Return the attributes that are strings, with the embedded metadata."""
    attrs = keyed.encode_dataset_attrs(checked)
    metadata = {name: value for name, value in attrs.items() if isinstance(value, str)}
    other_attrs = {name: value for name, value in attrs.items() if name not in metadata}
    embedded = replace(keyed.embed_variables(checked, entries, others), attrs=other_attrs)
    if not embedded.is_empty:
        metadata[EMBEDDED_KEY] = encode_metadata(checked, embedded).decode()
    return metadata


def _pack_header(tensors: Sequence[StoredTensor], metadata: Mapping[str, str]) -> bytes:
    """Encode the header. Offsets of tensors are relative to its end."""
    content: dict[str, Any] = {METADATA: metadata} if metadata else {}
    for tensor in tensors:
        content[tensor.key] = {
            "dtype": _NAMES[tensor.element.name],
            "shape": tensor.shape,
            "data_offsets": [tensor.offset, tensor.stop],
        }
    text = dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
