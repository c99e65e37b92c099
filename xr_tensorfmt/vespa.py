"""Tensors of Vespa in JSON, in feeds and in hexadecimal digits."""

from __future__ import annotations

import json
import os
import warnings
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from gzip import BadGzipFile
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import fsspec
import numpy as np
from fsspec.utils import infer_compression
from tqdm import tqdm
from xarray import DataArray, Dataset, open_dataset

from xr_tensorfmt.errors import TensorFormatWarning, did_you_mean, find_stack_level, redact
from xr_tensorfmt.formats.vespa.json_forms import (
    Form,
    format_json,
    format_tensors,
    format_type,
    load_json,
    parse_tensor,
    parse_type,
    select_field,
)
from xr_tensorfmt.formats.vespa.spec import VespaHeader, pack_string
from xr_tensorfmt.formats.vespa.write import Arranged, arrange_tensor
from xr_tensorfmt.sources.memory import Memory
from xr_tensorfmt.writing.atomic_file import build_atomic_file
from xr_tensorfmt.writing.checked_input import DroppablePart, check_input
from xr_tensorfmt.writing.save import Mode, is_overwriting, locate_target

__all__ = ["from_hex", "from_json", "from_jsonl", "to_json", "to_jsonl"]

Operation = Literal["put", "update"]

BATCH_DOCUMENTS = 1024
"""Number of documents of a feed that are converted at a time."""

_BUFFER_BYTES = 1 << 20

# `vespa visit --make-feed` prints a list, whose last lines are an empty object and a bracket.
_NO_DOCUMENT = ("", "[", "]", "{}")


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
        try:
            document = load_json(data)
        except ValueError as error:
            hint = "pass the text of one document, not several lines or a path"
            raise ValueError(f"{error}; {hint}") from None
        header, blocks = parse_tensor(select_field(document, field), type)
        parts = (part for row, cells in blocks.items() for part in (*map(pack_string, row), cells))
        content = replace(header, blocks=len(blocks)).pack() + b"".join(parts)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return _open(content, name, **keywords)


def from_jsonl(
    source: Any,
    type: str | None = None,
    *,
    field: str,
    dim: str = "document",
    prefix: str = "",
    progress: bool = False,
    **keywords: Any,
) -> Dataset:
    """Open the tensors in a feed as one Dataset, with the document ids as labels.

    Parameters
    ----------
    source : str, PathLike, file object or iterable
        The path or URL of a feed with one document per line, which may be compressed (``.gz``); or
        the lines, or dicts.
    type : str, optional
        As for `from_json`. The default is the type that the first document states.
    field : str
        The field with the tensor. Documents without one are left out, with a warning.
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
        The same as from a file with the tensors of all documents.

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
    if not isinstance(field, str):
        raise TypeError(f"field={field!r} is not the name of a field; pass one field per call")
    if type is not None:
        parse_type(type)
    name, opened = "<Vespa feed>", nullcontext(source)
    if isinstance(source, str | os.PathLike):
        name, options = redact(os.fspath(source)), keywords.pop("storage_options", None) or {}
        opened = fsspec.open(os.fspath(source), compression="infer", **options)
    feed = _Feed(name, type, field, dim, prefix, set(), set(), [])
    with opened as file:
        lines = file if file is source else BufferedReader(file, _BUFFER_BYTES)
        content = feed.read(tqdm(lines, unit=" lines", disable=not progress))
    return _open(content, name, **keywords)


@dataclass
class _Feed:
    """One tensor of the tensors of all documents. Their ids are labels of a dimension."""

    name: str
    type: str | None
    field: str
    dim: str
    prefix: str
    ids: set[str]
    other_fields: set[str]
    parts: list[bytes]
    header: VespaHeader | None = None
    blocks: int = 0

    def read(self, lines: Iterable[Any]) -> bytes:
        """Return the tensor of all documents."""
        number, left_out = 0, []
        try:
            for number, line in enumerate(lines, 1):
                document = line.decode() if isinstance(line, bytes) else line
                if isinstance(document, str):
                    document = document.strip().removeprefix("\ufeff")
                    document = document[1:] if document.startswith("[{") else document
                if document not in _NO_DOCUMENT and not self.add(load_json(document)):
                    left_out.append(number)
        except ValueError as error:
            raise ValueError(f"{self.name}: line {number}: {error}") from error
        except (EOFError, BadGzipFile, zlib.error) as error:
            reason = f"the compressed data are damaged after line {number} ({error})"
            raise ValueError(f"{self.name}: {reason}; fetch the file again") from error
        if self.header is None:
            reason = f"no line is a document with a tensor in the field {self.field!r}"
            if self.field not in self.other_fields:
                reason += did_you_mean(self.field, self.other_fields)
            raise ValueError(f"{self.name}: {reason}")
        if left_out:
            message = (
                f"{self.name}: documents without a tensor in the field {self.field!r} are left "
                f"out: {len(left_out)}, the first in line {left_out[0]}"
            )
            warnings.warn(message, TensorFormatWarning, stacklevel=find_stack_level())
        return b"".join((replace(self.header, blocks=self.blocks).pack(), *self.parts))

    def add(self, document: Any) -> bool:
        """Append the blocks of a document. Return whether it has a tensor."""
        if not isinstance(document, dict) or "remove" in document:
            actual = "removes a document" if isinstance(document, dict) else "is not a JSON object"
            raise ValueError(f"it {actual}, expected a put, an update or a document; omit the line")
        fields = document.get("fields")
        is_present = isinstance(fields, dict) and fields.get(self.field) is not None
        tensor = select_field(document, self.field) if is_present else None
        if tensor is None:
            self.other_fields.update(fields if isinstance(fields, dict) else document)
            return False
        id_ = document.get("put") or document.get("update") or document.get("id")
        if not isinstance(id_, str) or not id_.startswith(self.prefix):
            raise ValueError(f"the id of the document is {id_!r}, expected '{self.prefix}...'")
        label = id_.removeprefix(self.prefix)
        if label in self.ids:
            message = f"{label!r} occurs again, expected one line per document; omit the others"
            raise ValueError(message)
        self.ids.add(label)
        try:
            header, blocks = parse_tensor(tensor, self.type)
            if self.header is None:
                self.header, self.type = self._add_dimension(header), format_type(header)
            position = self.header.mapped.index(self.dim)
            for labels, cells in blocks.items():
                row = (*labels[:position], label, *labels[position:])
                self.parts += (*map(pack_string, row), cells)
        except ValueError as error:
            raise ValueError(f"document {id_!r}: {error}") from error
        self.blocks += len(blocks)
        return True

    def _add_dimension(self, header: VespaHeader) -> VespaHeader:
        """Return the header of a document with the dimension of ids."""
        if self.dim in header.mapped + header.indexed:
            raise ValueError(
                f"dim={self.dim!r} is a dimension of {format_type(header)}; choose another name"
            )
        mapped = tuple(sorted((*header.mapped, self.dim)))
        return VespaHeader.create(header.cell_type, mapped, header.indexed, header.lengths, 0)


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
    tensor = _arrange(data, "the JSON", form, encoding, drop)
    cells = tensor.encode(tensor.variable.values)
    cells = cells.reshape(len(tensor.rows), *tensor.header.lengths)
    (text,) = format_tensors(tensor.header, [tensor.rows], cells, form)
    return dict(json.loads(text))


def to_jsonl(
    data: Dataset | DataArray,
    path: str | os.PathLike[str],
    *,
    field: str,
    dim: str = "document",
    prefix: str = "",
    form: Form = "hex",
    encoding: Mapping[Any, Any] | None = None,
    drop: Collection[DroppablePart] = (),
    operation: Operation = "put",
    mode: Mode = "w",
    progress: bool = False,
) -> None:
    """Write a feed with one document per label of a dimension.

    About a thousand documents are in memory at a time, so `data` may be larger than memory.

    Parameters
    ----------
    data : Dataset or DataArray
        The data, as for a ``.tbf`` file.
    path : str or PathLike
        The feed, compressed if its suffix says so. It is replaced when all are written.
    field : str
        The field with the tensor.
    dim : str
        The dimension with the ids of documents as labels. The tensors have the other dimensions.
    prefix : str
        Start of all ids, to which the labels are appended, such as ``"id:shop:user::"``.
    form, encoding, drop
        As for `to_json`.
    operation : {"put", "update"}
        Whether Vespa replaces documents, or only assigns the field of existing ones.
    mode : {"w", "w-", "x"}
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
    tensor = _arrange(data, os.fspath(path), form, encoding, drop)
    mapped = tensor.header.mapped
    if dim not in mapped:
        raise ValueError(
            f"dim={dim!r}{did_you_mean(dim, mapped)} has no labels, expected one of "
            f"{list(mapped)}, whose labels become the ids of documents"
        )
    location = locate_target(path, None, None)
    if not location.is_local:
        message = "is not a local path; write the feed to a local file, and upload it with fsspec"
        raise ValueError(f"{location.name} {message}")
    file = build_atomic_file(location.path, 0, overwrite=is_overwriting(mode)).begin()
    try:
        with fsspec.open(file.path, "wb", compression=infer_compression(file.target)) as lines:
            lines.writelines(_format_feed(tensor, dim, field, prefix, form, operation, progress))
        file.complete(())
        file.publish()
    except BaseException:
        file.discard()
        raise


def _arrange(
    data: Dataset | DataArray,
    path: str,
    form: Form,
    encoding: Mapping[Any, Any] | None,
    drop: Collection[DroppablePart],
) -> Arranged:
    if form not in get_args(Form):
        raise ValueError(f"form={form!r} is not one of {', '.join(map(repr, get_args(Form)))}")
    return arrange_tensor(check_input(data, path, "Vespa", encoding, drop))


def _format_feed(
    tensor: Arranged,
    dim: str,
    field: str,
    prefix: str,
    form: Form,
    operation: Operation,
    progress: bool,
) -> Iterator[bytes]:
    """Yield the lines of a feed in batches."""
    position, mapped = tensor.header.mapped.index(dim), tensor.header.mapped
    header = replace(tensor.header, mapped=mapped[:position] + mapped[position + 1 :])
    groups: dict[str, list[int]] = {}
    for block, row in enumerate(tensor.rows):
        groups.setdefault(row[position], []).append(block)
    if prefix and (label := next((x for x in groups if x.startswith(prefix)), None)):
        raise ValueError(f"the label {label!r} already begins with prefix={prefix!r}; omit prefix=")
    documents, name = iter(groups.items()), format_json(field)
    is_put = operation == "put"
    start, end = (f"{{{name}: ", "}}") if is_put else (f'{{{name}: {{"assign": ', "}}}")
    with tqdm(total=len(groups), unit=" documents", disable=not progress) as bar:
        while batch := list(islice(documents, BATCH_DOCUMENTS)):
            blocks = np.array([number for _, numbers in batch for number in numbers])
            # Selecting a range of a dask array is faster.
            is_range = (np.diff(blocks) == 1).all()
            key = slice(int(blocks[0]), int(blocks[-1]) + 1) if is_range else blocks
            cells = tensor.encode(tensor.variable[key].values)
            labels = ([tensor.rows[number] for number in numbers] for _, numbers in batch)
            rows = ([row[:position] + row[position + 1 :] for row in group] for group in labels)
            values = format_tensors(header, rows, cells, form)
            ids = (format_json(prefix + label) for label, _ in batch)
            lines = zip(ids, values, strict=True)
            text = "".join(f'{{"{operation}": {i}, "fields": {start}{v}{end}\n' for i, v in lines)
            yield text.encode("ascii")
            bar.update(len(batch))
