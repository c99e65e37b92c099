"""Reading MAG files."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests import magfiles as mf
from tests.headers import read_header
from tests.magfiles import Put, put
from tests.opening import load
from tests.paths import DATA
from tests.recording import HollowSource
from xr_tensorfmt import TensorFormatError, TensorFormatWarning
from xr_tensorfmt.core.elements import get_stored_name

WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)
UNRELEASED = {"a": put(np.arange(20, dtype=np.uint16)), "i": put(np.arange(9)), "w": put(WEIGHTS)}


def compute_expected(item: Put) -> np.ndarray:
    if item.dtype in ("bfloat16", "float8_e4m3fn"):
        stored = np.frombuffer(item.raw, getattr(ml_dtypes, item.dtype))
        return stored.reshape(item.shape).astype(np.float32)
    return np.frombuffer(item.raw, np.dtype(item.dtype).newbyteorder("<")).reshape(item.shape)


def assert_holds(dataset: xr.Dataset, tensors: dict[str, Put]) -> None:
    assert list(dataset.data_vars) == list(tensors)
    assert not dataset.coords
    for key, item in tensors.items():
        values = compute_expected(item)
        assert dataset[key].dtype == values.dtype.newbyteorder("=")
        np.testing.assert_array_equal(dataset[key].values, values)


def puts(names: tuple[str, ...], least_rank: int, most_rank: int, least_length: int = 1):
    """Draw tensors of these dtypes with any bits, except for bools."""

    def of(dtype: str) -> st.SearchStrategy[Put]:
        item = 1 if "8" in dtype or dtype == "bool" else int(dtype.lstrip("abcdefilnotu")) // 8
        shapes = hnp.array_shapes(
            min_dims=least_rank, max_dims=most_rank, min_side=least_length, max_side=3
        )
        raw_dtype = np.bool_ if dtype == "bool" else np.uint8

        def make(shape: tuple[int, ...]) -> st.SearchStrategy[Put]:
            size = math.prod(shape) * item
            return hnp.arrays(raw_dtype, size).map(lambda raw: Put(dtype, shape, raw.tobytes()))

        return shapes.flatmap(make)

    return st.sampled_from(names).flatmap(of)


keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
metadata = st.dictionaries(
    keys, st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)), max_size=3
)


def stored(names: tuple[str, ...], *ranks: int):
    return st.dictionaries(keys, puts(names, *ranks), max_size=4)


class TestRoundTrips:
    @given(stored(mf.FOUR, 1, 6), metadata)
    def test_archive_1(self, tensors, metadata) -> None:
        dataset = load(mf.make_archive(tensors, metadata))
        assert_holds(dataset, tensors)
        assert dataset.attrs == metadata
        assert [type(value) for value in dataset.attrs.values()] == [
            type(value) for value in metadata.values()
        ]

    @given(stored(mf.FOUR, 1, 6), st.sampled_from(["absolute", "relative"]))
    def test_variants_before_archive_1(self, tensors, offsets) -> None:
        assert_holds(load(mf.make_archive(tensors, offsets=offsets, lengths="padded")), tensors)

    @given(stored(mf.ELEVEN, 1, 8))
    def test_archive_100_with_eleven_dtypes(self, tensors) -> None:
        tensors["long"] = put(np.arange(17, dtype=np.int64))
        assert_holds(load(mf.make_archive(tensors, version=100, ids=mf.ELEVEN)), tensors)

    @given(stored(mf.FOUR, 1, 6))
    def test_archive_100_with_four_dtypes(self, tensors) -> None:
        assert_holds(load(mf.make_archive(tensors, version=100)), tensors)

    @given(stored(mf.FOUR, 1, 6), st.sampled_from(["literal", "ones", "zeros"]))
    def test_record_of_published_text(self, tensors, records) -> None:
        if records == "ones":  # without a rank, trailing ones are ambiguous
            tensors = {key: item for key, item in tensors.items() if item.shape[-1] != 1}
        if records == "zeros":
            tensors = {key: item for key, item in tensors.items() if len(item.shape) < 6}
        assert_holds(load(mf.make_archive(tensors, lengths="bytes", records=records)), tensors)

    @given(stored(mf.TWELVE, 0, 16), st.randoms())
    def test_snapshot_100(self, tensors, random) -> None:
        order = random.sample(range(len(tensors)), len(tensors))
        assert_holds(load(mf.make_snapshot(tensors, order=tuple(order))), tensors)

    @given(stored(mf.THIRTEEN, 0, 16), st.randoms())
    def test_snapshot_200(self, tensors, random) -> None:
        order = random.sample(range(len(tensors)), len(tensors))
        assert_holds(load(mf.make_snapshot(tensors, version=200, order=tuple(order))), tensors)

    @given(
        st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
            puts(mf.THIRTEEN, 0, 20, 0),
            max_size=4,
        )
    )
    def test_snapshot_300(self, tensors) -> None:
        assert_holds(load(mf.make_document(tensors)), tensors)

    @given(stored(mf.FOUR, 0, 6))
    def test_stream(self, tensors) -> None:
        assert_holds(load(mf.make_stream(tensors)), tensors)


def test_real_files_match_their_descriptions(conformance: Path) -> None:
    tool = conformance.parent / "tools" / "conformance"
    run = subprocess.run(
        [sys.executable, tool, "--family", "mag"], capture_output=True, text=True, check=False
    )
    assert run.stdout.strip() == "mag: 45 of 45 hold", run.stdout + run.stderr


GOLDEN = json.loads((DATA / "mag.json").read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_files_open_unchanged(name: str) -> None:
    dataset = xr.open_dataset(DATA / name).load()
    # Archives keep the order of the writer's hash table.
    assert set(dataset.data_vars) == {item["key"] for item in GOLDEN[name]}
    for item in GOLDEN[name]:
        array = dataset[item["key"]]
        dtype = get_stored_name(array.encoding["dtype"])
        assert dtype == item["dtype"]
        stored = array.values
        if dtype == "bfloat16":
            stored = stored.astype(ml_dtypes.bfloat16)
        assert list(array.shape) == item["shape"]
        assert hashlib.sha256(stored.tobytes()).hexdigest() == item["sha256"]


def test_golden_model_brings_its_metadata() -> None:
    dataset = xr.open_dataset(DATA / "n300-qwen-like.mag")
    assert dataset.encoding["tensorfmt"]["magnetron_ver"] == "0.2.2"
    assert set(dataset.attrs) >= {"tokenizer_json", "model_config"}
    assert isinstance(dataset.attrs["model_config"], dict)


class TestKeysAndDims:
    def test_any_key_is_variable(self) -> None:
        names = ["a.b", "a/b", "a b", "\N{GRINNING FACE}", "a\0b", "", "x" * 65535, "\n"]
        tensors = {name: put(WEIGHTS) for name in names}
        assert_holds(load(mf.make_document(tensors)), tensors)

    def test_dims_bear_key_and_never_equal_one(self) -> None:
        tensors = {
            "x": put(WEIGHTS),
            "x_dim_0": put(np.float32([1, 2])),
            "x_dim_0_": put(np.float32(3)),
            "x_dim_1_": put(WEIGHTS),
        }
        dataset = load(mf.make_document(tensors))
        assert_holds(dataset, tensors)
        assert dataset["x"].dims == ("x_dim_0__", "x_dim_1")
        assert dataset["x_dim_0"].dims == ("x_dim_0_dim_0",)

    def test_dims_can_be_named_and_shared(self) -> None:
        images, labels = np.zeros((5, 1, 2, 2), np.uint8), np.arange(5)
        content = mf.make_document({"train_images": put(images), "train_labels": put(labels)})
        dims = {"train_images": ("n", "channel", "y", "x"), "train_labels": ("n",)}
        dataset = load(content, dims=dims)
        assert dict(dataset.sizes) == {"n": 5, "channel": 1, "y": 2, "x": 2}
        assert dataset.isel(n=dataset.train_labels > 2).sizes["n"] == 2

    def test_lengths_that_disagree_are_named(self) -> None:
        content = mf.make_document({"images": put(WEIGHTS), "labels": put(np.arange(4))})
        with pytest.raises(ValueError, match="conflicting sizes for dimension 'n'"):
            load(content, dims={"images": ("n", "x"), "labels": ("n",)})

    def test_plain_sequence_names_dims_of_only_tensor(self) -> None:
        assert load(mf.make_document({"w": put(WEIGHTS)}), dims=("row", "col"))["w"].dims == (
            "row",
            "col",
        )

    @pytest.mark.parametrize(
        ("dims", "message"),
        [
            (("row", "col"), "names the dimensions of one variable, but the file has 2"),
            ({"w": ("b", "col")}, "the name of the variable 'b'"),
            ({"w": ("w", "col")}, "none of them 'w'"),
            ({"v": ("row", "col")}, r"names 2 dimensions of 'v', but .* are 'w' \(2\), 'b'"),
            ({"w": ("row",)}, "pass 2 different names"),
        ],
    )
    def test_mismatched_dims_raise(self, dims, message) -> None:
        content = mf.make_document({"w": put(WEIGHTS), "b": put(WEIGHTS[0])})
        with pytest.raises(ValueError, match=message):
            load(content, dims=dims)

    def test_name_and_stored_pairs_are_refused(self) -> None:
        content = mf.make_document({"w": put(WEIGHTS)})
        with pytest.raises(ValueError, match="does not apply to format"):
            load(content, name="weight")
        with pytest.raises(ValueError, match="does not apply to format"):
            load(content, sparse="stored")

    def test_variables_can_be_dropped(self) -> None:
        content = mf.make_document({"a.w": put(WEIGHTS), "b": put(WEIGHTS)})
        assert list(load(content, drop_variables="b")) == ["a.w"]
        assert list(load(content, drop_variables=["a.w", "none"])) == ["b"]
        assert list(load(content, group="a", drop_variables=["w"])) == []


class TestMetadata:
    def test_numbers_keep_their_bits(self) -> None:
        nan = struct.unpack("<d", bytes.fromhex("010000000000f47f"))[0]
        metadata = {"nan": nan, "-0": -0.0, "least": -(2**63), "most": 2**63 - 1}
        attrs = load(mf.make_archive({}, metadata)).attrs
        assert struct.pack("<d", attrs["nan"]) == struct.pack("<d", nan)
        assert math.copysign(1, attrs["-0"]) == -1
        assert (attrs["least"], attrs["most"]) == (-(2**63), 2**63 - 1)

    def test_json_keeps_its_values(self) -> None:
        metadata = {
            "nested": {"list": [1, 2.5, None, True, {"deep": []}]},
            "huge": 10**4000,
            "inf": [math.inf, -math.inf],
            "coordinates": "w b",
            "units": "days since 2000-01-01",
            "text": "\N{GRINNING FACE}\0",
        }
        dataset = load(mf.make_document({"w": put(WEIGHTS)}, metadata))
        assert dataset.attrs == metadata
        assert math.isnan(load(mf.make_document({}, {"nan": math.nan})).attrs["nan"])

    def test_one_key_may_be_tensor_and_metadata_entry(self) -> None:
        dataset = load(mf.make_archive({"step": put(WEIGHTS)}, {"step": 7}))
        assert dataset.attrs["step"] == 7
        assert dataset["step"].shape == (3, 4)

    @pytest.mark.slow
    def test_document_of_40_mb_is_fine(self) -> None:
        dataset = load(mf.make_document({"w": put(WEIGHTS)}, {"tokenizer": "\u00e9" * 20_000_000}))
        assert len(dataset.attrs["tokenizer"]) == 20_000_000

    def test_key_twice_in_metadata_raises(self) -> None:
        text = mf.make_document({}).split(b'"usr_metadata":{}')
        content = mf.parse_document(
            text[0][44:] + b'"usr_metadata":{"a":1,"a":2},"tensor_map":{}}', b""
        )
        with pytest.raises(TensorFormatError, match="the key 'a' is repeated"):
            load(content)

    def test_encoding_describes_container(self) -> None:
        dataset = load(mf.make_document({"w": put(WEIGHTS)}, big_endian=False))
        file_info = dataset.encoding["tensorfmt"]
        assert (file_info["container"], file_info["version"], file_info["magnetron_ver"]) == (
            "snapshot",
            300,
            "0.2.2",
        )
        assert dataset["w"].encoding["tensorfmt"]["offset"] == 4096
        assert dataset["w"].encoding["tensorfmt"]["key"] == "w"


class TestDtypes:
    def test_unsupported_dtypes_open_as_exact_lazy_float32(self, tmp_path: Path) -> None:
        tensors = {
            "half": Put("bfloat16", (2, 3), bytes(range(12))),
            "quarter": Put("float8_e4m3fn", (2, 3), bytes(range(6))),
        }
        path = tmp_path / "model.mag"
        path.write_bytes(mf.make_document(tensors))
        dataset = xr.open_dataset(path, engine="tensorfmt")
        for key, name in {"half": "bfloat16", "quarter": "float8_e4m3fn"}.items():
            assert not dataset[key].variable._in_memory
            assert dataset[key].dtype == np.float32
            assert get_stored_name(dataset[key].encoding["dtype"]) == name
        assert_holds(dataset.load(), tensors)

    def test_narrow_floats_can_be_saved(self, tmp_path: Path) -> None:
        path = tmp_path / "model.mag"
        path.write_bytes(mf.make_document({"w": Put("bfloat16", (4, 1), bytes(range(8)))}))
        dataset = xr.open_dataset(path, engine="tensorfmt", chunks={})
        dataset.to_netcdf(tmp_path / "model.nc", engine="netcdf4")
        dataset.to_zarr(tmp_path / "model.zarr", zarr_format=2)
        for saved in (
            xr.open_dataset(tmp_path / "model.nc", engine="netcdf4"),
            xr.open_zarr(tmp_path / "model.zarr"),
        ):
            np.testing.assert_array_equal(saved.w.values, dataset.w.values)
            saved.close()

    def test_big_endian_data_become_native(self) -> None:
        values = np.arange(6, dtype=">i4").reshape(2, 3)
        raw = {"i": Put("int32", (2, 3), values.tobytes())}
        raw["h"] = Put("bfloat16", (1,), bytes([0x3F, 0x80]))
        dataset = load(mf.make_document(raw, big_endian=True))
        np.testing.assert_array_equal(dataset["i"].values, values)
        assert dataset["i"].dtype.isnative
        assert dataset["h"].values.tolist() == [1.0]

    def test_data_at_odd_offsets(self) -> None:
        tensors = {"odd!": put(np.uint8([1])), "w": put(WEIGHTS), "i": put(np.int64([1, -1]))}
        content = mf.make_snapshot(tensors)
        assert load(content)["w"].encoding["tensorfmt"]["offset"] % 2 == 1
        assert_holds(load(content), tensors)

    def test_zero_sizes_anywhere(self) -> None:
        tensors = {
            "first": put(np.zeros((0, 3), np.float32)),
            "w": put(WEIGHTS),
            "last": put(np.zeros((2, 0), np.int8)),
        }
        assert_holds(load(mf.make_document(tensors)), tensors)
        assert_holds(load(memoryview(mf.make_document(tensors)), chunks={}), tensors)


class TestContainersToldApart:
    @pytest.mark.parametrize(
        "content",
        [
            mf.make_snapshot(UNRELEASED, alignment=16),
            mf.make_snapshot(UNRELEASED, version=200, ids=mf.TWELVE),
        ],
        ids=["another alignment", "numbers of version 100"],
    )
    def test_snapshots_between_releases_raise(self, content: bytes) -> None:
        with pytest.raises(TensorFormatError, match="the data"):
            load(content)

    @pytest.mark.parametrize("name", ["archive", "snapshot", "document", "stream"])
    def test_every_container_is_recognised_by_its_content(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / "model"
        path.write_bytes(getattr(mf, f"make_{name}")({"w": put(WEIGHTS)}))
        np.testing.assert_array_equal(xr.open_dataset(path)["w"].values, WEIGHTS)
        path.write_bytes(b"MAG!" + bytes(60))
        with pytest.raises(TensorFormatError, match="magic and version at byte 0: b'MAG!' and 0"):
            xr.open_dataset(path)


class TestChecksums:
    @pytest.mark.parametrize(
        "content",
        [
            mf.make_archive({"w": put(WEIGHTS)}, {"step": 1}),
            mf.make_archive({"w": put(WEIGHTS)}, version=100),
            mf.make_snapshot({"w": put(WEIGHTS)}),
            mf.make_snapshot({"w": put(WEIGHTS)}, version=200),
        ],
        ids=["archive-1", "archive-100", "snapshot-100", "snapshot-200"],
    )
    def test_wrong_checksum_raises_with_verify(self, content: bytes) -> None:
        offset = 8 if content[32:36] != b"SRP!" else 16
        damaged = content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :]
        with pytest.raises(ValueError, match=rf"the checksum at byte {offset}: 0x.*verify=False"):
            load(damaged)
        with pytest.warns(TensorFormatWarning, match="the checksum at byte") as caught:
            dataset = xr.open_dataset(damaged, engine="tensorfmt", verify=False)
        np.testing.assert_array_equal(dataset["w"].values, WEIGHTS)
        assert caught[0].filename == __file__

    def test_correct_checksum_does_not_warn(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load(mf.make_archive({"w": put(WEIGHTS)}), verify=False)


class TestTheHeaderAlone:
    @pytest.mark.slow
    def test_opening_reads_no_data(self) -> None:
        content = mf.make_document({f"layer.{i}": put(WEIGHTS) for i in range(500)})
        start = int.from_bytes(content[28:36], "little")
        source = HollowSource(content[:start], len(content))
        container = read_header(source)
        assert len(container.tensors) == 500
        assert source.fetched <= start + source.read_ahead

    def test_chunks_of_large_tensor_are_whole_pages(self) -> None:
        content = mf.make_document(
            {"embed": Put("bfloat16", (151936, 2560), b"")}, change=_claim_shape
        )
        nbytes = 151936 * 2560 * 2
        head = content[:36] + struct.pack("<Q", nbytes) + content[44:4096]
        source = HollowSource(head, 4096 + nbytes)
        (tensor,) = read_header(source).tensors
        rows, columns = tensor.layout.chunk_shape(32 << 20)
        assert columns == 2560
        assert rows * columns * 2 % 4096 == 0
        assert 16 << 20 <= rows * columns * 4 <= 32 << 20

    @pytest.mark.slow
    def test_dataset_of_many_pickles_and_prints(self, tmp_path: Path) -> None:
        path = tmp_path / "model.mag"
        path.write_bytes(mf.make_document({f"layer.{i}": put(WEIGHTS[0]) for i in range(500)}))
        dataset = xr.open_dataset(path, engine="tensorfmt")
        assert len(repr(dataset).splitlines()) < 50
        assert len(pickle.loads(pickle.dumps(dataset))) == 500


def _claim_shape(content: dict) -> None:
    content["tensor_map"]["embed"]["nbytes"] = 151936 * 2560 * 2
