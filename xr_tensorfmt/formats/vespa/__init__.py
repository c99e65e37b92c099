"""The formats of Vespa: typed binary tensors and JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.contract import (
    Container,
    Finding,
    Format,
    HeaderReader,
    Match,
    OpenOptions,
    Option,
)

if TYPE_CHECKING:
    from xr_tensorfmt.contract import CheckedInput, DeferredPlans, FilePlan

# The start of a tensor that states its type.
_JSON = re.compile(rb'\s*\{\s*"type"\s*:\s*"tensor[(<]')


class VespaFormat(Format):
    """Vespa: one tensor of mapped and indexed dimensions."""

    name = "vespa"
    title = "Vespa"
    suffixes = (".tbf",)
    magics = ()
    reader_attrs = frozenset({"vespa_type"})
    open_options = frozenset({"name", "sparse", "fill_value", "text_errors", "verify"})

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
        """Plan a file with the keywords of `to_vespa`."""
        from xr_tensorfmt.formats.vespa.write import plan  # noqa: PLC0415

        return plan(checked, **options)

    def check(self, reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
        """Check all labels."""
        from xr_tensorfmt.formats.vespa.check import check  # noqa: PLC0415

        return check(reader, container, limit)


class VespaJsonFormat(Format):
    """Vespa JSON: one tensor of a document or a query result."""

    name = "vespa-json"
    title = "Vespa JSON"
    suffixes = (".json",)
    magics = ()
    open_options = frozenset({"name", "sparse", "fill_value"})
    write_options = MappingProxyType({"form": Option("Form.", ("short", "long", "hex"))})

    def match(self, reader: HeaderReader) -> Match:
        """Compare the first bytes, because many programs use the suffix."""
        return Match.CERTAIN if _JSON.match(reader.head) else super().match(reader)

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the whole file into memory."""
        from xr_tensorfmt.formats.vespa.json import read_json  # noqa: PLC0415

        return read_json(reader, options)

    def plan(self, checked: CheckedInput, **options: Any) -> DeferredPlans:
        """Plan a file. Its size depends on the values."""
        from xr_tensorfmt.formats.vespa.write_json import plan  # noqa: PLC0415

        return plan(checked, **options)
