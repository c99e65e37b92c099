"""Plan a MAG file: a snapshot of version 300."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import starmap
from json import dumps, loads
from typing import Any

import numpy as np

from xr_tensorfmt.core.embedded_metadata import DTYPE_TAG, check_header_size, from_json
from xr_tensorfmt.core.file_format import EMBEDDED_KEY
from xr_tensorfmt.formats import keyed, mag
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.file_plan import FilePlan, Piece, PlannedVariable

# magnetron requires a version of itself and ignores its value (``snapshot.py`` of 0.2.2).
MAGNETRON_VERSION = "0.2.2+xr_tensorfmt"
MAX_SNAPSHOT_DIMENSIONS = 16


def plan(checked: CheckedInput) -> FilePlan:
    """Plan a file."""
    checked = checked.encode(mag.LITTLE_ENDIAN)
    variables, embedded = keyed.select_stored(checked, mag.LITTLE_ENDIAN, empty=False)
    for variable, conversion in variables:
        if variable.ndim > MAX_SNAPSHOT_DIMENSIONS:
            raise ValueError(
                f"{checked.path}: {conversion.name!r} has {variable.ndim} dimensions, and "
                f"magnetron loads at most {MAX_SNAPSHOT_DIMENSIONS}; stack some of them"
            )
    placed, data_bytes = keyed.place_tensors(variables, mag.ALIGNMENT)
    if not data_bytes:
        raise ValueError(
            f"{checked.path}: magnetron cannot load a snapshot without elements; "
            "add a variable that has some, or write another format"
        )
    metadata = _build_metadata(checked, variables, embedded)
    content = _pack_document(variables, placed, metadata)
    check_header_size(checked, content, mag.MAX_DOCUMENT_BYTES)
    start = mag.round_up(mag.HEADER.size + len(content), mag.ALIGNMENT)
    header = mag.HEADER.pack(
        mag.MAGIC, mag.VERSION, 0, mag.HEADER.size, len(content), start, data_bytes
    )
    planned = tuple(starmap(PlannedVariable, keyed.build_layouts(variables, placed, start)))
    return FilePlan(start + data_bytes, (Piece(0, header + content),), planned)


def _build_metadata(
    checked: CheckedInput, variables: Sequence[keyed.KeyedVariable], coordinates: keyed.Coordinates
) -> dict[str, Any]:
    attrs = loads(dumps(keyed.encode_dataset_attrs(checked)), object_hook=_simplify)
    metadata = {name: value for name, value in attrs.items() if DTYPE_TAG not in dumps(value)}
    embedded = keyed.embed_metadata(checked, variables, coordinates, attrs, metadata)
    return metadata | ({EMBEDDED_KEY: loads(embedded)} if embedded else {})


def _simplify(members: dict[str, Any]) -> Any:
    """Return the plain number of a number of numpy. The document stores no dtype for it."""
    number = from_json(members) if DTYPE_TAG in members else None
    if isinstance(number, np.generic) and number.dtype.kind in "biuf":
        number = number.item()
    return number if isinstance(number, bool | int | float) else members  # not 16 bytes


def _pack_document(
    variables: Sequence[keyed.KeyedVariable],
    placed: Mapping[str, tuple[int, int]],
    metadata: Mapping[str, Any],
) -> bytes:
    """Encode the document. Offsets of tensors are relative to the data section."""
    timestamp = datetime.now().astimezone().isoformat()
    file_info = (1, timestamp, MAGNETRON_VERSION, "0.3.0")
    entries = {}
    for variable, conversion in variables:
        dtype_id = mag.DTYPES.index(conversion.element.name)
        start, stop = placed[conversion.name]
        entries[conversion.name] = {
            "shape": variable.shape,
            "dtype": mag.DTYPE_NAMES[dtype_id],
            "dtype_id": dtype_id,
            "offset": start,
            "nbytes": stop - start,
        }
    content: dict[str, Any] = dict(zip(mag.FILE_INFO, file_info, strict=True))
    content |= {mag.METADATA: metadata, mag.TENSORS: entries}
    return dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
