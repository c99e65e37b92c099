"""Vespa's typed binary tensors: ``.tbf`` files, and the same bytes under any name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xr_tensorfmt.core.container import Container, Tensor, named_dims
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.findings import Finding, finding_of
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import InMemory
from xr_tensorfmt.errors import TensorFormatError, shortened
from xr_tensorfmt.formats.vespa.blocks import Blocks, find_blocks
from xr_tensorfmt.formats.vespa.labels import Labels, first_repeated, is_compared_at_opening
from xr_tensorfmt.formats.vespa.outer_product import outer_product
from xr_tensorfmt.formats.vespa.spec import BLOCK, TYPE, USUAL_NAME, BlockForm, Header, name_field


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a typed binary tensor, and find its blocks."""
    header, source = Header.unpack(reader), reader.source
    _check_options(source, header, options)
    blocks = _blocks(source, header) if header.mapped else None
    stop = blocks.table.stop if blocks else header.stop + header.blocks * header.block_bytes
    findings = [*_unusual_names(source, header), *_trailing_bytes(source, header, stop, options)]
    if blocks is None:
        names = dimension_names(header, options)
        return _container(header, options, names, _unmapped(header), (), findings)
    labels = tuple(Labels(blocks, number, options.errors) for number in range(len(header.mapped)))
    if options.sparse == "dense":
        names = dimension_names(header, options)
        layout, distinct = outer_product(source, blocks, labels, header, options)
        coordinates = tuple(Tensor(n, (n,), each) for n, each in zip(names, distinct, strict=False))
        return _container(header, options, names, layout, coordinates, findings)
    findings += _repeated(source, blocks, labels)
    return _stored(header, options, blocks, labels, findings)


def _check_options(source: Source, header: Header, options: OpenOptions) -> None:
    if options.sparse == "stored" and not header.mapped:
        raise ValueError(
            f"{source.name} is {header.type}, which stores every cell, so that sparse='stored' "
            "has nothing to leave out; open it without"
        )
    if options.fill_value is not None and options.sparse != "dense":
        raise ValueError(
            f"fill_value={options.fill_value!r} requires sparse='dense', as nothing is filled in "
            f"with sparse={options.sparse!r}"
        )


def _unmapped(header: Header) -> Layout:
    if not header.blocks:
        # A scalar without its one cell, which Vespa reads as zero.
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
    """The blocks as they are in the file; where each has one label, this is their index."""
    is_indexed = len(labels) == 1 and options.sparse == "auto"
    names = dimension_names(header, options, *(() if is_indexed else (BLOCK,)))
    along = names[0] if is_indexed else BLOCK
    coordinates = tuple(Tensor(n, (along,), each) for n, each in zip(names, labels, strict=False))
    dims = (along, *names[len(labels) :])
    return _container(header, options, dims, blocks, coordinates, findings)


def dimension_names(header: Header, options: OpenOptions, *reserved: str) -> tuple[str, ...]:
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
    names = named_dims(options.dims, options.name, tuple(unique_names))
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
    dims: tuple[str, ...],
    layout: Layout,
    coordinates: tuple[Tensor, ...],
    findings: list[Finding],
) -> Container:
    attrs = {TYPE: header.type}
    tensor = Tensor(options.name, dims, layout, attrs, _encoding(header))
    return Container((tensor,), coordinates, findings=tuple(findings))


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


def _unusual_names(source: Source, header: Header) -> Iterator[Finding]:
    """Names that neither of Vespa's type parsers accepts."""
    names = zip(header.mapped + header.indexed, header.name_offsets, strict=True)
    for number, (name, offset) in enumerate(names):
        if not USUAL_NAME.fullmatch(name):
            message = (
                f"{shortened(repr(name))} is read, but Vespa refuses such a name in types; rename "
                "the dimension before the tensor goes to Vespa"
            )
            yield Finding(source.name, offset, name_field(number), message, "warning")


def _trailing_bytes(
    source: Source, header: Header, stop: int, options: OpenOptions
) -> Iterator[Finding]:
    """Refuse bytes after the tensor, or report them where `verify` is False."""
    if stop == source.size:
        return
    error = TensorFormatError(
        source.name,
        f"the end of {header.type}",
        f"more, up to byte {source.size}",
        "the end of the file",
        "the file is not a tensor, or holds something else as well; verify=False ignores the rest",
        offset=stop,
    )
    if options.verify:
        raise error
    yield finding_of(error)


def _repeated(source: Source, blocks: Blocks, labels: tuple[Labels, ...]) -> Iterator[Finding]:
    """The first repeated labels, unless looking for them would take long."""
    count = blocks.table.count
    if is_compared_at_opening(source, count):
        columns = [column.strings(source, slice(0, count, 1)) for column in labels]
        yield from first_repeated(source, blocks.table, columns)
