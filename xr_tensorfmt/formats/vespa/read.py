"""Vespa's typed binary tensors: ``.tbf`` files, and the same bytes under any name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xr_tensorfmt.core.container import Container, Tensor
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.findings import Finding, finding_of
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import InMemory
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.vespa.blocks import Blocks, find_blocks
from xr_tensorfmt.formats.vespa.labels import COMPARED_AT_OPENING, Labels
from xr_tensorfmt.formats.vespa.outer_product import filled, repeated_block
from xr_tensorfmt.formats.vespa.spec import (
    BLOCK,
    BlockForm,
    Header,
    dimension_names,
    odd_names,
    read_header,
)


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a typed binary tensor, and find its blocks."""
    header = read_header(reader)
    _check_options(reader.source, header, options)
    blocks = _blocks(reader.source, header) if header.mapped else None
    stop = blocks.table.stop if blocks else header.stop + header.blocks * header.block_bytes
    findings = [
        *odd_names(reader.source.name, header),
        *_leftover(reader.source, header, stop, options),
    ]
    if blocks is None:
        names = dimension_names(header, options)
        return _container(header, options, names, _unmapped(header), (), findings)
    labels = tuple(Labels(blocks, number, options.errors) for number in range(len(header.mapped)))
    if options.sparse == "dense":
        names = dimension_names(header, options)
        layout, along = filled(reader.source, blocks, labels, header, options)
        coordinates = tuple(Tensor(n, (n,), each) for n, each in zip(names, along, strict=False))
        return _container(header, options, names, layout, coordinates, findings)
    findings += _repeated(reader.source, labels)
    return _stored(header, options, blocks, labels, findings)


def _check_options(source: Source, header: Header, options: OpenOptions) -> None:
    if options.sparse == "stored" and not header.mapped:
        raise ValueError(
            f"{source.name} is {header.type}, which stores every cell, so that sparse='stored' "
            "has nothing to leave out; open it without"
        )
    if options.fill_value is not None and options.sparse != "dense":
        raise ValueError(
            f"fill_value={options.fill_value!r} means something with sparse='dense' alone, as "
            f"nothing is filled in with sparse={options.sparse!r}"
        )


def _unmapped(header: Header) -> Layout:
    if not header.blocks:
        # A scalar without its one cell: Vespa takes it for zero.
        return InMemory(np.zeros((), header.element.dtype))
    return Dense(header.lengths, header.element, header.stop)


def _blocks(source: Source, header: Header) -> Blocks:
    form = BlockForm(len(header.mapped), header.block_bytes)
    table = find_blocks(source, form, header.stop, header.blocks)
    return Blocks(table, header.lengths, header.element)


def _stored(
    header: Header,
    options: OpenOptions,
    blocks: Blocks,
    labels: tuple[Labels, ...],
    findings: list[Finding],
) -> Container:
    """Blocks as they lie in the file; those with one label each have it for an index."""
    indexed_by_label = len(labels) == 1 and options.sparse == "auto"
    names = dimension_names(header, options, *(() if indexed_by_label else (BLOCK,)))
    along = names[0] if indexed_by_label else BLOCK
    coordinates = tuple(Tensor(n, (along,), each) for n, each in zip(names, labels, strict=False))
    dims = (along, *names[len(labels) :])
    return _container(header, options, dims, blocks, coordinates, findings)


def _container(
    header: Header,
    options: OpenOptions,
    dims: tuple[str, ...],
    layout: Layout,
    coordinates: tuple[Tensor, ...],
    findings: list[Finding],
) -> Container:
    attrs = {"vespa_type": header.type}
    tensor = Tensor(options.name, dims, layout, attrs, _encoding(header))
    return Container((tensor,), coordinates, findings=tuple(findings))


def _leftover(source: Source, header: Header, stop: int, options: OpenOptions) -> Iterator[Finding]:
    """Refuse bytes after the tensor, or only warn of them."""
    if stop == source.size:
        return
    error = TensorFormatError(
        source.name,
        f"the end of {header.type}",
        f"more, up to byte {source.size}",
        "the end of the file",
        "the file is no tensor or holds something else as well; verify=False ignores the rest",
        offset=stop,
    )
    if options.verify:
        raise error
    yield finding_of(error)


def _repeated(source: Source, labels: tuple[Labels, ...]) -> Iterator[Finding]:
    count = labels[0].blocks.table.count
    if count > COMPARED_AT_OPENING or source.distant:
        return
    everything = Selection.everything((count,))
    block = repeated_block([each.read(source, everything) for each in labels])
    if block is not None:
        yield repeated_labels(source, labels[0], block)


def repeated_labels(source: Source, labels: Labels, block: int) -> Finding:
    """What to say at opening of a block that has the labels of an earlier one."""
    place = int(labels.blocks.table.places.starts(np.array([block]))[0])
    message = "they are those of an earlier block, which Vespa may refuse; both are kept"
    return Finding(source.name, place, f"the labels of block {block}", message, "warning")


def _encoding(header: Header) -> dict[str, Any]:
    facts = {
        "format": "vespa",
        "tag": header.tag,
        "cell_type": header.cell_type.name,
        "mapped": header.mapped,
        "indexed": header.indexed,
        "lengths": header.lengths,
        "blocks": header.blocks,
        "offset": header.stop,
        "order": "C",
        "byteorder": "big",
    }
    return {"tensorfmt": facts, "dtype": header.element.encoding}
