"""TENS, the tensor files of cc4s: versions 0.9 and 1.0.

This package only reads pairs and symmetries, because no known program loads them.
"""

from __future__ import annotations

from types import MappingProxyType

from xr_tensorfmt.core.file_format import LazyFormat, Match, OpenOptions, Option, share_options
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.errors import TensorFormatError

MAGIC = b"TENS"


class TensFormat(LazyFormat):
    """TENS files. A file has one tensor, dense or as pairs of index and value."""

    name = "tens"
    title = "TENS"
    suffixes = (".tens", ".bin")
    magics = (MAGIC,)
    open_options = share_options("name", "sparse", "verify")
    validation_options = OpenOptions(format_options={"sparse": "dense", "verify": False})
    write_options = MappingProxyType(
        {
            "version": Option(
                "1.0 is the version of the specification. 0.9 is the version of sisi4s, and of "
                "cc4s until 2020: float64 or complex128 without names, coordinates and attributes. "
                "The default is 0.9 for the suffix .bin, and for data of version 0.9.",
                ("1.0", "0.9"),
            )
        }
    )

    def match(self, reader: HeaderReader) -> Match:
        """Check the header fields, because four other formats have the same magic number."""
        if not super().match(reader):
            return Match.NONE
        from xr_tensorfmt.formats.tens.read import TensHeader  # noqa: PLC0415

        try:
            TensHeader.read(reader)
        except TensorFormatError:
            return Match.POSSIBLE
        return Match.CERTAIN
