"""What a file of no known format is, and what to do with it."""

from __future__ import annotations

from dataclasses import dataclass

from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.zip_members import ZIP_MAGIC, first_member

_COMPRESSED = "decompress it first, as by {}, since parts of it cannot be read"
_PICKLE = (
    "a pickle can run any code: where you trust the file, load it with the program that wrote it, "
    "and write the arrays by xr_tensorfmt.to_file"
)
_TORCH = (
    "load it by torch.load(path, weights_only=True) and write it by safetensors.torch.save_file, "
    "whose files can be opened"
)
_HDF5 = "leave out engine=, or pass engine='h5netcdf'; without netCDF's dimensions use h5py"
_NETCDF = "leave out engine=, or pass engine='scipy' or 'netcdf4'"
_FETCH = "fetch the file itself"


@dataclass(frozen=True)
class Kind:
    """What a file is, and what to do with it."""

    title: str
    way_out: str
    is_known: bool = True


_BY_START = {
    b"\x1f\x8b\x08": Kind("compressed by gzip", _COMPRESSED.format("gunzip")),
    b"\x28\xb5\x2f\xfd": Kind("compressed by zstd", _COMPRESSED.format("unzstd")),
    b"BZh": Kind("compressed by bzip2", _COMPRESSED.format("bunzip2")),
    b"\xfd7zXZ\0": Kind("compressed by xz", _COMPRESSED.format("unxz")),
    b"\x04\x22\x4d\x18": Kind("compressed by lz4", _COMPRESSED.format("unlz4")),
    b"7z\xbc\xaf\x27\x1c": Kind("a 7z archive", _COMPRESSED.format("7z x")),
    b"\x89HDF\r\n\x1a\n": Kind("HDF5, such as netCDF-4", _HDF5),
    **dict.fromkeys((b"CDF\x01", b"CDF\x02", b"CDF\x05"), Kind("netCDF", _NETCDF)),
    b"GGUF": Kind("GGUF", "load it with the package gguf, and write it by xr_tensorfmt.to_file"),
    b"PAR1": Kind("Parquet", "read it by pandas.read_parquet"),
    b"ARROW1": Kind("Arrow", "read it by pyarrow.ipc.open_file"),
    **dict.fromkeys(
        (b"\x80\x02", b"\x80\x03", b"\x80\x04\x95", b"\x80\x05\x95"),
        Kind("a pickle of Python", _PICKLE),
    ),
    b"version https://git-lfs": Kind(
        "a pointer of Git LFS and not the file", f"{_FETCH} by git lfs pull"
    ),
}

_EMPTY = Kind("empty", "what should have written it did not; write it or fetch it again")
_HTML_STARTS = b"<!doctype html", b"<html"
_HTML = Kind("a page of HTML", f"a server has sent it instead, as for a login; {_FETCH}")

_EMPTY_ZIP = b"PK\x05\x06"
_TAR, _TAR_OFFSET = b"ustar", 257

_TEXT_BYTES = 512


def binary_kind(reader: HeaderReader) -> Kind | None:
    """What a file is that has the magic number of another format; None where none is known."""
    head = reader.head
    if not head:
        return _EMPTY
    if head.lower().startswith(_HTML_STARTS):
        return _HTML
    for start, kind in _BY_START.items():
        if head.startswith(start):
            return kind
    if head.startswith(_EMPTY_ZIP):
        return Kind("a zip archive without members", "write it again")
    if head.startswith(ZIP_MAGIC):
        return _zip_kind(reader)
    if reader.first_bytes(_TAR_OFFSET + len(_TAR))[_TAR_OFFSET:] == _TAR:
        return Kind("a tar archive", "extract it (tar -xf) and open the files in it")
    return None


def _zip_kind(reader: HeaderReader) -> Kind:
    first, _ = first_member(reader)
    if first.endswith((b"/data.pkl", b"/version", b"/byteorder")):
        return Kind("a checkpoint of PyTorch, which is a pickle in a zip", _TORCH)
    inside = f" that begins with {first.decode(errors='replace')!r}" if first else ""
    return Kind(f"a zip archive{inside}", "unzip it and open the files in it")


def other_kind(reader: HeaderReader) -> Kind:
    """What a file is that has no magic number."""
    head = reader.first_bytes(_TEXT_BYTES)
    try:
        # The last character may be cut off.
        text = head.decode(errors="strict" if len(head) < _TEXT_BYTES else "ignore")
    except UnicodeDecodeError:
        text = ""
    is_text = text and all(each.isprintable() or each in "\t\r\n\f" for each in text)
    if not is_text or len(text.encode()) < len(head) - 3:
        return _raw_kind(reader)
    start = text.lstrip("\ufeff \t\r\n")[:16].lower()
    if start.startswith(("{", "[")):
        return Kind(
            "text, perhaps JSON",
            "if it is a tensor of Vespa, pass format='vespa-json'; if it describes tensors, open "
            "the files that it speaks of",
        )
    return Kind(
        "text",
        "read it by numpy.loadtxt or pandas.read_csv, and write the arrays by xr_tensorfmt.to_file",
    )


def _raw_kind(reader: HeaderReader) -> Kind:
    head, size = reader.head, reader.source.size
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") <= size - 8:
        return Kind(
            "safetensors under another name",
            "pass format='safetensors', or give it the suffix .safetensors",
        )
    if reader.source.name.casefold().endswith((".bin", ".dat", ".raw")):
        return Kind(
            "of no known format, perhaps the values alone",
            "if you know their dtype and shape, read them by numpy.memmap(path, dtype, 'r', "
            "shape=...) and write them by xr_tensorfmt.to_file",
            is_known=False,
        )
    return Kind(
        "of no known format",
        "leave out engine= to let xarray look for another engine",
        is_known=False,
    )
