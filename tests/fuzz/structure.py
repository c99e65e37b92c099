"""Fields and checksums of files, parsed independently of the package.

A walk follows the header of a file and records its numbers. It also follows the counts of a corrupt
file, so a mutated file can be mutated again and get correct checksums.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import google_crc32c

from tests import pycausetfiles as pf
from tests.tensfiles import V1_0

Order = Literal["little", "big"]

MAX_ITEMS = 64
"""Limit on what a walk follows of one kind, however many a damaged count says."""


class CutOffError(Exception):
    """A walk reached the end of the file."""


@dataclass(frozen=True)
class Field:
    """A number in a header."""

    start: int
    size: int
    order: Order = "little"

    def value(self, content: bytes) -> int:
        return int.from_bytes(content[self.start : self.start + self.size], self.order)

    def packed(self, value: int) -> bytes:
        return (value % (1 << 8 * self.size)).to_bytes(self.size, self.order)


@dataclass
class Walk:
    """Follows a file from field to field."""

    content: bytes
    at: int = 0
    fields: list[Field] = field(default_factory=list)
    # Offsets of sections and records, where bytes are inserted, repeated and omitted.
    marks: list[int] = field(default_factory=list)

    def number(self, size: int, order: Order = "little") -> int:
        field = Field(self.skip(size), size, order)
        self.fields.append(field)
        return field.value(self.content)

    def numbers(self, *sizes: int) -> list[int]:
        return [self.number(size) for size in sizes]

    def skip(self, size: int) -> int:
        start = self.at
        if size < 0 or start + size > len(self.content):
            raise CutOffError
        self.at = start + size
        return start

    def take(self, size: int) -> bytes:
        start = self.skip(size)
        return self.content[start : self.at]

    def repeat(self, count: int) -> Iterator[int]:
        """Walk a number of records, and mark their starts."""
        for number in range(min(count, MAX_ITEMS)):
            self.marks.append(self.at)
            yield number
        self.marks.append(self.at)


@dataclass(frozen=True)
class Structure:
    """What is known of the files of one format.

    A document is the part of a file that is text or a tree: ``document`` takes it out of the file,
    ``replaced`` gives the file with another one, its lengths being right.
    """

    walk: Callable[[Walk], None]
    repair: Callable[[bytes], bytes] = lambda content: content
    document: Callable[[bytes], bytes] | None = None
    replaced: Callable[[bytes, bytes], bytes] = lambda content, document: document
    tree: Literal["json", "typed", "text"] = "text"
    # The members of an archive, and the archive of some.
    members: Callable[[bytes], list[tuple[str, bytes]]] | None = None

    def walked(self, content: bytes) -> Walk:
        walk = Walk(content)
        with suppress(CutOffError):
            self.walk(walk)
        return walk


def patch(content: bytes, start: int, new: bytes) -> bytes:
    return content[:start] + new + content[start + len(new) :]


def walk_tens(walk: Walk) -> None:
    walk.take(4)
    *_, order, flags, _ = walk.numbers(4, 4, 4, 4, 4, 4, 4)
    version = int.from_bytes(walk.content[4:8], "little")
    for _ in walk.repeat(order):
        walk.numbers(4, 1, 1, 2)
    if version < V1_0:
        return
    while walk.content[walk.at : walk.at + 8].isalnum() and len(walk.marks) < MAX_ITEMS:
        walk.marks.append(walk.at)
        magic, start = walk.take(8), walk.at
        size = walk.number(8)
        if magic == b"SYMMETRY":
            walk.numbers(1, 1)
        if magic == b"DENSDATA":
            return
        walk.at = start
        walk.skip(size - 8)
    if flags & 1:
        for _ in walk.repeat(walk.number(8)):
            walk.number(8)
            walk.skip(8)


def read_tens_document(content: bytes) -> bytes:
    start, stop = _find_tens_embedded(content)
    return content[start:stop].rstrip(b"\0")


def replace_tens_document(content: bytes, document: bytes) -> bytes:
    start, stop = _find_tens_embedded(content)
    if not stop:
        return content
    padded = document + bytes(-len(document) % 8)
    size = struct.pack("<Q", len(padded) + 16)
    return content[: start - 8] + size + padded + content[stop:]


def _find_tens_embedded(content: bytes) -> tuple[int, int]:
    magic = content.find(b"XRTENSOR")
    if magic < 0 or magic + 16 > len(content):
        return 0, 0
    (size,) = struct.unpack_from("<Q", content, magic + 8)
    return magic + 16, min(len(content), magic + max(16, size))


def walk_vespa(walk: Walk) -> None:
    def number() -> int:
        first = walk.content[walk.at] if walk.at < len(walk.content) else 0
        return walk.number(4 if first & 0x80 else 1, "big") & 0x7FFFFFFF

    def string() -> None:
        walk.skip(number())

    tag, cells, mapped, indexed = number(), 0, 0, 1
    if tag & 4:
        cells = number()
    if tag & 1:
        mapped = number()
        for _ in walk.repeat(mapped):
            string()
    if tag & 2:
        for _ in walk.repeat(number()):
            string()
            indexed *= number()
    blocks = number() if mapped or not tag & 2 else 1
    for _ in walk.repeat(blocks):
        for _ in range(mapped):
            string()
        walk.skip(indexed * {0: 8, 1: 4, 2: 2, 3: 1}.get(cells, 1))


def walk_mag(walk: Walk) -> None:
    magic, (version,) = walk.take(4), walk.numbers(4)
    if magic == b"MAG&":
        _walk_stream(walk)
    elif version == 300:
        walk.numbers(4, 8, 8, 8, 8)
    elif walk.content[32:36] == b"SRP!":
        _walk_snapshot(walk)
    else:
        _walk_archive(walk)


def _walk_stream(walk: Walk) -> None:
    _, count, _, _ = walk.numbers(4, 4, 4, 4)
    walk.skip(8)
    for _ in walk.repeat(count):
        key, *_ = walk.numbers(4, 8, 8, 8, 8, 8, 8, 4)
        walk.skip(64)
        walk.skip(key)
    walk.skip(4)


def _walk_archive(walk: Walk) -> None:
    _, tensors, metadata, _ = walk.numbers(4, 4, 4, 4)
    for _ in walk.repeat(metadata):
        walk.numbers(4, 8)
        walk.skip(walk.number(4))
    for _ in walk.repeat(tensors):
        first = walk.number(4)
        if first < 1 << 8:  # the length of a key, the first field of the published record
            walk.skip(first)
            walk.numbers(8, 8, 8, 8, 8, 8, 1, 8, 8, 4)
            continue
        walk.numbers(8, 8)
        for _ in range(min(first >> 8, 8)):
            walk.number(8)
        walk.skip(walk.number(4))


def _walk_snapshot(walk: Walk) -> None:
    *_, tensors = walk.numbers(8, 4, 4, 4, 4)
    walk.marks.append(walk.skip(4))
    ends = [walk.number(4) for _ in walk.repeat(walk.number(4) + 1)]
    walk.skip(ends[-1] if ends else 0)
    walk.skip(8)
    for _ in walk.repeat(tensors):
        rank, *_ = walk.numbers(1, 1, 2, 4, 8, 8)
        for _ in range(min(rank, 32)):
            walk.number(8)
    walk.marks.append(walk.at)


def repair_mag(content: bytes) -> bytes:
    """Update the CRC-32C of an archive or a snapshot."""
    if content[:4] != b"MAG!" or len(content) < 32:
        return content
    version, is_snapshot = content[4:8], content[32:36] == b"SRP!"
    if version == struct.pack("<I", 300):
        return content
    walk = Walk(content)
    with suppress(CutOffError):
        walk_mag(walk)
    offset, start = (16, 20) if is_snapshot else (8, 12)
    return patch(content, offset, struct.pack("<I", google_crc32c.value(content[start : walk.at])))


def read_mag_document(content: bytes) -> bytes:
    if content[4:8] != struct.pack("<I", 300):
        return b""
    start, length = struct.unpack_from("<QQ", content, 12)
    return content[start : start + length]


def replace_mag_document(content: bytes, document: bytes) -> bytes:
    _, length, data = struct.unpack_from("<QQQ", content, 12)
    if not length:
        return content
    start = -(-(44 + len(document)) // 4096) * 4096
    head = content[:12] + struct.pack("<QQQ", 44, len(document), start) + content[36:44]
    return (head + document).ljust(start, b"\0") + content[data:]


def walk_pycauset(walk: Walk) -> None:
    if walk.content[:2] == b"PK":
        walk_zip(walk)
        return
    walk.take(8)
    if walk.content[12:13] == b"\1" and walk.content[13:15] == b"\0\x10":
        _walk_container(walk)
        return
    version, _, _, gap = walk.numbers(4, 4, 4, 4)
    walk.at -= 4 * bool(gap)
    walk.numbers(8, 8, 8)
    if version > 1:
        walk.numbers(8, 1, 1)
    walk.marks.append(4096)


def _walk_container(walk: Walk) -> None:
    walk.numbers(4, 1, 2, 1)
    blocks = set()
    for start in (16, 144):
        walk.at = start
        walk.marks.append(start)
        _, _, _, metadata, length, _, _, _ = walk.numbers(8, 8, 8, 8, 8, 8, 8, 4)
        blocks.add((metadata, length))
    for start, _ in sorted(blocks):
        walk.at = start
        walk.marks.append(start)
        walk.take(4)
        walk.numbers(4, 4, 4, 8, 4, 4)
        _walk_typed(walk)


def _walk_typed(walk: Walk, depth: int = 0) -> None:
    tag = walk.number(1)
    if tag in (1, 2, 3, 4):
        walk.number(1 if tag == 1 else 8)
    elif tag in (5, 6):
        walk.skip(walk.number(4))
    elif tag in (7, 8) and depth < 40:
        for _ in walk.repeat(walk.number(4)):
            if tag == 8:
                walk.skip(walk.number(2))
            _walk_typed(walk, depth + 1)


def repair_pycauset(content: bytes) -> bytes:
    """Update the CRC-32 of slots, metadata blocks and zip members."""
    if content[:2] == b"PK":
        return repair_zip(content)
    if len(content) < 4096 or content[12:15] != b"\1\0\x10":
        return content
    for start in (16, 144):
        slot = content[start : start + 56]
        content = patch(content, start + 56, struct.pack("<I", zlib.crc32(slot)))
        (offset,) = struct.unpack_from("<Q", slot, 24)
        if offset + 32 <= len(content):
            (length,) = struct.unpack_from("<Q", content, offset + 16)
            checksum = zlib.crc32(content[offset + 32 : offset + 32 + min(length, len(content))])
            content = patch(content, offset + 24, struct.pack("<I", checksum))
    return content


def read_pycauset_document(content: bytes) -> bytes:
    if content[:2] == b"PK" or content[12:15] != b"\1\0\x10":
        return b""
    offset, length = struct.unpack_from("<QQ", content, _find_current_slot(content) + 24)
    return content[offset + 32 : offset + length]


def replace_pycauset_document(content: bytes, document: bytes) -> bytes:
    if not read_pycauset_document(content):
        return content
    slot = _find_current_slot(content)
    offset = struct.unpack_from("<Q", content, slot + 24)[0]
    block = struct.pack("<4s3IQ2I", b"PCMB", 1, 1, 0, len(document), zlib.crc32(document), 0)
    content = content[:offset] + block + document
    return repair_pycauset(patch(content, slot + 32, struct.pack("<Q", 32 + len(document))))


def _find_current_slot(content: bytes) -> int:
    generations = [struct.unpack_from("<Q", content, start)[0] for start in (16, 144)]
    return 16 if generations[0] >= generations[1] else 144


def decode(encoded: bytes) -> Any:
    """Decode the typed metadata of PyCauset."""
    walk = Walk(encoded)

    def value() -> Any:
        (tag,) = walk.take(1)
        if tag == 1:
            return walk.take(1) != b"\0"
        if tag in (2, 3, 4):
            return struct.unpack({2: "<q", 3: "<Q", 4: "<d"}[tag], walk.take(8))[0]
        raw = walk.take(4)
        count = int.from_bytes(raw, "little")
        if tag == 5:
            return walk.take(count).decode()
        if tag == 6:
            return walk.take(count)
        if tag == 7:
            return [value() for _ in range(count)]
        return {
            walk.take(int.from_bytes(walk.take(2), "little")).decode(): value()
            for _ in range(count)
        }

    return value()


def encode(tree: Any) -> bytes:
    """Return the typed metadata of a tree. Convert values without a type."""
    return pf.encode(_make_encodable(tree))


def _make_encodable(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            _make_encodable(str(key)[:999]): _make_encodable(item) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_make_encodable(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-(2**63), min(value, 2**64 - 1))
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return "" if value is None else value


def walk_zip(walk: Walk) -> None:
    while walk.content[walk.at : walk.at + 4] == b"PK\3\4":
        walk.marks.append(walk.skip(4))
        *_, size, _, name, extra = walk.numbers(2, 2, 2, 2, 2, 4, 4, 4, 2, 2)
        walk.skip(name + extra + size)
    while walk.content[walk.at : walk.at + 4] == b"PK\1\2":
        walk.marks.append(walk.skip(4))
        numbers = walk.numbers(2, 2, 2, 2, 2, 2, 4, 4, 4, 2, 2, 2, 2, 2, 4, 4)
        walk.skip(sum(numbers[9:12]))
    if walk.content[walk.at : walk.at + 4] == b"PK\5\6":
        walk.marks.append(walk.skip(4))
        walk.numbers(2, 2, 2, 2, 4, 4, 2)


def read_zip_members(content: bytes) -> list[tuple[str, bytes]]:
    """Return the uncompressed members of a zip, as far as they are complete."""
    members, offset = [], 0
    while content[offset : offset + 4] == b"PK\3\4" and offset + 30 <= len(content):
        size, _, name, extra = struct.unpack_from("<IIHH", content, offset + 18)
        start = offset + 30 + name + extra
        raw = content[start : start + size]
        members.append((content[offset + 30 : offset + 30 + name].decode("utf-8", "replace"), raw))
        offset = start + size
    return members


def make_zip(members: list[tuple[str, bytes]]) -> bytes:
    return pf.pack_archive(*(pf.pack_entry(name, raw) for name, raw in members))


def repair_zip(content: bytes) -> bytes:
    """Update the CRC-32 of each member, in its header and in the directory."""
    offset, sums = 0, []
    while content[offset : offset + 4] == b"PK\3\4" and offset + 30 <= len(content):
        size, _, name, extra = struct.unpack_from("<IIHH", content, offset + 18)
        start = offset + 30 + name + extra
        checksum = struct.pack("<I", zlib.crc32(content[start : start + min(size, len(content))]))
        sums.append(checksum)
        content = patch(content, offset + 14, checksum)
        offset = start + size
    for checksum in sums:
        if content[offset : offset + 4] != b"PK\1\2" or offset + 46 > len(content):
            break
        content = patch(content, offset + 16, checksum)
        offset += 46 + sum(struct.unpack_from("<HHH", content, offset + 28))
    return content


def _find_npy_header(content: bytes) -> tuple[int, int]:
    size = 2 if content[6:7] == b"\1" else 4
    length = int.from_bytes(content[8 : 8 + size], "little")
    return 8 + size, 8 + size + length


def walk_npy(walk: Walk) -> None:
    walk.take(6)
    major, _ = walk.numbers(1, 1)
    walk.skip(walk.number(2 if major == 1 else 4))
    walk.marks.append(walk.at)


def read_npy_document(content: bytes) -> bytes:
    start, stop = _find_npy_header(content)
    return content[start:stop]


def replace_npy_document(content: bytes, document: bytes) -> bytes:
    start, stop = _find_npy_header(content)
    size = start - 8
    padded = document.rstrip() + b" " * (-(len(document.rstrip()) + 1 + start) % 64) + b"\n"
    length = (len(padded) % (1 << 8 * size)).to_bytes(size, "little")
    return content[:8] + length + padded + content[stop:]


def walk_safetensors(walk: Walk) -> None:
    walk.skip(walk.number(8))
    walk.marks.append(walk.at)


def read_safetensors_document(content: bytes) -> bytes:
    return content[8 : 8 + int.from_bytes(content[:8], "little")]


def replace_safetensors_document(content: bytes, document: bytes) -> bytes:
    data = content[8 + int.from_bytes(content[:8], "little") :]
    return struct.pack("<Q", len(document)) + document + data


def walk_nothing(walk: Walk) -> None:
    """A file without a binary header."""


def make_whole(content: bytes) -> bytes:
    return content


TEXT = Structure(walk_nothing, document=make_whole)

JSON = Structure(walk_nothing, document=make_whole, tree="json")

ELEMENTS = Structure(walk_nothing)

STRUCTURES: Mapping[str, Structure] = {
    "tens": Structure(
        walk_tens, document=read_tens_document, replaced=replace_tens_document, tree="json"
    ),
    "mag": Structure(walk_mag, repair_mag, read_mag_document, replace_mag_document, tree="json"),
    "pycauset": Structure(
        walk_pycauset,
        repair_pycauset,
        read_pycauset_document,
        replace_pycauset_document,
        tree="typed",
    ),
    "zip": Structure(walk_zip, repair_zip, members=read_zip_members),
    "vespa": Structure(walk_vespa),
    "npy": Structure(walk_npy, document=read_npy_document, replaced=replace_npy_document),
    "npz": Structure(walk_zip, repair_zip, members=read_zip_members),
    "safetensors": Structure(
        walk_safetensors,
        document=read_safetensors_document,
        replaced=replace_safetensors_document,
        tree="json",
    ),
    "cc4s": TEXT,
}
"""By format."""


def find_structure(family: str, name: str, content: bytes) -> Structure:
    """Return the structure of a file, or of a member of an archive."""
    if content[:2] == b"PK":
        return STRUCTURES["zip"]
    if name.endswith(".elements"):
        return ELEMENTS
    if name.endswith(".npy"):
        return STRUCTURES["npy"]
    if name.endswith(".json"):
        return JSON
    return STRUCTURES[family]


def parse(structure: Structure, document: bytes) -> Any:
    """Parse a document. Raise ValueError if it has no tree."""
    try:
        return decode(document) if structure.tree == "typed" else json.loads(document)
    except (CutOffError, RecursionError, struct.error) as error:
        raise ValueError("damaged") from error


def unparse(structure: Structure, tree: Any) -> bytes:
    if structure.tree == "typed":
        return encode(tree)
    return json.dumps(tree).encode()
