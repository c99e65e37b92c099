"""Read typed binary tensors, and build the variable and its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import ElementError
from xr_tensorfmt.core.findings import End, Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.open_options import OpenOptions, name_dims
from xr_tensorfmt.core.reading import read as read_selected
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import InMemory, get_stored_layout
from xr_tensorfmt.errors import Hint, TensorFormatError
from xr_tensorfmt.formats.vespa.blocks import Blocks
from xr_tensorfmt.formats.vespa.labels import IndexLabels, Labels, decode_labels
from xr_tensorfmt.formats.vespa.outer_product import build_outer_product
from xr_tensorfmt.formats.vespa.scan import find_blocks
from xr_tensorfmt.formats.vespa.spec import BLOCK, STRING_DTYPE, TYPE, Strings, VespaHeader

MAX_BLOCKS = 1 << 26
"""Limit on the blocks of a file, because their offsets are kept in memory."""

MAX_INDEXED_LABELS = 1 << 23
"""Limit on the labels of an index. Every label takes about 60 bytes of memory."""


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a typed binary tensor, and find its blocks."""
    header, source = VespaHeader.read(reader), reader.source
    labels: tuple[Layout, ...] = ()
    cells: Layout
    if header.mapped:
        cells, labels = _scan_blocks(header, source, options)
        if len(labels) == 1:
            labels = (IndexLabels(labels[0], source.name),)
    elif header.blocks:
        cells = Dense(header.lengths, header.element, header.stop)
    else:  # Vespa reads a scalar without a cell as zero.
        cells = InMemory(np.zeros((), header.element.dtype))
    header_info = {
        "format": "vespa",
        "tag": header.tag,
        "offset": header.stop,
        "order": "C",
        "byteorder": "big",
    }
    container = build_container(header, source, options, cells, labels, header_info)
    end = End(source, max(header.stop, cells.stop), header.type)
    return replace(container, ends=(end,))


def _scan_blocks(
    header: VespaHeader, source: Source, options: OpenOptions
) -> tuple[Blocks, tuple[Labels, ...]]:
    """Scan the blocks. A scan of a remote file keeps the labels if they are required anyway."""
    reason = ", because their offsets are kept in memory"
    _check_block_count(source, header, MAX_BLOCKS, reason, "split the file")
    offsets = np.full(header.blocks + 1, header.stop, dtype=np.int64)
    loaded: list[Strings | None] = [None] * len(header.mapped)
    are_required = _has_index(header, options) or options.sparse == "dense"
    if are_required and source.high_latency and header.blocks <= MAX_INDEXED_LABELS:
        loaded = [np.empty(header.blocks, dtype=STRING_DTYPE) for _ in header.mapped]
    first = 0
    for window, stop in find_blocks(source, header):
        part = slice(first, first + window.offsets.size)
        offsets[part], offsets[part.stop] = window.offsets, stop
        for dimension, labels in enumerate(loaded):
            if labels is not None:
                try:
                    labels[part] = decode_labels(window, dimension, options.text_errors)
                except ElementError as error:
                    raise error.in_file(source.name, error.offset) from None
        first = part.stop
    blocks = Blocks(header, offsets)
    return blocks, tuple(
        Labels(blocks, dimension, options.text_errors, labels)
        for dimension, labels in enumerate(loaded)
    )


def _check_block_count(
    source: Source, header: VespaHeader, limit: int, reason: str, hint: str
) -> None:
    """Raise TensorFormatError if a file has more blocks than the limit."""
    if header.blocks > limit:
        field, expected = "the number of blocks", f"at most {limit}{reason}"
        raise TensorFormatError(
            source.name, field, header.blocks, expected, hint, offset=header.stop
        )


def _has_index(header: VespaHeader, options: OpenOptions) -> bool:
    """Return whether the labels are the index of the blocks."""
    return len(header.mapped) == 1 and options.sparse == "auto"


def build_container(
    header: VespaHeader,
    source: Source,
    options: OpenOptions,
    cells: Layout,
    labels: Sequence[Layout],
    header_info: Mapping[str, Any],
) -> Container:
    """Build the variable and the coordinates from the cells and labels of all blocks.

    Without mapped dimensions, there are no labels, and the cells have no axis of blocks.
    """
    if not header.mapped:
        options.refuse_stored(source.name)
    if options.fill_value is not None and options.sparse != "dense":
        raise ValueError(
            f"{source.name}: fill_value={options.fill_value!r} requires sparse='dense', because "
            f"sparse={options.sparse!r} does not fill in cells"
        )
    encoding = {
        "tensorfmt": {
            **header_info,
            TYPE: header.type,
            "cell_type": header.cell_type,
            "mapped": header.mapped,
            "indexed": header.indexed,
            "lengths": header.lengths,
            "blocks": header.blocks,
        },
        "dtype": header.element.encoding,
    }
    if header.mapped and options.sparse != "dense":
        return _build_blocks(header, source, options, cells, labels, encoding)
    names = _name_dimensions(header, options)
    if header.mapped:
        columns = _read_labels(source, header, labels)
        cells, columns = build_outer_product(source, header, cells, columns, options)
        labels = tuple(map(InMemory, columns))
    tensor = Tensor(options.name, names, cells, {TYPE: header.type}, encoding)
    coordinates = (Tensor(name, (name,), label) for name, label in zip(names, labels, strict=False))
    return Container((tensor,), tuple(coordinates))


def _build_blocks(
    header: VespaHeader,
    source: Source,
    options: OpenOptions,
    cells: Layout,
    labels: Sequence[Layout],
    encoding: Mapping[str, Any],
) -> Container:
    """Build the stored blocks along one dimension: the only mapped one, or `block`."""
    findings: tuple[Finding, ...] = ()
    is_indexed = _has_index(header, options)
    if is_indexed and header.blocks > MAX_INDEXED_LABELS:
        is_indexed = False
        (name,) = header.mapped
        message = (
            f"{header.blocks} labels, more than the {MAX_INDEXED_LABELS} of an index: {name!r} is "
            f"a lazy coordinate along the dimension {BLOCK!r}, as with sparse='stored'; index a "
            f"selection by ds.set_index({BLOCK}={name!r})"
        )
        findings = (Finding(source.name, header.stop, "the labels", message, "warning"),)
    names = _name_dimensions(header, options, *(() if is_indexed else (BLOCK,)))
    mapped = names[: len(header.mapped)]
    block = names[0] if is_indexed else BLOCK
    dims = (block, *names[len(mapped) :])
    tensor = Tensor(options.name, dims, cells, {TYPE: header.type}, encoding)
    coordinates = (
        Tensor(name, (block,), label) for name, label in zip(mapped, labels, strict=True)
    )
    return Container((tensor,), tuple(coordinates), findings=findings)


def _read_labels(source: Source, header: VespaHeader, labels: Sequence[Layout]) -> list[Any]:
    """Read all labels, without a warning of repeated ones."""
    reason = " for sparse='dense', which keeps all labels in memory"
    hint = Hint("open the file with {sparse}", sparse="stored")
    _check_block_count(source, header, MAX_INDEXED_LABELS, reason, hint)
    everything = Selection.everything((header.blocks,))
    return [read_selected(get_stored_layout(column), source, everything) for column in labels]


def _name_dimensions(header: VespaHeader, options: OpenOptions, *reserved: str) -> tuple[str, ...]:
    """Name the mapped, then the indexed dimensions. Append underscores to reserved names."""
    own = header.mapped + header.indexed
    taken = {options.name, *reserved}
    used = taken.union(own)
    unique_names = []
    for name in own:
        unique = name
        if name in taken:
            while unique in used:
                unique += "_"
            used.add(unique)
        unique_names.append(unique)
    names = name_dims(options.dims, options.name, tuple(unique_names))
    for name in reserved:
        if name in names:
            raise ValueError(
                f"dims={options.dims!r} contains {name!r}, which is the dimension that counts the "
                "blocks; choose another name"
            )
    return names
