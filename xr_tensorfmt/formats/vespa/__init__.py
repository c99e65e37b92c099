"""Tensors of Vespa: ``.tbf`` files, the same bytes under any name, and JSON."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.contract import Container, Finding, Format, HeaderReader, Match, OpenOptions

if TYPE_CHECKING:
    from xr_tensorfmt.contract import CheckedInput, DeferredPlans, FilePlan

# How Vespa begins a tensor that states its type.
_JSON = re.compile(rb'\s*\{\s*"type"\s*:\s*"tensor[(<]')


class VespaFormat(Format):
    """Vespa: one tensor of mapped and indexed dimensions."""

    name = "vespa"
    title = "Vespa"
    suffixes = (".tbf",)
    magics = ()
    open_options = frozenset({"name", "sparse", "fill_value", "text_errors", "verify"})

    def match(self, reader: HeaderReader) -> Match:
        """Look at the suffix and the tag."""
        from xr_tensorfmt.formats.vespa.spec import TAGS  # noqa: PLC0415

        match = super().match(reader)
        return Match.CERTAIN if match and reader.head and reader.head[0] in TAGS else match

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the header of a file."""
        from xr_tensorfmt.formats.vespa.read import read  # noqa: PLC0415

        return read(reader, options)

    def find_file_attrs(self, attrs: Mapping[Any, Any]) -> Collection[str]:
        """The type, which a reader of the new file sets again."""
        return {"vespa_type"} & set(attrs)

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan:
        """Plan a file; the keywords are those of `to_vespa`."""
        from xr_tensorfmt.formats.vespa.write import plan  # noqa: PLC0415

        return plan(checked, **options)

    def check(self, reader: HeaderReader, container: Container, most: int) -> Iterator[Finding]:
        """Check the labels of all blocks."""
        from xr_tensorfmt.formats.vespa.check import check  # noqa: PLC0415

        return check(reader, container, most)


class VespaJsonFormat(Format):
    """Vespa JSON: one tensor as documents and query results have it."""

    name = "vespa-json"
    title = "Vespa JSON"
    suffixes = (".json",)
    magics = ()
    open_options = frozenset({"name", "sparse", "fill_value"})
    write_options = MappingProxyType({"form": ("short", "long", "hex")})

    def match(self, reader: HeaderReader) -> Match:
        """Look at the first bytes; many other programs have such suffixes."""
        return Match.CERTAIN if _JSON.match(reader.head) else super().match(reader)

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read all of a file; its values are then in memory."""
        from xr_tensorfmt.formats.vespa.json import read_json  # noqa: PLC0415

        return read_json(reader, options)

    def plan(self, checked: CheckedInput, **options: Any) -> DeferredPlans:
        """Plan a file, whose size is known when its values are."""
        from xr_tensorfmt.formats.vespa.write_json import plan  # noqa: PLC0415

        return plan(checked, **options)
