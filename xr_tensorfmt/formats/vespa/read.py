"""Read typed binary tensors, build the variable and its labels, and check labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from xr_tensorfmt.core.file_format import Container, End, OpenOptions, Tensor, name_dims
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Dense, InMemory, Layout
from xr_tensorfmt.core.layout import read as read_layout
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import Finding, TensorFormatError
from xr_tensorfmt.formats.vespa.layouts import (
    Blocks,
    Labels,
    build_outer_product,
    build_strings,
    validate_labels,
)
from xr_tensorfmt.formats.vespa.spec import BLOCK, TYPE, Strings, VespaHeader, find_blocks

MAX_BLOCKS = 1 << 26
"""Limit on the blocks of a file, because their offsets are kept in memory."""

MAX_INDEXED_LABELS = 1 << 23
"""Limit on the labels of an index. Every label takes about 60 bytes of memory."""

# Labels to compare at a time.
_BATCH_LABELS = 1 << 16


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a typed binary tensor, and find its blocks."""
    header = replace(VespaHeader.read(reader), decode_floats=options["decode_floats"])
    source = reader.source
    fill_value, sparse = options["fill_value"], options["sparse"]
    if fill_value is not None and sparse != "dense":
        raise ValueError(
            f"{source.name}: fill_value={fill_value!r} requires sparse='dense', because "
            f"sparse={sparse!r} does not fill in cells"
        )
    if header.mapped:
        cells, stop, coordinates, dims, findings = _read_blocks(header, source, options)
    else:
        options.refuse_stored(source.name)
        cells = Dense(header.lengths, header.element, header.stop)
        stop, coordinates, findings = header.stop + header.blocks * header.block_bytes, (), ()
        dims = _name_dimensions(header, options)
        if not header.blocks:  # Vespa reads a scalar without a cell as zero
            cells = InMemory(np.zeros((), header.element.dtype))
    encoding = {
        "tensorfmt": {
            "format": "vespa",
            "tag": header.tag,
            "offset": header.stop,
            "order": "C",
            "byteorder": "big",
            TYPE: header.type,
            "reader_attrs": [TYPE],  # attributes that are not in the file
            "cell_type": header.cell_type,
            "mapped": header.mapped,
            "indexed": header.indexed,
            "lengths": header.lengths,
            "blocks": header.blocks,
        },
        "dtype": header.element.encoding,
    }
    tensor = Tensor(options.name, dims, cells, {TYPE: header.type}, encoding)
    ends = (End(source, stop, header.type),)
    return Container((tensor,), coordinates, findings=findings, ends=ends)


def _read_blocks(
    header: VespaHeader, source: Source, options: OpenOptions
) -> tuple[Layout, int, tuple[Tensor, ...], tuple[str, ...], tuple[Finding, ...]]:
    """Return the cells, the end of the file, the labels, the dimensions, and findings."""
    is_index, findings = _check_count(header, source, options)
    is_dense, count = options["sparse"] == "dense", len(header.mapped)
    is_loaded = is_dense or (is_index and options.loads_labels)
    blocks, columns = _scan_blocks(header, source, options, count if is_loaded else 0)
    cells: Layout = blocks
    if is_dense:
        cells, columns = build_outer_product(source, header, blocks, columns, options)
    elif columns:
        findings += (*islice(validate_labels(source.name, blocks, lambda: [(0, columns)]), 1),)
    labels: list[Layout] = [InMemory(column) for column in columns]
    if not is_loaded:
        labels = [Labels(blocks, number, _get_text_errors(options)) for number in range(count)]
    if is_dense or is_index:
        dims = names = label_dims = _name_dimensions(header, options)
    else:
        names = _name_dimensions(header, options, BLOCK)
        dims, label_dims = (BLOCK, *names[count:]), (BLOCK,) * count
    parts = zip(names, label_dims, labels, strict=False)
    coordinates = tuple(Tensor(name, (dim,), label) for name, dim, label in parts)
    return cells, blocks.stop, coordinates, dims, findings


def _check_count(
    header: VespaHeader, source: Source, options: OpenOptions
) -> tuple[bool, tuple[Finding, ...]]:
    """Return whether the labels are an index, and a finding if they are too many for one."""
    limit, hint = MAX_BLOCKS, "split the file"
    if options["sparse"] == "dense":  # keeps all labels in memory
        limit, hint = MAX_INDEXED_LABELS, "open the file with sparse='stored' (--sparse stored)"
    if header.blocks > limit:
        field, expected = "the number of blocks", f"at most {limit}"
        raise TensorFormatError(source.name, field, header.blocks, expected, hint, header.stop)
    if len(header.mapped) != 1 or options["sparse"] != "auto":
        return False, ()
    if header.blocks <= MAX_INDEXED_LABELS:
        return True, ()
    (name,) = header.mapped
    actual = (
        f"{header.blocks} labels, more than the {MAX_INDEXED_LABELS} of an index: {name!r} is "
        f"a lazy coordinate along the dimension {BLOCK!r}, as with sparse='stored'"
    )
    hint = f"index a selection by ds.set_index({BLOCK}={name!r})"
    return False, (Finding(source.name, "the labels", actual, "", hint, header.stop, "warning"),)


def _scan_blocks(
    header: VespaHeader, source: Source, options: OpenOptions, columns: int
) -> tuple[Blocks, list[Strings]]:
    """Scan the blocks. Return the labels of the first dimensions too."""
    offsets = np.full(header.blocks + 1, header.stop, dtype=np.int64)
    labels: list[list[str]] = [[] for _ in range(columns)]
    for window, stop in find_blocks(source, header):
        part = slice(window.blocks[0], window.blocks[-1] + 1)
        offsets[part], offsets[part.stop] = window.offsets, stop
        for dimension, column in enumerate(labels):
            column.extend(window.decode_labels(dimension, _get_text_errors(options)))
    return Blocks(header, offsets), [build_strings(column) for column in labels]


def _get_text_errors(options: OpenOptions) -> str:
    """Return how to decode labels. To write a region of a file, all labels are accepted."""
    errors: str = options["text_errors"] if options.loads_labels else "surrogateescape"
    return errors


def _name_dimensions(header: VespaHeader, options: OpenOptions, *reserved: str) -> tuple[str, ...]:
    """Name the mapped, then the indexed dimensions. Append underscores to reserved names."""
    own = header.mapped + header.indexed
    taken = {options.name, *reserved}
    unique_names: list[str] = []
    for name in own:
        unique = name
        while unique in taken or (unique != name and unique in (*own, *unique_names)):
            unique += "_"
        unique_names.append(unique)
    names = name_dims(options.dims, options.name, tuple(unique_names))
    if not {*names}.isdisjoint(reserved):
        raise ValueError(
            f"dims={options.dims!r} contains {BLOCK!r}, which is the dimension that counts the "
            "blocks; choose another name"
        )
    return names


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
    """Check in batches that labels are UTF-8, and that no two blocks have the same labels."""
    blocks, source = container.tensors[0].layout, reader.source
    if isinstance(blocks, Blocks) and blocks.header.blocks:
        for dimension in range(len(blocks.header.mapped)):
            yield from islice(Labels(blocks, dimension).validate(source), limit)
        repeated = validate_labels(source.name, blocks, lambda: _read_batches(source, blocks))
        yield from islice(repeated, limit)


def _read_batches(source: Source, blocks: Blocks) -> Iterator[tuple[int, Sequence[Strings]]]:
    """Read the labels of consecutive blocks, with the index of the first block."""
    count, rank = blocks.header.blocks, len(blocks.header.mapped)
    columns = [Labels(blocks, dimension, "surrogateescape") for dimension in range(rank)]
    for first in range(0, count, _BATCH_LABELS):
        selection = Selection((count,), (range(first, min(first + _BATCH_LABELS, count)),))
        yield first, [read_layout(column, source, selection) for column in columns]
