"""Recognise unsupported formats, so that errors can name them."""

from __future__ import annotations

from typing import NamedTuple

from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.errors import Hint
from xr_tensorfmt.formats._shared.zip_members import ZIP_MAGIC, read_first_member


class ForeignFormat(NamedTuple):
    """Name and hint for an error."""

    title: str
    hint: str


_FETCH = "fetch the file again"
_DECOMPRESS = "decompress it first"
_TAR = ForeignFormat("a tar archive", "extract it (tar -xf) and open its files")
_NETCDF = ForeignFormat("netCDF", "leave out engine=, or pass engine='scipy' or 'netcdf4'")
_HTML = ForeignFormat("a page of HTML", f"log in if the server requires it, and {_FETCH}")
_PICKLE = ForeignFormat("a Python pickle", "load it only if you trust the file: it can run code")
_TORCH = ForeignFormat("a PyTorch checkpoint", "convert it with safetensors.torch.save_file")
_TEXT = ForeignFormat(
    "text",
    "read it with numpy.loadtxt, or with xr_tensorfmt.vespa.from_json if it is a tensor of Vespa",
)
_SAFETENSORS = ForeignFormat(
    "safetensors without its suffix", Hint("pass {format}", format="safetensors")
)
_DOCUMENTS = ForeignFormat("a feed of Vespa", "open it with xr_tensorfmt.vespa.from_jsonl")
_BY_MAGIC = {
    b"\x1f\x8b\x08": ForeignFormat("compressed by gzip", _DECOMPRESS),
    b"\x28\xb5\x2f\xfd": ForeignFormat("compressed by zstd", _DECOMPRESS),
    b"BZh": ForeignFormat("compressed by bzip2", _DECOMPRESS),
    b"\xfd7zXZ\0": ForeignFormat("compressed by xz", _DECOMPRESS),
    b"\x04\x22\x4d\x18": ForeignFormat("compressed by lz4", _DECOMPRESS),
    b"7z\xbc\xaf\x27\x1c": ForeignFormat("compressed by 7z", _DECOMPRESS),
    b"\x89HDF\r\n\x1a\n": ForeignFormat("HDF5 or netCDF-4", "pass engine='h5netcdf'"),
    b"GGUF": ForeignFormat("GGUF", "read it with the package gguf"),
    b"PAR1": ForeignFormat("Parquet", "read it with pandas.read_parquet"),
    b"ARROW1": ForeignFormat("Arrow", "read it with pyarrow.ipc.open_file"),
    b"PK\x05\x06": ForeignFormat("an empty zip archive", _FETCH),
    b'{"put":': _DOCUMENTS,
    **dict.fromkeys((b"CDF\x01", b"CDF\x02", b"CDF\x05"), _NETCDF),
    **dict.fromkeys((b"\x80\x02", b"\x80\x03", b"\x80\x04\x95", b"\x80\x05\x95"), _PICKLE),
    **dict.fromkeys((b"<!DOCTYPE ", b"<!doctype ", b"<html", b"<HTML"), _HTML),
}


def find_by_magic(reader: HeaderReader) -> ForeignFormat | None:
    """Return the unsupported format with the magic number of a file, if any."""
    if not reader.head:
        return ForeignFormat("empty", _FETCH)
    if reader.head.startswith(ZIP_MAGIC):
        is_torch = read_first_member(reader)[0].endswith((b"/data.pkl", b"/version", b"/byteorder"))
        return _TORCH if is_torch else ForeignFormat("a zip archive", "unzip it")
    if reader.read_head(262)[257:] == b"ustar":
        return _TAR
    return next((_BY_MAGIC[start] for start in _BY_MAGIC if reader.head.startswith(start)), None)


def find_without_magic(reader: HeaderReader) -> ForeignFormat | None:
    """Guess the format of a file without magic number. Return None if it is unknown."""
    text = reader.read_head(512).decode(errors="replace").rstrip("\ufffd").lstrip("\ufeff")
    if "\ufffd" not in text and "".join(text.split()).isprintable():
        return _TEXT
    length = int.from_bytes(reader.head[:8], "little")
    is_safetensors = reader.head[8:10] == b'{"' and length <= reader.source.size - 8
    return _SAFETENSORS if is_safetensors else None
