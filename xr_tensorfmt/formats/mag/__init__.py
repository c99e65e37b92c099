"""MAG files, written by magnetron: archives, snapshots and streams."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.contract import Container, Finding, Format, HeaderReader, OpenOptions, Option
from xr_tensorfmt.formats.mag.spec import MAGIC, STREAM_MAGIC

if TYPE_CHECKING:
    from xr_tensorfmt.contract import CheckedInput, FilePlan


class MagFormat(Format):
    """MAG files. A file has tensors under keys, and metadata."""

    name = "mag"
    title = "MAG"
    suffixes = (".mag",)
    magics = (MAGIC, STREAM_MAGIC)
    open_options = frozenset({"verify"})
    write_options = MappingProxyType({"version": Option("Version of the file.", (300, 1))})

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the header of a file."""
        from xr_tensorfmt.formats.mag.read import read  # noqa: PLC0415

        return read(reader, options)

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan:
        """Plan a file with the keywords of `to_mag`."""
        from xr_tensorfmt.formats.mag.write import plan  # noqa: PLC0415

        return plan(checked, **options)

    def check(self, reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
        """Check padding."""
        from xr_tensorfmt.formats.mag.read import check  # noqa: PLC0415

        return check(reader, container.parsed, limit)
