"""Reading of typed binary tensors: the variable and the labels that a file becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xr_tensorfmt.contract import (
    Bytes,
    Container,
    Dense,
    End,
    Finding,
    HeaderReader,
    InMemory,
    Integers,
    Layout,
    OpenOptions,
    Source,
    Tensor,
    TensorFormatError,
    name_dims,
)
from xr_tensorfmt.formats.vespa.blocks import Blocks
from xr_tensorfmt.formats.vespa.labels import Column, Labels, decode_labels
from xr_tensorfmt.formats.vespa.outer_product import outer_product
from xr_tensorfmt.formats.vespa.spec import BLOCK, TYPE, Header

MAX_INDEXED = 1 << 23
"""Limit on labels that become an index when a file is opened, with some 60 bytes for each."""


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a typed binary tensor, and find its blocks."""
    header, source = Header.unpack(reader), reader.source
    if not header.mapped:
        options.check_all_stored(source.name)
    if options.fill_value is not None and options.sparse != "dense":
        raise ValueError(
            f"fill_value={options.fill_value!r} requires sparse='dense', as nothing is filled in "
            f"with sparse={options.sparse!r}"
        )
    if header.mapped:
        return _labelled(header, source, options)
    layout: Layout = Dense(header.lengths, header.element, header.stop)
    if not header.blocks:
        # A scalar without its one cell, which Vespa reads as zero.
        layout = InMemory(np.zeros((), header.element.dtype))
    stop = header.stop + header.blocks * header.block_bytes
    end = End(source, stop, header.type)
    return _container(header, options, end, _dimension_names(header, options), layout)


def _labelled(header: Header, source: Source, options: OpenOptions) -> Container:
    """The blocks as they are in the file, or as the outer product of their labels."""
    count = header.blocks
    # Where each block has one label, this is the index of the blocks.
    is_indexed = len(header.mapped) == 1 and options.sparse == "auto"
    blocks, labels = _blocks_and_labels(
        header, source, options, all_are_read=is_indexed or options.sparse == "dense"
    )
    end = End(source, blocks.stop, header.type)
    if options.sparse == "dense":
        if count > MAX_INDEXED:
            raise TensorFormatError(
                source.name,
                "the number of blocks",
                count,
                f"at most {MAX_INDEXED} for sparse='dense', which keeps all labels in memory",
                "open the file with sparse='stored'",
                offset=header.stop,
            )
        names = _dimension_names(header, options)
        layout, distinct = outer_product(source, blocks, labels, options)
        axes = zip(names, distinct, strict=False)
        coordinates = [Tensor(name, (name,), each) for name, each in axes]
        return _container(header, options, end, names, layout, coordinates)
    findings = []
    if is_indexed and count > MAX_INDEXED:
        is_indexed = False
        findings = [_without_index(source, header)]
    names = _dimension_names(header, options, *(() if is_indexed else (BLOCK,)))
    along = names[0] if is_indexed else BLOCK
    coordinates = [Tensor(n, (along,), each) for n, each in zip(names, labels, strict=False)]
    dims = (along, *names[len(labels) :])
    container = _container(header, options, end, dims, blocks, coordinates)
    return replace(container, findings=tuple(findings))


def _blocks_and_labels(
    header: Header, source: Source, options: OpenOptions, *, all_are_read: bool
) -> tuple[Blocks, tuple[Labels, ...]]:
    """Find the blocks; where a scan fetches all of a remote file, it takes the labels as well."""
    known: list[Column | None] = [None] * len(header.mapped)

    def scanned(first: int, offset: int, window: Bytes, starts: Integers) -> None:
        entry, offsets = slice(first, first + starts.size, 1), offset + starts
        for number, column in enumerate(known):
            whole = known[number] = column or Column.empty(header.blocks)
            whole.fill(
                first,
                decode_labels(source, window, starts, entry, offsets, number, options.text_errors),
            )

    is_kept = all_are_read and source.high_latency and header.blocks <= MAX_INDEXED
    blocks = Blocks.find(source, header, scanned if is_kept else None)
    return blocks, tuple(
        Labels(blocks, n, options.text_errors, each) for n, each in enumerate(known)
    )


def _without_index(source: Source, header: Header) -> Finding:
    """What to say of labels that are too many for an index."""
    (name,) = header.mapped
    message = (
        f"{header.blocks} of them, more than the {MAX_INDEXED} that become an index: {name!r} is "
        f"a lazy coordinate along the dimension {BLOCK!r}, as with sparse='stored'; make an index "
        f"of what you select by ds.set_index({BLOCK}={name!r})"
    )
    return Finding(source.name, header.stop, "the labels", message, "warning")


def _dimension_names(header: Header, options: OpenOptions, *reserved: str) -> tuple[str, ...]:
    """Names of the mapped dimensions, then of the indexed ones; reserved ones get underscores."""
    own = header.mapped + header.indexed
    taken = {options.name, *reserved}
    used, unique_names = taken.union(own), []
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
                f"dims={options.dims!r} has {name!r}, which is the dimension that counts the "
                "blocks; choose another"
            )
    return names


def _container(
    header: Header,
    options: OpenOptions,
    end: End,
    dims: tuple[str, ...],
    layout: Layout,
    coordinates: Sequence[Tensor] = (),
) -> Container:
    facts = {
        "format": "vespa",
        "tag": header.tag,
        "cell_type": header.cell_type,
        "mapped": header.mapped,
        "indexed": header.indexed,
        "lengths": header.lengths,
        "blocks": header.blocks,
        "offset": header.stop,
        "order": "C",
        "byteorder": "big",
    }
    encoding = {"tensorfmt": facts, "dtype": header.element.encoding}
    tensor = Tensor(options.name, dims, layout, {TYPE: header.type}, encoding)
    return Container((tensor,), tuple(coordinates), ends=(end,))
