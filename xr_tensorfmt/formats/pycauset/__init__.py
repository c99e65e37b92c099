"""PyCauset files: matrices and vectors of causal sets, written by any version.

Modules, in the order to read them:

- `matrices`, `packed`: the matrix types and their layouts
- `container`: the current version of the file, in both directions
- `read`, `write`: the format
"""

from __future__ import annotations

from types import MappingProxyType

from xr_tensorfmt.core.file_format import LazyFormat, Match, OpenOptions, Option, share_options
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.formats.zip_members import ZIP_MAGIC, read_first_member

NAME = "pycauset"
MAGIC = b"PYCAUSET"
# Metadata of a causal set: the key of its class, and the prefix of arguments in the attributes.
OBJECT_TYPE = "object_type"
ARGUMENT_PREFIX = "spacetime_"


class PycausetFormat(LazyFormat):
    """PyCauset: one matrix or vector."""

    name = NAME
    title = "PyCauset"
    suffixes = (".pycauset",)
    magics = (MAGIC, ZIP_MAGIC)
    open_options = share_options("name", "sparse", "verify")
    validation_options = OpenOptions(format_options={"sparse": "dense", "verify": False})
    write_options = MappingProxyType(
        {
            "matrix_type": Option(
                "How to store the matrix: CAUSAL, TRIANGULAR_FLOAT, TRIANGULAR_INTEGER, "
                "DENSE_FLOAT, INTEGER or VECTOR. The values must fit. The default is the type of "
                "the opened file, or CAUSAL for bools, or else one with all elements."
            ),
            "seed": Option(
                "Seed of the random numbers in the values. The default is the seed of the opened "
                "file if the whole matrix is written, otherwise 0."
            ),
        }
    )

    def match(self, reader: HeaderReader) -> Match:
        """Match the magic number, or the first member of a zip archive."""
        if reader.head.startswith(MAGIC):
            return Match.CERTAIN
        name, content = read_first_member(reader)
        if name == b"metadata.json" and b'"matrix_type"' in content:
            return Match.CERTAIN
        is_possible = super().match(reader) and self.find_suffix(reader.source.file_name)
        return Match.POSSIBLE if is_possible else Match.NONE
