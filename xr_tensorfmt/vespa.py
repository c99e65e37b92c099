"""Tensors of Vespa in JSON, in feeds and in hexadecimal digits."""

from __future__ import annotations

import json
import os
import warnings
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from errno import EISDIR, ENOENT
from glob import has_magic
from gzip import BadGzipFile
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, get_args

import fsspec
import numpy as np
from fsspec.core import OpenFile, url_to_fs
from fsspec.utils import infer_compression
from tqdm import tqdm
from xarray import AlignmentError, DataArray, Dataset, MergeError, merge, open_dataset

from xr_tensorfmt.errors import TensorFormatWarning, did_you_mean, find_stack_level, redact
from xr_tensorfmt.formats.vespa.json_forms import (
    Form,
    format_json,
    format_tensors,
    format_type,
    get_assigned,
    load_json,
    parse_json,
    parse_tensor,
    parse_type,
    select_field,
)
from xr_tensorfmt.formats.vespa.spec import BLOCK, VespaHeader, pack_string
from xr_tensorfmt.formats.vespa.write import Arranged, arrange_tensor
from xr_tensorfmt.sources.memory import Memory
from xr_tensorfmt.writing.checked_input import CheckedInput, DroppablePart, check_input
from xr_tensorfmt.writing.save import Mode, build_target, is_overwriting, locate_target

__all__ = ["from_hex", "from_json", "from_jsonl", "to_json", "to_jsonl"]

Operation = Literal["put", "update"]

BATCH_DOCUMENTS = 1024
"""Number of documents of a feed that are converted at a time."""

_BUFFER_BYTES = 1 << 20

_FEED = "<Vespa feed>"

# White space and a byte order mark.
_MARGIN = "\ufeff \t\r\n"

_GZIP = b"\x1f\x8b"


def from_json(
    data: Any, type: str | None = None, *, field: str | None = None, **keywords: Any
) -> Dataset:
    """Open a tensor from JSON, in any form that Vespa returns or accepts.

    Parameters
    ----------
    data : dict, list, str, bytes or PathLike
        A tensor as pyvespa and `json.loads` return it, JSON text, or a file with JSON text: cells,
        values or blocks, also as hexadecimal digits, even of another cell type. Or a document with
        ``fields``, such as a hit of a query. A path is a `pathlib.Path`, because a str is text.
    type : str, optional
        The type of the field or constant, such as ``"tensor<float>(user{},x[3])"``. It is required
        if `data` does not state the type.
    field : str, optional
        The field of a document, which is required, or of a mapping such as ``matchfeatures``.
    **keywords
        Keywords of `xarray.open_dataset` and of this engine.

    Returns
    -------
    Dataset
        The same as from a file.

    Raises
    ------
    ValueError
        `data` is not a tensor, has another type, or is a document without the field.

    Examples
    --------
    >>> from xr_tensorfmt import vespa
    >>> field = {
    ...     "type": "tensor<float>(user{},x[2])",
    ...     "blocks": {"ada": [1, 2], "bob": [3, 4]},
    ... }
    >>> ds = vespa.from_json(field)
    >>> ds.tensor.sel(user="bob").values
    array([3., 4.], dtype=float32)
    >>> ds = vespa.from_json("FF00118022FE", "tensor<int8>(x[6])")
    >>> ds.tensor.values
    array([  -1,    0,   17, -128,   34,   -2], dtype=int8)
    """
    name = "<Vespa JSON>"
    if isinstance(data, os.PathLike):
        name, data = os.fspath(data), Path(data).read_bytes()
    try:
        header, blocks = parse_tensor(select_field(load_json(data), field), type)
        parts = (part for row, cells in blocks.items() for part in (*map(pack_string, row), cells))
        content = replace(header, blocks=len(blocks)).pack() + b"".join(parts)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return _open(content, name, **keywords)


def from_jsonl(
    source: Any,
    type: str | Mapping[str, str] | None = None,
    *,
    field: str | Sequence[str],
    dim: str = "document",
    prefix: str = "",
    progress: bool = False,
    **keywords: Any,
) -> Dataset:
    """Open the tensors in a feed as one Dataset, with the document ids as labels.

    Parameters
    ----------
    source : str, PathLike, file object or iterable
        The path or URL of a feed with one document per line, which may be compressed (``.gz``), a
        pattern such as ``"feeds/*.jsonl.gz"``, or a list of these; or the lines, or dicts.
    type : str or mapping, optional
        As for `from_json`, or a type by field. The default is the type that the first document
        states.
    field : str or list of str
        The field with the tensor, or several. Documents without one are left out, with a warning.
    dim : str
        Name of the dimension of documents, a mapped dimension in addition to those of `type`.
    prefix : str
        Start of all ids, which the labels leave out, such as ``"id:shop:user::"``.
    progress : bool
        Whether to show a progress bar.
    **keywords
        As for `from_json`. `storage_options` are those of the feed.

    Returns
    -------
    Dataset
        The same as from a file with the tensors of all documents. A list of fields becomes
        variables with their names, and ``x_`` is a dimension ``x`` of another length.

    Raises
    ------
    ValueError
        A document has a tensor of another type, a number that the type cannot represent, or occurs
        again, a line removes one, or no document has the field.

    Examples
    --------
    >>> from xr_tensorfmt import vespa
    >>> lines = [
    ...     '{"put": "id:shop:user::ann", "fields": {"vector": [1, 0]}}',
    ...     '{"put": "id:shop:user::bob", "fields": {"vector": [0, 2]}}',
    ... ]
    >>> type, prefix = "tensor<float>(x[2])", "id:shop:user::"
    >>> ds = vespa.from_jsonl(lines, type, field="vector", dim="user", prefix=prefix)
    >>> ds.tensor.sel(user="bob").values
    array([0., 2.], dtype=float32)
    """
    names = _list_fields(field)
    types = type if isinstance(type, Mapping) else dict.fromkeys(names, type)
    for name, stated in types.items():
        if name not in names:
            raise ValueError(f"type= names {name!r}{did_you_mean(name, names)}, which field= omits")
        if stated:
            parse_type(stated)
    columns = {name: _Column(types.get(name), dim) for name in names}
    is_path = isinstance(source, str | os.PathLike)
    feed = _Feed(redact(os.fspath(source)) if is_path else _FEED, prefix, columns)
    lines = _read_lines(source, keywords.pop("storage_options", None) or {})
    feed.read(tqdm(lines, unit=" lines") if progress else lines)
    if isinstance(field, str):
        return _open(columns[field].build(), feed.name, **keywords)
    return _merge([_open(columns[x].build(), feed.name, name=x, **keywords) for x in names])


def _list_fields(field: str | Sequence[str]) -> list[str]:
    """Return the names of fields."""
    names = [field] if isinstance(field, str) else list(field)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"field={field!r}, expected a name or a list of different names")
    return names


def _merge(parts: Sequence[Dataset]) -> Dataset:
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


def _read_lines(source: Any, options: Mapping[str, Any]) -> Iterator[tuple[str, int, Any]]:
    """Yield the name of the feed, and the number and the content of each line."""
    start = source.lstrip(_MARGIN + "[")[:2] if isinstance(source, str) else ""
    if isinstance(source, bytes) or start in ('{"', "{ ", "{\n"):
        raise ValueError("source= is the text of a feed; pass text.splitlines(), or a path")
    items = iter([source] if isinstance(source, str | os.PathLike | Mapping) else source)
    first = list(islice(items, 1))
    items = chain(first, items)
    if not any(_is_path(item, source) for item in first):
        yield from ((_FEED, number, line) for number, line in enumerate(items, 1))
        return
    for path in map(str, items):
        for opened in _find_files(path, options):
            name = redact(opened.full_name.removeprefix("file://") if has_magic(path) else path)
            number = 0
            try:
                with opened as file, BufferedReader(file, _BUFFER_BYTES) as lines:
                    for number, line in enumerate(lines, 1):
                        yield name, number, line
            except (EOFError, BadGzipFile, zlib.error) as error:
                reason = f"the compressed data are damaged after line {number} ({error})"
                if isinstance(error, BadGzipFile) and opened.fs.head(opened.path, 2) != _GZIP:
                    raise ValueError(f"{name}: it is not compressed by gzip; omit .gz") from error
                raise ValueError(f"{name}: {reason}; fetch the file again") from error


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
    return [OpenFile(fs, name, compression=_infer_compression(name)) for name in names]


def _infer_compression(name: str) -> str | None:
    """Return the compression that a suffix means. Raise ValueError if it is unsupported."""
    compression: str | None = infer_compression(name)
    if not compression and name.lower().endswith((".zst", ".lz4", ".xz", ".lzma", ".z", ".br")):
        hint = "install zstandard for .zst or lz4 for .lz4, or use .gz"
        raise ValueError(f"{redact(name)}: no codec for {Path(name).suffix!r} is installed; {hint}")
    return compression


def _is_path(item: Any, source: Any) -> bool:
    """Return whether the first item of a source is the path of a feed, and not a line."""
    if not isinstance(item, str) or item is source:
        return isinstance(item, str | os.PathLike)
    return isinstance(source, list | tuple) and item.strip(_MARGIN)[:1] not in ("", "[", "]", "{")


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


@dataclass
class _Column:
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

    def build(self) -> bytes:
        """Return the tensor of all documents."""
        assert self.header is not None
        return b"".join((replace(self.header, blocks=self.blocks).pack(), *self.parts))


@dataclass
class _Feed:
    """The documents of feeds, with their fields."""

    name: str
    prefix: str
    columns: Mapping[str, _Column]
    ids: set[str] = dataclass_field(default_factory=set)
    left_out: dict[str, list[str]] = dataclass_field(default_factory=dict)
    other_fields: set[str] = dataclass_field(default_factory=set)

    def read(self, lines: Iterable[tuple[str, int, Any]]) -> None:
        """Add the documents in all lines. Raise ValueError if no document has the fields."""
        for name, number, line in lines:
            try:
                for document in _parse_line(line):
                    if document != {} and (kind := self.add(document)):
                        self.left_out.setdefault(kind, []).append(f"line {number} of {name}")
            except ValueError as error:
                raise ValueError(f"{name}: line {number}: {error}") from error
        if not self.ids:
            fields = " and ".join(map(repr, self.columns))
            reason = f"no line is a document with a tensor in the field {fields}"
            missing = [field for field in self.columns if field not in self.other_fields]
            reason += "".join(did_you_mean(field, self.other_fields) for field in missing)
            raise ValueError(f"{self.name}: {reason}")
        for kind, places in self.left_out.items():
            message = f"{self.name}: documents {kind} are left out: {len(places)}, the first in "
            warnings.warn(message + places[0], TensorFormatWarning, stacklevel=find_stack_level())

    def add(self, document: Any) -> str:
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
        id_ = document.get("put") or document.get("update") or document.get("id")
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


def from_hex(data: str, **keywords: Any) -> Dataset:
    """Open a tensor from hexadecimal digits, as Vespa's tools print its binary form.

    Parameters
    ----------
    data : str
        Two digits per byte, with or without ``0x`` at the start. White space is ignored.
    **keywords
        As for `from_json`.

    Returns
    -------
    Dataset
        The same as from a file with these bytes.

    Raises
    ------
    ValueError
        `data` has other characters, or the bytes are not a typed binary tensor.

    Examples
    --------
    >>> from xr_tensorfmt import vespa
    >>> ds = vespa.from_hex("0x0601010178023F80000040000000")
    >>> ds.tensor.values
    array([1., 2.], dtype=float32)
    """
    if not isinstance(data, str):
        raise TypeError(f"data={data!r} is not a str of hexadecimal digits such as '0x0200...'")
    stripped = data.strip()
    try:
        content = bytes.fromhex(stripped.removeprefix("0x").removeprefix("0X"))
    except ValueError as error:
        raise ValueError(
            f"data={stripped[:40]!r} is not a string of hexadecimal digits, two per byte ({error})"
        ) from error
    return _open(content, "<hexadecimal digits>", **keywords)


def _open(content: bytes, source_name: str, **keywords: Any) -> Dataset:
    source: Any = Memory(content, name=source_name)
    return open_dataset(source, engine="tensorfmt", format="vespa", **keywords)


def to_json(
    data: Dataset | DataArray,
    form: Form = "short",
    *,
    encoding: Mapping[Any, Any] | None = None,
    drop: Collection[DroppablePart] = (),
) -> dict[str, Any]:
    """Convert a tensor to the JSON that Vespa returns and accepts in documents.

    Parameters
    ----------
    data : Dataset or DataArray
        The data, as for a ``.tbf`` file. The name of the variable is not stored.
    form : {"short", "long", "hex"}
        ``"short"`` has nested lists of values, ``"long"`` has a list of cells with addresses, and
        ``"hex"`` has hexadecimal digits for dense values, which are lossless and fast to parse.
        Constants of an application need ``"short"`` or ``"long"``.
    encoding : mapping, optional
        ``{name: {"dtype": ...}}``, as in `to_file`.
    drop : list of {"coords", "attrs"}
        Parts to omit. Otherwise they raise an error.

    Returns
    -------
    dict
        The ``"type"`` and ``"values"``, ``"cells"`` or ``"blocks"``, for `json.dumps` or pyvespa.
        NaN is None, and infinities are strings.

    Raises
    ------
    ValueError
        Vespa does not support the data. The message names an alternative.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from xr_tensorfmt import vespa
    >>> values = np.float32([1, 2])
    >>> vector = xr.DataArray(values, dims="x")
    >>> vespa.to_json(vector)
    {'type': 'tensor<float>(x[2])', 'values': [1.0, 2.0]}
    >>> vespa.to_json(vector, "hex")
    {'type': 'tensor<float>(x[2])', 'values': '3F80000040000000'}
    """
    tensor = arrange_tensor(check_input(data, "the JSON", "Vespa", encoding, drop))
    cells = tensor.encode(tensor.variable.values)
    cells = cells.reshape(len(tensor.rows), *tensor.header.lengths)
    (text,) = format_tensors(tensor.header, [tensor.rows], cells, form)
    return dict(json.loads(text))


def to_jsonl(
    data: Dataset | DataArray,
    path: str | os.PathLike[str],
    *,
    field: str | Sequence[str],
    dim: str = "document",
    prefix: str = "",
    form: Form = "hex",
    encoding: Mapping[Any, Any] | None = None,
    drop: Collection[DroppablePart] = (),
    operation: Operation = "put",
    mode: Mode = "w",
    storage_options: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> None:
    """Write a feed with one document per label of a dimension.

    About a thousand documents are in memory at a time, so `data` may be larger than memory.

    Parameters
    ----------
    data : Dataset or DataArray
        The data, as for a ``.tbf`` file.
    path : str or PathLike
        The path or URL of the feed, compressed if its suffix says so. It is replaced when all are
        written.
    field : str or list of str
        The field with the tensor, or the names of the variables that become fields.
    dim : str
        The dimension with the ids of documents as labels. The tensors have the other dimensions.
    prefix : str
        Start of all ids, to which the labels are appended, such as ``"id:shop:user::"``.
    form, encoding, drop
        As for `to_json`.
    operation : {"put", "update"}
        Whether Vespa replaces documents, or only assigns the field of existing ones.
    mode, storage_options
        As for `to_file`.
    progress : bool
        Whether to show a progress bar.

    Raises
    ------
    ValueError
        Vespa does not support the data, or `dim` has no labels, or labels that begin with `prefix`.
    OSError
        The file cannot be written. An existing file is unchanged.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from xr_tensorfmt import vespa
    >>> values = np.float32([[1, 0], [0, 2]])
    >>> users = xr.DataArray(values, {"user": ["ann", "bob"]}, dims=("user", "x"))
    >>> vespa.to_jsonl(users, "feed.jsonl", field="vector", dim="user", prefix="id:users::")
    >>> ds = vespa.from_jsonl("feed.jsonl", field="vector", dim="user")
    >>> ds.user.values.tolist()
    ['id:users::ann', 'id:users::bob']
    """
    if operation not in get_args(Operation):
        raise ValueError(f"operation={operation!r} is neither 'put' nor 'update'")
    location = locate_target(path, storage_options, None)
    compression = _infer_compression(location.name)
    checked = check_input(data, location.name, "Vespa", encoding, drop)
    tensors = _arrange_fields(checked, field, dim)
    for name, tensor in tensors.items():
        if dim not in (mapped := tensor.header.mapped):
            dims = mapped or tensor.variable.dims
            hint = did_you_mean(dim, {*dims} - {dim})
            raise ValueError(
                f"dim={dim!r}{hint} has no labels, expected one of {[*dims]} of {name!r}, whose "
                "labels become the ids of documents; set them by assign_coords(dim=...)"
            )
    file = build_target(location, 0, overwrite=is_overwriting(mode)).begin()
    try:
        with fsspec.open(file.path, "wb", compression=compression) as lines:
            lines.writelines(_format_feed(tensors, dim, prefix, form, operation, progress))
        file.complete(())
        file.publish()
    except BaseException:
        file.discard()
        raise


def _arrange_fields(
    checked: CheckedInput, field: str | Sequence[str], dim: str
) -> dict[str, Arranged]:
    """Return the tensors of one field, or of the variables whose names are listed."""
    names = _list_fields(field)
    labels = checked.coordinates.get(dim)
    if labels is not None and labels.dtype.kind not in "UTO" and "coords" not in checked.drop:
        raise ValueError(
            f"{checked.path}: the labels of dim={dim!r} are {labels.dtype}, expected str; convert "
            f"them by ds.assign_coords({dim}=ds.{dim}.astype(str))"
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


def _format_feed(
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
    start, end = ('{"assign": ', "}") if operation == "update" else ("", "")
    documents = iter(groups.items())
    with tqdm(total=len(groups), unit=" documents", disable=not progress) as bar:
        while batch := list(islice(documents, BATCH_DOCUMENTS)):
            blocks = np.array([number for _, numbers in batch for number in numbers])
            # Selecting a range of a dask array is faster.
            is_range = (np.diff(blocks) == 1).all()
            key = slice(int(blocks[0]), int(blocks[-1]) + 1) if is_range else blocks
            columns = []
            for name, tensor in tensors.items():
                header = replace(tensor.header, mapped=mapped[:position] + mapped[position + 1 :])
                cells = tensor.encode(tensor.variable[key].values)
                labels = ([rows[number] for number in numbers] for _, numbers in batch)
                values = format_tensors(header, labels, cells, form)
                opening = f"{format_json(name)}: {start}"
                columns.append([f"{opening}{value}{end}" for value in values])
            ids = (format_json(prefix + label) for label, _ in batch)
            lines = zip(ids, map(", ".join, zip(*columns, strict=True)), strict=True)
            text = "".join(f'{{"{operation}": {i}, "fields": {{{own}}}}}\n' for i, own in lines)
            yield text.encode("ascii")
            bar.update(len(batch))
