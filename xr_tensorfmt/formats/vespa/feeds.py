"""Read feeds: JSON documents with tensors, usually one per line."""

from __future__ import annotations

import os
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from errno import ENOENT
from io import BufferedReader
from itertools import chain, pairwise
from math import inf
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from fsspec.compression import compr
from fsspec.utils import infer_compression
from tqdm import tqdm
from xarray import AlignmentError, Dataset, MergeError, merge

from xr_tensorfmt.core.header import MAX_VALUES
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import did_you_mean, redact, warn
from xr_tensorfmt.formats.vespa.json_forms import (
    MARGIN,
    format_type,
    get_assigned,
    parse_tensor,
    parse_type,
    show,
)
from xr_tensorfmt.formats.vespa.spec import BLOCK, VespaHeader, pack_string
from xr_tensorfmt.sources import find_matches, find_source, get_path, open_stream

MAX_LINE_BYTES = 64 << 20
"""Limit on the bytes of a line, and of a document that extends over several lines."""

MAX_EXPANSION = 1000
"""Limit on the size of a decompressed feed, relative to its compressed size."""

SOURCE_OPTIONS = ("storage_options", "fs", "timeout", "verify_unchanged")
"""The keywords about the files of feeds."""

FEED = "<Vespa feed>"
"""Name of a feed without a path."""

_MARGIN = MARGIN.encode()

# Strings, which may be incomplete, and the marks of objects.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+["\\]?|\{|\}', re.DOTALL)

# Ids of parts of the response to a query. They contain hits.
_GROUPS = ("toplevel", "group:", "grouplist:", "hitlist:")

Feed = tuple[str, Iterable[Any]]
"""The name of a feed, and its lines, or its documents."""


def merge_fields(parts: Sequence[Dataset]) -> Dataset:
    """Merge the fields. Indexed dimensions of other lengths get trailing underscores."""
    sizes: dict[Any, int] = {}
    renamed = []
    for ds in parts:
        names: dict[Any, str] = {}
        for dim, size in ds.sizes.items():
            names[dim] = str(dim)
            while dim not in (*ds.coords, BLOCK) and sizes.setdefault(names[dim], size) != size:
                names[dim] += "_"
        renamed.append(ds.rename(names))
    try:
        if len({BLOCK in ds.dims for ds in parts}) == 1:
            return merge(renamed, join="outer", compat="equals")
        reason = "only some have blocks of several labels"
    except (MergeError, AlignmentError) as error:
        reason = str(error)
    raise ValueError(
        f"the fields do not fit into one Dataset ({reason}); pass sparse='dense', or open one "
        "field per call"
    )


def find_feeds(source: Any, options: Mapping[str, Any]) -> tuple[str, Iterator[Feed]]:
    """Return the name of a source, and its feeds. A source may be paths or lines."""
    start = source.lstrip(MARGIN + "[")[:2] if isinstance(source, str) else ""
    if isinstance(source, bytes) or start in ('{"', "{ ", "{\n"):
        raise ValueError("source= is the text of a feed; pass text.splitlines(), or a path")
    if isinstance(source, str | os.PathLike):
        return redact(get_path(source)), _open_feeds([source], options)
    lines = [source] if isinstance(source, Mapping) else source
    items = _read_lines(source) if hasattr(source, "readline") else iter(lines)
    first = next(items, "")
    items, are_paths = chain([first], items), isinstance(first, os.PathLike)
    if isinstance(first, str) and isinstance(source, list | tuple):
        are_paths = first.strip(MARGIN)[:1] not in ("", "[", "]", "{")
    return FEED, _open_feeds(items, options) if are_paths else iter([(FEED, items)])


def _open_feeds(paths: Iterable[Any], options: Mapping[str, Any]) -> Iterator[Feed]:
    """Open the feeds of paths, which may be patterns."""
    for path in paths:
        matches = find_matches(path, options.get("storage_options"), options.get("fs"))
        if not matches:
            raise FileNotFoundError(ENOENT, "no feed matches this pattern", redact(get_path(path)))
        for match in matches:
            source, _ = find_source(match, "read", **options)
            codec = infer_codec(source.file_name)
            with open_stream(source) as file:
                yield source.name, _decompress(source, file, codec) if codec else _read_lines(file)


def _read_lines(file: Any, limit: float = inf) -> Iterator[Any]:
    """Yield the lines of a file. A line that is too long is cut, and refused when it is parsed."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        limit -= len(line)
        if limit < 0:
            raise ValueError(
                f"the feed is more than {MAX_EXPANSION} times larger when decompressed; "
                "decompress it first if you trust it"
            )
        yield line


def _decompress(source: Source, compressed: BinaryIO, codec: str) -> Iterator[bytes]:
    """Yield the lines of a compressed feed."""
    limit = max(MAX_LINE_BYTES, MAX_EXPANSION * source.size)
    try:
        with compr[codec](compressed, mode="rb") as file, BufferedReader(file) as lines:
            yield from _read_lines(lines, limit)
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
        suffix = Path(name).suffix
        raise ValueError(f"{name}: no codec for {suffix!r} is installed; install it, or use .gz")
    return codec


def _load_text(text: bytes) -> Any:
    """Parse JSON. Raise ValueError if its values may take too much memory."""
    is_long = len(text) > MAX_LINE_BYTES
    if is_long or (len(text) > MAX_VALUES and sum(map(text.count, b",[{")) > MAX_VALUES):
        raise ValueError(
            f"it has more than {MAX_LINE_BYTES} bytes or {MAX_VALUES} values, the limits of a "
            "line and of a document; write one document per line (`jq -c .[]` divides a list)"
        )
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        start = show(text[:1000].decode(errors="replace"))
        raise ValueError(f"{start} is not JSON: {error}; write a document per line") from None


def _parse_line(line: Any, *, is_part: bool) -> Any:
    """Return the value of a line, or its text if it has only parts of documents, or several."""
    if isinstance(line, str):
        line = line.encode("utf-8", "surrogatepass")
    if not isinstance(line, bytes):
        return line
    text = line.strip(_MARGIN)
    if text and not is_part:
        with suppress(ValueError):
            return _load_text(text.removesuffix(b","))
    return text


def _split_lines(lines: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the first line and the value of each document, or its text if it is not one line."""
    text, depth, begin = bytearray(), 0, 0
    for number, line in enumerate(lines, 1):
        is_inside = depth > 0
        value = _parse_line(line, is_part=is_inside)
        if not isinstance(value, bytes):
            yield number, value
        if not isinstance(value, bytes) or not value:
            continue
        marks, depth = _find_marks(value, depth)
        for start, stop in pairwise((0, *marks, len(value))):
            if is_inside:
                text += value[start:stop]
                if stop in marks:
                    yield begin, bytes(text)
                    text.clear()
            else:
                begin = number
                if value[start:stop].strip(_MARGIN + b",[]"):
                    yield number, value  # is not JSON
            is_inside = not is_inside
        text += b"\n" if text else b""
        if len(text) > MAX_LINE_BYTES:
            break
    if text:  # is not complete
        yield begin, bytes(text.strip())


def _find_marks(line: bytes, depth: int) -> tuple[list[int], int]:
    """Return where objects begin and end, except those in other objects, and the last depth."""
    marks = []
    for token in _TOKENS.finditer(line):
        if token[0] == b"{":
            marks += [token.start()] if not depth else []
            depth += 1
        elif token[0] == b"}" and depth:
            depth -= 1
            marks += [token.end()] if not depth else []
    return marks, depth


def find_documents(value: Any) -> Iterator[Any]:
    """Yield the documents of a list, of the response to a visit, or of the hits of a query."""
    remaining = [value]
    while remaining:
        value = remaining.pop()
        if isinstance(value, dict) and "put" in value:
            yield value
        elif isinstance(value, list):
            remaining += reversed(value)
        elif not isinstance(value, dict):
            yield value
        elif isinstance(value.get("root"), dict):
            remaining.append(value["root"])
        elif isinstance(parts := value.get("children", value.get("documents")), list):
            remaining.append(parts)
        elif value and not str(value.get("id")).startswith(_GROUPS):
            yield value


def _find_id(document: Mapping[str, Any]) -> Any:
    """Return the id of a document. The hit of a query may have one of its own."""
    fields = document.get("fields")
    id_ = document.get("put") or document.get("update") or document.get("remove")
    return id_ or (isinstance(fields, dict) and fields.get("documentid")) or document.get("id")


@dataclass
class Documents:
    """The tensors of documents. The last put, update or remove of a document counts."""

    # The types by field, or None until a document states one.
    types: dict[str, str | None]
    dim: str
    prefix: str
    # The number of blocks and the bytes of each tensor, by field and packed id.
    tensors: dict[str, dict[bytes, tuple[int, bytes]]] = dataclass_field(init=False)
    # The lines of documents that are left out, and the names of their fields.
    left_out: dict[bytes, str] = dataclass_field(default_factory=dict)
    known_fields: set[str] = dataclass_field(default_factory=set)

    def __post_init__(self) -> None:
        """Create a table for each field."""
        self.tensors = {name: {} for name in self.types}

    def read(self, name: str, feeds: Iterable[Feed], *, progress: bool) -> dict[str, bytes]:
        """Return the tensors of all documents by field. Raise ValueError if there are none."""
        with tqdm(unit=" documents", disable=not progress) as bar:
            for feed, lines in feeds:
                number = 1
                try:
                    for number, value in _split_lines(lines):
                        parsed = _load_text(value) if isinstance(value, bytes) else value
                        for document in find_documents(parsed):
                            self._add(document, f"line {number} of {feed}")
                            bar.update()
                except ValueError as error:
                    raise ValueError(f"{feed}: line {number}: {error}") from error
        first, fields = next(iter(self.types)), " and ".join(map(repr, self.types))
        labels = [label for label in self.tensors[first] if label not in self.left_out]
        if not labels:
            known = sorted(self.known_fields)
            if known and self.known_fields.isdisjoint(self.types):
                hints = "".join(did_you_mean(field, known) for field in self.types)
                fields += f"{hints}, expected one of {known}"
            raise ValueError(f"{name}: no document has a tensor in the field {fields}")
        if self.left_out:
            count, place = len(self.left_out), next(iter(self.left_out.values()))
            message = f"{name}: documents without cells in the field {fields} are left out: "
            message += f"{count}, the first in {place}"
            warn(message)
        return {field: self._join(field, labels) for field in self.types}

    def _add(self, document: Any, place: str) -> None:
        if not isinstance(document, dict):
            raise ValueError(  # noqa: TRY004  # wrong JSON
                f"{show(document)} is not a JSON object, expected a put, an update, a remove or a "
                "document"
            )
        id_, fields = _find_id(document), document.get("fields")
        stored = fields if isinstance(fields, dict) else {}
        tensors = {name: stored.get(name) for name in self.types}
        if "update" in document:
            assigned = self.types.keys() & stored.keys()
            tensors = {name: get_assigned(name, stored[name]) for name in assigned}
        is_own = isinstance(id_, str) and id_.startswith(self.prefix)
        if not is_own and any(tensor is not None for tensor in tensors.values()):
            raise ValueError(f"the id of the document is {id_!r}, expected '{self.prefix}...'")
        label = pack_string(id_[len(self.prefix) :] if is_own else place)
        for name, tensor in tensors.items():
            self.tensors[name].pop(label, None)
            if tensor is not None:
                try:
                    self.tensors[name][label] = self._pack(name, tensor, label)
                except ValueError as error:
                    raise ValueError(f"document {id_!r}, field {name!r}: {error}") from error
        self.left_out.pop(label, None)
        found = [table[label] for table in self.tensors.values() if label in table]
        is_complete = len(found) == len(self.types) and any(count for count, _ in found)
        if not is_complete and "remove" not in document:
            self.left_out[label] = place
            self.known_fields.update(stored)

    def _pack(self, name: str, tensor: Any, label: bytes) -> tuple[int, bytes]:
        """Return the number and the bytes of the blocks of a document."""
        header, blocks = parse_tensor(tensor, self.types[name])
        if self.dim in header.mapped + header.indexed:
            raise ValueError(
                f"dim={self.dim!r} is a dimension of {header.type}; choose another name"
            )
        self.types[name] = format_type(header)
        position = bisect(header.mapped, self.dim)
        parts: list[bytes] = []
        for labels, cells in blocks.items():
            row = [*map(pack_string, labels), cells]
            parts += (*row[:position], label, *row[position:])
        return len(blocks), b"".join(parts)

    def _join(self, name: str, labels: Iterable[bytes]) -> bytes:
        """Return the tensor of all documents."""
        counts, contents = zip(*(self.tensors[name][label] for label in labels), strict=True)
        header = parse_type(str(self.types[name]))
        mapped = tuple(sorted((*header.mapped, self.dim)))
        dims = mapped, header.indexed, header.lengths
        return VespaHeader.create(header.cell_type, *dims, sum(counts)).pack() + b"".join(contents)
