"""Check a TENS file: unknown chunks, and pairs with their packed symmetries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.findings import Finding, finding_from_error
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.value_checks import check_readable
from xr_tensorfmt.formats.tens.read import TensFile


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
    if pairs is not None:
        extents = pairs.locate(Selection.everything(pairs.shape))
        content = pairs.sort_pairs([source.read(extents)] if len(extents) else [])
        for pair in content.wrong[:limit].tolist():
            yield finding_from_error(pairs.build_index_error(source, content, pair))
        if not content.wrong.size and len(pairs.group) > 1:
            yield from islice(check_readable(source, pairs), limit)
