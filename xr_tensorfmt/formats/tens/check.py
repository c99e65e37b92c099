"""Check a TENS file: padding, and pairs with their packed symmetries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.findings import Finding, Gap, check_gaps, finding_from_error
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.value_checks import check_readable
from xr_tensorfmt.formats.tens.read import TensFile
from xr_tensorfmt.formats.tens.spec import FIXED_BYTES, RESERVED_AT


def check(reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
    """Check a file after its header is read."""
    source = reader.source
    file: TensFile = container.parsed
    pairs = file.pairs
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
        if not wrong.size and len(pairs.group) > 1:
            yield from islice(check_readable(source, pairs), limit)


def _find_gaps(file: TensFile) -> list[Gap]:
    gaps = [Gap(RESERVED_AT, FIXED_BYTES, "the reserved word of the header")]
    gaps += [Gap(s.padding, s.stop, "the padding of a chunk 'SYMMETRY'") for s in file.symmetries]
    if file.pairs is None:
        values_stop = file.offset + file.nbytes
        gaps.append(Gap(values_stop, file.stop, "the padding of the chunk 'DENSDATA'"))
    return gaps
