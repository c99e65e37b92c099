"""JSON of unknown origin: what Python's own writer may write, checked before it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import JSONDecodeError, loads
from math import prod
from operator import itemgetter
from struct import Struct
from typing import Any, TypeGuard

from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader, check_rank, check_size
from xr_tensorfmt.errors import TensorFormatError, shortened
from xr_tensorfmt.formats.mag.spec import THIRTEEN, Contents, Stored, check_alignment, element


@dataclass(frozen=True)
class Document:
    """A JSON object that describes a file."""

    path: str
    offset: int
    content: Mapping[str, Any]
    repeated: Sequence[Mapping[str, Any]]

    def error(self, field: str, found: object, expected: str) -> TensorFormatError:
        """An error about a part of the document."""
        return TensorFormatError(
            self.path, field, found, expected, "the document is damaged", offset=self.offset
        )

    def check_repeated(self, *objects: Mapping[str, Any]) -> None:
        """Refuse keys that occur twice in objects where each must mean one thing."""
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


def read_document(reader: HeaderReader, start: int, stop: int) -> Document:
    """Read a JSON object."""
    repeated: list[Mapping[str, Any]] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            repeated.append(members)
        return members

    raw = reader.bytes_at(start, stop - start, "the JSON document")
    try:
        text = raw.decode()
        content = loads(text, object_pairs_hook=collect)
    except UnicodeDecodeError as error:
        raise _refusal(reader, start + error.start, "bytes that are not UTF-8") from None
    except JSONDecodeError as error:
        at = start + len(text[: error.pos].encode())
        raise _refusal(reader, at, f"{error.msg}: {text[error.pos : error.pos + 20]!r}") from None
    except RecursionError:
        raise _refusal(reader, start, "deeper nesting than Python can follow") from None
    except ValueError as error:
        # Python's own guard; printing such a number would meet it again.
        hint = "for longer integers call sys.set_int_max_str_digits"
        raise _refusal(reader, start, str(error), hint) from None
    if not isinstance(content, Mapping):
        raise _refusal(reader, start, f"a {type(content).__name__}")
    return Document(reader.source.name, start, content, repeated)


def _refusal(
    reader: HeaderReader, offset: int, found: str, hint: str = "the document is damaged"
) -> TensorFormatError:
    return TensorFormatError(
        reader.source.name, "the document", found, "a JSON object", hint, offset=offset
    )


VERSION = 300

ALIGNMENT = 4096
"""Multiple of bytes at which data begin, counted from the first of all data."""

MOST_DOCUMENT_BYTES = 128 << 20
"""Limit on the JSON document; one with the whole tokenizer of a model has some 10 MB."""

HEADER = Struct("<4sIIQQQQ")
"""Magic, version, aux, then offset and length of the document and of the data."""

NAMES = {"bool": "boolean"}
"""What the document calls dtypes that have another name elsewhere."""

_BIG_ENDIAN = 1
_DRAFT_HEADER_BYTES = 40
_MOST_COUNT = (1 << 63) - 1
_fields = itemgetter("shape", "dtype_id", "offset", "nbytes")
_FACTS = ("manifest_ver", "timestamp", "magnetron_ver", "snapshot_ver")


@dataclass(frozen=True)
class Section:
    """A part of the file, in bytes."""

    start: int
    stop: int


def read_document_snapshot(reader: HeaderReader) -> Contents:
    """Read a snapshot of version 300; it has no checksum."""
    aux, text, data = _read_header(reader)
    document = read_document(reader, text.start, text.stop)
    big_endian = bool(aux & _BIG_ENDIAN)
    mapped = _member(document, "tensor_map", Mapping)
    tensors = tuple(
        _stored(document, key, entry, data, big_endian) for key, entry in mapped.items()
    )
    document.check_repeated(document.content, mapped, *mapped.values())
    metadata = _member(document, "usr_metadata", Mapping)
    facts = {name: document.content[name] for name in _FACTS if name in document.content}
    facts["byteorder"] = "big" if big_endian else "little"
    findings = (*document.findings(), *_renamed(document, mapped))
    check_alignment(document.path, tensors, data.start, data.stop, ALIGNMENT)
    return Contents("snapshot", VERSION, tensors, data.start, metadata, facts, findings)


def _read_header(reader: HeaderReader) -> tuple[int, Section, Section]:
    if reader.unsigned(8, 8, "the MAG header") == _DRAFT_HEADER_BYTES:
        raise TensorFormatError(
            reader.source.name,
            "the header",
            f"the one of {_DRAFT_HEADER_BYTES} bytes of a draft between magnetron 0.1.9 and 0.2.0",
            f"one of {HEADER.size} bytes",
            "load it with the commit that wrote it, and save it with a release",
            offset=8,
        )
    header = reader.bytes_at(0, HEADER.size, "the MAG header")
    _, _, aux, text, text_bytes, data, data_bytes = HEADER.unpack(header)
    if aux & ~_BIG_ENDIAN:
        raise reader.error("aux", f"{aux:#x}", "0 or 1", "it is damaged", 8)
    if text_bytes > MOST_DOCUMENT_BYTES:
        limit = f"up to {MOST_DOCUMENT_BYTES} bytes"
        raise reader.error("the document's length", text_bytes, limit, "it is damaged", 20)
    sections = Section(text, text + text_bytes), Section(data, data + data_bytes)
    if not HEADER.size <= text <= sections[0].stop <= data <= sections[1].stop:
        raise reader.error(
            "the places of document and data",
            f"bytes {text} to {sections[0].stop} and {data} to {sections[1].stop}",
            "one after the other",
            "the header is damaged",
            12,
        )
    if sections[1].stop > reader.source.size:
        raise reader.error(
            "the data",
            f"cut off by the end of the file at byte {reader.source.size}",
            f"data up to byte {sections[1].stop}",
            "the file is incomplete; fetch it again",
            data,
        )
    return aux, *sections


def _member(document: Document, name: str, kind: type) -> Any:
    value = document.content.get(name)
    if not isinstance(value, kind):
        raise document.error(f"{name!r}", shortened(repr(value)), "a JSON object")
    return value


def _stored(document: Document, key: str, entry: Any, data: Section, big_endian: bool) -> Stored:
    try:
        shape, number, offset, nbytes = _fields(entry)
    except (KeyError, TypeError):
        expected = "an object with shape, dtype_id, offset and nbytes"
        raise document.error(f"the entry of {key!r}", shortened(repr(entry)), expected) from None
    if type(shape) is not list or not all(map(_is_count, shape)):
        raise document.error(f"the shape of {key!r}", shortened(repr(shape)), "a list of lengths")
    if not _is_count(number) or number >= len(THIRTEEN):
        expected = f"a number below {len(THIRTEEN)}"
        raise document.error(f"the dtype_id of {key!r}", shortened(repr(number)), expected)
    check_rank(document.path, key, len(shape), document.offset)
    kind = element(THIRTEEN[number], big_endian=big_endian)
    check_size(document.path, shape, kind.stored.itemsize, document.offset)
    needed = prod(shape) * kind.stored.itemsize
    if nbytes != needed or not _is_count(nbytes):
        expected = f"{needed} for {shape} of {kind.name}"
        raise document.error(f"nbytes of {key!r}", shortened(repr(nbytes)), expected)
    if not _is_count(offset) or data.start + offset + needed > data.stop:
        expected = f"a place for {needed} bytes within the {data.stop - data.start} of data"
        raise document.error(f"the offset of {key!r}", shortened(repr(offset)), expected)
    return Stored(key, tuple(shape), kind, data.start + offset, needed)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MOST_COUNT


def _renamed(document: Document, mapped: Mapping[str, Any]) -> tuple[Finding, ...]:
    """What to say where the name of a dtype is not that of its number, which magnetron goes by."""
    for key, entry in mapped.items():
        name = THIRTEEN[entry["dtype_id"]]
        found = entry.get("dtype")
        if found != NAMES.get(name, name):
            message = (
                f"it is {shortened(repr(found))} by name, but {name} by its number "
                f"{entry['dtype_id']}, and is read so, as magnetron does"
            )
            field = f"the dtype of {shortened(repr(key))}"
            return (Finding(document.path, document.offset, field, message, "warning"),)
    return ()
