"""Plan a MAG file: a snapshot of version 300."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import starmap
from json import dumps
from typing import Any

from xr_tensorfmt.core.embedded_metadata import (
    DTYPE_TAG,
    EmbeddedMetadata,
    check_header_size,
    encode_metadata,
    strip_dtypes,
)
from xr_tensorfmt.core.file_format import EMBEDDED_KEY
from xr_tensorfmt.core.layout import Dense
from xr_tensorfmt.formats import keyed
from xr_tensorfmt.formats.mag.read import (
    ALIGNMENT,
    DTYPE_NAMES,
    DTYPES,
    FILE_INFO,
    LITTLE_ENDIAN,
    MAX_DOCUMENT_BYTES,
    METADATA,
    TENSORS,
    SnapshotHeader,
    round_up,
)
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.file_plan import FilePlan, Piece, PlannedVariable

# Limit of magnetron on the rank of a tensor.
MAX_SNAPSHOT_DIMENSIONS = 16


def plan(checked: CheckedInput) -> FilePlan:
    """Plan a file."""
    checked = checked.encode(LITTLE_ENDIAN)
    variables, embedded = keyed.select_stored(checked, LITTLE_ENDIAN, empty=False)
    for variable, conversion in variables:
        if variable.ndim > MAX_SNAPSHOT_DIMENSIONS:
            raise ValueError(
                f"{checked.path}: {conversion.name!r} has {variable.ndim} dimensions, and "
                f"magnetron loads at most {MAX_SNAPSHOT_DIMENSIONS}; stack some of them"
            )
    placed = keyed.place_tensors(variables, ALIGNMENT)
    data_bytes = max((layout.stop for layout in placed.values()), default=0)
    if not data_bytes:
        raise ValueError(
            f"{checked.path}: magnetron cannot load a snapshot without elements; "
            "add a variable that has some, or write another format"
        )
    metadata = _build_metadata(checked, variables, embedded)
    content = _pack_document(placed, metadata)
    check_header_size(checked, content, MAX_DOCUMENT_BYTES)
    head_bytes = SnapshotHeader.struct.size
    start = round_up(head_bytes + len(content), ALIGNMENT)
    header = SnapshotHeader(0, head_bytes, len(content), start, data_bytes)
    pieces = (Piece(0, header.pack() + content),)
    planned = starmap(PlannedVariable, keyed.place_variables(variables, placed, start))
    return FilePlan(header.data_stop, pieces, tuple(planned))


def _build_metadata(
    checked: CheckedInput, variables: Sequence[keyed.KeyedVariable], coordinates: keyed.Coordinates
) -> dict[str, Any]:
    """Return the attributes of the Dataset with the embedded metadata."""
    attrs = keyed.encode_dataset_attrs(checked)
    metadata: dict[str, Any] = strip_dtypes(attrs)
    embedded = replace(
        keyed.embed_variables(checked, variables, coordinates),
        tagged_attrs=f'"{DTYPE_TAG}"' in dumps(metadata),
        # JSON stores these numbers without their dtypes.
        numpy_attrs={n: v for n, v in attrs.items() if dumps(strip_dtypes(v)) != dumps(v)},
    )
    if embedded != EmbeddedMetadata():
        encode_metadata(checked, embedded)  # checks the size
        metadata[EMBEDDED_KEY] = embedded.to_dict()
    return metadata


def _pack_document(placed: Mapping[str, Dense], metadata: Mapping[str, Any]) -> bytes:
    """Encode the document. Offsets of tensors are relative to the data section."""
    file_info = (1, datetime.now().astimezone().isoformat(), "0.2.2", "0.3.0")  # magnetron 0.2.2
    entries = {}
    for key, layout in placed.items():
        dtype_id = DTYPES.index(layout.element.name)
        entries[key] = {
            "shape": layout.shape,
            "dtype": DTYPE_NAMES[dtype_id],
            "dtype_id": dtype_id,
            "offset": layout.offset,
            "nbytes": layout.stop - layout.offset,
        }
    content: dict[str, Any] = dict(zip(FILE_INFO, file_info, strict=True))
    content |= {METADATA: metadata, TENSORS: entries}
    return dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
