"""Writing dense TENS files: bytes and round trips."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests import tensfiles as tf
from tests.opening import open_lazily
from tests.tensfiles import make_values
from xr_tensorfmt import TensorFormatError, TensorFormatWarning, to_file
from xr_tensorfmt.backend import TensorFormatBackend
from xr_tensorfmt.core.embedded_metadata import MAX_EMBEDDED_BYTES

DTYPES = ["f4", "f8", "c8", "c16", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8))]
NUMPY = {
    (b"IEEE", 1): "<f",
    (b"IEEE", 2): "<c",
    (b"sint", 1): "<i",
    (b"uint", 1): "<u",
}
ATTRS = st.dictionaries(
    st.text("abc", min_size=1), st.one_of(st.text(), st.integers(), st.just([1, "b"])), max_size=2
)


@st.composite
def datasets(draw: st.DrawFn, most: int = 5) -> xr.Dataset:
    """Draw Datasets of one variable that TENS 1.0 with embedded metadata supports."""
    name, *dims = draw(
        st.lists(st.text(min_size=1, max_size=3), unique=True, max_size=4, min_size=1)
    )
    shape = tuple(draw(st.integers(0, most)) for _ in dims)
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    bits = draw(st.randoms(use_true_random=False)).randbytes(int(np.prod(shape)) * dtype.itemsize)
    values = np.frombuffer(bits, dtype).reshape(shape, order=draw(st.sampled_from("CF")))
    coords = {
        dim: (dim, np.array([f"{dim}{i}" for i in range(n)], dtype=object), draw(ATTRS))
        for dim, n in zip(dims, shape, strict=True)
        if draw(st.booleans())
    }
    attrs = draw(ATTRS)
    return xr.Dataset({name: (dims, values, draw(ATTRS))}, coords, attrs)


def chunk(ds: xr.Dataset, draw) -> xr.Dataset:
    array_type = draw(st.sampled_from(["numpy", "dask"]))
    if array_type == "numpy":
        return ds
    return ds.chunk({dim: max(1, draw(st.integers(1, 3))) for dim in ds.dims})


def get_only(ds: xr.Dataset) -> xr.DataArray:
    return next(iter(ds.data_vars.values()))


def parse(content: bytes) -> tuple[np.ndarray, dict, int]:
    """Parse values, chunks and their offset by the specification alone."""
    magic, version, number_type, size, numbers, order, flags, zero = struct.unpack_from(
        "<4sI4s5I", content
    )
    assert (magic, version, flags, zero) == (b"TENS", 0x10000, 0, 0)
    lengths = []
    for axis in range(order):
        length, _, dim_flags, reserved = struct.unpack_from("<IcBH", content, 32 + 8 * axis)
        assert (dim_flags, reserved) == (0, 0)
        lengths.append(length)
    offset, chunks = 32 + 8 * order, {}
    while True:
        magic, total = struct.unpack_from("<8sQ", content, offset)
        assert total % 8 == 0
        if magic == b"DENSDATA":
            break
        chunks[magic] = content[offset + 16 : offset + total]
        offset += total
    assert offset + total == len(content)
    dtype = np.dtype(f"{NUMPY[number_type, numbers]}{size * numbers}")
    payload = content[offset + 16 : offset + 16 + int(np.prod(lengths)) * dtype.itemsize]
    assert not any(content[offset + 16 + len(payload) :])
    values = np.frombuffer(payload, dtype).reshape(lengths, order="F")
    return values, chunks, offset + 16


@given(data=st.data())
def test_written_dataset_round_trips(data, tmp_path_factory) -> None:
    ds = data.draw(datasets())
    path = tmp_path_factory.mktemp("t") / "t.tens"
    to_file(chunk(ds, data.draw), path, "tens")
    back = xr.open_dataset(path, engine="tensorfmt")
    xr.testing.assert_identical(back, ds)
    assert get_only(back).dtype == get_only(ds).dtype
    values, chunks, begin = parse(path.read_bytes())
    np.testing.assert_array_equal(values, get_only(ds).values, strict=True)
    assert list(chunks) == [b"XRTENSOR"]
    assert begin % 4096 == 0
    again = xr.open_dataset(path, engine="tensorfmt", chunks={})
    to_file(again, path, "tens")  # lazily, over the opened file
    xr.testing.assert_identical(xr.open_dataset(path, engine="tensorfmt"), ds)


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<c16", "<i2", "<u1"])
@pytest.mark.parametrize("shape", [(), (3,), (3, 5), (2, 0, 3)])
def test_bytes_equal_specification(dtype, shape, tmp_path) -> None:
    values = make_values(shape, dtype)
    dims = list("Gqr"[: len(shape)])
    to_file(xr.DataArray(values, dims=dims), tmp_path / "t", "tens")
    content = (tmp_path / "t").read_bytes()
    embedded = parse(content)[1][b"XRTENSOR"]
    assert content == tf.make_1_0(values, tf.pack_chunk(b"XRTENSOR", embedded), names="".join(dims))
    tensors = {"tensor": {"name": "tensor", "dims": dims, "attrs": {}}}
    assert json.loads(embedded.rstrip(b"\0")) == {"version": 1, "tensors": tensors}


@pytest.mark.parametrize(
    ("dims", "letters"),
    [
        (("G", "q", "r"), "Gqr"),
        (("left", "b", "right"), "abc"),
        (("a", "state", "\xe4"), "abc"),
        ((" ", "b", "a"), "cba"),
    ],
)
def test_names_of_one_character_are_index_names_and_others_get_letters(
    dims, letters, tmp_path
) -> None:
    to_file(xr.DataArray(np.zeros((2, 3, 1)), dims=dims), tmp_path / "t", "tens")
    back = xr.open_dataarray(tmp_path / "t", engine="tensorfmt")
    assert back.dims == dims
    assert back.encoding["tensorfmt"]["index_names"] == letters
    assert back.attrs == {}


def test_file_has_more_dims_than_letters_of_one_case(tmp_path) -> None:
    array = xr.DataArray(np.zeros((1,) * 31), dims=[f"dim{i}" for i in range(31)])
    to_file(array, tmp_path / "t", "tens")
    assert xr.open_dataarray(tmp_path / "t", engine="tensorfmt").dims == array.dims


def test_conformance_files_round_trip(conformance, tmp_path) -> None:
    directory = conformance / "tens"
    paths = [*directory.glob("*/*.bin"), *directory.glob("*/*.tens")]
    good = [path for path in paths if not path.name.startswith("bad_")]
    assert len(good) >= 20
    for path in good:
        opened = xr.open_dataset(path, engine="tensorfmt")
        to_file(opened, tmp_path / "t", "tens", version="1.0")
        back = xr.open_dataset(tmp_path / "t", engine="tensorfmt")
        xr.testing.assert_identical(back, opened)
        assert get_only(back).dtype == get_only(opened).dtype
        if "component" in opened.dims:
            continue  # written as a dimension
        file_info = [get_only(ds).encoding["tensorfmt"] for ds in (opened, back)]
        for key in ("shape", "index_names"):
            assert file_info[0][key] == file_info[1][key]


def test_big_endian_integers_become_little_endian(tmp_path) -> None:
    values = make_values((3, 5), ">i4")
    (tmp_path / "big").write_bytes(tf.make_1_0(values))
    to_file(xr.open_dataset(tmp_path / "big", engine="tensorfmt"), tmp_path / "t", "tens")
    np.testing.assert_array_equal(parse((tmp_path / "t").read_bytes())[0], values)


def mask_padding(content: bytes, order: int) -> bytes:
    """Replace bytes that cc4s leaves uninitialised by zeros."""
    raw = bytearray(content)
    for axis in range(order):
        raw[37 + 8 * axis : 40 + 8 * axis] = bytes(3)
    return bytes(raw)


def test_version_0_9_has_bytes_of_real_writer(conformance, tmp_path) -> None:
    directory = conformance / "tens"
    names = sorted(path.name for path in directory.glob("cc4s_0.9/*.bin"))
    assert len(names) == 7
    for name in names:
        real = (directory / "cc4s_0.9" / name).read_bytes()
        opened = xr.open_dataset(directory / "cc4s_0.9" / name, engine="tensorfmt")
        to_file(opened, tmp_path / name, "tens", version="0.9")
        assert (tmp_path / name).read_bytes() == mask_padding(real, get_only(opened).ndim)


def test_only_number_size_changes_for_16_byte_numbers(conformance, tmp_path) -> None:
    paths = sorted((conformance / "tens" / "cc4s_0.9_complex16").glob("C*.bin"))
    assert paths
    for path in paths:
        opened = xr.open_dataset(path, engine="tensorfmt", chunks={})
        to_file(opened, tmp_path / "t", "tens", version="0.9")
        mended = bytearray(mask_padding(path.read_bytes(), get_only(opened).ndim))
        assert mended[12] == 16
        mended[12] = 8
        assert (tmp_path / "t").read_bytes() == mended


@given(data=st.data())
def test_version_0_9_holds_doubles_of_any_shape(data, tmp_path_factory) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=4)))
    values = make_values(shape, data.draw(st.sampled_from(["<f8", "<c16"])))
    ds = xr.Dataset({"tensor": (tuple("abcd"[: len(shape)]), values)})
    path = tmp_path_factory.mktemp("t") / "t.bin"
    to_file(chunk(ds, data.draw), path, version="0.9")
    assert path.read_bytes() == tf.make_0_9(values)
    xr.testing.assert_identical(xr.open_dataset(path, engine="tensorfmt"), ds)


def test_dims_of_many_indices_in_version_0_9_are_as_they_were_read(tmp_path) -> None:
    rank = 30
    content = tf.pack_header((1,) * rank, names=bytes(range(97, 97 + rank))) + bytes(8)
    (tmp_path / "old").write_bytes(content)
    to_file(
        xr.open_dataset(tmp_path / "old", engine="tensorfmt"), tmp_path / "t", "tens", version="0.9"
    )
    assert (tmp_path / "t").read_bytes() == content


@pytest.mark.parametrize(
    ("change", "part", "message"),
    [
        (
            lambda ds: ds.rename(tensor="T"),
            "name",
            r"TENS 0.9 \(unlike version='1.0'\) cannot store the name 'T'; rename it to",
        ),
        (
            lambda ds: ds.rename(a="left"),
            "dims",
            r"cannot store the dims \('left', 'b'\); rename the dims to \('a', 'b'\), or pas",
        ),
        (
            lambda ds: ds.assign_attrs(x=1, y=2),
            "attrs",
            r"the attribute 'x'.*; call drop_attrs\(\), or",
        ),
        (
            lambda ds: ds.assign(tensor=ds.tensor.assign_attrs(x=1)),
            "attrs",
            r"the attribute 'x'.*; call drop_attrs\(\), or",
        ),
        (
            lambda ds: ds.assign_coords(a=[1, 2]),
            "coords",
            r"the coordinate 'a'; call drop_vars\(\), or",
        ),
    ],
)
def test_version_0_9_drops_unsupported_parts_on_request(change, part, message, tmp_path) -> None:
    ds = change(xr.Dataset({"tensor": (("a", "b"), np.arange(6.0).reshape(2, 3))}))
    with pytest.raises(ValueError, match=message):
        to_file(ds, tmp_path / "t", "tens", version="0.9")
    assert not list(tmp_path.iterdir())
    to_file(ds, tmp_path / "t", "tens", version="0.9", drop=[part])
    back = xr.open_dataset(tmp_path / "t", engine="tensorfmt").tensor
    np.testing.assert_array_equal(back, get_only(ds))
    assert back.dims == ("a", "b")


OLDER = r"TENS 0\.9 \(unlike version='1\.0'\)"


def open_old(tmp_path: Path, name: str = "old") -> xr.Dataset:
    """Open a file of version 0.9."""
    (tmp_path / name).write_bytes(tf.make_0_9(np.arange(6.0).reshape(2, 3)))
    return xr.open_dataset(tmp_path / name, engine="tensorfmt")


def read_version(path: Path) -> str:
    return {0x9000: "0.9", 0x10000: "1.0"}[int.from_bytes(path.read_bytes()[4:8], "little")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds,
        lambda ds: ds.chunk(a=1),
        lambda ds: ds.load(),
        lambda ds: ds.isel(b=slice(2)),
        lambda ds: ds.isel(a=0),
        lambda ds: ds.rename(a="F", b="q"),
        lambda ds: ds.tensor,
    ],
)
@pytest.mark.parametrize("name", ["new", "new.tens", "new.bin"])
def test_version_0_9_is_inherited(change, name, tmp_path) -> None:
    data = change(open_old(tmp_path))
    to_file(data, tmp_path / name, "tens")
    tensor = data.tensor if isinstance(data, xr.Dataset) else data
    content = tf.make_0_9(tensor.values, names="".join(map(str, tensor.dims)))
    assert (tmp_path / name).read_bytes() == content


def test_other_order_of_dims_of_version_0_9_warns(tmp_path) -> None:
    transposed = open_old(tmp_path).transpose("b", "a")
    with pytest.warns(TensorFormatWarning, match=r"\.transpose\('a', 'b'\)"):
        to_file(transposed, tmp_path / "new.tens")
    content = tf.make_0_9(transposed.tensor.values, names="ba")
    assert (tmp_path / "new.tens").read_bytes() == content


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        (lambda ds: ds.rename(tensor="T"), {}, f"{OLDER} cannot store the name 'T'; rename"),
        (lambda ds: ds.rename(a="FF"), {}, rf"{OLDER} cannot store the dims \('FF', 'b'\); re"),
        (lambda ds: ds.assign_attrs(x=1), {}, f"{OLDER} cannot store the attribute 'x'; cal"),
        (lambda ds: ds.assign_coords(b=[1, 2, 3]), {}, f"{OLDER} cannot store the coordinate"),
        (
            lambda ds: ds,
            {"encoding": {"tensor": {"dtype": "float32"}}},
            f"'tensor' is float32, but {OLDER} supports only float64, complex128; choose a dtype",
        ),
    ],
)
def test_warning_explains_why_version_1_0_is_required(change, options, reason, tmp_path) -> None:
    ds = change(open_old(tmp_path))
    sentence = "new.tens: the file has version 1.0, which cc4s and sisi4s cannot load, because "
    with pytest.warns(
        TensorFormatWarning, match=sentence + reason + ".*; pass version='1.0'"
    ) as caught:
        to_file(ds, tmp_path / "new.tens", **options)
    assert caught[0].filename == __file__
    assert read_version(tmp_path / "new.tens") == "1.0"
    back = xr.open_dataset(tmp_path / "new.tens", engine="tensorfmt")
    xr.testing.assert_equal(back, ds)
    to_file(ds, tmp_path / "new.tens", version="1.0", **options)  # as requested
    with pytest.raises(ValueError, match=reason):
        to_file(ds, tmp_path / "new.tens", version="0.9", **options)


def test_dropped_parts_do_not_require_version_1_0(tmp_path) -> None:
    ds = open_old(tmp_path).rename(a="FF").assign_attrs(x=1)
    to_file(ds, tmp_path / "new", "tens", drop=["dims", "attrs"])
    assert (tmp_path / "new").read_bytes() == (tmp_path / "old").read_bytes()


def test_suffix_bin_means_version_0_9(tmp_path) -> None:
    ds = xr.Dataset({"tensor": (("a", "b"), np.eye(3))})
    for name, options in (("x.bin", {}), ("y.BIN", {"format": "tens"})):
        to_file(ds, tmp_path / name, **options)
        assert (tmp_path / name).read_bytes() == tf.make_0_9(np.eye(3))
    message = (
        r"x\.bin: TENS 0\.9 \(the default for \.bin files, unlike version='1\.0'\) "
        r"cannot store the coordinate 'c'; call drop_vars\(\), or pass drop=.* leave"
    )
    with pytest.raises(ValueError, match=message):
        to_file(ds.assign_coords(c=5), tmp_path / "x.bin")
    assert read_version(tmp_path / "x.bin") == "0.9"
    to_file(ds, tmp_path / "x.bin", version="1.0")
    xr.testing.assert_identical(xr.open_dataset(tmp_path / "x.bin", engine="tensorfmt"), ds)
    assert read_version(tmp_path / "x.bin") == "1.0"


def test_version_1_0_is_inherited_except_for_bin_files(tmp_path) -> None:
    ds = xr.Dataset({"tensor": (("a", "b"), np.eye(3))})
    to_file(ds, tmp_path / "x.tens")
    opened = xr.open_dataset(tmp_path / "x.tens", engine="tensorfmt")
    to_file(opened, tmp_path / "y", "tens")
    assert read_version(tmp_path / "y") == "1.0"
    to_file(opened, tmp_path / "y.bin")
    assert read_version(tmp_path / "y.bin") == "0.9"


@pytest.mark.parametrize("suffix", ["mag", "pycauset"])
def test_version_of_another_format_is_ignored(suffix, tmp_path) -> None:
    ds = xr.Dataset({"tensor": (("a", "b"), np.eye(3, dtype="f4"))})
    to_file(ds, tmp_path / f"x.{suffix}")
    opened = xr.open_dataset(tmp_path / f"x.{suffix}", engine="tensorfmt")
    opened.tensor.encoding["tensorfmt"] = {**opened.tensor.encoding["tensorfmt"], "version": "0.9"}
    to_file(opened, tmp_path / "y.tens")
    assert read_version(tmp_path / "y.tens") == "1.0"


@pytest.mark.parametrize(("version", "written"), [(0.9, "0.9"), (1.0, "1.0"), (1, "1.0")])
def test_versions_may_be_numbers(version, written, tmp_path) -> None:
    array = xr.DataArray(np.eye(3), dims=("a", "b"))
    to_file(array, tmp_path / "x", "tens", version=version)
    assert read_version(tmp_path / "x") == written
    to_file(array, tmp_path / "x.tens", version=str(version) if version != 1 else np.float64(1))
    assert read_version(tmp_path / "x.tens") == written


def test_files_are_recognised_by_content_and_not_by_suffix_bin(tmp_path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(range(200)))
    assert not TensorFormatBackend().guess_can_open(tmp_path / "x.bin")
    with pytest.raises(TensorFormatError, match="the file is of no known format"):
        xr.open_dataset(tmp_path / "x.bin", engine="tensorfmt")
    array = xr.DataArray(np.eye(3), dims=("a", "b"))
    to_file(array, tmp_path / "x.bin")
    assert TensorFormatBackend().guess_can_open(tmp_path / "x.bin")


def test_version_0_9_converts_to_double_if_requested(tmp_path) -> None:
    ds = xr.Dataset({"tensor": ("a", np.float32([1.5, 2]))})
    with pytest.raises(ValueError, match=f"'tensor' is float32, but {OLDER} supports only float64"):
        to_file(ds, tmp_path / "t", "tens", version="0.9")
    to_file(ds, tmp_path / "t", "tens", version="0.9", encoding={"tensor": {"dtype": "float64"}})
    assert (tmp_path / "t").read_bytes() == tf.make_0_9(np.array([1.5, 2]))


@pytest.mark.parametrize("dtype", ["f2", "S3"])
def test_error_of_other_dtypes_lists_supported_ones(dtype, tmp_path) -> None:
    with pytest.raises(
        ValueError, match=r"'x' is \w.*TENS supports only float64, float32.*(astype|en)"
    ):
        to_file(xr.Dataset({"x": ("a", np.zeros(3, dtype))}), tmp_path / "t", "tens")


def test_half_precision_and_bools_can_be_converted(tmp_path) -> None:
    for values, dtype in ((np.float16([1.5, -2]), "float32"), (np.array([True, False]), "uint8")):
        ds = xr.Dataset({"x": ("a", values)})
        to_file(ds, tmp_path / "t", "tens", encoding={"x": {"dtype": dtype}})
        back = xr.open_dataset(tmp_path / "t", engine="tensorfmt").x
        assert back.dtype == dtype
        np.testing.assert_array_equal(back, values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (
            xr.Dataset({"x": 1.0, "y": 2.0}),
            {},
            "a TENS file holds one variable, but the Dataset has 2",
        ),
        (xr.DataArray(1.0), {"version": "2.0"}, "version='2.0' .*is not one of '1.0', '0.9'"),
        (
            xr.DataArray(np.zeros((1,) * 32)),
            {},
            "'tensor' has 32 dimensions, but at most 31 can be read from files; stack some",
        ),
        (
            xr.DataArray(da.zeros(2**32, chunks=2**30), dims="a", name="tensor"),
            {},
            "dimension 'a' has 4294967296 elements, expected at most 4294967295; split it",
        ),
        (
            xr.DataArray(da.zeros((2**31, 2**31, 1), chunks=2**30), dims=list("abc")),
            {},
            "is too large to address; write a part",
        ),
        (
            xr.DataArray(1.0, attrs={"text": "x" * MAX_EMBEDDED_BYTES}),
            {},
            "attributes and coordinates take 16777.* bytes, and TENS allows at most 16777216",
        ),
    ],
)
def test_unsupported_data_raise(data, options, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        to_file(data, tmp_path / "t", "tens", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    # Two IEEE numbers would be complex.
    [(2, "<i4"), (2, "<u1"), *((n, dtype) for n in (4, 8) for dtype in ("<f8", "<i4", "<u1"))],
)
def test_components_become_dimension_of_file(numbers, dtype, tmp_path) -> None:
    stored = make_values((numbers, 3, 2), dtype)
    fields = {**tf.get_number_fields(stored.dtype), "numbers": numbers, "version": tf.V1_0}
    (tmp_path / "old").write_bytes(
        tf.pack_header((3, 2), **fields) + tf.pack_chunk(b"DENSDATA", tf.pack_values(stored))
    )
    opened = xr.open_dataset(tmp_path / "old", engine="tensorfmt").chunk(component=1)
    opened = opened.assign_coords(component=np.arange(numbers)).rename(tensor="Q", a="row")
    to_file(opened, tmp_path / "t", "tens")
    back = xr.open_dataset(tmp_path / "t", engine="tensorfmt")
    xr.testing.assert_identical(back, opened)
    assert back.Q.encoding["tensorfmt"]["shape"] == (3, 2, numbers)
    to_file(back, tmp_path / "u", "tens")
    assert (tmp_path / "u").read_bytes() == (tmp_path / "t").read_bytes()


def test_dim_that_is_only_called_component_is_dim(tmp_path) -> None:
    ds = xr.Dataset({"x": (("a", "component"), np.zeros((3, 4)))})
    for _ in range(2):
        to_file(ds, tmp_path / "t", "tens")
        ds = xr.open_dataset(tmp_path / "t", engine="tensorfmt")
        assert ds.x.encoding["tensorfmt"]["shape"] == (3, 4)


SYMMETRIC = np.add.outer(np.arange(3.0), np.arange(3.0))


def add_chunks(*chunks: bytes) -> bytes:
    return tf.make_1_0(SYMMETRIC, *chunks)


def list_chunks(path: Path) -> list[bytes]:
    content, offset, names = path.read_bytes(), 32 + 8 * 2, []
    while not names or names[-1] != b"DENSDATA":
        magic, total = struct.unpack_from("<8sQ", content, offset)
        names.append(magic)
        offset += total
    return names


def replace_embedded(content: dict | bytes) -> bytes:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return add_chunks(tf.pack_chunk(b"XRTENSOR", raw))


DAMAGED = [
    (b"{", "the names, dims, attributes and coordinates .* do not fit the file.*JSONDecodeError"),
    (b"\xff" * 8, "do not fit the file.*UnicodeDecodeError"),
    (b"[" * 100_000, "do not fit the file.*nested deeper than 40 levels"),
    (b"5", "do not fit the file"),
    (b"[]", "do not fit the file"),
    (b'{"version": 2}', "do not fit the file.*version 2"),
    (b'{"version": 1, "tensors": {"tensor": {"dims": [[], []]}}}', "do not fit the file"),
    (b'{"version": 1, "tensors": {"tensor": {"name": []}}}', "do not fit the file"),
]
OTHER_RANK = b'{"version": 1, "tensors": {"tensor": {"dims": ["x"]}}}', "has 2 dimensions"


@pytest.mark.parametrize(("embedded", "message"), [*DAMAGED, OTHER_RANK])
def test_corrupt_embedded_metadata_warn(embedded, message) -> None:
    with pytest.warns(TensorFormatWarning, match=message):
        back = open_lazily(replace_embedded(embedded))
    assert back.tensor.attrs == {}
    assert back.tensor.sizes == {"a": 3, "b": 3}


@pytest.mark.slow
def test_embedded_metadata_that_are_too_long_are_not_read() -> None:
    with pytest.warns(
        TensorFormatWarning,
        match=f"{MAX_EMBEDDED_BYTES + 4096} characters, more than {MAX_EMBEDDED_BYTES}",
    ):
        assert open_lazily(replace_embedded(b" " * (MAX_EMBEDDED_BYTES + 8192))).tensor.sum() == 18


def test_requested_names_override_embedded_names(tmp_path) -> None:
    array = xr.DataArray(
        np.zeros((2, 3)), {"left": [1, 2]}, ("left", "right"), name="T", attrs={"units": "eV"}
    )
    to_file(array, tmp_path / "t", "tens")
    back = xr.open_dataset(tmp_path / "t", engine="tensorfmt", name="V", dims=("F", "q"))
    assert back.V.dims == ("F", "q")
    assert back.V.attrs == {"units": "eV"}
    assert back.F.values.tolist() == [1, 2]


@pytest.mark.parametrize("version", ["1.0", "0.9"])
def test_region_of_file_is_written_in_place(version, tmp_path) -> None:
    full = np.arange(60.0).reshape(3, 4, 5)
    path = tmp_path / "t"
    to_file(xr.DataArray(full, dims=list("abc")), path, "tens", version=version)
    before = path.read_bytes()
    part = xr.DataArray(-np.ones((2, 4, 3)), dims=list("abc"))
    region = {"a": slice(1, 3), "c": slice(0, 3)}
    to_file(part.chunk(b=2), path, "tens", region=region)
    expected = full.copy()
    expected[1:3, :, :3] = -1
    np.testing.assert_array_equal(xr.open_dataarray(path, engine="tensorfmt"), expected)
    assert path.read_bytes() == before[: -expected.nbytes] + expected.tobytes(order="F")


def test_one_error_names_everything_that_is_lost(tmp_path) -> None:
    ds = xr.Dataset({"v": (("p", "left"), np.eye(3), {"unit": 0.5})}, {"c": 5})
    message = (
        r"cannot store the name 'v', the dims \('p', 'left'\), the coordinate 'c', the attribute "
        r"'unit'; rename it .*pass drop=\['name', 'dims', 'coords', 'attrs'\] or .* leave them out"
    )
    with pytest.raises(ValueError, match=message):
        to_file(ds, tmp_path / "x.bin")
    with pytest.raises(ValueError, match=r"'v', .*pass drop=\['name', 'attrs'\]"):
        to_file(ds, tmp_path / "x.bin", drop=["dims", "coords"])
