"""The container R1: a preamble, two slots, the values, and blocks of metadata.

A slot points to the values and to a block of metadata. To update the metadata, PyCauset appends a
block and writes the unused slot, so that the other slot stays valid.

Sources: PyCauset, ``documentation/dev/PyCauset Container Format.md``, and
``python/pycauset/_internal/persistence.py`` of 0.6.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from json import dumps, loads
from struct import Struct, pack
from typing import Any, ClassVar
from zlib import crc32

import numpy as np

from xr_tensorfmt.core.container import EMBEDDED_KEY
from xr_tensorfmt.core.findings import Finding, finding_from_error
from xr_tensorfmt.core.header import Fields, HeaderReader
from xr_tensorfmt.core.json_values import to_json
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.pycauset import MAGIC, spec
from xr_tensorfmt.formats.pycauset.metadata import (
    CORRUPT,
    OBJECT_TYPE,
    build_attrs,
    build_matrix,
    decode_map,
    describe_derived,
    encode_map,
)
from xr_tensorfmt.formats.pycauset.spec import HEADER_BYTES, Matrix

# First bytes: magic number, version 1, little-endian, header size, 0.
PREAMBLE = MAGIC + pack("<IBHB", 1, 1, HEADER_BYTES, 0)
SLOT_OFFSETS = {"A": 16, "B": 144}
METADATA_ALIGNMENT = 16

BLOCK_MAGIC = b"PCMB"

# Magic number, version, version of the encoding, 0, size and checksum of the map, 0.
_BLOCK_HEADER = Struct("<4s3IQ2I")
_BLOCK_VERSIONS = (1, 1)

MAX_METADATA_BYTES = 64 << 20


@dataclass(frozen=True)
class Slot:
    """Pointers to the values and to a metadata block, with a checksum."""

    name: str
    generation: int
    payload_offset: int
    payload_length: int
    metadata_offset: int
    metadata_length: int
    hot_offset: int = 0
    hot_length: int = 0
    checksum: int = 0

    STRUCT: ClassVar = Struct("<7QI")
    """Encoding of a slot. Zeros follow."""

    @property
    def computed_checksum(self) -> int:
        """CRC-32 of the other fields."""
        return crc32(self.STRUCT.pack(*astuple(self)[1:])[:-4])

    @property
    def metadata_stop(self) -> int:
        """Offset of the end of the metadata block."""
        return self.metadata_offset + self.metadata_length

    def find_fault(self, file_size: int) -> str:
        """Return the reason why the slot is invalid, or an empty string."""
        if self.checksum != self.computed_checksum:
            return f"checksum {self.checksum:#010x} instead of {self.computed_checksum:#010x}"
        payload, metadata = self.payload_offset, self.metadata_offset
        if payload % HEADER_BYTES or payload < HEADER_BYTES:
            return f"payload offset {payload}, which is not a multiple of {HEADER_BYTES}"
        if metadata % METADATA_ALIGNMENT:
            return f"metadata offset {metadata}, which is not a multiple of {METADATA_ALIGNMENT}"
        stop = max(payload + self.payload_length, self.metadata_stop)
        fault = f"ranges up to byte {stop} in a file of {file_size} bytes"
        return fault if stop > file_size else ""


def pack_container(metadata: Mapping[str, Any], payload_bytes: int) -> tuple[bytes, int, bytes]:
    """Return the header, and the offset and content of the metadata block."""
    encoded = encode_map(metadata)
    fields = (BLOCK_MAGIC, *_BLOCK_VERSIONS, 0, len(encoded), crc32(encoded), 0)
    block = _BLOCK_HEADER.pack(*fields) + encoded
    payload_stop = HEADER_BYTES + payload_bytes
    start = payload_stop + -payload_stop % METADATA_ALIGNMENT
    header = bytearray(PREAMBLE.ljust(HEADER_BYTES, b"\0"))
    # PyCauset writes both slots with the same pointers.
    for generation, (name, offset) in zip((1, 0), SLOT_OFFSETS.items(), strict=True):
        slot = Slot(name, generation, HEADER_BYTES, payload_bytes, start, len(block))
        slot = replace(slot, checksum=slot.computed_checksum)
        Slot.STRUCT.pack_into(header, offset, *astuple(slot)[1:])
    return bytes(header), start, block


def read_container(reader: HeaderReader) -> Matrix:
    """Read the newest slot that has readable metadata."""
    slots, findings = read_slots(reader)
    errors: list[TensorFormatError] = []
    for slot in slots:
        try:
            metadata = read_metadata(reader, slot)
        except TensorFormatError as error:
            errors.append(error)
            continue
        instead = f"slot {slot.name}, generation {slot.generation}, is read instead"
        faults = [*findings, *map(finding_from_error, errors)]
        faults = [replace(fault, message=f"{fault.message}; {instead}") for fault in faults]
        size = reader.source.size
        offsets = [s.metadata_offset for s in slots if s.metadata_offset >= slot.payload_offset]
        limit = min(offsets, default=size)
        # A damaged slot may point to the last block.
        stop = size if findings else max(valid_slot.metadata_stop for valid_slot in slots)
        return replace(_parse_matrix(slot, metadata, limit), findings=tuple(faults), min_stop=stop)
    raise errors[0]


def read_slots(reader: HeaderReader) -> tuple[list[Slot], list[Finding]]:
    """Return the valid slots, newest first, and a finding for each invalid one."""
    header = reader.read_field(0, HEADER_BYTES, "the header")
    slots = [Slot(name, *Slot.STRUCT.unpack_from(header, i)) for name, i in SLOT_OFFSETS.items()]
    faults = {slot.name: slot.find_fault(reader.source.size) for slot in slots}
    valid = [slot for slot in slots if not faults[slot.name]]
    if not valid:
        actual = " and ".join(f"slot {n} at byte {SLOT_OFFSETS[n]} has {faults[n]}" for n in faults)
        hint = "the header is corrupt or the file is truncated; download it again"
        expected = "at least one valid slot"
        raise reader.error("the header slots", actual, expected, hint, SLOT_OFFSETS["A"])
    hint = "the file is corrupt or was not written completely; save it again"
    findings = [
        Finding(reader.source.name, SLOT_OFFSETS[name], f"slot {name}", f"{fault}; {hint}")
        for name, fault in faults.items()
        if fault
    ]
    # If both have the same generation, A comes first.
    return sorted(valid, key=lambda slot: -slot.generation), findings


def read_metadata(reader: HeaderReader, slot: Slot) -> Fields:
    """Read the metadata block of a slot."""
    start, length, skipped = slot.metadata_offset, slot.metadata_length, _BLOCK_HEADER.size

    def check(holds: bool, actual: str, expected: str) -> None:
        if not holds:
            field = f"the metadata block of slot {slot.name}"
            hint = "the file is corrupt, or was written by a newer version"
            raise reader.error(field, actual, expected, hint, start)

    expected = f"from {skipped} to {MAX_METADATA_BYTES} bytes"
    check(skipped <= length <= MAX_METADATA_BYTES, f"{length} bytes", expected)
    raw = reader.read_field(start, length, "the metadata block")
    magic, version, encoding, _, size, checksum, _ = _BLOCK_HEADER.unpack_from(raw)
    encoded = raw[skipped : skipped + size]
    check(magic == BLOCK_MAGIC, repr(magic), repr(BLOCK_MAGIC))
    actual = f"version {version}, encoding {encoding}"
    check((version, encoding) == _BLOCK_VERSIONS, actual, "version 1 of both")
    check(size <= length - skipped, f"a map of {size} bytes", f"at most {length - skipped} bytes")
    computed = crc32(encoded)
    check(checksum == computed, f"checksum {checksum:#010x}", f"{computed:#010x} as computed")
    values = decode_map(encoded, reader.source.name, start + skipped)
    return Fields(reader.source.name, values, start, "metadata", CORRUPT)


def _parse_matrix(slot: Slot, metadata: Fields, limit: int) -> Matrix:
    """Return the matrix that the metadata describes."""
    view = metadata.get_fields("view", {})
    matrix = build_matrix(metadata, "r1", view, slot.payload_offset, limit)
    is_dense = matrix.matrix_type == "DENSE_FLOAT"
    # Vectors have n rows and 1 column, transposed or not. Matrices state the transposed shape.
    is_swapped = matrix.is_transposed and not matrix.is_vector
    listed = {key: metadata.values[key] for key in (OBJECT_TYPE, "n") if key in metadata}
    listed["properties"] = metadata.get("properties", dict, {})
    is_block = matrix.matrix_type == spec.BLOCK
    return replace(
        matrix,
        rows=matrix.columns if is_swapped else matrix.rows,
        columns=matrix.rows if is_swapped else matrix.columns,
        row_bytes=spec.R1_BIT_ROW_BYTES if is_dense else spec.WORD_BYTES,
        attrs=dict(build_attrs(metadata)),
        encoding={
            "payload_uuid": metadata.get("payload_uuid", str),
            "slot": slot.name,
            "generation": slot.generation,
            **loads(dumps(listed, default=lambda raw: to_json(np.frombuffer(raw, "u1"), ""))),
        },
        embedded=metadata.values.get(EMBEDDED_KEY),
        derived=tuple(describe_derived(metadata)),
        payload_length=slot.payload_length,
        manifest=metadata.get("block_manifest", dict, {}) if is_block else None,
    )
