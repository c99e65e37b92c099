"""Errors about unknown formats name the format and what to do."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from safetensors.numpy import save

from tests import cc4sfiles as cf
from tests.opening import open_lazily
from tests.vespafiles import make_tensor as vespa_tensor
from xr_tensorfmt import TensorFormatError, to_file, validate
from xr_tensorfmt.contract import Container, Dense, Format, HeaderReader, Plain, Tensor
from xr_tensorfmt.core.file_format import OpenOptions
from xr_tensorfmt.formats import registry


def make_tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.mag"))
    return file.getvalue()


def make_zip(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"content")
    return file.getvalue()


FILES: Mapping[str, tuple[bytes, str]] = {
    "a.jsonl.gz": (
        gzip.compress(b"{}", mtime=0),
        "compressed JSON, .*decompress .*from_jsonl.* if it is a",
    ),
    "a.gz": (gzip.compress(b"x"), "compressed by gzip, .*decompress it first"),
    "a.bin.bz2": (bz2.compress(b"x"), "compressed by bzip2, .*decompress it first"),
    "a.xz": (lzma.compress(b"x"), "compressed by xz, .*decompress it first"),
    "a.zst": (b"\x28\xb5\x2f\xfd" + bytes(9), "compressed by zstd, .*decompress it first"),
    "a.lz4": (b"\x04\x22\x4d\x18" + bytes(9), "compressed by lz4, .*decompress it first"),
    "a.safetensors": (b"version https://git-lfs.github.com/spec/v1\noid x", "git lfs pull"),
    "b.safetensors": (gzip.compress(b"x", mtime=ord("{")), "compressed by gzip"),
    "c.safetensors": (b"<!DOCTYPE html><html>", "a page of HTML, .*log in .*fetch the file"),
    "old.html": (b"<!DOCTYPE HTML PUBLIC", "a page of HTML, .*log in .*fetch the file"),
    "d.safetensors": (b"", "no bytes, the file is empty, .*fetch the file again"),
    "a.tbf": (b"", "no bytes, the file is empty, .*fetch the file again"),
    "a.zip": (make_zip("README"), "a zip archive, .*unzip it"),
    "metadata.zip": (make_zip("metadata.json"), "a zip archive, .*unzip it"),
    "array.zip": (make_zip("array.npy"), "a zip archive, .*unzip it"),
    "empty.npz": (b"PK\5\6" + bytes(18), "an empty zip archive, .*fetch the file again"),
    "a.tar": (make_tar(), r"a tar archive, .*extract it \(tar -xf\)"),
    "model.pt": (make_zip("model/data.pkl"), "a PyTorch checkpoint.*safetensors.torch.save_file"),
    "pytorch_model.bin": (make_zip("archive/data.pkl"), "a PyTorch checkpoint"),
    "a.pkl": (pickle.dumps([1.5, "x"]), "a Python pickle, .*if you trust the file.*can run code"),
    "old.pkl": (
        pickle.dumps([1.5, "x"], 2),
        "a Python pickle, .*if you trust the file.*can run code",
    ),
    "a.h5": (b"\x89HDF\r\n\x1a\n" + bytes(99), "HDF5 or netCDF-4, .*engine='h5netcdf'"),
    "a.nc": (b"CDF\x01" + bytes(28), "netCDF, .*engine='scipy'"),
    "b.nc": (b"CDF\x02" + bytes(28), "netCDF, .*engine='scipy'"),
    "a.csv": (b"1,2\n3,4\n", "text, .*numpy.loadtxt"),
    "marked.csv": (b"\xef\xbb\xbf1,2\n3,4\n", "text, .*numpy.loadtxt"),
    "long.txt": ("\u00e4".encode() * 4000, "text, .*numpy.loadtxt"),
    "odd.txt": (b"a" + "\u00e4".encode() * 4000, "text, .*numpy.loadtxt"),
    "OUTCAR": (b" vasp.6.3.0 20Jan22\n executed on Linux\n", "text, .*ase if VASP wrote it"),
    "a.molden": (b"[Molden Format]\n", "text, .*numpy.loadtxt"),
    "cc4s.in": (
        b"- name: Read\n  in:\n    fileName: a.yaml\n",
        r"a part of a calculation \(input of cc4s\), .*open a tensor of cc4s, .*\.yaml",
    ),
    "cc4s.log": (
        b"   \\___/\n  Coupled Cluster for Solids\n\nversion: 1\n",
        "log of cc4s",
    ),
    "a.yml": (cf.format_yaml((2, 3)).encode(), r"\(Tensor\), .*whose suffix must be \.yaml"),
    "records.bin": (
        struct.pack("<i8di", 64, *range(8), 64) + struct.pack("<idi", 8, 1, 8),
        r"probably records of Fortran, .*scipy\.io\.FortranFile.*access='stream'",
    ),
    "big.bin": (struct.pack(">q8dq", 64, *range(8), 64), "probably records of Fortran"),
    "many.bin": (struct.pack("<idi", 8, 1, 8) * 150, "probably records of Fortran"),
    "eights.bin": (struct.pack("<7i", *[8] * 7), "of no known format"),
    "a.index": (b'{"a": [1]}', "text, .*vespa.from_json"),
    "model": (save({"a": np.ones(3)}), "safetensors without its suffix, .*format='safetensors'"),
    "raw.bin": (bytes(800), r"of no known format, .*numpy.memmap\(path, dtype, 'r', shape"),
    "vespa": (
        vespa_tensor("float", [], {"x": 2}, [], np.ones((1, 2))),
        "of no known format, .*leave out engine=.*or pass format= .*'vespa'",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_message_names_format_and_hint(tmp_path: Path, name: str) -> None:
    content, message = FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(
        TensorFormatError, match=rf"{name}: the magic number at byte 0: .*{message}"
    ):
        open_lazily(path)
    (finding,) = validate(path)
    assert finding.offset == 0


def test_unknown_files_are_not_claimed(tmp_path: Path) -> None:
    engine = xr.backends.list_engines()["tensorfmt"]
    for name, (content, _) in FILES.items():
        (tmp_path / name).write_bytes(content)
        assert not engine.guess_can_open(str(tmp_path / name)), name


def test_directory_raises(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=r"is a directory; pass the path"):
        open_lazily(tmp_path)


def test_path_is_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "a.mag").touch()
    for name in ("*.mag", "b.mag"):
        with pytest.raises(FileNotFoundError, match="No such file or directory"):
            open_lazily(tmp_path / name)
    to_file(xr.DataArray(np.ones(3, "f4"), dims="x"), tmp_path / "[1].mag")
    assert open_lazily(tmp_path / "[1].mag").sizes == {"x": 3}


def test_similar_file_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "CoulombVertex.yaml").touch()
    for name in ("CoulombVertx.yaml", "coulombvertex.yaml", "CoulombVertex", "CoulombVertex.yml"):
        with pytest.raises(
            FileNotFoundError, match=r"did you mean 'CoulombVertex\.yaml'"
        ) as caught:
            open_lazily(tmp_path / name)
        assert caught.value.filename == str(tmp_path / name)
    for path in (tmp_path / "a.mag", tmp_path / "missing" / "CoulombVertex.yaml"):
        with pytest.raises(FileNotFoundError, match=r"No such file or directory: "):
            open_lazily(path)


def test_compressed_file_of_known_suffix_is_not_taken_for_it(tmp_path: Path) -> None:
    # The length of the header begins like gzip, but its third byte differs.
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'.ljust(0x8B1F)
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\7")
    assert open_lazily(tmp_path / "a.safetensors").a.values.tolist() == [7]


def test_lengths_of_a_dimension_that_disagree_are_a_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pair(Format):
        name, title, magics = "pair", "Pair", (b"PAIR",)

        def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
            lengths = reader.read_field(4, 2, "the lengths")
            layouts = [Dense((length,), Plain(np.dtype("u1")), 6) for length in lengths]
            pairs = zip("ab", layouts, strict=True)
            return Container(tuple(Tensor(name, ("x",), layout) for name, layout in pairs))

    monkeypatch.setattr(registry, "load_plugins", lambda: (Pair(),))
    content = b"PAIR\2\2\7\7"
    assert xr.open_dataset(content, engine="tensorfmt").a.values.tolist() == [7, 7]
    message = "the length of 'x' in 'b' at byte 6: 1, expected 2 as in 'a'"
    with pytest.raises(TensorFormatError, match=message):
        xr.open_dataset(b"PAIR\2\1\7\7", engine="tensorfmt")
    (finding,) = validate(b"PAIR\2\1\7\7")
    assert (finding.severity, finding.offset) == ("error", 6)
