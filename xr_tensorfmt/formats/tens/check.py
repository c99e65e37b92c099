"""Check a TENS file: padding, pairs and symmetries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.findings import Finding, Gap, check_gaps, finding_from_error
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import check_readable
from xr_tensorfmt.formats._shared.symmetries import MAX_CHECKED_ELEMENTS, check_symmetry
from xr_tensorfmt.formats.tens.read import TensFile
from xr_tensorfmt.formats.tens.spec import FIXED_BYTES, RESERVED_AT
from xr_tensorfmt.formats.tens.symmetries import SIGNS


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
    """Check a file after its header is read."""
    source = reader.source
    file: TensFile = container.parsed
    header, pairs = file.header, file.pairs
    for chunk in file.unknown_chunks:
        message = (
            f"{chunk.magic.decode()!r}, which the format does not define, so that readers skip it; "
            "if it is corrupt, the content of the chunk is lost"
        )
        yield Finding(source.name, chunk.offset, "the magic of a chunk", message, "warning")
    yield from check_gaps(source, _find_gaps(file), limit)
    if pairs is not None:
        _, _, wrong = pairs.find_wrong_pairs(source)
        for pair in wrong[:limit].tolist():
            yield finding_from_error(pairs.build_index_error(source, pair))
        if wrong.size or not file.symmetries:
            return
        if header.size > MAX_CHECKED_ELEMENTS:
            message = (
                f"not checked, because the tensor has {header.size} elements, expected at most "
                f"{MAX_CHECKED_ELEMENTS}; compare a part with its image instead"
            )
            yield Finding(source.name, header.stop, "the symmetries", message, "warning")
            return
        if len(pairs.group) > 1:
            yield from islice(check_readable(source, pairs), limit)
    yield from _check_claims(source, file, container.tensors[0].layout)


def _find_gaps(file: TensFile) -> list[Gap]:
    gaps = [Gap(RESERVED_AT, FIXED_BYTES, "the reserved word of the header")]
    gaps += [Gap(s.padding, s.stop, "the padding of a chunk 'SYMMETRY'") for s in file.symmetries]
    if file.pairs is None:
        values_stop = file.offset + file.nbytes
        gaps.append(Gap(values_stop, file.stop, "the padding of the chunk 'DENSDATA'"))
    return gaps


def _check_claims(source: Source, file: TensFile, layout: Layout) -> Iterator[Finding]:
    """Check the symmetries that are not packed. The reader applies packed ones."""
    header, names = file.header, file.header.index_names
    if len(set(names)) != len(names):
        return  # the index maps are ambiguous
    for symmetry in file.symmetries:
        if not symmetry.packed and symmetry.code in SIGNS:
            operation = symmetry.build_operation(header)
            # The axis of components stays last.
            axes = (*operation.axes, *range(len(names), len(layout.shape)))
            change = np.negative if operation.sign < 0 else np.asarray
            yield from check_symmetry(source, layout, f"'{symmetry}'", axes, change)
