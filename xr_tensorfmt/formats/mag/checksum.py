"""CRC-32C over the header of a container, which magnetron writes but never verifies."""

from __future__ import annotations

from google_crc32c import value as crc32c

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.base import OpenOptions
from xr_tensorfmt.formats.header import HeaderReader


def check_checksum(
    reader: HeaderReader, options: OpenOptions, stored: int, at: int, start: int, stop: int
) -> tuple[str, ...]:
    """Compare the stored checksum with that of the header's bytes.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    options : OpenOptions
        ``verify=False`` makes a wrong checksum a warning.
    stored : int
        The checksum of the header.
    at : int
        Where it stands.
    start, stop : int
        The bytes that it covers.

    Returns
    -------
    tuple of str
        A warning, where the checksum is wrong and that was allowed.

    Raises
    ------
    TensorFormatError
        The checksum is wrong.
    """
    found = crc32c(reader.bytes_at(start, stop - start, "the header"))
    if found == stored:
        return ()
    error = TensorFormatError(
        reader.source.name,
        "the checksum",
        f"{stored:#010x}",
        f"{found:#010x}, the CRC-32C of bytes {start} to {stop}",
        "the header is damaged, so fetch the file again; verify=False tries to read the rest",
        offset=at,
    )
    if options.verify:
        raise error
    return (str(error),)
