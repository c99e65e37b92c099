"""PyCauset files: matrices and vectors of causal sets, written by any version.

Modules, in the order to read them:

- this one: the format, and the container R1 in both directions
- `matrices`: the matrix types and their layouts
- `read`, `write`: files of any version, and new files

The container R1 has a preamble, two slots, the values, and blocks of metadata. A slot points to the
values and to a block of metadata. To update the metadata, PyCauset appends a block and writes the
unused slot, so that the other slot stays valid. The metadata are a map of typed values: a tag byte
precedes each value.

Sources: PyCauset, ``documentation/dev/PyCauset Container Format.md``, and
``python/pycauset/_internal/persistence.py`` of 0.6.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from functools import partial
from io import BytesIO
from itertools import count
from struct import Struct, pack
from types import MappingProxyType
from typing import Any, ClassVar
from zlib import crc32

from xr_tensorfmt.core.file_format import LazyFormat, Match, OpenOptions, Option, share_options
from xr_tensorfmt.core.header import Fields, HeaderReader
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
RESAVE = "the file is corrupt; save it again with PyCauset"

MAX_METADATA_BYTES = 64 << 20
MAX_METADATA_LEVELS = 32
MAX_METADATA_VALUES = 1 << 19

_SLOT_OFFSETS = {"A": 16, "B": 144}
# Magic number, version, version of the encoding, 0, size and checksum of the map, 0.
_BLOCK_HEADER = Struct("<4s3IQ2I")
_BLOCK_VERSIONS = [1, 1]
# Tags of values.
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


def read_slots(reader: HeaderReader) -> tuple[list[tuple[Slot, Fields]], list[TensorFormatError]]:
    """Return the valid slots and their metadata, newest first, and errors about other slots."""
    header = reader.read_field(0, HEADER_BYTES, "the header")
    valid, errors = [], []
    for name, offset in _SLOT_OFFSETS.items():
        slot = Slot(name, *Slot.STRUCT.unpack_from(header, offset))
        try:
            _check_slot(reader, slot, offset)
            valid.append((slot, _read_metadata(reader, slot)))
        except TensorFormatError as error:
            errors.append(error)
    if not valid:
        raise errors[0]
    # If both have the same generation, A comes first.
    return sorted(valid, key=lambda pair: -pair[0].generation), errors


def _check_slot(reader: HeaderReader, slot: Slot, offset: int) -> None:
    """Raise TensorFormatError if a slot is invalid."""
    check = partial(reader.check, field=f"slot {slot.name}", hint=RESAVE, offset=offset)
    computed, payload, metadata = slot.computed_checksum, slot.payload_offset, slot.metadata_offset
    actual, expected = f"checksum {slot.checksum:#010x}", f"{computed:#010x} as computed"
    check(slot.checksum == computed, actual=actual, expected=expected)
    stop = max(payload + slot.payload_length, slot.metadata_stop)
    is_valid = payload % HEADER_BYTES == 0 == metadata % METADATA_ALIGNMENT
    is_valid = is_valid and payload >= HEADER_BYTES and stop <= reader.source.size
    actual = f"payload offset {payload}, metadata offset {metadata}, ranges up to byte {stop}"
    expected = f"multiples of {HEADER_BYTES} and {METADATA_ALIGNMENT}, up to {reader.source.size}"
    check(is_valid, actual=actual, expected=expected)


def _read_metadata(reader: HeaderReader, slot: Slot) -> Fields:
    """Read the metadata block of a slot."""
    start, length, skipped = slot.metadata_offset, slot.metadata_length, _BLOCK_HEADER.size
    field = f"the metadata block of slot {slot.name}"
    check = partial(reader.check, field=field, hint=RESAVE, offset=start)
    expected = f"from {skipped} to {MAX_METADATA_BYTES} bytes"
    is_valid = skipped <= length <= MAX_METADATA_BYTES
    check(is_valid, actual=f"{length} bytes", expected=expected)
    raw = reader.read_field(start, length, field)
    magic, *versions, _, size, checksum, _ = _BLOCK_HEADER.unpack_from(raw)
    actual = f"{magic!r} and versions {versions}"
    is_valid = (magic, versions) == (BLOCK_MAGIC, _BLOCK_VERSIONS)
    check(is_valid, actual=actual, expected=f"{BLOCK_MAGIC!r} and versions {_BLOCK_VERSIONS}")
    encoded = raw[skipped : skipped + size]
    expected = f"at most {length - skipped} bytes"
    check(len(encoded) == size, actual=f"a map of {size} bytes", expected=expected)
    computed = crc32(encoded)
    actual, expected = f"checksum {checksum:#010x}", f"{computed:#010x} as computed"
    check(checksum == computed, actual=actual, expected=expected)
    values = decode_map(encoded, reader.source.name, start + skipped)
    return Fields(reader.source.name, values, start, "metadata", RESAVE)


def pack_container(metadata: Mapping[str, Any], payload_bytes: int) -> tuple[bytes, int, bytes]:
    """Return the header, and the offset and content of the metadata block."""
    encoded = encode_map(metadata)
    fields = (BLOCK_MAGIC, *_BLOCK_VERSIONS, 0, len(encoded), crc32(encoded), 0)
    block = _BLOCK_HEADER.pack(*fields) + encoded
    payload_stop = HEADER_BYTES + payload_bytes
    start = payload_stop + -payload_stop % METADATA_ALIGNMENT
    header = bytearray(PREAMBLE.ljust(HEADER_BYTES, b"\0"))
    # PyCauset writes both slots with the same pointers.
    for generation, (name, offset) in zip((1, 0), _SLOT_OFFSETS.items(), strict=True):
        slot = Slot(name, generation, HEADER_BYTES, payload_bytes, start, len(block))
        slot = replace(slot, checksum=slot.computed_checksum)
        Slot.STRUCT.pack_into(header, offset, *astuple(slot)[1:])
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


def decode_map(encoded: bytes, path: str, start: int) -> dict[str, Any]:
    """Decode a map that fills the encoded bytes. `start` is their offset in the file."""
    stream = BytesIO(encoded)
    try:
        value = _decode(stream, count(1))
        _check(isinstance(value, dict), f"a value of type {type(value).__name__}", "a map")
        rest = len(encoded) - stream.tell()
        _check(not rest, f"{rest} more bytes", "the end of the map")
    except UnicodeDecodeError as error:
        fault = repr(error.object[:20]), "a string in UTF-8"
    except ValueError as error:
        fault = error.args
    else:
        return value  # type: ignore[no-any-return]
    raise TensorFormatError(path, "the metadata", *fault, RESAVE, start + stream.tell())


def _decode(stream: BytesIO, numbers: Iterator[int], depth: int = 0) -> Any:
    """Decode a value. The limit on the number of values bounds the memory."""
    for number, limit, things in (
        (depth, MAX_METADATA_LEVELS, "nested maps and arrays"),
        (next(numbers), MAX_METADATA_VALUES, "values"),
    ):
        _check(number <= limit, f"more than {limit} {things}", f"at most {limit}")
    (tag,) = _take(stream, 1)
    if tag in _NUMBERS:
        return _take_number(stream, _NUMBERS[tag])
    _check(tag in range(_STRING, _MAP + 1), f"a value of type {tag}", f"a type up to {_MAP}")
    length = _take_number(stream, _LENGTH)
    if tag == _ARRAY:
        return [_decode(stream, numbers, depth + 1) for _ in range(length)]
    if tag != _MAP:
        taken = _take(stream, length)
        return taken.decode() if tag == _STRING else taken
    values: dict[str, Any] = {}
    for _ in range(length):
        key = _take(stream, _take_number(stream, _KEY_LENGTH)).decode()
        _check(key not in values, f"the key {shorten(repr(key))} twice", "unique keys")
        values[key] = _decode(stream, numbers, depth + 1)
    return values


def _take(stream: BytesIO, length: int) -> bytes:
    taken = stream.read(length)
    actual = f"{len(taken)} bytes up to the end of the map"
    _check(len(taken) == length, actual, f"{length} bytes")
    return taken


def _take_number(stream: BytesIO, record: Struct) -> Any:
    return record.unpack(_take(stream, record.size))[0]


def _check(holds: bool, actual: str, expected: str) -> None:
    if not holds:
        raise ValueError(actual, expected)
