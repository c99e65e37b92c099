"""Check a TENS file: padding, pairs and symmetries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.core.findings import Finding, Gap, check_gaps, finding_from_error
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.reading import find_offset, read
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.value_checks import CHECKED_BYTES, check_readable, iterate_selections
from xr_tensorfmt.formats.tens.read import TensFile
from xr_tensorfmt.formats.tens.spec import FIXED_BYTES, RESERVED_AT
from xr_tensorfmt.formats.tens.symmetries import SIGNS, Operation

# Limit on the elements of a checked tensor that stores few of them.
MAX_CHECKED_ELEMENTS = 1 << 28


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
            violation = _find_violation(source, layout, operation)
            if violation:
                reason, offset = violation
                message = (
                    f"{reason}; programs that rely on it compute wrong results: write the file "
                    "without it"
                )
                yield Finding(source.name, offset, f"the claim '{symmetry}'", message)


def _find_violation(
    source: Source, layout: Layout, operation: Operation
) -> tuple[str, int | None] | None:
    """Return why a symmetry does not hold, and the offset, for the first chunk that differs."""
    # The axis of components stays last.
    shape, rank = layout.shape, len(operation.axes)
    axes = (*operation.axes, *range(rank, len(shape)))
    if any(shape[axis] != length for axis, length in zip(axes, shape, strict=True)):
        return f"its shape is {shape}, expected equal lengths", None
    inverse = [axes.index(axis) for axis in range(len(shape))]
    for selection in iterate_selections(layout, CHECKED_BYTES // 2):
        values = read(layout, source, selection)
        image = read(layout, source, selection.transpose(axes)).transpose(inverse)
        wrong = ~_are_nearly_equal(values, -image if operation.sign < 0 else image)
        if wrong.any():
            index = selection.full_index(int(np.argmax(wrong)))
            others = np.count_nonzero(wrong) - 1
            also = f" and {others} more of its chunk" if others else ""
            return f"it does not hold for the element {index}{also}", find_offset(layout, index)
    return None


def _are_nearly_equal(values: Array, others: Array) -> NDArray[np.bool_]:
    """Return a mask of values that are equal up to rounding. NaN equals NaN."""
    if values.dtype.kind not in "fc":
        return np.asarray(values == others)
    with np.errstate(all="ignore"):  # large values, NaN and infinity warn
        # Programs compute both halves of a tensor, with different rounding.
        size = np.abs(values[np.isfinite(values)]).max(initial=0)
        tolerance = size * np.finfo(values.dtype).eps ** 0.5
        return np.isclose(values, others, rtol=0, atol=tolerance, equal_nan=True)
