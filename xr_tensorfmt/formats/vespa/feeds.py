"""Read and write feeds: JSON documents with tensors, usually one per line."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from errno import EISDIR, ENOENT
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import orjson
from fsspec.compression import compr
from fsspec.utils import infer_compression
from tqdm import tqdm
from xarray import AlignmentError, Dataset, MergeError, merge

from xr_tensorfmt.core.header import MAX_VALUES
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import (
    TensorFormatError,
    did_you_mean,
    redact,
    warn,
)
from xr_tensorfmt.formats.vespa.json_forms import (
    MARGIN,
    Form,
    format_json,
    format_tensors,
    format_type,
    get_assigned,
    parse_tensor,
    show,
)
from xr_tensorfmt.formats.vespa.spec import BLOCK, VespaHeader, pack_string
from xr_tensorfmt.formats.vespa.write import Arranged, arrange_tensor
from xr_tensorfmt.sources import find_matches, find_source, get_path, open_stream
from xr_tensorfmt.writing.checked_input import CheckedInput

MAX_LINE_BYTES = 64 << 20
"""Limit on the bytes of a line, and of a document that extends over several lines."""

MAX_EXPANSION = 1000
"""Limit on the size of a decompressed feed, relative to its compressed size."""

BATCH_DOCUMENTS = 1024
"""Number of documents that are written at a time."""

LINES = 64
"""Number of lines that are joined at a time."""

SOURCE_OPTIONS = ("storage_options", "fs", "timeout", "verify_unchanged")
"""The keywords about the files of feeds."""

FEED = "<Vespa feed>"
"""Name of a feed without a path."""

_BYTES_MARGIN = MARGIN.encode()
_GZIP = b"\x1f\x8b"

# Strings, which may be incomplete, and the marks of objects.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+["\\]?|[{}]', re.DOTALL)

# Ids of parts of the response to a query. They contain hits.
_GROUPS = ("toplevel", "group:", "grouplist:", "hitlist:")

Operation = Literal["put", "update"]

Line = tuple[str, int, Any]
"""The name of a feed, and the number and the content of a line."""

Blocks = list[bytes]
"""For each block of a document, the packed labels before the id, and the bytes after the id."""


def list_fields(field: str | Sequence[str]) -> list[str]:
    """Return the names of fields."""
    names = [field] if isinstance(field, str) else list(field)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"field={field!r}, expected a name or a list of different names")
    return names


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
    reason = "only some have blocks of several labels"
    try:
        if len({BLOCK in ds.dims for ds in parts}) == 1:
            return merge(renamed, join="outer", compat="equals")
    except (MergeError, AlignmentError) as error:
        reason = str(error)
    raise ValueError(
        f"the fields do not fit into one Dataset ({reason}); pass sparse='dense', or open one "
        "field per call"
    )


def open_lines(source: Any, options: Mapping[str, Any]) -> tuple[str, Iterator[Line]]:
    """Return the name of a source, and the lines of its feeds. A source may be paths or lines."""
    start = source.lstrip(MARGIN + "[")[:2] if isinstance(source, str) else ""
    if isinstance(source, bytes) or start in ('{"', "{ ", "{\n"):
        raise ValueError("source= is the text of a feed; pass text.splitlines(), or a path")
    if isinstance(source, str | os.PathLike):
        return redact(get_path(source)), _read_files([source], options)
    lines = [source] if isinstance(source, Mapping) else source
    items = _read_lines(source) if hasattr(source, "readline") else iter(lines)
    first = next(items, "")
    items, are_paths = chain([first], items), isinstance(first, os.PathLike)
    if isinstance(first, str) and isinstance(source, list | tuple):
        are_paths = first.strip(MARGIN)[:1] not in ("", "[", "]", "{")
    return FEED, _read_files(items, options) if are_paths else _number_lines(FEED, items)


def _number_lines(name: str, lines: Iterable[Any]) -> Iterator[Line]:
    return ((name, number, line) for number, line in enumerate(lines, 1))


def _read_lines(file: Any) -> Iterator[Any]:
    """Yield the lines of a file. A line that is too long is cut."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        yield line


def _read_files(paths: Iterable[Any], options: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines of files, whose names may be patterns."""
    for path in paths:
        matches = find_matches(path, options.get("storage_options"), options.get("fs"))
        if not matches:
            raise FileNotFoundError(ENOENT, "no feed matches this pattern", redact(get_path(path)))
        for match in matches:
            try:
                source, _ = find_source(match, "read", **options)
            except IsADirectoryError:
                name = redact(get_path(path))
                hint = f"it is a directory, expected a pattern such as '{name}/*.jsonl'"
                raise IsADirectoryError(EISDIR, hint, name) from None
            codec = infer_codec(source.file_name)
            with open_stream(source) as file:
                lines = _decompress(source, file, codec) if codec else _read_lines(file)
                yield from _number_lines(source.name, lines)


def _decompress(source: Source, compressed: BinaryIO, codec: str) -> Iterator[bytes]:
    """Yield the lines of a compressed feed."""
    number, remaining = 0, max(MAX_LINE_BYTES, MAX_EXPANSION * source.size)
    problem = f"it is more than {MAX_EXPANSION} times larger when decompressed"
    hint = "decompress it first if you trust it"
    try:
        with compr[codec](compressed, mode="rb") as file, BufferedReader(file) as lines:
            for line in _read_lines(lines):
                number, remaining = number + 1, remaining - len(line)
                if remaining < 0:
                    break
                yield line
            else:
                return
    except Exception as error:
        if getattr(error, "errno", None) is not None or isinstance(error, TensorFormatError):
            raise  # an error of the source
        problem = f"the decompression fails after line {number} ({error})"
        hint = "fetch the file again"
        if source.read_bytes(0, min(99, source.size)).lstrip()[:1] in (b"{", b"["):
            problem = f"it is not compressed by {codec}"
            hint = f"omit {Path(source.file_name).suffix}"
    raise ValueError(f"{source.name}: {problem}; {hint}")


def infer_codec(name: str) -> str | None:
    """Return the compression that a suffix means. Raise ValueError if it is unsupported."""
    codec: str | None = infer_compression(name)
    if not codec and name.lower().endswith((".zst", ".lz4", ".xz", ".lzma", ".z", ".br")):
        hint = "install zstandard for .zst or lz4 for .lz4, or use .gz"
        raise ValueError(f"{name}: no codec for {Path(name).suffix!r} is installed; {hint}")
    return codec


class _NotJSONError(ValueError):
    """Text that is not one JSON value."""


def _load_document(text: bytes | bytearray) -> Any:
    """Parse the text of one or several documents. Limit the memory of its values."""
    is_long = len(text) > MAX_LINE_BYTES
    if is_long or (len(text) > MAX_VALUES and sum(map(text.count, b",[{")) > MAX_VALUES):
        raise ValueError(
            f"it has more than {MAX_LINE_BYTES} bytes or {MAX_VALUES} values, the limits of a "
            "line and of a document; write one document per line (`jq -c .[]` divides a list)"
        )
    if text.startswith(_GZIP):
        raise ValueError("it is compressed by gzip; pass a path that ends in .gz, or gzip.open()")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        start = show(text[:1000].decode(errors="replace"))
        raise _NotJSONError(f"{start} is not JSON: {error}; write a document per line") from None


@dataclass
class _Parser:
    """Parses documents. A document may extend over several lines, and a line may have several."""

    # The line where the last document begins.
    begin: int = 0
    # The first lines of a document, and the number of its objects that are not complete.
    text: bytearray = dataclass_field(default_factory=bytearray)
    depth: int = 0

    def finish(self) -> None:
        """Raise an error if the last document is not complete."""
        if self.text:
            _load_document(self.text.strip())

    def parse(self, number: int, line: Any) -> Iterable[Any]:
        """Return the values that a line completes."""
        if isinstance(line, str):
            line = line.encode("utf-8", "surrogatepass")
        if not isinstance(line, bytes):
            self.finish()
            self.begin = number
            return (line,)
        if not (line := line.strip(_BYTES_MARGIN)):
            return ()
        if not self.depth:
            self.begin = number
            with suppress(_NotJSONError):
                return (_load_document(line.removesuffix(b",")),)
        return map(_load_document, self._split(number, line))

    def _split(self, number: int, line: bytes) -> Iterator[bytes | bytearray]:
        """Yield the texts of the objects that a line completes, and keep the rest."""
        start = stop = 0
        for token in _TOKENS.finditer(line):
            if token[0] == b"{":
                if not self.depth:
                    start = token.start()
                    _check_separators(line[stop:start], line)
                    self.begin = number
                self.depth += 1
            elif token[0] == b"}" and self.depth:
                self.depth -= 1
                if not self.depth:
                    stop = token.end()
                    yield self.text + line[start:stop]
                    self.text.clear()
        if self.depth:
            self.text += line[start:] + b"\n"
            if len(self.text) > MAX_LINE_BYTES:
                self.finish()
        else:
            _check_separators(line[stop:], line)


def _check_separators(text: bytes, line: bytes) -> None:
    """Raise an error unless only commas and the marks of lists separate objects."""
    if text.strip(_BYTES_MARGIN + b",[]"):
        _load_document(line)


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
class Column:
    """The tensors of a field of all documents, as one tensor with a dimension of documents."""

    type: str | None
    dim: str
    header: VespaHeader | None = None
    position: int = 0

    def pack(self, tensor: Any) -> Blocks:
        """Pack the blocks of a document."""
        header, blocks = parse_tensor(tensor, self.type)
        if self.header is None:
            if self.dim in header.mapped + header.indexed:
                message = f"dim={self.dim!r} is a dimension of {header.type}; choose another name"
                raise ValueError(message)
            mapped = tuple(sorted((*header.mapped, self.dim)))
            self.type, self.position = format_type(header), mapped.index(self.dim)
            dims = mapped, header.indexed, header.lengths
            self.header = VespaHeader.create(header.cell_type, *dims, 0)
        if not header.mapped:
            return [b"", *blocks.values()]
        packed: Blocks = []
        for labels, cells in blocks.items():
            row = [*map(pack_string, labels), cells]
            packed += b"".join(row[: self.position]), b"".join(row[self.position :])
        return packed

    def build(self, documents: Iterable[tuple[bytes, Blocks | None]]) -> bytes:
        """Return the tensor of all documents from their packed ids and their blocks."""
        assert self.header is not None
        parts: list[bytes] = []
        for label, blocks in documents:
            assert blocks is not None
            for start in range(0, len(blocks), 2):
                parts += blocks[start], label, blocks[start + 1]
        return b"".join((replace(self.header, blocks=len(parts) // 3).pack(), *parts))


@dataclass
class Feed:
    """The documents of feeds, with their fields."""

    name: str
    prefix: str
    columns: Mapping[str, Column]
    # The blocks of all columns by the packed id of the document.
    documents: dict[bytes, list[Blocks | None]] = dataclass_field(default_factory=dict)
    # Reason and line of documents that are left out.
    left_out: dict[bytes, tuple[str, str]] = dataclass_field(default_factory=dict)
    other_fields: set[str] = dataclass_field(default_factory=set)

    def read(self, lines: Iterable[Line]) -> dict[str, bytes]:
        """Return the tensors of all documents by field. Raise ValueError if there are none."""
        parser, feed = _Parser(), self.name
        for name, number, line in chain(lines, [(self.name, 1, b"")]):
            try:
                if number == 1:
                    parser.finish()
                feed = name
                for value in parser.parse(number, line):
                    for document in find_documents(value):
                        self._add(document, f"line {parser.begin} of {name}")
            except ValueError as error:
                raise ValueError(f"{feed}: line {parser.begin}: {error}") from error
        for label in self.left_out:
            self.documents.pop(label, None)
        if not self.documents:
            raise ValueError(f"{self.name}: {self._explain_missing()}")
        places: dict[str, list[str]] = defaultdict(list)
        for reason, place in self.left_out.values():
            places[reason].append(place)
        for reason, all_places in places.items():
            count, place = len(all_places), all_places[0]
            message = f"{self.name}: documents {reason} are left out: {count}, the first in {place}"
            warn(message)
        return {
            field: column.build((label, row[index]) for label, row in self.documents.items())
            for index, (field, column) in enumerate(self.columns.items())
        }

    def _explain_missing(self) -> str:
        """Return why no document has all tensors."""
        unknown = [field for field in self.columns if field not in self.other_fields]
        if not unknown or not self.other_fields:
            fields = " and ".join(map(repr, self.columns))
            return f"no document has a tensor in the field {fields}"
        fields = " and ".join(repr(x) + did_you_mean(x, self.other_fields) for x in unknown)
        return f"no document has the field {fields}, expected one of {sorted(self.other_fields)}"

    def _add(self, document: Any, place: str) -> None:
        """Add a put, an update or a document, or remove one. The last one of an id counts."""
        if not isinstance(document, dict):
            raise ValueError(  # noqa: TRY004  # wrong JSON
                f"{show(document)} is not a JSON object, expected a put, an update, a remove or a "
                "document"
            )
        id_, fields = _find_id(document), document.get("fields")
        stored, is_update = fields if isinstance(fields, dict) else {}, "update" in document
        tensors = {field: stored.get(field) for field in self.columns}
        if is_update:
            tensors = {field: get_assigned(field, update) for field, update in tensors.items()}
        is_own = isinstance(id_, str) and id_.startswith(self.prefix)
        if not is_own and any(tensor is not None for tensor in tensors.values()):
            raise ValueError(f"the id of the document is {id_!r}, expected '{self.prefix}...'")
        label = pack_string(id_[len(self.prefix) :] if is_own else place)
        previous = self.documents.pop(label, None)
        self.left_out.pop(label, None)
        if "remove" in document:
            return
        row = [self._pack(field, tensor, id_) for field, tensor in tensors.items()]
        if is_update and previous:
            pairs = zip(self.columns, row, previous, strict=True)
            row = [new if field in stored else old for field, new, old in pairs]
        self.documents[label] = row
        if reason := self._find_reason(row):
            self.left_out[label] = reason, place
            self.other_fields.update(stored)

    def _pack(self, field: str, tensor: Any, id_: Any) -> Blocks | None:
        """Pack the blocks of a field, and return None if the document does not have it."""
        if tensor is None:
            return None
        try:
            return self.columns[field].pack(tensor)
        except ValueError as error:
            place = f", field {field!r}" if len(self.columns) > 1 else ""
            raise ValueError(f"document {id_!r}{place}: {error}") from error

    def _find_reason(self, row: Sequence[Blocks | None]) -> str:
        """Return why a document is left out, or an empty string."""
        missing = [field for field, blocks in zip(self.columns, row, strict=True) if blocks is None]
        if missing:
            return f"without a tensor in the field {' and '.join(map(repr, missing))}"
        return "" if any(row) else "with an empty tensor, which has no blocks,"


def arrange_fields(
    checked: CheckedInput, field: str | Sequence[str], dim: str
) -> dict[str, Arranged]:
    """Return the tensors of one field, or of the variables whose names are listed."""
    names = list_fields(field)
    labels = checked.coordinates.get(dim)
    if labels is not None and labels.dtype.kind not in "UTO" and "coords" not in checked.drop:
        raise ValueError(
            f"{checked.path}: the labels of dim={dim!r} are {labels.dtype}, expected str; convert "
            f"them by ds.assign_coords({dim}=ds[{dim!r}].astype(str))"
        )
    if isinstance(field, str) and len(checked.variables) == 1:
        return {field: arrange_tensor(checked)}
    tensors = {}
    for name in names:
        if name not in checked.variables:
            hint = did_you_mean(name, checked.variables)
            raise ValueError(
                f"field={field!r} names {name!r}, which is not a variable{hint}; pass "
                f"field={[*checked.variables]} or the name of one"
            )
        variable = checked.variables[name]
        dims, coordinates = {*variable.dims}, checked.coordinates
        coordinates = {key: x for key, x in coordinates.items() if dims.issuperset(x.dims)}
        own = {key: value for key, value in checked.encoding.items() if key in (name, *coordinates)}
        single = replace(checked, variables={name: variable}, coordinates=coordinates, encoding=own)
        others = (other.dims for key, other in checked.variables.items() if key != name)
        tensors[name] = arrange_tensor(single, {str(dim) for dims in others for dim in dims})
    return tensors


def format_feed(
    tensors: Mapping[str, Arranged],
    dim: str,
    prefix: str,
    form: Form,
    operation: Operation,
    progress: bool,
) -> Iterator[bytes]:
    """Yield the lines of a feed in batches."""
    first = next(iter(tensors.values()))
    position, mapped = first.header.mapped.index(dim), first.header.mapped
    rows = [row[:position] + row[position + 1 :] for row in first.rows]
    groups: dict[str, list[int]] = {}
    for block, row in enumerate(first.rows):
        groups.setdefault(row[position], []).append(block)
    if prefix and (label := next((x for x in groups if x.startswith(prefix)), None)):
        raise ValueError(f"the label {label!r} already begins with prefix={prefix!r}; omit prefix=")
    value = '{"assign": %s}' if operation == "update" else "%s"
    fields = ", ".join(f"{format_json(name).replace('%', '%%')}: {value}" for name in tensors)
    template = f'{{"{operation}": %s, "fields": {{{fields}}}}}\n'
    documents = iter(groups.items())
    with tqdm(total=len(groups), unit=" documents", disable=not progress) as bar:
        while batch := list(islice(documents, BATCH_DOCUMENTS)):
            blocks = np.array([number for _, numbers in batch for number in numbers])
            # Selecting a range of a dask array is faster.
            is_range = (np.diff(blocks) == 1).all()
            key = slice(int(blocks[0]), int(blocks[-1]) + 1) if is_range else blocks
            columns = []
            for tensor in tensors.values():
                header = replace(tensor.header, mapped=mapped[:position] + mapped[position + 1 :])
                cells = tensor.encode(tensor.variable[key].values)
                labels = ([rows[number] for number in numbers] for _, numbers in batch)
                columns.append(format_tensors(header, labels, cells, form))
            ids = (format_json(prefix + label) for label, _ in batch)
            lines = (template % line for line in zip(ids, *columns, strict=True))
            while text := "".join(islice(lines, LINES)):
                yield text.encode("ascii")
            bar.update(len(batch))
