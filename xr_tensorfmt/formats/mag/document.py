"""Snapshot 300: the container of magnetron 0.2, whose tensors are described by a JSON document.

A header of 44 bytes, the document, padding, and the data, each tensor on a page. There is no
checksum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from json import JSONDecodeError, dumps, loads
from operator import itemgetter
from struct import Struct
from typing import Any, ClassVar, Self, TypeGuard

from xr_tensorfmt.core.findings import Finding, Gap
from xr_tensorfmt.core.header import HeaderReader, check_rank
from xr_tensorfmt.errors import TensorFormatError, shortened
from xr_tensorfmt.formats.mag import MAGIC
from xr_tensorfmt.formats.mag.placement import check_alignment
from xr_tensorfmt.formats.mag.spec import (
    DAMAGED,
    SNAPSHOT_200_DTYPES,
    Contents,
    StoredTensor,
    data_bytes,
    element,
)

VERSION = 300

DTYPES = SNAPSHOT_200_DTYPES

ALIGNMENT = 4096
"""Multiple of bytes at which data begin, counted from the first of all data."""

MOST_DOCUMENT_BYTES = 128 << 20
"""Limit on the JSON document; one with the whole tokenizer of a model has some 10 MB."""

_BIG_ENDIAN = 1
_DRAFT_HEADER_BYTES = 40
_MOST_COUNT = (1 << 63) - 1


@dataclass(frozen=True)
class Header:
    """The first bytes of the file: offset and length of the document and of the data."""

    aux: int
    document_start: int
    document_bytes: int
    data_start: int
    data_bytes: int

    struct: ClassVar[Struct] = Struct("<4sIIQQQQ")

    @classmethod
    def read(cls, reader: HeaderReader) -> Self:
        """Read it, and refuse one that does not fit the file."""
        raw = reader.bytes_at(0, cls.struct.size, "the MAG header")
        _, _, *values = cls.struct.unpack(raw)
        header = cls(*values)
        header._check(reader)
        return header

    def pack(self) -> bytes:
        """The bytes of it."""
        return self.struct.pack(MAGIC, VERSION, *astuple(self))

    @property
    def is_big_endian(self) -> bool:
        """Whether the data are big-endian."""
        return bool(self.aux & _BIG_ENDIAN)

    @property
    def document_stop(self) -> int:
        """The byte after the document."""
        return self.document_start + self.document_bytes

    @property
    def data_stop(self) -> int:
        """The byte after the data."""
        return self.data_start + self.data_bytes

    def _check(self, reader: HeaderReader) -> None:
        if self.aux & ~_BIG_ENDIAN:
            raise reader.error("aux", f"{self.aux:#x}", "0 or 1", DAMAGED, 8)
        if self.document_bytes > MOST_DOCUMENT_BYTES:
            found, limit = self.document_bytes, f"up to {MOST_DOCUMENT_BYTES} bytes"
            raise reader.error("the document's length", found, limit, DAMAGED, 20)
        places = self.document_start, self.document_stop, self.data_start, self.data_stop
        if list(places) != sorted(places) or self.document_start < self.struct.size:
            found_places = "bytes {} to {} and {} to {}".format(*places)
            field = "the places of document and data"
            raise reader.error(field, found_places, "one after the other", DAMAGED, 12)
        if self.data_stop > reader.source.size:
            raise reader.error(
                "the data",
                f"cut off by the end of the file at byte {reader.source.size}",
                f"data up to byte {self.data_stop}",
                "the file is incomplete; fetch it again",
                self.data_start,
            )


@dataclass(frozen=True)
class Document:
    """A JSON object of a file, which may hold anything that Python's own writer writes."""

    path: str
    offset: int
    content: Mapping[str, Any]
    repeated: Sequence[Mapping[str, Any]]

    def error(self, field: str, found: object, expected: str) -> TensorFormatError:
        """An error about a part of the document."""
        return TensorFormatError(
            self.path, field, found, expected, "the document is damaged", offset=self.offset
        )

    def member(self, name: str) -> Mapping[str, Any]:
        """An object in the document."""
        value = self.content.get(name)
        if not isinstance(value, Mapping):
            raise self.error(f"{name!r}", shortened(repr(value)), "a JSON object")
        return value

    def check_repeated(self, *objects: Mapping[str, Any]) -> None:
        """Refuse keys that occur twice in objects of the format itself."""
        structure = {id(each) for each in objects}
        if any(id(each) in structure for each in self.repeated):
            raise self.error("a JSON object", "a key twice", "each key once")

    def findings(self) -> tuple[Finding, ...]:
        """What to say of keys that occur twice in the users' own metadata."""
        if not self.repeated:
            return ()
        keys = shortened(", ".join(map(repr, self.repeated[0])))
        message = (
            "they hold an object with a key twice, of which the last value is taken; its keys are "
            f"{keys}"
        )
        return (Finding(self.path, self.offset, "the metadata", message, "warning"),)


def read_document(reader: HeaderReader, start: int, length: int) -> Document:
    """Read a JSON object."""
    repeated: list[Mapping[str, Any]] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            repeated.append(members)
        return members

    raw = reader.bytes_at(start, length, "the JSON document")
    try:
        string = raw.decode()
        content = loads(string, object_pairs_hook=collect)
    except UnicodeDecodeError as error:
        raise _refusal(reader, start + error.start, "bytes that are not UTF-8") from None
    except JSONDecodeError as error:
        at = start + len(string[: error.pos].encode())
        found = f"{error.msg}: {string[error.pos : error.pos + 20]!r}"
        raise _refusal(reader, at, found) from None
    except RecursionError:
        raise _refusal(reader, start, "deeper nesting than Python can follow") from None
    except ValueError as error:
        # Python's own limit; the message of another error with such a number would meet it again.
        hint = "for longer integers call sys.set_int_max_str_digits"
        raise _refusal(reader, start, str(error), hint) from None
    if not isinstance(content, Mapping):
        raise _refusal(reader, start, f"a {type(content).__name__}")
    return Document(reader.source.name, start, content, repeated)


def _refusal(
    reader: HeaderReader, offset: int, found: str, hint: str = "the document is damaged"
) -> TensorFormatError:
    return reader.error("the document", found, "a JSON object", hint, offset)


_METADATA, _TENSORS = "usr_metadata", "tensor_map"
_FACTS = ("manifest_ver", "timestamp", "magnetron_ver", "snapshot_ver")
_entry_fields = itemgetter("shape", "dtype_id", "offset", "nbytes")


def read_document_snapshot(reader: HeaderReader) -> Contents:
    """Read a snapshot of version 300."""
    if reader.unsigned(8, 8, "the MAG header") == _DRAFT_HEADER_BYTES:
        raise reader.error(
            "the header",
            f"the one of {_DRAFT_HEADER_BYTES} bytes of a draft between magnetron 0.1.9 and 0.2.0",
            f"one of {Header.struct.size} bytes",
            "load it with the commit that wrote it, and save it with a release",
            8,
        )
    header = Header.read(reader)
    document = read_document(reader, header.document_start, header.document_bytes)
    entries = document.member(_TENSORS)
    tensors = tuple(_unpack_entry(document, key, entry, header) for key, entry in entries.items())
    document.check_repeated(document.content, entries, *entries.values())
    metadata = document.member(_METADATA)
    facts = {name: document.content[name] for name in _FACTS if name in document.content}
    facts["byteorder"] = "big" if header.is_big_endian else "little"
    findings = (*document.findings(), *_wrong_names(document, entries))
    start, stop = header.data_start, header.data_stop
    check_alignment(document.path, tensors, start, stop, ALIGNMENT)
    gaps = (
        Gap(Header.struct.size, header.document_start, "the padding before the document"),
        Gap(header.document_stop, start, "the padding after the document"),
    )
    return Contents("snapshot", VERSION, tensors, start, stop, metadata, facts, findings, gaps)


def pack_document(
    tensors: Sequence[StoredTensor], metadata: Mapping[str, Any], timestamp: str
) -> bytes:
    """The document of tensors whose offsets count from the first of all data."""
    facts = (1, timestamp, "0.2.2", "0.3.0")  # as magnetron 0.2.2 writes them
    content = {
        **dict(zip(_FACTS, facts, strict=True)),
        _METADATA: metadata,
        _TENSORS: {each.key: _pack_entry(each) for each in tensors},
    }
    return dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def _pack_entry(tensor: StoredTensor) -> dict[str, Any]:
    number = DTYPES.index(tensor.element.name)
    return {
        "shape": tensor.shape,
        "dtype": _name(number),
        "dtype_id": number,
        "offset": tensor.offset,
        "nbytes": tensor.nbytes,
    }


def _unpack_entry(document: Document, key: str, entry: Any, header: Header) -> StoredTensor:
    try:
        shape, number, offset, nbytes = _entry_fields(entry)
    except (KeyError, TypeError):
        expected = "an object with shape, dtype_id, offset and nbytes"
        raise document.error(f"the entry of {key!r}", shortened(repr(entry)), expected) from None
    if type(shape) is not list or not all(map(_is_count, shape)):
        raise document.error(f"the shape of {key!r}", shortened(repr(shape)), "a list of lengths")
    if not _is_count(number) or number >= len(DTYPES):
        expected = f"a number below {len(DTYPES)}"
        raise document.error(f"the dtype_id of {key!r}", shortened(repr(number)), expected)
    check_rank(document.path, key, len(shape), document.offset)
    stored = element(DTYPES[number], big_endian=header.is_big_endian)
    needed = data_bytes(document.path, shape, stored, document.offset)
    if nbytes != needed or not _is_count(nbytes):
        expected = f"{needed} for {shape} of {stored.name}"
        raise document.error(f"nbytes of {key!r}", shortened(repr(nbytes)), expected)
    if not _is_count(offset) or offset + needed > header.data_bytes:
        expected = f"a place for {needed} bytes within the {header.data_bytes} of data"
        raise document.error(f"the offset of {key!r}", shortened(repr(offset)), expected)
    return StoredTensor(key, tuple(shape), stored, header.data_start + offset, needed)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MOST_COUNT


def _name(number: int) -> str:
    """What the document calls a dtype."""
    name = DTYPES[number]
    return "boolean" if name == "bool" else name


def _wrong_names(document: Document, entries: Mapping[str, Any]) -> tuple[Finding, ...]:
    """What to say where the name of a dtype is not that of its number, which magnetron uses."""
    for key, entry in entries.items():
        number, found = entry["dtype_id"], entry.get("dtype")
        if found != _name(number):
            message = (
                f"it is {shortened(repr(found))} by name, but {DTYPES[number]} by its number "
                f"{number}, and is read by the number, as magnetron does"
            )
            field = f"the dtype of {shortened(repr(key))}"
            return (Finding(document.path, document.offset, field, message, "warning"),)
    return ()
