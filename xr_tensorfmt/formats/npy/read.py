"""Reading of the file of one array."""

from __future__ import annotations

from xr_tensorfmt.core.container import Container, Tensor, named_dims
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.formats.npy.spec import HEAD_BYTES, parse


def default_dims(rank: int) -> tuple[str, ...]:
    """Names for dimensions that nobody has named."""
    return tuple(f"dim_{axis}" for axis in range(rank))


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read the header of a file."""
    path, size = reader.source.name, reader.source.size
    options.check_all_stored(path)
    header = parse(path, reader.first_bytes(HEAD_BYTES), 0, "the array")
    reader.check_complete(header.stop)
    dims = named_dims(options.dims, options.name, default_dims(len(header.shape)))
    findings: tuple[Finding, ...] = ()
    if size > header.stop:
        message = (
            f"{size - header.stop} more bytes; numpy.save writes another array there where it is "
            "given an open file, and only the first one is opened"
        )
        findings = (Finding(path, header.stop, "the end of the array", message, "warning"),)
    tensor = Tensor(options.name, dims, header.layout, encoding=header.encoding(format="npy"))
    return Container((tensor,), findings=findings)
