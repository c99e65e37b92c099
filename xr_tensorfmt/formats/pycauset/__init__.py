"""PyCauset files: matrices and vectors of causal sets, written by any version.

The container R1 has a preamble, two slots, the values, and blocks of metadata. A slot points to the
values and to a block of metadata. To update the metadata, PyCauset appends a block and writes the
unused slot, so that the other slot stays valid. The metadata are a map of typed values: a tag byte
precedes each value.

Sources: PyCauset, ``documentation/dev/PyCauset Container Format.md``, and
``python/pycauset/_internal/persistence.py`` of 0.6.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from struct import Struct, pack
from types import MappingProxyType
from typing import Any
from zlib import crc32

from xr_tensorfmt.core.file_format import LazyFormat, Match, OpenOptions, Option, share_options
from xr_tensorfmt.core.header import CORRUPT, Cursor, Fields, HeaderReader
from xr_tensorfmt.errors import TensorFormatError, shorten
from xr_tensorfmt.formats.zip_members import ZIP_MAGIC, read_first_member

NAME = "pycauset"
MAGIC = b"PYCAUSET"
# Metadata of a causal set: the key of its class, and the prefix of arguments in the attributes.
OBJECT_TYPE = "object_type"
ARGUMENT_PREFIX = "spacetime_"

# The values follow the header. In all versions, it has this size.
HEADER_BYTES = 4096
# First bytes: magic number, version 1, little-endian, header size, 0.
PREAMBLE = MAGIC + pack("<IBHB", 1, 1, HEADER_BYTES, 0)
METADATA_ALIGNMENT = 16
BLOCK_MAGIC = b"PCMB"

MAX_METADATA_BYTES = 64 << 20
MAX_METADATA_LEVELS, MAX_METADATA_VALUES = 32, 1 << 19

_SLOT_OFFSETS = {"A": 16, "B": 144}
# Generation, then offset and length of the values, of the metadata, and of nothing. A CRC-32 of
# these, and zeros, follow.
_SLOT, _CRC = Struct("<7Q"), Struct("<I")
_METADATA = "the metadata"
# Magic number, version, version of the encoding, 0, size and checksum of the map, 0.
_BLOCK_HEADER = Struct("<4s3IQ2I")
_BLOCK_VERSIONS = [1, 1]
_BOOL, _SIGNED, _UNSIGNED, _FLOAT, _STRING, _BYTES, _ARRAY, _MAP = range(1, 9)
_NUMBERS = {_BOOL: Struct("<?"), _SIGNED: Struct("<q"), _UNSIGNED: Struct("<Q")}
_NUMBERS[_FLOAT] = Struct("<d")
# Length of a string in bytes, or of a map or array in entries.
_LENGTH = Struct("<I")
_KEY_LENGTH = Struct("<H")


class PycausetFormat(LazyFormat):
    """PyCauset: one matrix or vector."""

    name = NAME
    title = "PyCauset"
    suffixes = (".pycauset",)
    magics = (MAGIC, ZIP_MAGIC)
    open_options = share_options("name", "sparse", "verify")
    validation_options = OpenOptions(format_options={"sparse": "dense", "verify": False})
    write_options = MappingProxyType(
        {
            "matrix_type": Option(
                "How to store the matrix: CAUSAL, TRIANGULAR_FLOAT, TRIANGULAR_INTEGER, "
                "DENSE_FLOAT, INTEGER or VECTOR. The values must fit. The default is the type of "
                "the opened file, or CAUSAL for bools, or else one with all elements."
            ),
            "seed": Option(
                "Seed of the random numbers in the values. The default is the seed of the opened "
                "file if the whole matrix is written, otherwise 0."
            ),
        }
    )

    def match(self, reader: HeaderReader) -> Match:
        """Match the magic number, or the first member of a zip archive."""
        if reader.head.startswith(MAGIC):
            return Match.CERTAIN
        name, content = read_first_member(reader)
        if name == b"metadata.json" and b'"matrix_type"' in content:
            return Match.CERTAIN
        is_possible = super().match(reader) and self.find_suffix(reader.source.file_name)
        return Match.POSSIBLE if is_possible else Match.NONE


@dataclass(frozen=True)
class Slot:
    """Pointers to the values and to a metadata block."""

    name: str
    generation: int
    payload_offset: int
    payload_length: int
    metadata_offset: int
    metadata_length: int


def read_slots(reader: HeaderReader) -> tuple[list[tuple[Slot, Fields]], list[TensorFormatError]]:
    """Return the valid slots and their metadata, newest first, and errors about other slots."""
    header = reader.read_field(0, HEADER_BYTES, "the header")
    valid, errors = [], []
    for name, offset in _SLOT_OFFSETS.items():
        raw = header[offset : offset + _SLOT.size]
        (checksum,) = _CRC.unpack_from(header, offset + _SLOT.size)
        slot = Slot(name, *_SLOT.unpack(raw)[:5])
        try:
            _check_checksum(reader, f"slot {name}", checksum, raw, offset)
            valid.append((slot, _read_metadata(reader, slot, offset)))
        except TensorFormatError as error:
            errors.append(error)
    if not valid:
        raise errors[0]
    # If both have the same generation, A comes first.
    return sorted(valid, key=lambda pair: -pair[0].generation), errors


def _check_checksum(
    reader: HeaderReader, field: str, stored: int, content: bytes, offset: int
) -> None:
    actual, expected = f"checksum {stored:#010x}", f"{crc32(content):#010x} as computed"
    reader.check(stored == crc32(content), field, actual, expected, offset=offset)


def _read_metadata(reader: HeaderReader, slot: Slot, slot_offset: int) -> Fields:
    """Check the pointers of a slot, and read its metadata block."""
    payload, size = slot.payload_offset, reader.source.size
    start, length, skipped = slot.metadata_offset, slot.metadata_length, _BLOCK_HEADER.size
    stop = max(payload + slot.payload_length, start + length)
    is_aligned = payload % HEADER_BYTES == 0 == start % METADATA_ALIGNMENT
    is_valid = is_aligned and payload >= HEADER_BYTES and stop <= size
    actual = f"payload offset {payload}, metadata offset {start}, ranges up to byte {stop}"
    expected = f"multiples of {HEADER_BYTES} and {METADATA_ALIGNMENT}, up to {size}"
    reader.check(is_valid, f"slot {slot.name}", actual, expected, offset=slot_offset)
    field = f"the metadata block of slot {slot.name}"
    expected = f"from {skipped} to {MAX_METADATA_BYTES} bytes"
    is_valid = skipped <= length <= MAX_METADATA_BYTES
    reader.check(is_valid, field, f"{length} bytes", expected, offset=start)
    raw = reader.read_field(start, length, field)
    magic, *versions, _, size, checksum, _ = _BLOCK_HEADER.unpack_from(raw)
    actual = f"{magic!r}, versions {versions} and a map of {size} bytes"
    expected = f"{BLOCK_MAGIC!r}, versions {_BLOCK_VERSIONS} and at most {length - skipped} bytes"
    is_valid = (magic, versions) == (BLOCK_MAGIC, _BLOCK_VERSIONS) and size <= length - skipped
    reader.check(is_valid, field, actual, expected, offset=start)
    _check_checksum(reader, field, checksum, raw[skipped:][:size], start)
    values = decode_map(reader, start + skipped, start + skipped + size)
    return Fields(reader.source.name, values, start, "metadata", CORRUPT)


def pack_container(metadata: Mapping[str, Any], payload_bytes: int) -> tuple[bytes, int, bytes]:
    """Return the header, and the offset and content of the metadata block."""
    encoded = encode_map(metadata)
    fields = (BLOCK_MAGIC, *_BLOCK_VERSIONS, 0, len(encoded), crc32(encoded), 0)
    block = _BLOCK_HEADER.pack(*fields) + encoded
    payload_stop = HEADER_BYTES + payload_bytes
    start = payload_stop + -payload_stop % METADATA_ALIGNMENT
    header = bytearray(PREAMBLE.ljust(HEADER_BYTES, b"\0"))
    # PyCauset writes both slots with the same pointers.
    for generation, offset in zip((1, 0), _SLOT_OFFSETS.values(), strict=True):
        raw = _SLOT.pack(generation, HEADER_BYTES, payload_bytes, start, len(block), 0, 0)
        header[offset : offset + _SLOT.size + _CRC.size] = raw + _CRC.pack(crc32(raw))
    return bytes(header), start, block


def encode_map(values: Mapping[str, Any]) -> bytes:
    """Encode a map. The keys ascend, as in files written by PyCauset."""
    encoded = bytes([_MAP]) + _LENGTH.pack(len(values))
    for key, value in sorted(values.items()):
        raw = key.encode()
        encoded += _KEY_LENGTH.pack(len(raw)) + raw + _encode(value)
    return encoded


def _encode(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return encode_map(value)
    if isinstance(value, str):
        raw = value.encode()
        return bytes([_STRING]) + _LENGTH.pack(len(raw)) + raw
    tag = _FLOAT if isinstance(value, float) else _BOOL
    if not isinstance(value, bool | float):
        tag = _SIGNED if value < 0 else _UNSIGNED
    return bytes([tag]) + _NUMBERS[tag].pack(value)


def decode_map(reader: HeaderReader, start: int, stop: int) -> dict[str, Any]:
    """Decode a map that fills a range of the file."""
    cursor = Cursor(reader, start)
    values = _decode(cursor, stop, count(1))
    actual = f"a value of type {type(values).__name__} up to byte {cursor.offset}"
    is_valid = isinstance(values, dict) and cursor.offset == stop
    cursor.check(is_valid, _METADATA, actual, f"a map up to byte {stop}")
    return values  # type: ignore[no-any-return]


def _decode(cursor: Cursor, stop: int, numbers: Iterator[int], depth: int = 0) -> Any:
    """Decode a value. The limits bound the memory."""
    (tag,) = cursor.take(1, _METADATA)
    is_small = next(numbers) <= MAX_METADATA_VALUES and depth <= MAX_METADATA_LEVELS
    expected = f"at most {MAX_METADATA_VALUES} values in {MAX_METADATA_LEVELS} levels"
    cursor.check(is_small, _METADATA, "more values or levels", expected)
    cursor.check(_BOOL <= tag <= _MAP, _METADATA, f"a value of type {tag}", f"1 to {_MAP}")
    if tag in _NUMBERS:
        return cursor.unpack(_NUMBERS[tag], _METADATA)[0]
    (length,) = cursor.unpack(_LENGTH, _METADATA)
    rest = stop - cursor.offset
    cursor.check(length <= rest, _METADATA, f"a length of {length}", f"at most {rest}")
    if tag in (_STRING, _BYTES):
        take = cursor.take_text if tag == _STRING else cursor.take
        return take(length, _METADATA)
    if tag == _ARRAY:
        return [_decode(cursor, stop, numbers, depth + 1) for _ in range(length)]
    values: dict[str, Any] = {}
    for _ in range(length):
        (length,) = cursor.unpack(_KEY_LENGTH, _METADATA)
        key = cursor.take_text(length, _METADATA)
        actual = f"the key {shorten(repr(key))} twice"
        cursor.check(key not in values, _METADATA, actual, "unique keys")
        values[key] = _decode(cursor, stop, numbers, depth + 1)
    return values
