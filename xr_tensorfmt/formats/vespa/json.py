"""Open tensors from JSON and from hexadecimal digits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.contract import (
    Container,
    HeaderReader,
    InMemory,
    Memory,
    OpenOptions,
    parse_json,
    reject_repeated,
    shorten,
)
from xr_tensorfmt.formats.vespa.json_forms import HEX, ParsedTensor, parse_tensor, select_field
from xr_tensorfmt.formats.vespa.read import build_container

if TYPE_CHECKING:
    from xarray import Dataset

MAX_JSON_BYTES = 128 << 20
"""Limit on the bytes of a JSON file, which is read as a whole when it is opened."""


class TensorSource(Memory):
    """A parsed tensor in place of a file. It has no bytes."""

    def __init__(self, tensor: ParsedTensor, name: str) -> None:
        super().__init__(b"", name=name)
        self.tensor = tensor


def vespa_from_json(
    data: Any, type: str | None = None, *, field: str | None = None, **keywords: Any
) -> Dataset:
    """Open a tensor from JSON, in any form that Vespa returns or accepts.

    Parameters
    ----------
    data : dict, list, str or bytes
        The value of a tensor field as pyvespa and `json.loads` return it, or JSON text: cells,
        values or blocks, also as hexadecimal digits, with or without an object around them. Or a
        document with ``fields``, such as a hit of a query or a line of a feed.
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

    See Also
    --------
    vespa_to_json : Convert a Dataset to JSON.
    vespa_from_hex : Open the binary form of a tensor.

    Examples
    --------
    >>> import xr_tensorfmt
    >>> field = {
    ...     "type": "tensor<float>(user{},x[2])",
    ...     "blocks": {
    ...         "ada": [1, 2],
    ...         "bob": [3, 4],
    ...     },
    ... }
    >>> ds = xr_tensorfmt.vespa_from_json(field)
    >>> ds.tensor.sel(user="bob").values
    array([3., 4.], dtype=float32)
    >>> ds = xr_tensorfmt.vespa_from_json(
    ...     "FF00118022FE", "tensor<int8>(x[6])"
    ... )
    >>> ds.tensor.values
    array([  -1,    0,   17, -128,   34,   -2], dtype=int8)
    >>> document = {
    ...     "put": "id:shop:team::1",
    ...     "fields": {"members": field},
    ... }
    >>> ds = xr_tensorfmt.vespa_from_json(
    ...     document, field="members"
    ... )
    >>> ds.tensor.shape
    (2, 2)
    """
    name = "<Vespa JSON>"
    try:
        tensor = parse_tensor(select_field(_load_json(data), field), type)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return _open(TensorSource(tensor, name), "vespa-json", **keywords)


def vespa_from_hex(data: str, **keywords: Any) -> Dataset:
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

    See Also
    --------
    vespa_from_json : Open a tensor from JSON.

    Examples
    --------
    >>> import xr_tensorfmt
    >>> ds = xr_tensorfmt.vespa_from_hex(
    ...     "0x0601010178023F80000040000000"
    ... )
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
    return _open(Memory(content, name="<hexadecimal digits>"), "vespa", **keywords)


def _load_json(content: Any) -> Any:
    """Parse JSON text, and return other objects unchanged."""
    if not isinstance(content, str | bytes | bytearray):
        return content
    string = content if isinstance(content, str) else content.decode()
    if HEX.fullmatch(string) and isinstance(content, str):
        return {"values": string}  # a field with format.tensors=hex-value
    try:
        # A line of a feed may end with a comma.
        return json.loads(string.strip().removesuffix(","), object_pairs_hook=reject_repeated)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"{shorten(repr(string))} is not JSON: {error}; pass the text of one document, such as "
            "a single line of a feed, not several lines or a path"
        ) from None


def _open(source: Memory, format: str, **keywords: Any) -> Dataset:
    from xarray import open_dataset  # noqa: PLC0415

    return open_dataset(source, engine="tensorfmt", format=format, **keywords)  # type: ignore[arg-type]


def read_json(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read a JSON file that states the type of its tensor."""
    source = reader.source
    if not isinstance(source, TensorSource):
        source = TensorSource(_read_tensor(reader), source.name)
    header = source.tensor.header
    labels = tuple(map(InMemory, source.tensor.labels))
    cells = InMemory(source.tensor.cells if header.mapped else source.tensor.cells[0])
    header_info = {"format": "vespa-json"}
    container = build_container(header, source, options, cells, labels, header_info)
    # Virtual references to the file are refused, because this source has no bytes.
    return replace(
        container,
        tensors=tuple(replace(tensor, source=source) for tensor in container.tensors),
        coordinates=tuple(replace(tensor, source=source) for tensor in container.coordinates),
        derived=("values in JSON",),
    )


def _read_tensor(reader: HeaderReader) -> ParsedTensor:
    source, field = reader.source, "the JSON of a tensor"
    if source.size > MAX_JSON_BYTES:
        limit = f"at most {MAX_JSON_BYTES}"
        raise reader.error(field, f"{source.size} bytes", limit, "write it as .tbf", 0)
    try:
        text = source.read_bytes(0, source.size).decode()
        return parse_tensor(select_field(parse_json(text, reject_repeated), None), None)
    except ValueError as error:
        expected = "a tensor of Vespa with its type"
        hint = "correct the JSON, or open what it describes if it is not a tensor"
        raise reader.error(field, str(error), expected, hint, 0) from error
