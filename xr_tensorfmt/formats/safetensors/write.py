"""Writing of safetensors, in the order of data of the package itself."""

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
    """Plan a file, in which the widest elements are first, so that all data are aligned."""
    if checked.path.casefold().endswith(INDEX):
        raise ValueError(
            f"{checked.path}: one file is written, and not the index of several; give a name that "
            "ends with .safetensors"
        )
    entries, others = keyed.collect_entries(checked, ELEMENTS, empty=True)
    for each in entries:
        if each.key == METADATA:
            raise ValueError(f"{checked.path}: {METADATA!r} is the name of the metadata; rename it")
        checked.check_rank(each.key, each.variable)
    metadata = _metadata(checked, entries, others)
    ordered = sorted(entries, key=lambda each: (-each.conversion.element.stored.itemsize, each.key))
    tensors = keyed.consecutive(ordered)
    by_key = {each.key: each for each in tensors}
    header = _header([by_key[each.key] for each in entries], metadata)
    check_header_size(checked, header, MAX_HEADER_BYTES)
    pairs = zip(ordered, tensors, strict=True)
    placed = tuple(each.placed(len(header) + tensor.offset) for each, tensor in pairs)
    size = len(header) + sum(each.nbytes for each in tensors)
    return FilePlan(size, (Piece(0, header),), placed)


def _metadata(
    checked: CheckedInput, entries: Sequence[keyed.Entry], others: keyed.Coordinates
) -> dict[str, str]:
    """Attributes that are strings, and what is embedded."""
    attrs = keyed.dataset_attributes(checked)
    metadata = {name: value for name, value in attrs.items() if isinstance(value, str)}
    more = {name: value for name, value in attrs.items() if name not in metadata}
    embedded = replace(keyed.embedded_variables(checked, entries, others), attrs=more)
    if not embedded.is_empty:
        metadata[EMBEDDED_KEY] = encode_metadata(checked, embedded).decode()
    return metadata


def _header(tensors: Sequence[StoredTensor], metadata: Mapping[str, str]) -> bytes:
    """The header of tensors whose offsets count from its end."""
    content: dict[str, Any] = {METADATA: metadata} if metadata else {}
    for each in tensors:
        content[each.key] = {
            "dtype": _NAMES[each.element.name],
            "shape": each.shape,
            "data_offsets": [each.offset, each.stop],
        }
    text = dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
