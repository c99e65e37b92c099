"""The container R1: a preamble, two slots, the values, and blocks of metadata.

A slot points to the values and to a block of metadata. An update of the metadata appends a block
and writes the slot that is not in use, so that the other one stays valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from struct import Struct, pack
from typing import Any, ClassVar
from zlib import crc32

from xr_tensorfmt.core.findings import Finding, finding_of
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.pycauset import MAGIC
from xr_tensorfmt.formats.pycauset.spec import HEADER_BYTES
from xr_tensorfmt.formats.pycauset.typed_map import decode_map, encode_map

PREAMBLE = MAGIC + pack("<IBHB", 1, 1, HEADER_BYTES, 0)
"""First bytes: magic, version 1, little-endian, bytes of the header, 0."""

SLOT_OFFSETS = {"A": 16, "B": 144}
"""Bytes of the file at which the slots begin."""

SLOT_BYTES = 128

METADATA_ALIGNMENT = 16
"""Blocks of metadata begin at multiples of these bytes."""

MOST_METADATA = 64 << 20
"""Limit on the bytes of a block of metadata."""

_POINTERS = Struct("<7Q")
_CHECKSUM = Struct("<I")
_BLOCK_HEADER = Struct("<4s3IQ2I")


@dataclass(frozen=True)
class Slot:
    """Pointers to the values and to one generation of the metadata, with a checksum."""

    name: str
    generation: int
    payload_offset: int
    payload_length: int
    metadata_offset: int
    metadata_length: int
    hot_offset: int = 0
    hot_length: int = 0
    checksum: int = 0

    SIZE: ClassVar = _POINTERS.size + _CHECKSUM.size
    """Bytes that are used; zeros follow."""
    HOT_AT: ClassVar = _POINTERS.size - Struct("<2Q").size
    """Byte of the slot at which `hot_offset` and `hot_length` are; both are 0 in all files."""

    @classmethod
    def unpack(cls, name: str, raw: bytes) -> Slot:
        """The fields of a slot, whether or not it is valid."""
        return cls(name, *_POINTERS.unpack_from(raw), *_CHECKSUM.unpack_from(raw, _POINTERS.size))

    def pack(self) -> bytes:
        """The fields as bytes, with the checksum that they have."""
        return self._pointers + _CHECKSUM.pack(crc32(self._pointers))

    @property
    def _pointers(self) -> bytes:
        return _POINTERS.pack(
            self.generation,
            self.payload_offset,
            self.payload_length,
            self.metadata_offset,
            self.metadata_length,
            self.hot_offset,
            self.hot_length,
        )

    @property
    def metadata_stop(self) -> int:
        """Byte of the file after the block of metadata."""
        return self.metadata_offset + self.metadata_length

    def fault(self, file_size: int) -> str:
        """Why the slot is not valid in a file of so many bytes; an empty string where it is."""
        computed = crc32(self._pointers)
        if computed != self.checksum:
            return f"checksum {self.checksum:#010x} instead of {computed:#010x}"
        if self.payload_offset % HEADER_BYTES or self.payload_offset < HEADER_BYTES:
            return (
                f"payload offset {self.payload_offset}, which is not a multiple of {HEADER_BYTES}"
            )
        if self.metadata_offset % METADATA_ALIGNMENT:
            offset = self.metadata_offset
            return f"metadata offset {offset}, which is not a multiple of {METADATA_ALIGNMENT}"
        stop = max(self.payload_offset + self.payload_length, self.metadata_stop)
        return (
            f"ranges up to byte {stop} in a file of {file_size} bytes" if stop > file_size else ""
        )


@dataclass(frozen=True)
class BlockHeader:
    """What precedes the encoded metadata in their block."""

    length: int
    checksum: int
    magic: bytes = b"PCMB"
    version: int = 1
    encoding: int = 1

    SIZE: ClassVar = _BLOCK_HEADER.size

    @classmethod
    def unpack(cls, raw: bytes) -> BlockHeader:
        """The fields of a header; two more are 0."""
        magic, version, encoding, _, length, checksum, _ = _BLOCK_HEADER.unpack_from(raw)
        return cls(length, checksum, magic, version, encoding)

    def pack(self) -> bytes:
        """The fields as bytes."""
        versions = (self.version, self.encoding, 0)
        return _BLOCK_HEADER.pack(self.magic, *versions, self.length, self.checksum, 0)


@dataclass(frozen=True)
class Content:
    """What a container says: the slot that counts and its metadata."""

    slot: Slot
    metadata: Mapping[str, Any]
    payload_limit: int
    findings: tuple[Finding, ...]


def pack_header(slots: Iterable[Slot]) -> bytes:
    """The first 4096 bytes of a container."""
    header = bytearray(PREAMBLE.ljust(HEADER_BYTES, b"\0"))
    for slot in slots:
        offset = SLOT_OFFSETS[slot.name]
        header[offset : offset + Slot.SIZE] = slot.pack()
    return bytes(header)


def pack_metadata(metadata: Mapping[str, Any]) -> bytes:
    """A block of metadata."""
    encoded = encode_map(metadata)
    return BlockHeader(len(encoded), crc32(encoded)).pack() + encoded


def read_content(reader: HeaderReader) -> Content:
    """Read the slots, and the metadata of the newest slot whose metadata can be read."""
    slots, findings = read_slots(reader)
    errors: list[TensorFormatError] = []
    for slot in slots:
        try:
            metadata = read_metadata(reader, slot)
        except TensorFormatError as error:
            errors.append(error)
            continue
        instead = f"slot {slot.name}, generation {slot.generation}, is read instead"
        found = [*findings, *(finding_of(error) for error in errors)]
        blocks = [each.metadata_offset for each in slots]
        after = [offset for offset in blocks if offset > slot.payload_offset]
        return Content(
            slot,
            metadata,
            min(after, default=reader.source.size),
            tuple(replace(each, message=f"{each.message}; {instead}") for each in found),
        )
    raise errors[0]


def read_slots(reader: HeaderReader) -> tuple[tuple[Slot, ...], tuple[Finding, ...]]:
    """Read the valid slots, newest first, and what is wrong with the others."""
    header = reader.bytes_at(0, HEADER_BYTES, "the header")
    valid, faults = [], {}
    for name, offset in SLOT_OFFSETS.items():
        slot = Slot.unpack(name, header[offset : offset + Slot.SIZE])
        fault = slot.fault(reader.source.size)
        if fault:
            faults[name] = fault
        else:
            valid.append(slot)
    if not valid:
        raise reader.error(
            "the header slots",
            " and ".join(
                f"slot {name} at byte {SLOT_OFFSETS[name]} has {fault}"
                for name, fault in faults.items()
            ),
            "at least one valid slot",
            "the header is damaged, or the file is cut off; fetch it again",
            SLOT_OFFSETS["A"],
        )
    hint = "the file was damaged or not written to its end: save it again"
    findings = (
        Finding(reader.source.name, SLOT_OFFSETS[name], f"slot {name}", f"{fault}; {hint}")
        for name, fault in faults.items()
    )
    # Where both are of one generation, A comes first.
    return tuple(sorted(valid, key=lambda slot: -slot.generation)), tuple(findings)


def read_metadata(reader: HeaderReader, slot: Slot) -> dict[str, Any]:
    """Read the metadata that a slot points to."""
    start, length = slot.metadata_offset, slot.metadata_length
    if not BlockHeader.SIZE <= length <= MOST_METADATA:
        expected = f"from {BlockHeader.SIZE} to {MOST_METADATA} bytes"
        raise _error(reader, slot, f"{length} bytes", expected)
    raw = reader.bytes_at(start, length, "the metadata block")
    header, encoded = BlockHeader.unpack(raw), raw[BlockHeader.SIZE :]
    known = BlockHeader(header.length, crc32(encoded[: header.length]))
    if header.magic != known.magic:
        raise _error(reader, slot, repr(header.magic), repr(known.magic))
    if (header.version, header.encoding) != (known.version, known.encoding):
        found = f"version {header.version}, encoding {header.encoding}"
        raise _error(reader, slot, found, f"version {known.version} of both")
    if header.length > len(encoded):
        found = f"a map of {header.length} bytes"
        raise _error(reader, slot, found, f"at most {len(encoded)} bytes")
    if header.checksum != known.checksum:
        expected = f"{known.checksum:#010x} as computed"
        raise _error(reader, slot, f"checksum {header.checksum:#010x}", expected)
    return decode_map(encoded[: header.length], reader.source.name, start + BlockHeader.SIZE)


def _error(reader: HeaderReader, slot: Slot, found: str, expected: str) -> TensorFormatError:
    return reader.error(
        f"the metadata block of slot {slot.name}",
        found,
        expected,
        "the file is damaged, or of a newer version",
        slot.metadata_offset,
    )
