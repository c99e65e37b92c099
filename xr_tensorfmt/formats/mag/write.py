"""Plan a MAG file: an archive of version 1 or a snapshot of version 300."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from json import dumps
from typing import Any

import numpy as np
from xarray import Variable

from xr_tensorfmt.contract import (
    DTYPE_TAG,
    EMBEDDED_KEY,
    CheckedInput,
    FilePlan,
    Piece,
    check_header_size,
    encode_metadata,
    strip_dtypes,
)
from xr_tensorfmt.formats._shared import keyed_writing as keyed
from xr_tensorfmt.formats._shared.keyed import StoredTensor, get_default_dims
from xr_tensorfmt.formats.mag import archive, document
from xr_tensorfmt.formats.mag.spec import (
    ARCHIVE_ALIGNMENT,
    EARLY_ARCHIVE_DTYPES,
    LITTLE_ENDIAN,
    MAGIC,
    TensorRecord,
    round_up,
)

_ARCHIVE_ELEMENTS = {name: LITTLE_ENDIAN[name] for name in EARLY_ARCHIVE_DTYPES}


def plan_archive(checked: CheckedInput) -> FilePlan:
    """Plan an archive of version 1."""
    checked = replace(checked, format="a MAG archive of version 1")
    for name in checked.coordinates:
        checked.refuse_unless_dropped("coords", f"the coordinate {name!r}", "write version=300")
    keys = set(checked.variables)
    variables = [
        _build_variable(checked, key, variable, keys) for key, variable in checked.variables.items()
    ]
    metadata = _pack_metadata(checked)
    header = archive.ArchiveHeader(MAGIC, 1, 0, len(variables), len(metadata))
    tensors = keyed.assign_offsets(variables, ARCHIVE_ALIGNMENT)
    # The size of a record does not depend on the offset in it.
    records_size = sum(map(len, [*metadata, *(_pack_record(tensor, 0) for tensor in tensors)]))
    start = round_up(header.struct.size + records_size, ARCHIVE_ALIGNMENT)
    records = [_pack_record(tensor, start) for tensor in tensors]
    gaps = []
    # magnetron reserves more bytes than needed.
    reserved = archive.RESERVED_METADATA_BYTES
    size = header.struct.size + sum(len(record) + reserved for record in metadata)
    for tensor, record in zip(tensors, records, strict=True):
        size = round_up(size + len(record), ARCHIVE_ALIGNMENT)
        size += round_up(tensor.nbytes, ARCHIVE_ALIGNMENT)
        padding = archive.FILLER * (-tensor.stop % ARCHIVE_ALIGNMENT)
        gaps.append(Piece(start + tensor.stop, padding))
    head = header.pack(b"".join(metadata + records))
    if variables:
        head = head.ljust(start, archive.FILLER)
    return FilePlan(size, (Piece(0, head), *gaps), keyed.plan_variables(variables, tensors, start))


def _pack_record(tensor: StoredTensor, start: int) -> bytes:
    dtype = EARLY_ARCHIVE_DTYPES.index(tensor.element.name)
    return archive.pack_record(TensorRecord(tensor.key, tensor.shape, dtype, start + tensor.offset))


def _pack_metadata(checked: CheckedInput) -> list[bytes]:
    records = []
    for name, value in checked.attrs.items():
        plain = value.item() if isinstance(value, np.integer | np.floating) else value
        is_int64 = type(plain) is int and -(1 << 63) <= plain < 1 << 63
        if not (is_int64 or type(plain) is float):
            attribute = f"the attribute {name!r} of the Dataset"
            subject = f"{attribute}, which is neither an int64 nor a float"
            checked.refuse_unless_dropped("attrs", subject, "write version=300")
            continue
        _check_key(checked, name)
        records.append(archive.pack_metadata(name, plain))
    return records


def _build_variable(
    checked: CheckedInput, key: str, variable: Variable, keys: set[str]
) -> keyed.KeyedVariable:
    _check_key(checked, key)
    if not 1 <= variable.ndim <= archive.MAX_RANK_OF_VERSION_1 or not variable.size:
        raise ValueError(
            f"{checked.path}: {key!r} has shape {variable.shape}, and {checked.format} holds "
            f"tensors of 1 to {archive.MAX_RANK_OF_VERSION_1} dimensions that are not empty; "
            "reshape it, or write version=300"
        )
    if variable.dims != get_default_dims(key, variable.ndim, keys):
        names = f"the names {variable.dims} of the dimensions of {key!r}"
        checked.refuse_unless_dropped("dims", names, "write version=300")
    if variable.attrs:
        checked.refuse_unless_dropped("attrs", f"the attributes of {key!r}", "write version=300")
    conversion = checked.choose_conversion(key, variable, _ARCHIVE_ELEMENTS)
    return keyed.KeyedVariable(key, variable, conversion)


def _check_key(checked: CheckedInput, key: Any) -> None:
    limit = archive.MAX_KEY_BYTES
    if not isinstance(key, str) or "\0" in key or not 1 <= len(key.encode()) <= limit:
        raise ValueError(
            f"{checked.path}: {key!r} cannot be a key of {checked.format}, which is a str of 1 to "
            f"{limit} bytes without NUL; rename it, or write version=300"
        )


MAX_SNAPSHOT_DIMENSIONS = 16
"""Limit of magnetron on the rank of a tensor."""


def plan_snapshot(checked: CheckedInput) -> FilePlan:
    """Plan a snapshot of version 300."""
    checked = checked.encode(LITTLE_ENDIAN)
    variables, embedded = keyed.select_stored(checked, LITTLE_ENDIAN, empty=False)
    for named in variables:
        if named.variable.ndim > MAX_SNAPSHOT_DIMENSIONS:
            raise ValueError(
                f"{checked.path}: {named.key!r} has {named.variable.ndim} dimensions, and "
                f"magnetron loads at most {MAX_SNAPSHOT_DIMENSIONS}; stack some of them"
            )
    tensors = keyed.assign_offsets(variables, document.ALIGNMENT)
    data_bytes = max((tensor.stop for tensor in tensors), default=0)
    if not data_bytes:
        raise ValueError(
            f"{checked.path}: magnetron cannot load a snapshot without elements; "
            "add a variable that has some, or write another format"
        )
    metadata = _build_metadata(checked, variables, embedded)
    content = document.pack_document(tensors, metadata, datetime.now().astimezone().isoformat())
    check_header_size(checked, content, document.MAX_DOCUMENT_BYTES)
    head_bytes = document.SnapshotHeader.struct.size
    start = round_up(head_bytes + len(content), document.ALIGNMENT)
    header = document.SnapshotHeader(0, head_bytes, len(content), start, data_bytes)
    pieces = (Piece(0, header.pack() + content),)
    return FilePlan(header.data_stop, pieces, keyed.plan_variables(variables, tensors, start))


def _build_metadata(
    checked: CheckedInput, variables: Sequence[keyed.KeyedVariable], coordinates: keyed.Coordinates
) -> dict[str, Any]:
    """Return the attributes of the Dataset with the embedded metadata."""
    attrs = {**checked.attrs, **keyed.compute_totals(checked.attrs, variables)}
    attrs = keyed.encode_dataset_attrs(checked, attrs)
    metadata: dict[str, Any] = strip_dtypes(attrs)
    embedded = replace(
        keyed.embed_variables(checked, variables, coordinates),
        tagged_attrs=f'"{DTYPE_TAG}"' in dumps(metadata),
        # JSON stores these numbers without their dtypes.
        numpy_attrs={n: v for n, v in attrs.items() if dumps(strip_dtypes(v)) != dumps(v)},
    )
    if not embedded.is_empty:
        encode_metadata(checked, embedded)  # checks the size
        metadata[EMBEDDED_KEY] = embedded.to_dict()
    return metadata


def plan(checked: CheckedInput, version: int = 300) -> FilePlan:
    """Plan a MAG file."""
    return plan_archive(checked) if version == 1 else plan_snapshot(checked)
