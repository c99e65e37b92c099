"""Tensors of Vespa in JSON, in feeds and in hexadecimal digits."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from tqdm import tqdm
from xarray import DataArray, Dataset, open_dataset

from xr_tensorfmt.formats.vespa.feed import BATCH_DOCUMENTS, FeedReader, check_dim, format_document
from xr_tensorfmt.formats.vespa.json_input import (
    load_json,
    pack_blocks,
    parse_tensor,
    select_field,
)
from xr_tensorfmt.formats.vespa.json_output import Form, build_json
from xr_tensorfmt.formats.vespa.spec import VespaHeader
from xr_tensorfmt.formats.vespa.write import Arranged, arrange_tensor
from xr_tensorfmt.sources.memory import Memory
from xr_tensorfmt.writing.atomic_file import build_atomic_file
from xr_tensorfmt.writing.checked_input import DroppablePart, check_input
from xr_tensorfmt.writing.encoding import Encoding

__all__ = ["from_hex", "from_json", "from_jsonl", "to_json", "to_jsonl"]


def from_json(
    data: Any, type: str | None = None, *, field: str | None = None, **keywords: Any
) -> Dataset:
    """Open a tensor from JSON, in any form that Vespa returns or accepts.

    Parameters
    ----------
    data : dict, list, str, bytes or PathLike
        The value of a tensor field as pyvespa and `json.loads` return it, JSON text, or the path
        of a file with JSON text: cells, values or blocks, also as hexadecimal digits, with or
        without an object around them. Or a document with ``fields``, such as a hit of a query or a
        line of a feed. A path is a `pathlib.Path`, because a str is text.
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
        The same as from a file with this tensor.

    Raises
    ------
    ValueError
        `data` is not a tensor, has another type, or is a document without the field.

    Examples
    --------
    >>> from xr_tensorfmt import vespa
    >>> field = {
    ...     "type": "tensor<float>(user{},x[2])",
    ...     "blocks": {
    ...         "ada": [1, 2],
    ...         "bob": [3, 4],
    ...     },
    ... }
    >>> ds = vespa.from_json(field)
    >>> ds.tensor.sel(user="bob").values
    array([3., 4.], dtype=float32)
    >>> ds = vespa.from_json(
    ...     "FF00118022FE", "tensor<int8>(x[6])"
    ... )
    >>> ds.tensor.values
    array([  -1,    0,   17, -128,   34,   -2], dtype=int8)
    >>> document = {
    ...     "put": "id:shop:team::1",
    ...     "fields": {"members": field},
    ... }
    >>> ds = vespa.from_json(document, field="members")
    >>> ds.tensor.shape
    (2, 2)
    """
    name = "<Vespa JSON>"
    if isinstance(data, os.PathLike):
        name = os.fspath(data)
        with open(data, "rb") as file:
            data = file.read()
    try:
        header, blocks = parse_tensor(select_field(load_json(data), field), type)
        content = replace(header, blocks=len(blocks)).pack()
        content += pack_blocks(header, blocks, blocks.values())
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
    """Open the tensors of a feed of documents as one Dataset, labelled with their ids.

    Lines are parsed one by one. Only cells and labels are kept in memory, as in a file.

    Parameters
    ----------
    source : str, PathLike, file object or iterable
        The path of a feed with one document per line, its lines, or documents as dicts.
    type : str, optional
        The type of the field, such as ``"tensor<float>(x[3])"``. It is required if the first
        document does not state the type.
    field : str
        The field with the tensor. Documents without the field are left out.
    dim : str
        Name of the dimension of documents, a mapped dimension in addition to those of `type`.
    prefix : str
        Start of all ids, which the labels leave out, such as ``"id:shop:user::"``.
    progress : bool
        Whether to show a progress bar.
    **keywords
        Keywords of `xarray.open_dataset` and of this engine.

    Returns
    -------
    Dataset
        The same as from a file with the tensors of all documents.

    Raises
    ------
    ValueError
        A document has a tensor of another type, or no document has the field. The message names
        the line.
    OSError
        The file cannot be read.

    Examples
    --------
    >>> from xr_tensorfmt import vespa
    >>> lines = [
    ...     '{"put": "id:shop:user::ann", "fields": {"vector": [1, 0]}}',
    ...     '{"put": "id:shop:user::bob", "fields": {"vector": [0, 2]}}',
    ... ]
    >>> ds = vespa.from_jsonl(
    ...     lines,
    ...     "tensor<float>(x[2])",
    ...     field="vector",
    ...     dim="user",
    ...     prefix="id:shop:user::",
    ... )
    >>> ds.tensor.sel(user="bob").values
    array([0., 2.], dtype=float32)
    """
    with ExitStack() as stack:
        is_path = isinstance(source, str | os.PathLike)
        lines = stack.enter_context(open(source, "rb")) if is_path else source
        name = os.fspath(source) if is_path else "<Vespa feed>"
        reader = FeedReader(name, field, type, dim, prefix)
        content = reader.read(tqdm(lines, unit=" lines", disable=not progress))
    return _open(content, name, **keywords)


def from_hex(data: str, **keywords: Any) -> Dataset:
    """Open a tensor from hexadecimal digits, as Vespa's tools print its binary form.

    Parameters
    ----------
    data : str
        Two digits per byte, with or without ``0x`` at the start. White space is ignored.
    **keywords
        Keywords of `xarray.open_dataset` and of this engine.

    Returns
    -------
    Dataset
        The same as from a file with these bytes.

    Raises
    ------
    ValueError
        `data` has other characters, or the bytes are not a typed binary tensor.
    TypeError
        `data` is not a string.

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
        content = bytes.fromhex(stripped[2:] if stripped[:2] in ("0x", "0X") else stripped)
    except ValueError as error:
        raise ValueError(
            f"data={stripped[:40]!r} is not a string of hexadecimal digits, two per byte ({error})"
        ) from error
    return _open(content, "<hexadecimal digits>", **keywords)


def _open(content: bytes | bytearray, source_name: str, **keywords: Any) -> Dataset:
    source: Any = Memory(content, name=source_name)
    return open_dataset(source, engine="tensorfmt", format="vespa", **keywords)


def to_json(
    data: Dataset | DataArray,
    form: Form = "short",
    *,
    encoding: Encoding | None = None,
    drop: Collection[DroppablePart] = (),
) -> dict[str, Any]:
    """Convert a tensor to the JSON that Vespa returns and accepts in documents.

    Parameters
    ----------
    data : Dataset or DataArray
        The data, as for a ``.tbf`` file. The name of the variable is not stored.
    form : {"short", "long", "hex"}
        ``"short"`` has nested lists of values, ``"long"`` has a list of cells with addresses, and
        ``"hex"`` is the short form with hexadecimal digits for dense values, which are lossless
        and fast to parse. Constants of an application need ``"short"`` or ``"long"``.
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
    return build_json(tensor.header, tensor.rows, cells, form)


def to_jsonl(
    data: Dataset | DataArray,
    path: str | os.PathLike[str],
    *,
    field: str,
    dim: str = "document",
    prefix: str = "",
    form: Form = "hex",
    encoding: Encoding | None = None,
    drop: Collection[DroppablePart] = (),
    overwrite: bool = True,
    progress: bool = False,
) -> None:
    """Write a feed with one document per label of a dimension.

    About a thousand documents are in memory at a time, so `data` may be larger than memory.

    Parameters
    ----------
    data : Dataset or DataArray
        The data, as for a ``.tbf`` file.
    path : str or PathLike
        The feed. It is replaced when all documents are written.
    field : str
        The field with the tensor.
    dim : str
        The dimension with the ids of documents as labels. The tensors have the other dimensions.
    prefix : str
        Start of all ids, to which the labels are appended, such as ``"id:shop:user::"``.
    form : {"hex", "short", "long"}
        The form of the tensors, as in `to_json`.
    encoding : mapping, optional
        ``{name: {"dtype": ...}}``, as in `to_file`.
    drop : list of {"coords", "attrs"}
        Parts to omit. Otherwise they raise an error.
    overwrite : bool
        Whether to replace an existing file.
    progress : bool
        Whether to show a progress bar.

    Raises
    ------
    ValueError
        Vespa does not support the data, or `dim` has no labels.
    OSError
        The file cannot be written. An existing file is unchanged.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from xr_tensorfmt import vespa
    >>> users = xr.DataArray(
    ...     np.float32([[1, 0], [0, 2]]),
    ...     {"user": ["ann", "bob"]},
    ...     dims=("user", "x"),
    ... )
    >>> vespa.to_jsonl(
    ...     users,
    ...     "feed.jsonl",
    ...     field="vector",
    ...     dim="user",
    ...     prefix="id:shop:user::",
    ... )
    >>> ds = vespa.from_jsonl(
    ...     "feed.jsonl", field="vector", dim="user"
    ... )
    >>> ds.user.values.tolist()
    ['id:shop:user::ann', 'id:shop:user::bob']
    """
    tensor = _arrange(data, os.fspath(path), form, encoding, drop)
    check_dim(tensor.header, dim)
    file = build_atomic_file(os.path.abspath(path), 0, overwrite=overwrite).begin()
    try:
        with open(file.path, "w", encoding="ascii") as lines:
            lines.writelines(_format_feed(tensor, dim, field, prefix, form, progress))
        file.complete(())
        file.publish()
    except BaseException:
        file.discard()
        raise


def _arrange(
    data: Dataset | DataArray,
    path: str,
    form: Form,
    encoding: Encoding | None,
    drop: Collection[DroppablePart],
) -> Arranged:
    if form not in get_args(Form):
        raise ValueError(f"form={form!r} is not one of {', '.join(map(repr, get_args(Form)))}")
    return arrange_tensor(check_input(data, path, "Vespa", encoding, drop))


def _format_feed(
    tensor: Arranged, dim: str, field: str, prefix: str, form: Form, progress: bool
) -> Iterator[str]:
    """Yield the lines of a feed."""
    header, position = tensor.header, tensor.header.mapped.index(dim)
    groups: dict[str, list[int]] = {}
    for block, labels in enumerate(tensor.rows):
        groups.setdefault(labels[position], []).append(block)
    mapped = header.mapped[:position] + header.mapped[position + 1 :]
    own = VespaHeader.create(header.cell_type, mapped, header.indexed, header.lengths, 0)
    documents = list(groups.items())
    with tqdm(total=len(documents), unit=" documents", disable=not progress) as bar:
        for first in range(0, len(documents), BATCH_DOCUMENTS):
            batch = documents[first : first + BATCH_DOCUMENTS]
            blocks = np.concatenate([numbers for _, numbers in batch])
            is_range = blocks[-1] - blocks[0] + 1 == blocks.size and (np.diff(blocks) == 1).all()
            key = slice(int(blocks[0]), int(blocks[-1]) + 1) if is_range else blocks
            cells, start = tensor.encode(tensor.variable[key].values), 0
            for label, numbers in batch:
                rows = [tensor.rows[n][:position] + tensor.rows[n][position + 1 :] for n in numbers]
                stop = start + len(rows)
                yield format_document(own, prefix + label, field, rows, cells[start:stop], form)
                start = stop
            bar.update(len(batch))
