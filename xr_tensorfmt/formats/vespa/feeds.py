"""Read feeds: JSON documents with tensors, usually one per line."""

from __future__ import annotations

import os
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from errno import ENOENT
from functools import partial
from io import BufferedReader
from itertools import chain, islice, takewhile
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from fsspec.compression import compr
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import infer_compression

from xr_tensorfmt.core.header import MAX_VALUES
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import build_directory_error, did_you_mean, redact, warn
from xr_tensorfmt.formats.vespa.json_forms import (
    MARGIN,
    build_json_error,
    get_assigned,
    get_fields,
    parse_tensor,
    parse_type,
    show,
)
from xr_tensorfmt.formats.vespa.spec import ID_START, VespaHeader, pack_string
from xr_tensorfmt.sources import find_matches, find_source, get_path, is_remote

MAX_LINE_BYTES = 64 << 20
"""Limit on the bytes of a line, and of all documents that extend over several lines."""

MAX_EXPANSION = 1000
"""Limit on the size of a decompressed feed, relative to its compressed size."""

# Bytes of the buffer of a stream: parts of several requests for a store.
_BUFFER_BYTES = 16 << 20
_MARGIN = MARGIN.encode()
# Characters between documents, also between those of a list.
_SEPARATORS = (MARGIN + "[],").encode()
_CONTENT = re.compile(f"[^{re.escape(_SEPARATORS.decode())}]")

_HINT = "write valid JSON, one document per line"
_LIMIT_HINT = "pass json.load(file) to from_jsonl, or write one document per line"
_UPDATED = ", an update of some cells; open the stored documents"
_decoder = JSONDecoder()
# Operations of an update that does not assign all cells.
_PARTIAL = {"modify", "add", "remove"}
# Keys of lines between the documents of a visit.
_NOTICES = {"continuation", "documentCount", "message", "sessionStats", "sessionTrace", "trace"}
# Ids of parts of the response to a query. They contain hits.
_GROUPS = ("toplevel", "group:", "grouplist:", "hitlist:")

# The name of a feed, and its lines or its documents.
Feed = tuple[str, Iterable[Any]]


def find_feeds(source: Any, options: Mapping[str, Any]) -> tuple[str, Iterable[Feed]]:
    """Return the name of a source, and its feeds. A source may be paths, patterns or lines."""
    if isinstance(source, bytes) or (isinstance(source, str) and not _is_path(source)):
        raise ValueError("source= is the text of a feed; pass text.splitlines(), or a path")
    name = "<Vespa feed>"
    if _is_path(source):
        name, source = redact(str(get_path(source))), [source]
    if hasattr(source, "read"):
        return name, [(name, _read_lines(source))]
    if not isinstance(source, Iterable):
        expected = "a path, lines, documents, or the JSON of a response"
        raise TypeError(f"source= is {show(source)}, expected {expected}")
    items = iter([source] if isinstance(source, Mapping) else source)
    first = list(islice(items, 1))
    items = chain(first, items)
    if not any(map(_is_path, first)):
        return name, [(name, items)]
    return name, open_feeds([file for x in items for file in _find_paths(x, options)], options)


def _is_path(value: Any) -> bool:
    """Return whether a value is a path, a URL or a pattern. A str may also be a line of a feed."""
    if isinstance(value, str):
        start = value.strip(_SEPARATORS.decode())[:2]
        return start not in ("", "{", '{"', "{ ", "{\n")
    return isinstance(value, os.PathLike) or is_remote(value)


def _find_paths(path: Any, options: Mapping[str, Any]) -> list[Any]:
    """Return the files that a path or pattern means. Raise an error if there are none."""
    if not isinstance(path, str | os.PathLike):
        return [path]  # an OpenFile of fsspec
    name = redact(get_path(path))
    if options.get("fs") is None and os.path.isdir(name):
        raise build_directory_error(name, "a pattern of files to from_jsonl")
    matches = find_matches(path, options.get("storage_options"), options.get("fs"))
    if not matches:
        raise FileNotFoundError(ENOENT, "no feed matches this pattern", name)
    return matches


class _Stream(AbstractBufferedFile):  # type: ignore[misc]
    """A file object that reads a Source, with its checks, retries and time limits."""

    closed = False  # a property would be called for each line

    def _fetch_range(self, start: int, end: int) -> bytes:
        content: bytes = self.fs.read_bytes(start, min(end, self.size))
        return content

    def seek(self, loc: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            loc = max(loc, -self.size)  # codecs try shorter files
        return int(super().seek(loc, whence))


def open_stream(source: Source) -> BufferedReader:
    """Return a buffered file object that reads a Source."""
    raw = _Stream(source, source.name, cache_type="none", size=source.size)
    return BufferedReader(raw, _BUFFER_BYTES)


def open_feeds(paths: Iterable[Any], options: Mapping[str, Any]) -> Iterator[Feed]:
    """Open files with JSON, which may be compressed."""
    for path in paths:
        source, _ = find_source(path, "read", **options)
        codec = infer_codec(source.file_name)
        with open_stream(source) as file:
            yield source.name, _decompress(source, file, codec) if codec else _read_lines(file)


def _read_lines(file: Any) -> Iterable[Any]:
    """Return the lines of a file. A line that is too long is cut, and refused when it is parsed."""
    return takewhile(bool, iter(partial(file.readline, MAX_LINE_BYTES + 1), None))


def _decompress(source: Source, compressed: BinaryIO, codec: str) -> Iterator[bytes]:
    """Yield the lines of a compressed feed."""
    available = max(MAX_LINE_BYTES, MAX_EXPANSION * source.size)
    try:
        with compr[codec](compressed, mode="rb") as file, BufferedReader(file) as lines:
            for line in _read_lines(lines):
                available -= len(line)
                if available < 0:
                    raise ValueError(  # noqa: TRY301
                        f"the feed is more than {MAX_EXPANSION} times larger when decompressed; "
                        "decompress it first if you trust it"
                    )
                yield line
    except Exception as error:
        if getattr(error, "errno", None) is not None or isinstance(error, ValueError):
            raise  # an error of the source, or the limit
        raise ValueError(
            f"the decompression by {codec} fails here or later ({error}); fetch the file again, or "
            f"omit {Path(source.file_name).suffix} if it is not compressed"
        ) from error


def infer_codec(name: str) -> str | None:
    """Return the compression that a suffix means. Raise ValueError if it is unsupported."""
    codec: str | None = infer_compression(name)
    if not codec and name.lower().endswith((".zst", ".lz4", ".xz", ".lzma", ".z", ".br")):
        hint = "pip install lz4 or zstandard, decompress the file first, or use .gz"
        raise ValueError(f"{name}: no codec for {Path(name).suffix!r} is installed; {hint}")
    return codec


def _find_exceeded_limit(text: bytes | bytearray) -> str:
    """Return the limit that a text exceeds, if any. Many values take too much memory."""
    size = len(text)
    has_many = size > MAX_VALUES and sum(map(text.count, b",[{")) > MAX_VALUES
    limit = f"{MAX_VALUES} values" if has_many else ""
    return f"{MAX_LINE_BYTES} bytes" if size > MAX_LINE_BYTES else limit


def _encode_line(line: str | bytes) -> bytes:
    """Return the bytes of a line without white space. Raise ValueError if it is too large."""
    text = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
    if limit := _find_exceeded_limit(text):
        raise ValueError(f"it has more than {limit}, the limit of a line; {_LIMIT_HINT}")
    return text.strip(_MARGIN)


def _find_parts(response: Mapping[str, Any]) -> Any:
    """Return the parts of a response, or None if it is none. Warn if documents are missing."""
    root = response.get("root")
    if isinstance(root, dict):
        coverage = root.get("coverage")
        is_partial = isinstance(coverage, Mapping) and coverage.get("full") is False
        if reason := root.get("errors") or (is_partial and coverage):
            warn(f"hits may be missing, because the answer is incomplete: {show(reason)}")
        return root
    parts, message = response.get("children", response.get("documents")), response.get("message")
    is_notice = response.keys() <= _NOTICES
    if message and (is_notice or "pathId" in response):
        if not isinstance(message, dict) or message.get("severity") != "info":
            warn(f"documents may be missing, because of an error: {show(message)}")
        parts = parts or []
    return [] if is_notice else parts if isinstance(parts, list) else None


def _find_id(document: Mapping[str, Any], fields: Mapping[str, Any]) -> Any:
    """Return the id of a document. Raise ValueError if its operation is misspelt or has none."""
    id_ = document.get("put") or document.get("update") or document.get("remove")
    # The hit of a query may have an id of its own.
    id_ = id_ or fields.get("documentid") or document.get("id")
    for key in document if not id_ else ():
        if key in (operations := ("put", "update", "remove")):
            raise ValueError(f"{key!r} is {document[key]!r}, expected the id of a document")
        if similar := did_you_mean(key, operations):
            raise ValueError(f"{key!r}{similar} is not an operation")
    return id_


def _is_partial(field: str, stored: Mapping[str, Any]) -> bool:
    """Return whether an update changes some cells of a field, maybe by a path such as ``v{a}``."""
    update = stored.get(field)
    has_operation = isinstance(update, dict) and not _PARTIAL.isdisjoint(update)
    return has_operation or any(name.startswith(f"{field}{{") for name in stored)


@dataclass
class Documents:
    """The tensors of documents by first put. The last put, update or remove of each counts."""

    field: str
    # The type of the tensors, or None until a document states it.
    type: str | None
    dim: str
    prefix: str
    # The blocks of each tensor and their number, by packed id.
    tensors: dict[bytes, bytes] = dataclass_field(default_factory=dict)
    counts: dict[bytes, int] = dataclass_field(default_factory=dict)
    # The line of each document without a tensor, or "" if it is removed, and their fields.
    absent: dict[bytes, str] = dataclass_field(default_factory=dict)
    other_fields: set[str] = dataclass_field(default_factory=set)
    # The number of operations with a condition.
    conditions: int = 0
    # Whether the last response to a visit has a continuation.
    has_continuation: bool = False
    # The feed and its line that is read, and the first and the last text of the feed so far.
    feed: str = ""
    line: int = 1
    first: bytes = b""
    last: bytes = b""

    def read(self, name: str, feeds: Iterable[Feed]) -> bytes:
        """Return the tensor of all documents. Raise ValueError if there are none."""
        for self.feed, lines in feeds:
            self.line, self.first, self.last = 1, b"", b""
            try:
                for document in self._find_documents(self._parse_lines(lines)):
                    self._add(document)
                if self.first.startswith(b"[") and not self.last.endswith(b"]"):
                    raise ValueError("the list of documents does not end; fetch the complete feed")  # noqa: TRY301
            except ValueError as error:
                raise ValueError(f"{self.feed}: line {self.line}: {error}") from error
        left_out = list(filter(None, self.absent.values()))
        if not self.tensors:
            known = sorted(self.other_fields)
            hint = f"{did_you_mean(self.field, known)}, expected one of {known}"
            if self.field in known:
                hint = f"; the first document is in {left_out[0] if left_out else name}"
            elif not known:
                reason = "the documents have no fields"
                hint = f"; {reason if left_out else 'the feed has no documents, or removes all'}"
            raise ValueError(f"{name}: no document has a tensor in the field {self.field!r}{hint}")
        self._warn_of_losses(name, left_out)
        header = parse_type(str(self.type))
        dims = tuple(sorted((*header.mapped, self.dim))), header.indexed, header.lengths
        header = VespaHeader.create(header.cell_type, *dims, sum(self.counts.values()))
        return b"".join((header.pack(), *self.tensors.values()))

    def _warn_of_losses(self, name: str, left_out: Iterable[str]) -> None:
        for cells, is_updated in (("without cells", False), ("with unknown cells", True)):
            if places := [place for place in left_out if place.endswith(_UPDATED) is is_updated]:
                warn(
                    f"{name}: documents {cells} in the field {self.field!r} are left out: "
                    f"{len(places)}, the first in {places[0]}"
                )
        if self.conditions:
            warn(f"{name}: operations with a condition, which is ignored: {self.conditions}")
        if self.has_continuation:
            warn(f"{self.feed}: the last response has a continuation, so more documents follow")

    def _find_documents(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yield the documents of lists, of responses to a visit, and of the hits of queries."""
        for value in values:
            remaining = [value]
            while remaining:
                part = remaining.pop()
                if isinstance(part, list):
                    remaining += reversed(part)
                elif not isinstance(part, dict) or "put" in part:
                    yield part
                elif (parts := _find_parts(part)) is not None:
                    remaining.append(parts)
                    if "documents" in part or "continuation" in part:
                        token = part.get("continuation")
                        token = token.get("token") if isinstance(token, dict) else token
                        self.has_continuation = bool(token)
                elif not str(part.get("id")).startswith(_GROUPS):
                    yield part

    def _parse_lines(self, lines: Iterable[Any]) -> Iterator[Any]:
        """Yield the JSON value of each line. After a line that is not JSON, yield documents."""
        numbered = enumerate(lines, 1)
        for self.line, line in numbered:
            if not isinstance(line, (str, bytes)):
                yield line
                continue
            if not (text := _encode_line(line)):
                continue
            self.first, self.last = self.first or text, text
            is_list = text.startswith(b"[") and text.endswith(b"]")
            try:
                if content := text if is_list else text.strip(_SEPARATORS):
                    yield orjson.loads(content)
            except orjson.JSONDecodeError as error:
                yield from self._parse_text(chain([text], (line for _, line in numbered)), error)

    def _parse_text(self, lines: Iterable[Any], error: JSONDecodeError) -> Iterator[Any]:
        """Yield the documents of lines if a document has several, or a line several documents."""
        content, parsed = bytearray(), []
        for line in lines:
            if not isinstance(line, (str, bytes)):
                parsed = [line]
                break
            text_of_line = _encode_line(line)
            self.last = text_of_line or self.last
            content += text_of_line + b"\n"
            if len(content) > MAX_LINE_BYTES:
                break
        text, start, stop = content.decode(errors="surrogateescape"), 0, 0
        if limit := _find_exceeded_limit(content):
            text = text.lstrip(_SEPARATORS.decode())
            if "end of data" in error.msg:
                limits = f"{limit}, the limit of documents on several lines; {_LIMIT_HINT}"
                raise ValueError(f"it is truncated, or continues on more than {limits}")
            raise build_json_error(text, JSONDecodeError(error.msg, text, error.pos), _HINT)
        while found := _CONTENT.search(text, stop):
            self.line += text.count("\n", start, found.start())
            start = found.start()
            try:
                _, stop = _decoder.raw_decode(text, start)
                value = orjson.loads(text[start:stop].encode(errors="surrogateescape"))
            except (ValueError, RecursionError) as reason:
                raise build_json_error(text[start:], reason, _HINT) from None
            yield value
        yield from parsed

    def _add(self, document: Any) -> None:
        if not isinstance(document, dict):
            expected = "a put, an update, a remove or a document"
            raise ValueError(f"{show(document)} is not a JSON object, expected {expected}")  # noqa: TRY004
        stored, is_update = get_fields(document), "update" in document
        tensor, is_partial = stored.get(self.field), is_update and _is_partial(self.field, stored)
        if is_update:
            tensor = None if is_partial else get_assigned(self.field, tensor)
        if tensor is None:
            self.other_fields.update(stored)
        id_ = _find_id(document, stored)
        is_own = isinstance(id_, str) and id_ > "" and id_.startswith(self.prefix)
        if not is_own and tensor is not None:
            start = ID_START.match(str(id_))
            hint = f"pass prefix={start[0] if start else ''!r}, or correct the id"
            expected = f"'{self.prefix}...'; {hint}"
            raise ValueError(f"the id of the document is {id_!r}, expected {expected}")
        label = pack_string(id_[len(self.prefix) :] if is_own else f"{self.feed} {self.line}")
        self.conditions += "condition" in document
        is_other = self.field not in stored and not is_partial
        is_removed = self.absent.get(label) == ""
        if is_update and (not document.get("create") if is_removed else is_other):
            return
        self.absent.pop(label, None)
        try:
            count, packed = (0, b"") if tensor is None else self._pack(tensor, label)
        except ValueError as error:
            raise ValueError(f"document {id_!r}, field {self.field!r}: {error}") from error
        if count:
            self.counts[label], self.tensors[label] = count, packed
            return
        self.counts.pop(label, None)
        self.tensors.pop(label, None)
        place = f"line {self.line} of {self.feed}{_UPDATED if is_partial else ''}"
        self.absent[label] = "" if "remove" in document else place

    def _pack(self, tensor: Any, label: bytes) -> tuple[int, bytes]:
        """Return the number and the bytes of the blocks of a document."""
        header, blocks = parse_tensor(tensor, self.type)
        if self.type is None:
            self.type = header.type
        if self.dim in header.mapped or self.dim in header.indexed:
            raise ValueError(f"dim={self.dim!r} is a dimension of {header.type}; pass another")
        position = bisect(header.mapped, self.dim)
        parts: list[bytes] = []
        for labels, cells in blocks.items():
            row = [*map(pack_string, labels), cells]
            row.insert(position, label)
            parts += row
        return len(blocks), b"".join(parts)
