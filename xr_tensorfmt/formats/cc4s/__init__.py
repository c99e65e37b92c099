"""cc4s, tensors of today's cc4s and of programs that exchange them with it: YAML and elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.contract import Container, Finding, Format, HeaderReader, Match, OpenOptions
from xr_tensorfmt.formats.cc4s.spec import ELEMENTS, YAML

if TYPE_CHECKING:
    from xr_tensorfmt.contract import CheckedInput, FilePlan


class Cc4sFormat(Format):
    """One tensor or several: a YAML file, and a file of elements for each."""

    name = "cc4s"
    title = "cc4s"
    suffixes = (YAML, ELEMENTS)
    open_options = frozenset({"name", "sparse", "verify", "apply_unit"})

    def match(self, reader: HeaderReader) -> Match:
        """Look at the keys of the YAML, because many other programs have such files."""
        if not self.suffix_of(reader.source.name):
            return Match.NONE
        from xr_tensorfmt.formats.cc4s.read import recognises  # noqa: PLC0415

        return Match.CERTAIN if recognises(reader) else Match.POSSIBLE

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the YAML, and what it says of the files beside it."""
        from xr_tensorfmt.formats.cc4s.read import read  # noqa: PLC0415

        return read(reader, options)

    def check(self, reader: HeaderReader, container: Container, most: int) -> Iterator[Finding]:
        """Compare what the YAML says with the elements, and with the rules of cc4s."""
        from xr_tensorfmt.formats.cc4s.check import check  # noqa: PLC0415

        return check(container.parsed, container.tensors)

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan:
        """Plan the files; there are no keywords."""
        from xr_tensorfmt.formats.cc4s.write import plan  # noqa: PLC0415

        return plan(checked, **options)
