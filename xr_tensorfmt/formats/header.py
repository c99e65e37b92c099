"""Reading header fields out of untrusted bytes."""

from __future__ import annotations

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.extents import Extents
from xr_tensorfmt.sources import Source

READ_AHEAD = 4096
"""Bytes fetched at least for a header: what a disk reads anyway."""


class HeaderReader:
    """The beginning of a file, fetched as far as it is asked for.

    Parameters
    ----------
    source : Source
        The file.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._head = b""

    def bytes_at(self, offset: int, length: int, field: str) -> bytes:
        """Bytes of one field.

        Parameters
        ----------
        offset, length : int
            Where the field is.
        field : str
            What it is, for the error.

        Returns
        -------
        bytes
            As many as were asked for.

        Raises
        ------
        TensorFormatError
            The file ends before the field does.
        """
        stop = offset + length
        if stop > self.source.size:
            raise TensorFormatError(
                self.source.name,
                field,
                f"cut off by the end of the file at byte {self.source.size}",
                f"{length} bytes",
                "the file is incomplete; fetch it again",
                offset=offset,
            )
        if offset > len(self._head) + READ_AHEAD:
            return self._fetch(offset, stop)
        if stop > len(self._head):
            upto = min(self.source.size, max(stop, len(self._head) + READ_AHEAD))
            self._head += self._fetch(len(self._head), upto)
        return self._head[offset:stop]

    def first_bytes(self, length: int) -> bytes:
        """The first bytes of the file, fewer where it is shorter."""
        return self.bytes_at(0, min(length, self.source.size), "the header")

    def unsigned(self, offset: int, length: int, field: str) -> int:
        """A little-endian unsigned integer; the errors of `bytes_at`."""
        return int.from_bytes(self.bytes_at(offset, length, field), "little")

    def _fetch(self, start: int, stop: int) -> bytes:
        return self.source.read(Extents.single(start, stop)).tobytes() if stop > start else b""
