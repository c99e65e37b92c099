"""Read and write feeds: documents with tensors, one per line."""

from __future__ import annotations

import json
import os
import warnings
from binascii import unhexlify
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from errno import EISDIR, ENOENT
from glob import has_magic
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from fsspec.core import OpenFile, url_to_fs
from fsspec.utils import infer_compression
from tqdm import tqdm
from xarray import AlignmentError, Dataset, MergeError, merge

from xr_tensorfmt.errors import TensorFormatWarning, did_you_mean, find_stack_level, redact
from xr_tensorfmt.formats.vespa.json_forms import (
    Form,
    format_json,
    format_tensors,
    format_type,
    get_assigned,
    parse_json,
    parse_tensor,
)
from xr_tensorfmt.formats.vespa.spec import BLOCK, VespaHeader, pack_string
from xr_tensorfmt.formats.vespa.write import Arranged, arrange_tensor
from xr_tensorfmt.writing.checked_input import CheckedInput

BATCH_DOCUMENTS = 1024
"""Number of documents that are written at a time."""

LINES = 64
"""Number of lines that are parsed or joined at a time."""

_BUFFER_BYTES = 1 << 20

FEED = "<Vespa feed>"
"""Name of a feed without a path."""

# White space and a byte order mark.
_MARGIN = "\ufeff \t\r\n"

# Errors of lines that do not match a pattern.
_DIFFERENT = (AttributeError, LookupError, RecursionError, TypeError, ValueError)

# Replaces digits.
_CUT = b"-"

_GZIP = b"\x1f\x8b"

Operation = Literal["put", "update"]

Line = tuple[str, int, Any]
"""The name of a feed, and the number and the content of a line."""


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
    start = source.lstrip(_MARGIN + "[")[:2] if isinstance(source, str) else ""
    if isinstance(source, bytes) or start in ('{"', "{ ", "{\n"):
        raise ValueError("source= is the text of a feed; pass text.splitlines(), or a path")
    if isinstance(source, str | os.PathLike):
        return redact(os.fspath(source)), _read_files([source], options)
    items = iter([source] if isinstance(source, Mapping) else source)
    first = next(items, "")
    items, are_paths = chain([first], items), isinstance(first, os.PathLike)
    if isinstance(first, str) and isinstance(source, list | tuple):
        are_paths = first.strip(_MARGIN)[:1] not in ("", "[", "]", "{")
    if are_paths:
        return FEED, _read_files(items, options)
    return FEED, ((FEED, number, line) for number, line in enumerate(items, 1))


def _read_files(paths: Iterable[Any], options: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines of files, whose names may be patterns."""
    for path in map(str, paths):
        for opened in _find_files(path, options):
            name = redact(opened.full_name.removeprefix("file://") if has_magic(path) else path)
            number = 0
            try:
                with opened as file, BufferedReader(file, _BUFFER_BYTES) as lines:
                    for number, line in enumerate(lines, 1):
                        yield name, number, line
            except FileNotFoundError:
                raise FileNotFoundError(ENOENT, "no such feed", name) from None
            except Exception as error:
                if opened.compression is None or getattr(error, "errno", None) is not None:
                    raise
                reason = f"the decompression fails after line {number} ({error})"
                hint = "fetch the file again"
                if opened.fs.head(opened.path, 99).lstrip()[:1] in (b"{", b"["):
                    reason = f"it is not compressed by {opened.compression}"
                    hint = f"omit {Path(opened.path).suffix}"
                raise ValueError(f"{name}: {reason}; {hint}") from error


def _find_files(path: str, options: Mapping[str, Any]) -> list[OpenFile]:
    """Return the file with this name, or the files that match a pattern."""
    fs, name = url_to_fs(path, **options)
    names = [name]
    # A URL may have a query.
    if has_magic(name.partition("?")[0] if "://" in name else name) and not fs.exists(name):
        names = [match for match in sorted(fs.glob(name)) if not fs.isdir(match)]
        if not names:
            raise FileNotFoundError(ENOENT, "no feed matches this pattern", redact(path))
    elif os.path.isdir(path):
        hint = f"it is a directory, expected a pattern such as '{path}/*.jsonl'"
        raise IsADirectoryError(EISDIR, hint, path)
    return [OpenFile(fs, name, compression=infer_codec(name)) for name in names]


def infer_codec(name: str) -> str | None:
    """Return the compression that a suffix means. Raise ValueError if it is unsupported."""
    codec: str | None = infer_compression(name)
    if not codec and name.lower().endswith((".zst", ".lz4", ".xz", ".lzma", ".z", ".br")):
        hint = "install zstandard for .zst or lz4 for .lz4, or use .gz"
        raise ValueError(f"{redact(name)}: no codec for {Path(name).suffix!r} is installed; {hint}")
    return codec


def _parse_line(line: Any) -> list[Any]:
    """Return the documents in a line of a feed, which may be a part of a list."""
    if isinstance(line, bytes) and line.startswith(_GZIP):
        raise ValueError("it is compressed by gzip; pass a path that ends in .gz, or gzip.open()")
    text = line.decode() if isinstance(line, bytes) else line
    if not isinstance(text, str):
        return _list_documents(text)
    text = text.strip(_MARGIN)
    if text.startswith("[") and not text.endswith("]"):
        text = text[1:]
    if text in ("", "]"):
        return []
    hint = "write a document per line (`jq -c .[]`), or call vespa.from_jsonl(json.load(file))"
    return _list_documents(parse_json(text, ("", ",", "]"), hint))


def _list_documents(value: Any) -> list[Any]:
    """Return the documents in a list, in the response to a visit or to a query, or the one."""
    if not isinstance(value, dict) or "fields" in value:
        return value if isinstance(value, list) else [value]
    root = value.get("root")
    documents = root.get("children") if isinstance(root, dict) else value.get("documents")
    return documents if isinstance(documents, list) else [value]


def _find_id(document: Mapping[str, Any]) -> Any:
    """Return the id of a document with fields. The hit of a query may have one of its own."""
    id_ = document.get("put") or document.get("update")
    return id_ or document["fields"].get("documentid") or document.get("id")


@dataclass
class Column:
    """The tensors of a field of all documents, as one tensor with a dimension of documents."""

    type: str | None
    dim: str
    header: VespaHeader | None = None
    parts: list[bytes] = dataclass_field(default_factory=list)
    blocks: int = 0
    position: int = 0

    def add(self, label: bytes, tensor: Any) -> bool:
        """Append the blocks of a document. Return whether it has any."""
        header, blocks = parse_tensor(tensor, self.type)
        if self.header is None:
            if self.dim in header.mapped + header.indexed:
                message = f"dim={self.dim!r} is a dimension of {header.type}; choose another name"
                raise ValueError(message)
            mapped = tuple(sorted((*header.mapped, self.dim)))
            self.type, self.position = format_type(header), mapped.index(self.dim)
            dims = mapped, header.indexed, header.lengths
            self.header = VespaHeader.create(header.cell_type, *dims, 0)
        for labels, cells in blocks.items():
            row = [*map(pack_string, labels), cells]
            row.insert(self.position, label)
            self.parts += row
        self.blocks += len(blocks)
        return bool(blocks)

    def add_cells(self, labels: Sequence[bytes], cells: bytes) -> None:
        """Append the blocks of several documents without other mapped dimensions."""
        size = len(cells) // len(labels)
        blocks = [cells[start : start + size] for start in range(0, len(cells), size)]
        self.parts += chain.from_iterable(zip(labels, blocks, strict=True))
        self.blocks += len(labels)

    def build(self) -> bytes:
        """Return the tensor of all documents."""
        assert self.header is not None
        return b"".join((replace(self.header, blocks=self.blocks).pack(), *self.parts))


@dataclass(frozen=True)
class Pattern:
    """The first document without its digits, which a JSON parser would copy one by one."""

    document: Mapping[str, Any]
    # The bytes from the name of each field to its digits, and the number of digits.
    marks: Mapping[str, tuple[bytes, int]]

    @classmethod
    def find(cls, line: bytes, columns: Mapping[str, Column]) -> Pattern:
        """Find the digits of the tensors in a line. Raise an error if it has others or none."""
        marks = {}
        for field, column in columns.items():
            _, cells = column.parts
            digits = cells.hex().encode()
            start = line.lower().index(b'"%b"' % digits) + 1
            marks[field] = line[line.rindex(f'"{field}"'.encode(), 0, start) : start], len(digits)
            line = line[:start] + _CUT + line[start + len(digits) :]
        document = json.loads(line)
        if any(
            f'"{_CUT.decode()}"' not in format_json(document["fields"][field]) for field in marks
        ):
            raise ValueError("the digits belong to another field")
        return cls(document, marks)

    def match(self, lines: Sequence[bytes]) -> tuple[list[str], list[bytes]]:
        """Return the ids, and the cells of all fields. Raise an error if a line is different."""
        cells = []
        for before, size in self.marks.values():
            starts = [line.index(before) + len(before) for line in lines]
            pairs = list(zip(lines, starts, strict=True))
            cells.append(unhexlify(b"".join([line[start : start + size] for line, start in pairs])))
            lines = [line[:start] + _CUT + line[start + size :] for line, start in pairs]
        documents = json.loads(f"[{b','.join(lines).decode()}]")
        keys, tensors = self.document.keys(), self.document["fields"]
        ids = [_find_id(document) for document in documents if document.keys() == keys]
        both = ((x["fields"][field], tensors[field]) for field in self.marks for x in documents)
        if len(ids) != len(lines) or any(tensor != expected for tensor, expected in both):
            raise ValueError("a line is different")
        return ids, cells


@dataclass
class Feed:
    """The documents of feeds, with their fields."""

    name: str
    prefix: str
    columns: Mapping[str, Column]
    pattern: Pattern | None = None
    ids: set[str] = dataclass_field(default_factory=set)
    left_out: dict[str, list[str]] = dataclass_field(default_factory=dict)
    other_fields: set[str] = dataclass_field(default_factory=set)

    def read(self, lines: Iterable[Line]) -> None:
        """Add the documents in all lines. Raise ValueError if no document has the fields."""
        remaining = iter(lines)
        while not self.ids and (first := next(remaining, None)):
            self._add_line(*first)
            with suppress(*_DIFFERENT):
                self.pattern = Pattern.find(first[2], self.columns)
        while batch := list(islice(remaining, LINES)):
            self._add_lines(batch)
        if not self.ids:
            fields = " and ".join(map(repr, self.columns))
            reason = f"no line is a document with a tensor in the field {fields}"
            missing = [field for field in self.columns if field not in self.other_fields]
            reason += "".join(did_you_mean(field, self.other_fields) for field in missing)
            raise ValueError(f"{self.name}: {reason}")
        for kind, places in self.left_out.items():
            message = f"{self.name}: documents {kind} are left out: {len(places)}, the first in "
            warnings.warn(message + places[0], TensorFormatWarning, stacklevel=find_stack_level())

    def _add_lines(self, lines: Sequence[Line]) -> None:
        """Add lines at once if all are like the first document, or else one half after another."""
        if self.pattern and self._add_alike(self.pattern, [line for _, _, line in lines]):
            return
        half = len(lines) // 2
        if self.pattern and half:
            self._add_lines(lines[:half])
            self._add_lines(lines[half:])
            return
        for line in lines:
            self._add_line(*line)

    def _add_alike(self, pattern: Pattern, lines: Sequence[Any]) -> bool:
        """Add documents like the first one, all at once. Return whether all lines are like it."""
        size = len(self.prefix)
        try:
            ids, cells = pattern.match(lines)
            labels = [id_[size:] for id_ in ids if id_.startswith(self.prefix)]
            packed = [*map(pack_string, labels)]
        except _DIFFERENT:
            return False
        new = {*labels}
        if len(new) < len(lines) or not self.ids.isdisjoint(new):
            return False
        self.ids |= new
        for column, own in zip(self.columns.values(), cells, strict=True):
            column.add_cells(packed, own)
        return True

    def _add_line(self, name: str, number: int, line: Any) -> None:
        """Add the documents in a line."""
        try:
            for document in _parse_line(line):
                if document != {} and (kind := self._add(document)):
                    self.left_out.setdefault(kind, []).append(f"line {number} of {name}")
        except ValueError as error:
            raise ValueError(f"{name}: line {number}: {error}") from error

    def _add(self, document: Any) -> str:
        """Add a document. Return the kind of documents that are left out if it is one."""
        if not isinstance(document, dict) or "remove" in document:
            actual = "removes a document" if isinstance(document, dict) else "is not a JSON object"
            raise ValueError(f"it {actual}, expected a put, an update or a document; omit the line")
        fields = document.get("fields")
        stored = fields if isinstance(fields, dict) else {}
        tensors = {field: stored.get(field) for field in self.columns}
        if "update" in document:
            tensors = {field: get_assigned(field, update) for field, update in tensors.items()}
        if missing := [field for field, tensor in tensors.items() if tensor is None]:
            self.other_fields.update(stored or document)
            return f"without a tensor in the field {' and '.join(map(repr, missing))}"
        id_ = _find_id(document)
        if not isinstance(id_, str) or not id_.startswith(self.prefix):
            raise ValueError(f"the id of the document is {id_!r}, expected '{self.prefix}...'")
        label = id_[len(self.prefix) :]
        if label in self.ids:
            message = f"{label!r} occurs again, expected one line per document; omit the others"
            raise ValueError(message)
        self.ids.add(label)
        field, has_blocks = "", False
        try:
            packed = pack_string(label)
            for field, tensor in tensors.items():
                has_blocks |= self.columns[field].add(packed, tensor)
        except ValueError as error:
            place = f", field {field!r}" if len(tensors) > 1 else ""
            raise ValueError(f"document {id_!r}{place}: {error}") from error
        return "" if has_blocks else "with an empty tensor, which has no blocks,"


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
        tensors[name] = arrange_tensor(single)
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
