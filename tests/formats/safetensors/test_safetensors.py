"""safetensors: reading, writing, corrupt headers, and indexes of several files."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.numpy import load, load_file, save, save_file

from tests.opening import open_lazily
from xr_tensorfmt import TensorFormatError, TensorFormatWarning, to_file, validate
from xr_tensorfmt.core.elements import FLOAT8_NAMES, get_stored_name
from xr_tensorfmt.formats.safetensors import ELEMENTS

DTYPES = [name for name in ELEMENTS if hasattr(np, name)]
NARROW = {name: getattr(ml_dtypes, name) for name in ("bfloat16", *FLOAT8_NAMES)}

arrays = hnp.arrays(
    st.sampled_from([np.dtype(code) for code in DTYPES]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    elements={"allow_nan": False},
)
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
    lambda key: key != "__metadata__"
)


def read(content: bytes, **options: Any) -> xr.Dataset:
    return open_lazily(content, format="safetensors", **options)


@given(st.dictionaries(keys, arrays, max_size=5), st.dictionaries(keys, st.text(max_size=5)))
def test_reads_files_of_package(tensors: dict[str, Any], metadata: Any) -> None:
    metadata = {name.encode().decode(): value for name, value in metadata.items()}
    metadata.pop("xr_tensorfmt", None)
    actual = read(save(tensors, metadata or None))
    assert actual.attrs == metadata
    assert set(actual) == set(tensors)
    for key, values in tensors.items():
        assert actual[key].dtype == values.dtype
        np.testing.assert_array_equal(actual[key], values)


@given(tensors=st.dictionaries(keys, arrays, max_size=5))
def test_package_reads_written_files(tmp_path_factory: Any, tensors: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("st") / "a.safetensors"
    names = {key: f"d{number}_{{}}" for number, key in enumerate(tensors)}
    variables = {
        key: (tuple(names[key].format(axis) for axis in range(item.ndim)), item)
        for key, item in tensors.items()
    }
    dataset = xr.Dataset(variables)
    to_file(dataset, path, "safetensors")
    actual = load_file(path)
    assert set(actual) == set(tensors)
    for key, values in tensors.items():
        assert actual[key].dtype == values.dtype
        np.testing.assert_array_equal(actual[key], values)
    xr.testing.assert_identical(open_lazily(path).load(), dataset)
    assert list(open_lazily(path)) == list(dataset)
    assert validate(path) == []


def test_data_have_same_order_as_package(tmp_path: Path) -> None:
    tensors = {
        "b": np.ones(3, "i1"),
        "d": np.ones(2, "f8"),
        "c": np.ones(1, "f2"),
        "a": np.zeros(3, "i1"),
    }
    dataset = xr.Dataset({key: (f"{key}_dim_0", item) for key, item in tensors.items()})
    to_file(dataset, tmp_path / "a.safetensors")
    content = (tmp_path / "a.safetensors").read_bytes()
    theirs = save(tensors)
    start = 8 + int.from_bytes(content[:8], "little")
    assert start % 8 == 0
    assert content[start:] == theirs[8 + int.from_bytes(theirs[:8], "little") :]


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_floats_are_exact_float32_and_are_written_back(tmp_path: Path, dtype: str) -> None:
    bits = np.arange(256, dtype="u1")
    bits = bits.repeat(2).view("u2") if dtype == "bfloat16" else bits
    values = bits.view(NARROW[dtype])
    save_file({"w": values}, tmp_path / "a.safetensors")
    actual = open_lazily(tmp_path / "a.safetensors")
    assert actual.w.dtype == np.float32
    assert get_stored_name(actual.w.encoding["dtype"]) == dtype
    np.testing.assert_array_equal(actual.w, values.astype("f4"))
    to_file(actual, tmp_path / "b.safetensors")
    # With numpy the package itself has no float8.
    ((_, again),) = deserialize((tmp_path / "b.safetensors").read_bytes())
    back = np.frombuffer(again["data"], NARROW[dtype])
    np.testing.assert_array_equal(back.astype("f4"), values.astype("f4"))


def test_dataset_round_trips(tmp_path: Path) -> None:
    dataset = xr.Dataset(
        {"layers.0.weight": (("out", "in"), np.ones((2, 3), "f4"), {"unit": "m", "n": np.int8(3)})},
        coords={
            "in": [1.5, 2.5, 3.5],
            "out": ["cat", "dog"],
            "when": ("out", np.array(["2026-01-01", "2026-01-02"], "M8[ns]")),
        },
        attrs={"format": "pt", "epoch": np.int64(7), "classes": ["a", "b"]},
    )
    to_file(dataset.chunk(), tmp_path / "a.safetensors")
    xr.testing.assert_identical(open_lazily(tmp_path / "a.safetensors").load(), dataset)
    with safe_open(tmp_path / "a.safetensors", "numpy") as file:
        assert set(file.keys()) == {"layers.0.weight", "in", "when"}
        metadata = file.metadata()
    assert metadata.pop("format") == "pt"
    assert list(metadata) == ["xr_tensorfmt"]


def test_metadata_that_another_program_has_changed_win(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    to_file(xr.Dataset(attrs={"format": "np", "epoch": 7}), path, "safetensors")
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    save_file({}, path, {**metadata, "format": "pt"})
    assert open_lazily(path).attrs == {"format": "pt", "epoch": 7}


def test_groups_and_trees_work() -> None:
    content = save({"layers.0.w": np.ones(2, "f4"), "layers.1.w": np.zeros(2, "f4")})
    assert read(content, group="layers.1").w.dims == ("w_dim_0",)
    tree = xr.open_datatree(content, engine="tensorfmt", format="safetensors")
    assert tree.groups == ("/", "/layers", "/layers/0", "/layers/1")


def test_values_are_lazy_and_have_names_for_dimensions(tmp_path: Path) -> None:
    save_file({"w": np.arange(6.0).reshape(2, 3)}, tmp_path / "a.safetensors")
    actual = xr.open_dataset(tmp_path / "a.safetensors", chunks={})  # engine= is guessed
    assert actual.w.dims == ("w_dim_0", "w_dim_1")
    assert actual.w.chunks == ((2,), (3,))
    assert open_lazily(tmp_path / "a.safetensors", dims={"w": ("a", "b")}).w.dims == ("a", "b")
    assert float(actual.w[1, 2]) == 5


def test_part_of_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    dataset = xr.Dataset({"w": (("x", "y"), np.zeros((2, 3)))})
    to_file(dataset, path, "safetensors")
    to_file(dataset.isel(x=[1]) + 1, path, "safetensors", region={"x": slice(1, 2)})
    np.testing.assert_array_equal(load_file(path)["w"], [[0, 0, 0], [1, 1, 1]])


def test_file_is_written_to_store(memory: MemoryFileSystem) -> None:
    dataset = xr.Dataset({"b": ("x", np.arange(3, dtype="i1")), "a": ("x", np.ones(3))})
    to_file(dataset.chunk(x=2), "memory://bucket/a.safetensors")
    actual = load(memory.cat_file("/bucket/a.safetensors"))
    assert {key: item.tolist() for key, item in actual.items()} == {"b": [0, 1, 2], "a": [1, 1, 1]}


def make_file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def make_entry(dtype: Any = "U8", shape: Any = (2,), offsets: Any = (0, 2)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


DAMAGED: Mapping[str, tuple[bytes, str]] = {
    "cut off in the length": (b"\1\0", "the length of the header at byte 0: truncated"),
    "a longer header": ((100_000_001).to_bytes(8, "little"), "expected at most 100000000 bytes"),
    "a header past the end": (
        (99).to_bytes(8, "little") + b"{}",
        "JSON document at byte 8: truncated",
    ),
    "no JSON": (make_file(b"{]"), "the header at byte 9: "),
    "a list": (make_file([]), "the header at byte 8: a list, expected a JSON object"),
    "no UTF-8": (make_file(b'{"\xff":1}'), "the header at byte 10: bytes that are not UTF-8"),
    "a lone surrogate": (make_file({"\ud800": make_entry()}, b"ab"), "that UTF-8 can encode"),
    "no dtype": (make_file({"a": make_entry(["U8"])}, b"ab"), "the entry of .a.*with a dtype"),
    "no shape": (make_file({"a": {"dtype": "U8"}}), "the entry of 'a'"),
    "a negative length": (make_file({"a": make_entry(shape=[-1])}), "the shape of 'a'"),
    "a bool for a length": (
        make_file({"a": make_entry(shape=[True, 2])}, b"ab"),
        "the shape of 'a'",
    ),
    "a bool where another tensor has a length": (
        make_file(
            {"a": make_entry(shape=[1, 2]), "b": make_entry(shape=[True, 2], offsets=(2, 4))},
            b"abcd",
        ),
        "the shape of 'b'",
    ),
    "too large": (make_file({"a": make_entry(shape=[1 << 40, 1 << 40])}), "the size of 'a'"),
    "too many dimensions": (make_file({"a": make_entry(shape=[1] * 32)}), "the rank of 'a'"),
    "other bytes": (
        make_file({"a": make_entry(shape=[3])}, b"abc"),
        "data_offsets of 'a'.* 3 bytes",
    ),
    "offsets backwards": (
        make_file({"a": make_entry("U8", [0], [2, 1])}),
        "the entry of 'a'",
    ),
    "a hole": (
        make_file({"a": make_entry(), "b": make_entry(offsets=[3, 5])}, b"abcde"),
        "the data_offsets of 'b' at byte .*cannot overlap or have gaps",
    ),
    "an overlap": (
        make_file({"a": make_entry(), "b": make_entry(offsets=[1, 3])}, b"abc"),
        "the data_offsets of 'b'",
    ),
    "data past the end": (
        make_file({"a": make_entry()}, b"a"),
        "the file at byte 69: 69 bytes, expected 70 b",
    ),
    "more data": (
        make_file({"a": make_entry()}, b"abc"),
        "the end of the data at byte .*1 more bytes",
    ),
    "metadata that are no strings": (make_file({"__metadata__": {"a": 1}}), "__metadata__"),
    "metadata that are a list": (make_file({"__metadata__": []}), "__metadata__"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_corrupt_files_raise(content: bytes, message: str) -> None:
    with pytest.raises(TensorFormatError, match=message):
        read(content)


@pytest.mark.parametrize("name", sorted(set(DAMAGED) - {"a fourth bit", "too many dimensions"}))
def test_package_also_raises(name: str) -> None:
    with pytest.raises(SafetensorError):
        load(DAMAGED[name][0])


def test_repeated_names_raise() -> None:
    text = b'{"a":%b,"a":%b}' % ((json.dumps(make_entry()).encode(),) * 2)
    with pytest.raises(TensorFormatError, match="the header at byte 8: the key 'a' is repeated"):
        read(make_file(text, b"ab"))


@given(st.binary(max_size=40), st.integers(0, 200))
def test_changed_bytes_raise_only_documented_errors(noise: bytes, position: int) -> None:
    content = bytearray(save({"a": np.arange(4), "b": np.ones(3, "f4")}, {"k": "v"}))
    content[position : position + len(noise)] = noise
    with suppress(TensorFormatError), warnings.catch_warnings():
        warnings.simplefilter("ignore", TensorFormatWarning)
        read(bytes(content)).load()


REFUSED = {
    "a dtype": (xr.Dataset({"w": np.complex128(1)}), "'w' is complex128, but safetensors supports"),
    "dimensions": (
        xr.Dataset({"w": (tuple(map(str, range(32))), np.ones((1,) * 32))}),
        "'w' has 32 dimensions, but at most 31 can be read from files",
    ),
    "a name": (xr.Dataset({"__metadata__": np.float32(1)}), "is the name of the metadata"),
    "an attribute": (xr.Dataset(attrs={"xr_tensorfmt": "x"}), "rename it"),
}


@pytest.mark.parametrize(("dataset", "message"), REFUSED.values(), ids=REFUSED)
def test_unsupported_data_raise(tmp_path: Path, dataset: xr.Dataset, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_file(dataset, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


INDEX = "model.safetensors.index.json"
SHARDS = {
    "model-00001-of-00002.safetensors": {"a.w": np.arange(6, dtype="f4").reshape(2, 3)},
    "model-00002-of-00002.safetensors": {"b.w": np.arange(4), "a.b": np.ones(2, "f2")},
}


def put_index(fs: Any, folder: str, **changes: Any) -> str:
    for file, tensors in SHARDS.items():
        fs.pipe_file(f"{folder}/{file}", save(tensors, {"format": "pt", "file": file}))
    weight_map = {"a.w": min(SHARDS), "a.b": max(SHARDS), "b.w": max(SHARDS)}
    index = {"metadata": {"total_size": 60}, "weight_map": weight_map, **changes}
    fs.pipe_file(f"{folder}/{INDEX}", json.dumps(index).encode())
    return f"{folder}/{INDEX}"


@pytest.fixture
def index(tmp_path: Path) -> str:
    return put_index(LocalFileSystem(), str(tmp_path))


def test_index_is_one_dataset(index: str) -> None:
    actual = xr.open_dataset(index)  # engine= is guessed
    assert list(actual) == ["a.w", "a.b", "b.w"]
    assert actual.attrs == {"format": "pt"}
    assert actual.encoding["tensorfmt"] == {
        "format": "safetensors",
        "total_size": 60,
        "dims": {"a.w": ("a.w_dim_0", "a.w_dim_1")},
    }
    for tensors in SHARDS.values():
        for key, values in tensors.items():
            np.testing.assert_array_equal(actual[key], values)
    assert actual["b.w"].encoding["tensorfmt"]["file"] == max(SHARDS)
    assert xr.open_datatree(index, engine="tensorfmt").groups == ("/", "/a", "/b")
    assert validate(index) == []


def test_index_of_one_file_has_dims_that_were_written(tmp_path: Path) -> None:
    dataset = xr.Dataset({"w": (("out", "in"), np.ones((2, 3)))}, attrs={"epoch": 7})
    to_file(dataset, tmp_path / "model-1.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"w": "model-1.safetensors"}}))
    xr.testing.assert_identical(open_lazily(tmp_path / INDEX).load(), dataset)


def test_index_in_store_is_one_dataset(memory: MemoryFileSystem) -> None:
    put_index(memory, "/bucket")
    actual = open_lazily(f"memory://bucket/{INDEX}", chunks={})
    assert int(actual["b.w"].sum()) == 6
    assert list(actual) == ["a.w", "a.b", "b.w"]


def test_files_of_index_are_opened_at_once(memory: MemoryFileSystem, monkeypatch: Any) -> None:
    put_index(memory, "/bucket")
    together, cat_file = Barrier(len(SHARDS), timeout=30), MemoryFileSystem.cat_file

    def waiting(fs: Any, path: str, **options: Any) -> bytes:
        if path.endswith(".safetensors"):
            together.wait()
        return cat_file(fs, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", waiting)
    assert len(open_lazily(f"memory://bucket/{INDEX}")) == 3


INDEX_REFUSALS: Mapping[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a path": (
        {"weight_map": {"a": "../x"}},
        TensorFormatError,
        "paths of files in the directory of the index or below",
    ),
    "a number": (
        {"weight_map": {"a": 3}},
        TensorFormatError,
        "paths of files in the directory of the index or below",
    ),
    "no map": ({"weight_map": []}, TensorFormatError, "weight_map at byte 0"),
    "metadata": ({"metadata": 3}, TensorFormatError, "metadata at byte 0: 3"),
    "no file": (
        {"weight_map": {"a": "none"}},
        FileNotFoundError,
        "no such file; it is named by .*, so fetch it too",
    ),
    "no tensor": (
        {"weight_map": {"a": min(SHARDS)}},
        TensorFormatError,
        "the file of 'a' at byte 0: .*expected a file with that tensor",
    ),
}


@pytest.mark.parametrize(
    ("changes", "error", "message"), INDEX_REFUSALS.values(), ids=INDEX_REFUSALS
)
def test_corrupt_index_raises(
    memory: MemoryFileSystem, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    put_index(memory, "/bucket", **changes)
    with pytest.raises(error, match=message):
        open_lazily(f"memory://bucket/{INDEX}")


def test_tensors_that_index_does_not_name_are_omitted_with_one_warning(
    memory: MemoryFileSystem,
) -> None:
    path = put_index(memory, "/bucket", weight_map={"b.w": max(SHARDS)})
    extra = {"b.w": np.ones(2), **{f"extra.{n}": np.ones(1) for n in range(99)}}
    memory.pipe_file(f"/bucket/{min(SHARDS)}", save(extra))
    memory.pipe_file(
        path, json.dumps({"weight_map": {"b.w": max(SHARDS), "extra.0": min(SHARDS)}}).encode()
    )
    message = rf"100 tensors .*another file: 'a\.b' in {max(SHARDS)}, 'b\.w' in {min(SHARDS)}"
    with pytest.warns(TensorFormatWarning, match=message) as warned:
        assert list(open_lazily(f"memory://bucket/{INDEX}")) == ["b.w", "extra.0"]
    assert len(warned) == 1


def test_index_opens_without_metadata_and_without_a_missing_tensor(
    memory: MemoryFileSystem,
) -> None:
    weight_map = {"a.w": min(SHARDS), "lost": max(SHARDS)}
    put_index(memory, "/bucket", weight_map=weight_map, metadata=None)
    with pytest.warns(TensorFormatWarning) as warned:
        ds = open_lazily(f"memory://bucket/{INDEX}")
    assert list(ds) == ["a.w"]
    assert any("'lost'" in str(warning.message) for warning in warned)
    with pytest.raises(TensorFormatError, match="the file of 'lost'"):
        open_lazily(f"memory://bucket/{INDEX}", dims={"lost": ("x",)})


def test_metadata_may_be_null() -> None:
    header = b'{"__metadata__":null,"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    content = len(header).to_bytes(8, "little") + header + b"\7"
    assert list(load(content)) == ["w"]
    assert open_lazily(content, format="safetensors").w.values == 7


def test_index_becomes_one_file(index: str, tmp_path: Path) -> None:
    to_file(open_lazily(index), tmp_path / "whole.safetensors")
    actual = load_file(tmp_path / "whole.safetensors")
    expected = {key: item for tensors in SHARDS.values() for key, item in tensors.items()}
    assert set(actual) == set(expected)
    for key, values in expected.items():
        np.testing.assert_array_equal(actual[key], values)


def test_index_without_directory_raises() -> None:
    class Named(io.BytesIO):
        name = INDEX

    with pytest.raises(ValueError, match="has no directory with its sibling files"):
        open_lazily(Named(json.dumps({"weight_map": {"a": "b"}}).encode()))


def make_model() -> xr.Dataset:
    weights = {
        f"{layer}.weight": (("out", "in"), np.full((4, 3), layer, "f4")) for layer in range(3)
    }
    return xr.Dataset(weights, {"out": list("abcd")}, {"format": "pt", "epoch": 3})


def list_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("limit", [100, "0.1 kB"])
def test_a_model_is_written_in_several_files(tmp_path: Path, limit: int | str) -> None:
    to_file(make_model(), tmp_path / INDEX, "safetensors", max_shard_bytes=limit)
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    assert list_files(tmp_path) == [first, second, INDEX]
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["weight_map"] == {"0.weight": first, "1.weight": first, "2.weight": second}
    assert index["metadata"]["total_size"] == 144
    with safe_open(tmp_path / second, "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        np.testing.assert_array_equal(file.get_tensor("2.weight"), np.full((4, 3), 2))
    back = open_lazily(tmp_path / INDEX)
    assert back.encoding["tensorfmt"]["total_size"] == 144
    xr.testing.assert_identical(back.load(), make_model())
    assert validate(tmp_path / INDEX) == []


def test_a_tensor_that_exceeds_the_limit_has_a_file_of_its_own(tmp_path: Path) -> None:
    to_file(make_model().chunk(out=2), tmp_path / INDEX, "safetensors", max_shard_bytes=1)
    assert len(list_files(tmp_path)) == 4
    xr.testing.assert_equal(open_lazily(tmp_path / INDEX), make_model())


def test_a_model_without_tensors_has_one_file(tmp_path: Path) -> None:
    empty = xr.Dataset(attrs={"format": "pt"})
    to_file(empty, tmp_path / INDEX, "safetensors")
    assert list_files(tmp_path) == ["model-00001-of-00001.safetensors", INDEX]
    back = open_lazily(tmp_path / INDEX)
    assert back.attrs == {"format": "pt"}
    assert back.encoding["tensorfmt"]["total_size"] == 0


def test_a_smaller_number_of_files_replaces_a_larger_one(tmp_path: Path) -> None:
    (tmp_path / "model-00009-of-00009.safetensors").touch()  # not in the index
    to_file(make_model(), tmp_path / INDEX, "safetensors", max_shard_bytes=1)
    lazy = open_lazily(tmp_path / INDEX)
    to_file(lazy * 2, tmp_path / INDEX, "safetensors")
    assert list_files(tmp_path) == [
        "model-00001-of-00001.safetensors",
        "model-00009-of-00009.safetensors",
        INDEX,
    ]
    xr.testing.assert_equal(open_lazily(tmp_path / INDEX), make_model() * 2)


@pytest.mark.parametrize("content", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_a_replaced_index_can_be_damaged(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX).write_text(content)
    to_file(make_model(), tmp_path / INDEX, "safetensors")
    xr.testing.assert_equal(open_lazily(tmp_path / INDEX), make_model())


def test_a_region_of_a_model_in_several_files_is_changed(tmp_path: Path) -> None:
    to_file(make_model(), tmp_path / INDEX, "safetensors", max_shard_bytes=1)
    to_file(
        make_model().isel(out=[2, 3]) + 1,
        tmp_path / INDEX,
        "safetensors",
        region={"out": slice(2, 4)},
    )
    expected = make_model()
    for weight in expected.data_vars.values():
        weight[2:] += 1
    xr.testing.assert_equal(open_lazily(tmp_path / INDEX), expected)


@pytest.mark.parametrize("limit", ["many", 0, -1, [3], "1e400"])
def test_the_limit_of_files_is_a_size(tmp_path: Path, limit: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"max_shard_bytes=.* must be "):
        to_file(make_model(), tmp_path / INDEX, "safetensors", max_shard_bytes=limit)


def test_one_file_has_no_limit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"use a name that ends with \.safetensors\.index\.json"):
        to_file(make_model(), tmp_path / "model.safetensors", max_shard_bytes="5GB")


def test_a_directory_opens_as_its_index(tmp_path: Path, memory: MemoryFileSystem) -> None:
    to_file(make_model(), tmp_path / INDEX, "safetensors", max_shard_bytes=1)
    to_file(make_model(), f"memory://bucket/model/{INDEX}", "safetensors", max_shard_bytes=1)
    for directory in (tmp_path, f"{tmp_path}/", "memory://bucket/model"):
        xr.testing.assert_equal(open_lazily(directory), make_model())
        assert validate(directory) == []
    assert xr.open_datatree(tmp_path, engine="tensorfmt").groups == ("/", "/0", "/1", "/2")


def test_a_directory_with_two_indexes_is_ambiguous(tmp_path: Path) -> None:
    for name in ("model", "model.fp16"):
        to_file(make_model(), tmp_path / f"{name}.safetensors.index.json")
    names = r"several models: model\.fp16\.safetensors\.index\.json, model\.safetensors\."
    with pytest.raises(IsADirectoryError, match=names):
        open_lazily(tmp_path)
