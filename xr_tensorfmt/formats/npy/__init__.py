"""NumPy files: one array, or several arrays in a zip."""

from __future__ import annotations

from collections.abc import Iterator

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.file_format import Format, LazyFormat, Match
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.formats.zip_members import ZIP_MAGIC, read_first_member

MAGIC = b"\x93NUMPY"
SUFFIX = ".npy"


def get_default_dims(rank: int) -> tuple[str, ...]:
    """Return the names of the dimensions, which the format does not store."""
    return tuple(f"dim_{axis}" for axis in range(rank))


class NpyFormat(LazyFormat):
    """Files written by `numpy.save`."""

    name = "npy"
    title = "NumPy .npy"
    suffixes = (SUFFIX,)
    magics = (MAGIC,)
    open_options = frozenset({"name", "verify"})


class NpzFormat(Format):
    """Files written by `numpy.savez` or `numpy.savez_compressed`."""

    name = "npz"
    title = "NumPy .npz"
    suffixes = (".npz",)
    magics = (ZIP_MAGIC,)
    open_options = frozenset({"verify"})

    def match(self, reader: HeaderReader) -> Match:
        """Check the first member, if compressed only its name. Many formats are zips."""
        name, content = read_first_member(reader)
        if name.endswith(SUFFIX.encode()) and (not content or content.startswith(MAGIC)):
            return Match.CERTAIN
        is_possible = super().match(reader) and self.find_suffix(reader.source.file_name)
        return Match.POSSIBLE if is_possible else Match.NONE

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the directory of the zip, and the headers of its arrays."""
        from xr_tensorfmt.formats.npy.read import read_npz  # noqa: PLC0415

        return read_npz(reader, options)

    def check(self, reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
        """Check the CRC-32 of all members."""
        from xr_tensorfmt.formats.zip_members import check_checksums  # noqa: PLC0415

        return check_checksums(reader.source, container.parsed)
