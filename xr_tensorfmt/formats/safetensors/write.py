"""Writing of safetensors, in the order of data of the package itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dask.delayed import Delayed
from xarray import DataArray, Dataset

from xr_tensorfmt.core.embedded_metadata import KEY as EMBEDDED_KEY
from xr_tensorfmt.core.embedded_metadata import EmbeddedMetadata
from xr_tensorfmt.core.keyed import StoredTensor
from xr_tensorfmt.formats.safetensors import INDEX, SafetensorsFormat
from xr_tensorfmt.formats.safetensors.spec import (
    ELEMENTS,
    LENGTH_BYTES,
    METADATA,
    MOST_HEADER_BYTES,
    pack_header,
)
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.checked_input import CheckedInput, Encoding, Part
from xr_tensorfmt.writing.embedded_metadata import attributes, encoded, labels
from xr_tensorfmt.writing.file_plan import FilePlan
from xr_tensorfmt.writing.keyed import (
    Coordinates,
    Entry,
    check_attribute_names,
    described_entries,
    divided_coordinates,
)
from xr_tensorfmt.writing.to_file import Mode, write

_ELEMENTS = {element.name: element for element in ELEMENTS.values()}


def plan(checked: CheckedInput) -> FilePlan:
    """Plan a file."""
    if checked.path.casefold().endswith(INDEX):
        raise ValueError(
            f"{checked.path}: one file is written, and not the index of several; give a name that "
            "ends with .safetensors"
        )
    stored, embedded = divided_coordinates(checked, _ELEMENTS, empty=True)
    entries = [_entry(checked, *item) for item in {**checked.variables, **stored}.items()]
    tensors = _consecutive(entries)
    header = pack_header(tensors, _metadata(checked, entries, list(stored), embedded))
    if len(header) - LENGTH_BYTES > MOST_HEADER_BYTES:
        raise ValueError(
            f"{checked.path}: attributes and names take {len(header)} bytes, and safetensors "
            f"allows {MOST_HEADER_BYTES}; shorten them"
        )
    pairs = sorted(zip(tensors, entries, strict=True), key=lambda pair: pair[0].offset)
    placed = tuple(each.placed(len(header) + tensor.offset) for tensor, each in pairs)
    size = len(header) + sum(each.nbytes for each in tensors)
    return FilePlan(size, (Piece(0, header),), placed)


def _entry(checked: CheckedInput, key: str, variable: Any) -> Entry:
    if key == METADATA:
        raise ValueError(
            f"{checked.path}: {key!r} is the name of the metadata of safetensors; rename it"
        )
    checked.check_rank(key, variable)
    return Entry(key, variable, checked.conversion(key, variable, _ELEMENTS))


def _consecutive(entries: Sequence[Entry]) -> list[StoredTensor]:
    """The tensors in the order of the Dataset; the widest elements are first in the file.

    So all data are aligned, as the header is padded to the widest element.
    """
    tensors = {each.key: each.stored(0) for each in entries}
    position = 0
    for each in sorted(
        tensors.values(), key=lambda each: (-each.element.stored.itemsize, each.key)
    ):
        tensors[each.key] = replace(each, offset=position)
        position += each.nbytes
    return list(tensors.values())


def _metadata(
    checked: CheckedInput, entries: Sequence[Entry], stored: Sequence[str], others: Coordinates
) -> dict[str, str]:
    """Attributes that are strings, and what is embedded."""
    attrs = attributes(checked, checked.attrs, "the Dataset")
    check_attribute_names(checked, attrs)
    metadata = {name: value for name, value in attrs.items() if isinstance(value, str)}
    embedded = EmbeddedMetadata(
        tensors=described_entries(checked, entries),
        stored_coordinates=tuple(stored),
        coordinates=labels(checked, others),
        attrs={name: each for name, each in attrs.items() if name not in metadata} or None,
    )
    if not embedded.is_empty:
        metadata[EMBEDDED_KEY] = encoded(checked, embedded).decode()
    return metadata


def to_safetensors(
    data: Dataset | DataArray,
    path: Any,
    *,
    mode: Mode = "w",
    compute: bool = True,
    region: Mapping[Any, slice] | None = None,
    encoding: Encoding | None = None,
    drop: Collection[Part] = (),
    storage_options: Mapping[str, Any] | None = None,
    fs: Any = None,
) -> Delayed | None:
    """Write a safetensors file: every variable a tensor under its name.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write. Attributes of the Dataset that are strings become ``__metadata__``.
    path : str or PathLike
        The file, or its URL.
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something; the message says what, and what would work.
    OSError
        The system refuses; what was there before is unchanged.

    See Also
    --------
    xr_tensorfmt.to_file : All keywords that formats share.
    xr_tensorfmt.to_mag : A format with attributes of any kind.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> ds = xr.Dataset({"layers.0.weight": (("out", "in"), np.ones((2, 3), "float32"))})
    >>> to_safetensors(
    ...     ds, "model.safetensors", encoding={"layers.0.weight": {"dtype": "bfloat16"}}
    ... )
    """
    return write(
        data,
        path,
        SafetensorsFormat(),
        {},
        mode=mode,
        compute=compute,
        region=region,
        encoding=encoding,
        drop=drop,
        storage_options=storage_options,
        fs=fs,
    )
