"""The format of Vespa: typed binary tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.file_format import Format, Match
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.open_options import OpenOptions

if TYPE_CHECKING:
    from xr_tensorfmt.writing.checked_input import CheckedInput
    from xr_tensorfmt.writing.file_plan import FilePlan


class VespaFormat(Format):
    """Vespa: one tensor of mapped and indexed dimensions."""

    name = "vespa"
    title = "Vespa"
    suffixes = (".tbf",)
    magics = ()
    open_options = frozenset(
        {"name", "sparse", "fill_value", "text_errors", "verify", "decode_floats"}
    )

    def match(self, reader: HeaderReader) -> Match:
        """Compare the suffix and the tag."""
        from xr_tensorfmt.formats.vespa.spec import TAGS  # noqa: PLC0415

        match = super().match(reader)
        return Match.CERTAIN if match and reader.head and reader.head[0] in TAGS else match

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the header of a file."""
        from xr_tensorfmt.formats.vespa.read import read  # noqa: PLC0415

        return read(reader, options)

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan:
        """Plan a file with the `write_options`."""
        from xr_tensorfmt.formats.vespa.write import plan  # noqa: PLC0415

        return plan(checked, **options)

    def check(self, reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
        """Check all labels."""
        from xr_tensorfmt.formats.vespa.check import check  # noqa: PLC0415

        return check(reader, container, limit)
