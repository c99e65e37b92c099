"""The format of cc4s since 2022: a YAML file and files of elements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from xr_tensorfmt.core.file_format import LazyFormat, Match, Option, share_options
from xr_tensorfmt.core.header import HeaderReader

YAML, ELEMENTS = ".yaml", ".elements"


class Cc4sFormat(LazyFormat):
    """A YAML file that describes tensors, and a file of elements per tensor."""

    name = "cc4s"
    title = "cc4s"
    suffixes = (YAML, ELEMENTS)
    directory_hint = "open a calculation of cc4s with xr_tensorfmt.cc4s.open_calculation"
    open_options = share_options("name", "sparse") | {
        "apply_unit": Option(
            "If True, multiply values by the factor to atomic units in the file; otherwise the "
            "factor is the attribute unit.",
            default=False,
            type=bool,
        )
    }
    write_options = MappingProxyType(
        {
            "elements": Option(
                "How to store the elements. The default keeps text, and is text for EigenEnergies, "
                "because some programs read only text.",
                ("text", "binary"),
            )
        }
    )

    def match(self, reader: HeaderReader) -> Match:
        """Compare the keys of the YAML file, because many programs write YAML."""
        if not self.find_suffix(reader.source.file_name):
            return Match.NONE
        from xr_tensorfmt.formats.cc4s.read import is_cc4s  # noqa: PLC0415

        return Match.CERTAIN if is_cc4s(reader) else Match.POSSIBLE

    def describe_unsupported(self, reader: HeaderReader) -> tuple[str, str] | None:
        """Describe files of a calculation without the suffix."""
        from xr_tensorfmt.formats.cc4s.read import describe_yaml  # noqa: PLC0415

        part = "" if self.find_suffix(reader.source.file_name) else describe_yaml(reader)
        hint = "open a tensor of cc4s, whose suffix must be .yaml"
        return (f"a part of a calculation ({part})", hint) if part else None

    def find_parts(
        self, names: Collection[str], open_reader: Callable[[str], HeaderReader]
    ) -> Mapping[str, str]:
        """Return elements that have a YAML file, and YAML files that describe no tensor."""
        from xr_tensorfmt.formats.cc4s.read import find_parts  # noqa: PLC0415

        return find_parts(names, open_reader)
