"""Files of NumPy: reading .npy and .npz, and writing .npy."""

from __future__ import annotations

import io
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xarray as xr
from dask.base import tokenize
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.opening import open_lazily
from tests.work import limit_memory
from xr_tensorfmt import (
    SourceChangedError,
    TensorFormatError,
    TensorFormatWarning,
    to_file,
    validate,
)
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.datasets.lazy_array import find_undecoded_tensor
from xr_tensorfmt.formats.zip_members import Deflated, check_checksums, read_directory
from xr_tensorfmt.sources.local import LocalFile

dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    hnp.unicode_string_dtypes(endianness="?", min_len=1, max_len=4),
    hnp.byte_string_dtypes(min_len=1, max_len=4),
    hnp.datetime64_dtypes(endianness="?", max_period="s", min_period="ns"),
    hnp.timedelta64_dtypes(endianness="?", max_period="s", min_period="ns"),
)
arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    )
)


def save(*values: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    for value in values:
        np.save(file, value, **options)
    return file.getvalue()


def zip_files(**values: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **values)
    return file.getvalue()


@given(arrays, st.booleans())
def test_reads_files_of_numpy(values: Any, is_fortran: bool) -> None:
    values = np.asfortranarray(values) if is_fortran else values
    tensor = open_lazily(save(values)).tensor
    assert tensor.dtype == values.dtype.newbyteorder("=")
    assert tensor.dims == tuple(f"dim_{axis}" for axis in range(values.ndim))
    np.testing.assert_array_equal(tensor.values, values)


@given(values=arrays)
def test_writes_same_bytes_as_numpy(tmp_path_factory: Any, values: Any) -> None:
    path = tmp_path_factory.mktemp("npy") / "a.npy"
    dims = tuple(f"dim_{axis}" for axis in range(values.ndim))
    to_file(xr.DataArray(values, dims=dims, name="tensor"), path, "npy")
    little = np.ascontiguousarray(values).reshape(values.shape)
    little = little.astype(little.dtype.newbyteorder("<"))
    assert path.read_bytes() == save(little)
    assert validate(path) == []


@given(st.dictionaries(st.text("abc./", min_size=1, max_size=4), arrays, max_size=4))
def test_reads_zip_of_numpy(values: dict[str, Any]) -> None:
    values.pop("file", None)
    actual = open_lazily(zip_files(**values), format="npz")
    assert list(actual) == list(values)
    for key, item in values.items():
        assert actual[key].dims == tuple(f"{key}_dim_{axis}" for axis in range(item.ndim))
        np.testing.assert_array_equal(actual[key].values, item)


def test_files_are_recognised_by_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(save(np.arange(3)))
    (tmp_path / "b").write_bytes(zip_files(x=np.arange(3)))
    assert int(xr.open_dataset(tmp_path / "a").tensor.sum()) == 3
    assert int(xr.open_dataset(tmp_path / "b").x.sum()) == 3


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions_of_header_are_read(version: Any) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.arange(3), version)
    np.testing.assert_array_equal(open_lazily(file.getvalue()).tensor, [0, 1, 2])


def test_headers_of_python_2_are_read_with_warning_of_numpy() -> None:
    with pytest.warns(UserWarning, match="created on Python 2"):
        actual = open_lazily(pack_header(format_fields("(2L,)"), data=np.arange(2.0).tobytes()))
    np.testing.assert_array_equal(actual.tensor, [0, 1])


@pytest.mark.parametrize("spaces", [9_000, 200_000])
def test_long_headers_are_read(spaces: int) -> None:
    content = pack_header(f"{format_fields()[:-1]}{' ' * spaces}\n", b"\2\0", np.ones(2).tobytes())
    np.testing.assert_array_equal(open_lazily(content).tensor, np.ones(2))
    archive = make_archive(("a.npy", content), ("b.npy", save(np.arange(3))))
    ds = open_lazily(archive)
    np.testing.assert_array_equal(ds.a, np.ones(2))
    np.testing.assert_array_equal(ds.b, np.arange(3))


@pytest.mark.parametrize("name", ["\\u540d", "\\ud800", "\\xff", "\\0"])
def test_escaped_names_of_fields_have_a_hint(name: str) -> None:
    content = pack_header(format_fields(descr=f"[('{name}', '<f4')]"), b"\3\0", bytes(8))
    with pytest.raises(TensorFormatError, match="or take a field") as caught:
        open_lazily(content)
    str(caught.value).encode()


def test_column_of_fortran_order_is_one_range() -> None:
    content = save(np.asfortranarray(np.arange(600.0).reshape(20, 30)))
    actual = find_undecoded_tensor(open_lazily(content).tensor.variable)
    assert actual is not None
    column = Selection((20, 30), (range(20), range(3, 4)))
    assert actual.array.layout.locate(column).bounds == (128 + 3 * 160, 128 + 4 * 160)


def test_part_of_zip_reads_that_part(memory: MemoryFileSystem) -> None:
    values = np.arange(1 << 18).reshape(512, 512)
    memory.pipe_file("/bucket/a.npz", zip_files(a=values, b=values + 1, c=np.ones(3)))
    actual = open_lazily("memory://bucket/a.npz")
    assert actual.tensorfmt.explain().needed_bytes == 2 * values.nbytes + 24
    rows = actual.b[[3, 400]]
    assert rows.tensorfmt.explain().needed_bytes == 2 * 512 * 8
    np.testing.assert_array_equal(rows, values[[3, 400]] + 1)


@pytest.mark.slow
def test_long_comment_and_large_archives_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(
        zip_files(**{f"name{number:05}": np.full(3, number) for number in range(2000)})
    )
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"x" * 60_000
    actual = open_lazily(path)
    assert len(actual) == 2000
    assert actual.name01999.values.tolist() == [1999] * 3
    with zipfile.ZipFile(path, "w") as archive, archive.open("b.npy", "w", force_zip64=True) as one:
        one.write(save(np.arange(5)))
    np.testing.assert_array_equal(open_lazily(path).b, range(5))
    content = make_archive(("b.npy", save(np.arange(5))))
    end = content.index(b"PK\5\6")
    zip64 = content[: end + 8] + b"\xff" * 4 + content[end + 12 :]  # the count is elsewhere
    np.testing.assert_array_equal(open_lazily(zip64).b, range(5))


def test_names_without_flag_of_utf8_are_read() -> None:
    content = make_archive(("cafX.npy", save(np.arange(3)))).replace(b"cafX", b"caf\x82")
    assert list(open_lazily(content)) == ["caf\N{LATIN SMALL LETTER E WITH ACUTE}"]
    assert validate(content) == []


FOREIGN: Mapping[str, tuple[Any, str]] = {
    "objects": (np.array([{}, None]), "object, .*Python objects are a pickle"),
    "fields": (np.zeros(2, [("x", "f4"), ("y", "i4")]), "or take a field"),
    "fields of version 3": (np.zeros(2, [("名", "f4")]), "or take a field"),
    "an object in fields": (np.zeros(2, [("x", "O")]), "Python objects are a pickle"),
    "days": (np.zeros(2, "M8[D]"), "convert it"),
    "25 s": (np.zeros(2, "m8[25s]"), "convert it"),
    "generic times": (np.zeros(2, "m8"), "convert it"),
    "raw bytes": (np.zeros(2, "V3"), "convert it"),
    "bfloat16": (np.zeros(2, ml_dtypes.bfloat16), "convert it"),
}


@pytest.mark.filterwarnings("ignore:Custom dtypes:UserWarning")
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0:UserWarning")
@pytest.mark.parametrize("name", FOREIGN)
def test_dtypes_that_xarray_does_not_support_raise(name: str) -> None:
    values, message = FOREIGN[name]
    with pytest.raises(TensorFormatError, match=f"the dtype of the array at byte 0: .*{message}"):
        open_lazily(save(values))
    with pytest.warns(
        TensorFormatWarning, match=f"the dtype of the array 'b' at .*{message}.*omitted"
    ):
        assert list(open_lazily(zip_files(a=np.ones(3), b=values, c=np.ones(3)))) == ["a", "c"]


def pack_header(text: str, version: bytes = b"\1\0", data: bytes = b"") -> bytes:
    raw = text.encode("latin1")
    length = 2 if version == b"\1\0" else 4
    return b"\x93NUMPY" + version + len(raw).to_bytes(length, "little") + raw + data


def format_fields(shape: str = "(2,)", descr: str = "'<f8'", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n"


DAMAGED = {
    "cut off in the magic": (b"\x93NUMPY\1", "magic and version of the array at byte 0: "),
    "a new version": (b"\x93NUMPY\4\0abc", "magic and version of the array at byte 0: "),
    "cut off in the length": (b"\x93NUMPY\1\0\1", "the header of the array at byte 0"),
    "cut off in the header": (
        pack_header(format_fields())[:20],
        "the header of the array at byte 0",
    ),
    "no dict": (pack_header("[1]\n"), "the header of the array"),
    "code": (pack_header("__import__('os').getcwd()\n"), "the header of the array"),
    "a key less": (pack_header("{'descr': '<f8', 'shape': (2,)}\n"), "the header of the array"),
    "a bad dtype": (pack_header(format_fields(descr="'<q9'")), "the header of the array"),
    "a bad shape": (pack_header(format_fields("'ab'")), "the header of the array"),
    "a bad order": (pack_header(format_fields(order="3")), "the header of the array"),
    "a negative length": (pack_header(format_fields("(-2,)")), "the shape of the array"),
    "a long header": (
        pack_header(format_fields() + " " * (1 << 18), b"\2\0"),
        "the size of the header .* at most 262144 bytes; load it with np.load.*max_header_size",
    ),
    "larger than memory": (
        pack_header(format_fields(f"({10**18}, {10**18})")),
        "the size of 'tensor'",
    ),
    "too many dimensions": (pack_header(format_fields(str((1,) * 32))), "the rank of 'tensor'"),
    "cut off in the data": (
        pack_header(format_fields(), data=b"12345"),
        "the file at byte .*incomplete",
    ),
    "nothing behind the header": (pack_header(format_fields()), "the file at byte .*incomplete"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_corrupt_files_raise(content: bytes, message: str) -> None:
    with pytest.raises(TensorFormatError, match=message):
        open_lazily(content, format="npy")


@given(st.binary(max_size=40), st.integers(0, 200))
def test_changed_bytes_of_array_raise_only_documented_errors(noise: bytes, position: int) -> None:
    content = bytearray(save(np.arange(12.0).reshape(3, 4)))
    content[position : position + len(noise)] = noise
    check_survival(bytes(content), "npy")


@given(st.binary(max_size=40), st.integers(0, 700))
def test_changed_bytes_of_zip_raise_only_documented_errors(noise: bytes, position: int) -> None:
    content = bytearray(zip_files(a=np.arange(12.0).reshape(3, 4), b=np.arange(3)))
    content[position : position + len(noise)] = noise
    check_survival(bytes(content), "npz")


def check_survival(content: bytes, format: str) -> None:
    """Check that a file opens and loads, or raises the error for damaged files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(TensorFormatError):
            open_lazily(content, format=format).load()


def test_another_array_behind_first_raises() -> None:
    content = save(np.arange(3), np.arange(4))
    with pytest.raises(TensorFormatError, match="the first array at byte 152: 160 more bytes"):
        open_lazily(content)


def make_archive(*members: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as target:
        for name, content in members:
            target.writestr(name, content)
    return file.getvalue()


def deflate_files(**values: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **values)
    return file.getvalue()


@pytest.mark.slow
def test_deflated_members_are_inflated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(60_000.0).reshape(300, 200)
    path = tmp_path / "a.npz"
    path.write_bytes(deflate_files(a=values, b=np.asfortranarray(values + 1), s=["x", "yy"]))
    calls = []
    parse = Deflated.parse
    monkeypatch.setattr(Deflated, "parse", lambda *args: (calls.append(args), parse(*args))[1])
    ds = xr.open_dataset(path, engine="tensorfmt", chunks={"a_dim_0": 10})
    assert calls == []
    np.testing.assert_array_equal(ds.a, values)
    np.testing.assert_array_equal(ds.a[7, ::3], values[7, ::3])
    assert len(calls) == 1
    np.testing.assert_array_equal(ds.b, values + 1)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ds)).a, values)
    assert ds.s.values.tolist() == ["x", "yy"]
    assert [array.data.npartitions for array in xr.open_dataset(path, chunks={}).values()] == [
        1
    ] * 3
    first, second = (xr.open_dataset(path, engine="tensorfmt", chunks={}) for _ in range(2))
    assert tokenize(first) == tokenize(second)
    assert validate(path) == []


@pytest.mark.slow
def test_deflated_members_are_validated_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(deflate_files(**{f"a{n}": np.zeros(1 << 19) for n in range(8)}))
    with limit_memory(16 << 20):
        assert validate(path) == []


def test_deflated_members_are_validated_without_their_content(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    values = np.tile(np.arange(1 << 10), 1 << 12)
    path.write_bytes(deflate_files(a=values))
    with limit_memory(values.nbytes // 2):
        assert validate(path) == []
    with limit_memory(values.nbytes * 5 // 2):  # the content, and the values of the user
        read = open_lazily(path).a.values
    np.testing.assert_array_equal(read, values)


@given(arrays)
@example(np.zeros(0, dtype=bool))
def test_reads_deflated_files_of_numpy(values: Any) -> None:
    np.testing.assert_array_equal(open_lazily(deflate_files(a=values)).a.values, values)


def test_long_headers_of_deflated_members_are_read() -> None:
    content = pack_header(f"{format_fields()[:-1]}{' ' * 9000}\n", b"\2\0", np.ones(2).tobytes())
    archive = make_archive(("a.npy", content), compression=zipfile.ZIP_DEFLATED)
    np.testing.assert_array_equal(open_lazily(archive).a, np.ones(2))


def test_errors_about_deflated_members_are_at_their_bytes() -> None:
    members = ("a.npy", save(np.ones(3))), ("b.npy", save(np.zeros(2, "V3")))
    content = make_archive(*members, compression=zipfile.ZIP_DEFLATED)
    offset = content.index(b"b.npy") + len("b.npy")
    with pytest.warns(TensorFormatWarning, match=f"the dtype of the array 'b' at byte {offset}:"):
        assert list(open_lazily(content)) == ["a"]


def test_corrupt_deflated_values_raise() -> None:
    values = np.random.default_rng(0).random(5000)
    content = bytearray(deflate_files(a=values, b=np.ones(3)))
    content[20_000] ^= 1
    ds = open_lazily(bytes(content))
    with pytest.raises(TensorFormatError, match=r"the member 'a.npy' at byte 0: deflated data of"):
        ds.a.load()
    assert ds.b.values.tolist() == [1, 1, 1]
    (finding,) = validate(bytes(content))
    assert finding.offset == 0
    assert "the member 'a.npy'" in finding.field


def test_members_of_other_compressions_raise_with_hint() -> None:
    content = make_archive(("a.npy", save(np.zeros(9))), compression=zipfile.ZIP_BZIP2)
    message = "the member 'a' at byte 0: compressed by method 12, .*unzip it, and zip it again"
    with pytest.raises(TensorFormatError, match=message):
        open_lazily(content, format="npz")


def test_members_that_are_no_arrays_are_omitted_with_warning() -> None:
    content = make_archive(("a.npy", save(np.arange(3))), ("README", b"text"))
    with pytest.warns(TensorFormatWarning, match="the member 'README' at byte .*omitted"):
        assert list(open_lazily(content)) == ["a"]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_arrays_without_suffix_are_read_as_numpy_reads_them(compression: int) -> None:
    members = ("a", save(np.arange(3))), ("a.npy", save(np.arange(4))), ("b", save(np.arange(5)))
    content = make_archive(*members, compression=compression)
    expected = np.load(io.BytesIO(content))
    actual = open_lazily(content, format="npz")
    assert list(actual) == ["a", "a.npy", "b"]
    for name in actual:
        np.testing.assert_array_equal(actual[name], expected[name])


def make_damaged_zips() -> dict[str, tuple[bytes, str]]:
    good = make_archive(("a.npy", save(np.arange(3))))
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = make_archive(("a.npy", save(np.arange(3))), ("a.npy", save(np.arange(3))))
    encrypted = bytearray(good)
    encrypted[good.index(b"PK\1\2") + 8] |= 1
    moved = bytearray(good)
    moved[0] = 0
    renamed = bytearray(good)
    renamed[30] ^= 1
    swallowed = bytearray(zip_files(a=np.arange(3), b=np.arange(4)))
    swallowed[swallowed.index(b"PK\1\2") + 32] ^= 0x80  # the length of a comment
    return {
        "cut off": (
            good[:-30],
            "the directory of the zip at byte .*expected a complete zip; the file is corrupt",
        ),
        "no zip": (b"PK\3\4" + bytes(100), "the directory of the zip"),
        "a name twice": (twice, "the directory of the zip at byte .*'a.npy' twice"),
        "encrypted": (bytes(encrypted), "the member 'a' at byte 0: encrypted"),
        "no header": (bytes(moved), "the member 'a' at byte 0: no header"),
        "another name": (
            bytes(renamed),
            "the member 'a' at byte 0: the name b'`.npy' in its header, expected b'a.npy'",
        ),
        "an entry too few": (
            bytes(swallowed),
            r"the number of entries in the directory of the zip at byte \d+: 1, expected 2",
        ),
        "no array": (
            make_archive(("a.npy", b"text")),
            "magic and version of the array 'a' at byte 35",
        ),
        "values cut off": (
            make_archive(("a.npy", save(np.arange(3))[:-8])),
            "the member 'a' at byte 0: 144 bytes, expected 152 bytes for shape",
        ),
    }


@pytest.mark.parametrize(
    "name",
    [
        "cut off",
        "no zip",
        "a name twice",
        "encrypted",
        "no header",
        "another name",
        "an entry too few",
    ],
)
def test_corrupt_zips_raise(name: str) -> None:
    content, message = make_damaged_zips()[name]
    with pytest.raises(TensorFormatError, match=message):
        open_lazily(content, format="npz")


@pytest.mark.parametrize("name", ["no array", "values cut off"])
def test_corrupt_members_raise_if_there_are_no_others(name: str) -> None:
    content, message = make_damaged_zips()[name]
    with pytest.raises(TensorFormatError, match=message):
        open_lazily(content, format="npz")


def test_archive_of_objects_raises_instead_of_opening_empty() -> None:
    content = deflate_files(a=np.array([None, 1]))
    with pytest.raises(TensorFormatError, match=r"the dtype of the array 'a' at byte .*pickle"):
        open_lazily(content)
    with pytest.warns(TensorFormatWarning, match="the tensor is omitted"):
        assert list(open_lazily(deflate_files(a=np.array([None, 1]), b=np.ones(3)))) == ["b"]
    assert list(open_lazily(content, drop_variables="a")) == []


def test_corrupt_member_is_omitted_with_warning() -> None:
    content = make_archive(("a.npy", save(np.arange(3))[:-8]), ("b.npy", save(np.arange(4))))
    with pytest.warns(TensorFormatWarning, match="the member 'a' at byte 0: .*omitted"):
        ds = open_lazily(content)
    assert list(ds) == ["b"]
    np.testing.assert_array_equal(ds.b, np.arange(4))
    (finding,) = validate(content)
    assert (finding.offset, finding.severity) == (0, "error")


def test_zip_that_changes_before_its_checksums_are_checked_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(zip_files(a=np.arange(3)))
    source = LocalFile.open_head(path)[0]
    members = read_directory(HeaderReader(source), 1 << 20)[0]
    path.write_bytes(zip_files(a=np.arange(4)))
    with pytest.raises(SourceChangedError, match="changed or replaced"):
        list(check_checksums(source, members))


def test_validate_checks_checksum_of_each_member() -> None:
    content = bytearray(make_archive(("a.npy", save(np.arange(3))), ("b.npy", save(np.arange(4)))))
    assert validate(bytes(content)) == []
    header = content.index(b"PK\3\4", 4)
    content[content.index(b"b.npy") + 140] ^= 1
    assert open_lazily(bytes(content)).b.size == 4
    (finding,) = validate(bytes(content))
    assert (finding.offset, finding.field) == (header, "the member 'b.npy'")
    assert "CRC-32" in finding.message


@pytest.mark.parametrize("descr", ["()", "((),)", "('<f8',)", "[('', ())]"])
def test_odd_descriptions_of_dtype_raise(descr: str) -> None:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (2,), }}\n".encode()
    content = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(16)
    with pytest.raises(TensorFormatError, match="the header of the array"):
        open_lazily(content)


LABELLED = xr.DataArray(
    np.eye(2), dims=("x", "y"), coords={"x": ["a", "b"]}, name="w", attrs={"unit": "m"}
)
LOST = {
    "name": "cannot store the name 'w'",
    "dims": r"cannot store the dims \('x', 'y'\)",
    "coords": "cannot store the coordinate 'x'",
    "attrs": "cannot store the attribute 'unit'",
}


@pytest.mark.parametrize("part", LOST)
def test_unsupported_parts_must_be_dropped(tmp_path: Path, part: Any) -> None:
    with pytest.raises(ValueError, match=LOST[part]):
        to_file(LABELLED, tmp_path / "a.npy", drop=sorted(set(LOST) - {part}))
    to_file(LABELLED, tmp_path / "a.npy", drop=list(LOST))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.eye(2))


NOT_SHARED = ("format", "separator", "format_options")

REFUSED: Mapping[str, tuple[Any, str]] = {
    "several": (xr.Dataset({"a": 1, "b": 2}), "holds one variable, but the Dataset has 2"),
    "dimensions": (
        xr.Dataset({"tensor": (tuple(f"dim_{axis}" for axis in range(32)), np.ones((1,) * 32))}),
        "'tensor' has 32 dimensions, but at most 31 can be read from files",
    ),
    "objects": (xr.Dataset({"tensor": ("dim_0", np.array([{}, {}]))}), "'tensor' is object"),
    "times as numbers": (
        xr.Dataset({"tensor": ("dim_0", np.zeros(2, "M8[ns]"))}),
        "'tensor' is datetime64",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_data_raise(tmp_path: Path, name: str) -> None:
    dataset, message = REFUSED[name]
    encoding = {"tensor": {"dtype": "f8"}} if name == "times as numbers" else None
    with pytest.raises(ValueError, match=message):
        to_file(dataset, tmp_path / "a.npy", encoding=encoding)


def test_chunks_encoding_and_regions_work(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    dataset = xr.Dataset({"tensor": (("dim_0", "dim_1"), np.arange(12.0).reshape(3, 4))})
    to_file(dataset.chunk(dim_0=1), path, "npy", encoding={"tensor": {"dtype": "f4"}})
    assert np.load(path).dtype == np.float32
    to_file(dataset.isel(dim_0=[1]) * 0, path, "npy", region={"dim_0": slice(1, 2)})
    np.testing.assert_array_equal(np.load(path)[1], 0)
    np.testing.assert_array_equal(np.load(path)[2], [8, 9, 10, 11])


def test_misspelt_keyword_is_named() -> None:
    misspelt: Any = {"mod": "x"}
    with pytest.raises(TypeError, match=r"'mod' \(did you mean 'mode'\?\) is not a keyword"):
        to_file(LABELLED, "a.npy", **misspelt)


def test_zips_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"NumPy .npz can only be read; pass format="):
        to_file(xr.Dataset({"tensor": 1.0}), tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"NumPy .npz files can only be read; choose another"):
        to_file(xr.Dataset({"tensor": 1.0}), tmp_path / "a", "npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("chunks", [None, {}])
def test_loaded_values_have_native_byte_order(tmp_path: Path, save: Any, chunks: Any) -> None:
    values = np.arange(12.0).reshape(3, 4)
    save(tmp_path / "a.npz", a=values.astype(">f8"))
    array = open_lazily(tmp_path / "a.npz", chunks=chunks).a
    for part in (array, array[1], array[::2, [0, 3]]):
        assert part.compute().values.dtype.isnative
    np.testing.assert_array_equal(array, values)
