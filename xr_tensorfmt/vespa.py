"""Tensors of Vespa in JSON, in feeds and in hexadecimal digits."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from io import BytesIO
from typing import Any, get_args

from fsspec import AbstractFileSystem
from fsspec.compression import compr
from xarray import DataArray, Dataset, open_dataset

from xr_tensorfmt.errors import build_choice_error, shorten
from xr_tensorfmt.formats.vespa.feeds import Documents, find_feeds, infer_codec, open_feeds
from xr_tensorfmt.formats.vespa.json_forms import Form, build_tensor, parse_json, parse_type
from xr_tensorfmt.formats.vespa.spec import pack_string
from xr_tensorfmt.formats.vespa.write import Operation, arrange_tensor, format_feed
from xr_tensorfmt.saving import Mode, build_target, is_overwriting, locate_target
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.sources.local import FileObject
from xr_tensorfmt.writing.checked_input import DroppablePart, check_input

__all__ = ["from_hex", "from_json", "from_jsonl", "to_json", "to_jsonl"]


def from_json(
    data: Any, type: str | None = None, *, field: str | None = None, **keywords: Any
) -> Dataset:
    """Open a tensor from JSON, in any form that Vespa returns or accepts.

    Parameters
    ----------
    data : dict, list, str, bytes or PathLike
        A tensor or a document, parsed or as text, or a `pathlib.Path` or URL of a JSON file.
    type : str, optional
        The type, such as ``"tensor<float>(user{},x[3])"``, if `data` does not state it.
    field : str, optional
        The field of a document, or of a mapping such as ``matchfeatures``.
    **keywords
        Keywords of `xarray.open_dataset` and of this engine.

    Returns
    -------
    Dataset
        The same as from a ``.tbf`` file. The values are the variable ``tensor``.

    Raises
    ------
    ValueError
        `data` is not a tensor, has another type, or is a document without the field.

    Examples
    --------
    >>> from xr_tensorfmt import vespa
    >>> field = {"type": "tensor<float>(user{},x[2])", "blocks": {"ada": [1, 2]}}
    >>> vespa.from_json(field).tensor.sel(user="ada").values
    array([1., 2.], dtype=float32)
    """
    if field is not None:
        _check_strings(field=field)
    name, options = "<Vespa JSON>", _take_options(keywords)
    if isinstance(data, os.PathLike) or is_url(data):
        name, data = next((path, b"".join(lines)) for path, lines in open_feeds([data], options))
    try:
        header, blocks = parse_json(data, field, type)
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
    **keywords: Any,
) -> Dataset:
    """Open the tensors in a feed as one Dataset, with the document ids as labels.

    Parameters
    ----------
    source : str, PathLike, file object or iterable
        Paths, URLs or patterns of feeds, maybe compressed; or lines, documents or responses.
    type : str, optional
        The type of the tensors, if the feed does not state it.
    field : str
        The field. Documents without a tensor are left out, with a warning.
    dim : str
        The name of the dimension of documents.
    prefix : str
        Start of all ids, such as ``"id:shop:user::"``, which the labels leave out.
    **keywords
        As for `from_json`.

    Returns
    -------
    Dataset
        The same as from a file with all tensors.

    Raises
    ------
    ValueError
        The feed is invalid or exceeds a limit, or no document has the field.

    Examples
    --------
    >>> from xr_tensorfmt import vespa
    >>> lines = ['{"put": "id:ann", "fields": {"vector": [1, 0]}}']
    >>> ds = vespa.from_jsonl(lines, "tensor(x[2])", field="vector", prefix="id:")
    >>> ds.tensor.sel(document="ann").values
    array([1., 0.])
    """
    _check_strings(field=field, dim=dim, prefix=prefix)
    if type:
        parse_type(type)
    source_name, feeds = find_feeds(source, _take_options(keywords))
    # Check the keywords before the feed is read, except those that depend on its dimensions.
    checked = {name: keywords[name] for name in keywords.keys() - {"chunks", "dims"}}
    _open(b"\1\1\1d\0", source_name, **checked)  # an empty tensor
    content = Documents(field, type, dim, prefix).read(source_name, feeds)
    return _open(content, source_name, **keywords)


def from_hex(data: str, **keywords: Any) -> Dataset:
    """Open a tensor from hexadecimal digits, as Vespa's tools print its binary form.

    Parameters
    ----------
    data : str
        Two digits per byte, with or without ``0x`` at the start.
    **keywords
        As for `from_json`.

    Returns
    -------
    Dataset
        The same as from a file with these bytes.

    Raises
    ------
    ValueError
        `data` is no tensor in hexadecimal digits.

    Examples
    --------
    >>> from xr_tensorfmt import vespa
    >>> vespa.from_hex("0x0601010178023F80000040000000").tensor.values
    array([1., 2.], dtype=float32)
    """
    if not isinstance(data, str):
        raise TypeError(f"data= must be a str of hexadecimal digits, not a {type(data).__name__}")
    try:
        content = bytes.fromhex(data.strip().removeprefix("0x").removeprefix("0X"))
    except ValueError as error:
        raise ValueError(
            f"data={shorten(repr(data))} is not a string of hexadecimal digits, two per byte"
        ) from error
    return _open(content, "<hexadecimal digits>", **keywords)


def _take_options(keywords: dict[str, Any]) -> dict[str, Any]:
    """Remove the keywords about the file of the JSON, and return them."""
    names = keywords.keys() & {"storage_options", "fs", "timeout", "verify_unchanged"}
    return {name: keywords.pop(name) for name in names}


def _open(content: bytes, source_name: str, **keywords: Any) -> Dataset:
    source: Any = FileObject(BytesIO(content), name=source_name)
    return open_dataset(source, engine="tensorfmt", format="vespa", **keywords)


def _check_strings(**keywords: object) -> None:
    for name, value in keywords.items():
        if not isinstance(value, str):
            raise TypeError(f"{name}={value!r} must be a str; pass one at a time")


def _check_choice(keyword: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        raise build_choice_error(keyword, value, get_args(choices))


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
        Lists of values, a list of cells with addresses, or hexadecimal digits of dense values.
    encoding, drop
        Dtypes, and parts to omit, as for `to_file`.

    Returns
    -------
    dict
        For `json.dumps` or pyvespa. NaN is None, and infinities are strings.

    Raises
    ------
    ValueError
        Vespa does not support the data. The message names an alternative.

    Examples
    --------
    >>> import xarray as xr
    >>> from xr_tensorfmt import vespa
    >>> vespa.to_json(xr.DataArray([1.0, 2.0], dims="x"))
    {'type': 'tensor(x[2])', 'values': [1.0, 2.0]}
    """
    _check_choice("form", form, Form)
    tensor = arrange_tensor(check_input(data, "the JSON", "Vespa", encoding, drop))
    cells = tensor.encode(tensor.variable.values).reshape(len(tensor.rows), *tensor.header.lengths)
    return build_tensor(tensor.header, tensor.rows, cells, form)


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
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> None:
    """Write a feed with one document per label of a dimension, in batches.

    Parameters
    ----------
    data : Dataset or DataArray
        The data, as for a ``.tbf`` file.
    path : str or PathLike
        The path or URL of the feed, compressed if its suffix says so.
    field : str
        The field with the tensor.
    dim : str
        The dimension with the ids of documents as labels.
    prefix : str
        Start of all ids, to which the labels are appended.
    form, encoding, drop, mode, storage_options, fs
        As for `to_json` and `to_file`.
    operation : {"put", "update"}
        Whether Vespa replaces documents, or only the field, with all its blocks, of existing ones.

    Raises
    ------
    ValueError
        Vespa does not support the data, or `dim` has no labels.
    OSError
        The file cannot be written. An existing file is unchanged.

    Examples
    --------
    >>> import xarray as xr
    >>> from xr_tensorfmt import vespa
    >>> users = xr.DataArray([[1.0, 0.0]], {"user": ["ann"]}, dims=("user", "x"))
    >>> vespa.to_jsonl(users, "feed.jsonl", field="x", dim="user", prefix="id:shop:user::")
    """
    _check_strings(field=field, dim=dim, prefix=prefix)
    _check_choice("form", form, Form)
    _check_choice("operation", operation, Operation)
    location = locate_target(path, storage_options, fs)
    codec = infer_codec(location.file_name)
    checked = check_input(data, location.name, "Vespa", encoding, drop)
    ids = checked.coordinates.get(dim)
    if ids is not None and ids.dtype.kind not in "UTO":
        hint = f"call assign_coords({dim}=data[{dim!r}].astype(str))"
        raise ValueError(f"{location.name}: the ids along {dim!r} are {ids.dtype}, not str; {hint}")
    tensor = arrange_tensor(checked)
    file = build_target(location, 0, overwrite=is_overwriting(mode))
    try:
        file.create()
        with open(file.path, "wb") as raw, compr[codec](raw, mode="w") as lines:
            lines.writelines(format_feed(tensor, field, dim, prefix, form, operation))
        file.complete(())
        file.publish()
    finally:
        file.discard()
