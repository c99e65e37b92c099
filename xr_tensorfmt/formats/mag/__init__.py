"""MAG files, written by magnetron: archives, snapshots and streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.file_format import Format
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.formats.mag.spec import MAGIC, STREAM_MAGIC

if TYPE_CHECKING:
    from xr_tensorfmt.writing.checked_input import CheckedInput
    from xr_tensorfmt.writing.file_plan import FilePlan


class MagFormat(Format):
    """MAG files. A file has tensors under keys, and metadata."""

    name = "mag"
    title = "MAG"
    suffixes = (".mag",)
    directory_patterns = ("*.mag",)
    magics = (MAGIC, STREAM_MAGIC)
    open_options = frozenset({"verify", "decode_floats"})

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the header of a file."""
        from xr_tensorfmt.formats.mag.read import read  # noqa: PLC0415

        return read(reader, options)

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan:
        """Plan a snapshot."""
        from xr_tensorfmt.formats.mag.write import plan  # noqa: PLC0415

        return plan(checked)

    def check(self, reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
        """Check padding."""
        from xr_tensorfmt.formats.mag.read import check  # noqa: PLC0415

        return check(reader, container.parsed, limit)
