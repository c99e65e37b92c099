"""Models as they are published: directories, indices, current dtypes, edited models."""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import ml_dtypes
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem

from tests.commands import run_failing
from tests.recording import RecordingSource
from tests.workflows.formats import WRITABLE, make_array, write
from xr_tensorfmt import TensorFormatError, TensorFormatWarning, to_file, validate
from xr_tensorfmt.core.elements import FLOAT8_NAMES, Narrow, get_stored_name
from xr_tensorfmt.core.layout import Dense, read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.writing.atomic_file import AtomicFile

WEIGHT = np.arange(6, dtype="f4").reshape(2, 3)
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def open_model(path: Path | str, **keywords: Any) -> xr.Dataset:
    return xr.open_dataset(os.fspath(path), engine="tensorfmt", **keywords)


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, list[int], bytes]]) -> None:
    """Write a file of tensors: dtype, shape and bytes by key."""
    header, start = {}, 0
    for key, (dtype, shape, data) in tensors.items():
        offsets = [start, start := start + len(data)]
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        len(text).to_bytes(8, "little") + text + b"".join(item[2] for item in tensors.values())
    )


def write_index(path: Path, weight_map: Mapping[str, str], **metadata: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return path


_SUPPORTED = ("F32", [2, 3], WEIGHT.tobytes())
_UNSUPPORTED = ("F4", [2, 4], bytes(4))


def write_unsupported_safetensors(directory: Path) -> Path:
    path = directory / "model.safetensors"
    write_safetensors(path, {"layers.0.weight": _SUPPORTED, "layers.1.scale": _UNSUPPORTED})
    return path


def write_unsupported_index(directory: Path) -> Path:
    write_safetensors(directory / SHARDS[0], {"layers.0.weight": _SUPPORTED})
    write_safetensors(directory / SHARDS[1], {"layers.1.scale": _UNSUPPORTED})
    return write_index(
        directory / INDEX,
        {"layers.0.weight": SHARDS[0], "layers.1.scale": SHARDS[1]},
    )


def write_unsupported_mag(directory: Path) -> Path:
    path = directory / "model.mag"
    scale = ("c", np.arange(4, dtype="i8"))
    to_file(xr.Dataset({"layers.0.weight": (("a", "b"), WEIGHT), "layers.1.scale": scale}), path)
    content = path.read_bytes()
    old, new = b'"dtype":"int64","dtype_id":12', b'"dtype":"int4","dtype_id":13 '
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    return path


def write_unsupported_npz(directory: Path) -> Path:
    path = directory / "model.npz"
    arrays = {"layers.0.weight": WEIGHT, "layers.1.scale": np.zeros(4, ml_dtypes.float4_e2m1fn)}
    np.savez(path, **arrays)
    return path


UNSUPPORTED = {
    "safetensors": write_unsupported_safetensors,
    "index": write_unsupported_index,
    "mag": write_unsupported_mag,
    "npz": write_unsupported_npz,
}
any_container = pytest.mark.parametrize("write_model", UNSUPPORTED.values(), ids=UNSUPPORTED)
Write = Callable[[Path], Path]


class TestUnsupportedDtype:
    @any_container
    def test_only_its_tensor_is_omitted_with_one_warning(
        self, write_model: Write, tmp_path: Path
    ) -> None:
        path = write_model(tmp_path)
        with pytest.warns(TensorFormatWarning, match="'layers.1.scale'.*omitted") as caught:
            ds = open_model(path)
        assert len(caught) == 1
        assert "corrupt" not in str(caught[0].message)
        assert list(ds) == ["layers.0.weight"]
        np.testing.assert_array_equal(ds["layers.0.weight"], WEIGHT)
        (finding,) = validate(path)
        assert (finding.severity, "layers.1.scale" in finding.sentence) == ("warning", True)

    @any_container
    def test_dropped_tensor_is_not_reported(self, write_model: Write, tmp_path: Path) -> None:
        ds = open_model(write_model(tmp_path), drop_variables="layers.1.scale")
        assert list(ds) == ["layers.0.weight"]

    @any_container
    @pytest.mark.parametrize(
        "request_it",
        [
            {"group": "layers.1"},
            {"group": "/layers/1"},
            {"dims": {"layers.1.scale": ("x",)}},
            {"dims": {"*.scale": ("x",)}},
        ],
        ids=str,
    )
    def test_request_by_name_is_an_error(
        self, write_model: Write, tmp_path: Path, request_it: dict[str, Any]
    ) -> None:
        path = write_model(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TensorFormatWarning)
            with pytest.raises(TensorFormatError, match=r"'layers.1.scale'.*expected") as caught:
                open_model(path, **request_it)
        assert "corrupt" not in str(caught.value)

    def test_many_tensors_are_one_warning(self, tmp_path: Path) -> None:
        tensors = {f"layers.{number}": _UNSUPPORTED for number in range(50)}
        write_safetensors(tmp_path / "a.safetensors", {"w": _SUPPORTED, **tensors})
        with pytest.warns(TensorFormatWarning, match="like 49 more") as caught:
            assert list(open_model(tmp_path / "a.safetensors")) == ["w"]
        assert len(caught) == 1


NEW_DTYPES = {
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


@pytest.mark.parametrize(("dtype", "name"), NEW_DTYPES.items())
def test_current_dtypes_are_exact_float32_and_are_written_back(
    tmp_path: Path, dtype: str, name: str
) -> None:
    raw = np.arange(256, dtype="u1")
    write_safetensors(tmp_path / "a.safetensors", {"w": (dtype, [256], raw.tobytes())})
    ds = open_model(tmp_path / "a.safetensors")
    expected = raw.view(getattr(ml_dtypes, name)).astype("f4")
    np.testing.assert_array_equal(ds.w, expected)
    assert get_stored_name(ds.w.encoding["dtype"]) == name
    to_file(ds, tmp_path / "b.safetensors")
    content = (tmp_path / "b.safetensors").read_bytes()
    assert content.endswith(raw.tobytes())
    assert json.loads(content[8 : -raw.size])["w"]["dtype"] == dtype
    assert name in FLOAT8_NAMES


any_format = pytest.mark.parametrize("name", WRITABLE)
MODELS = ("model.safetensors", "model.fp16.safetensors", INDEX, "model.mag")
any_model = pytest.mark.parametrize("name", MODELS)
OTHERS = (
    *("README.md", ".gitattributes", "config.json", "generation_config.json", "tokenizer.json"),
    *("pytorch_model.bin", "training_args.bin", "vocab.txt", ".model.safetensors", "._a.mag"),
)


def make_model(offset: float = 0.0) -> xr.Dataset:
    keys = ("layers.0.weight", "layers.1.weight")
    return xr.Dataset({key: ((f"{key}_dim_0", f"{key}_dim_1"), WEIGHT + offset) for key in keys})


def publish(directory: Path, name: str) -> xr.Dataset:
    """Write a model among the other files of a published model."""
    directory.mkdir(exist_ok=True)
    for other in OTHERS:
        (directory / other).write_text('{"model_type": "llama", "vocab_size": 32000}')
    model = make_model()
    options = {"max_shard_bytes": 24} if name == INDEX else {}
    to_file(model, directory / name, **options)
    return model


class TestDirectory:
    @any_model
    def test_opens_as_its_model(self, tmp_path: Path, name: str) -> None:
        model = publish(tmp_path, name)
        for directory in (tmp_path, f"{tmp_path}/"):
            xr.testing.assert_equal(open_model(directory), model)
            tree = xr.open_datatree(directory, engine="tensorfmt")
            assert tree.groups == ("/", "/layers", "/layers/0", "/layers/1")
            assert validate(directory) == []
        one = open_model(tmp_path, group="layers.1")
        np.testing.assert_array_equal(one.weight, WEIGHT)

    @any_model
    def test_opens_in_a_store(self, tmp_path: Path, name: str, memory: MemoryFileSystem) -> None:
        model = publish(tmp_path / "model", name)
        memory.put(f"{tmp_path}/model/", "/bucket/model/", recursive=True)
        for directory in ("memory://bucket/model", "memory://bucket/model/"):
            xr.testing.assert_equal(open_model(directory), model)
        xr.testing.assert_equal(open_model("/bucket/model", fs=memory), model)

    def test_index_has_priority_over_files(self, tmp_path: Path) -> None:
        model = publish(tmp_path, INDEX)
        to_file(make_model(1), tmp_path / "consolidated.safetensors")
        xr.testing.assert_equal(open_model(tmp_path), model)

    @pytest.mark.parametrize("other", ["b.safetensors", "b.mag"])
    def test_several_models_are_ambiguous(self, tmp_path: Path, other: str) -> None:
        publish(tmp_path, "a.safetensors")
        to_file(make_model(), tmp_path / other)
        with pytest.raises(IsADirectoryError, match=rf"several models: a\.safetensors, {other}"):
            open_model(tmp_path)

    @pytest.mark.parametrize(
        "shards", [SHARDS, SHARDS[1:], ("a.fp16-00002-of-000163.safetensors",)]
    )
    def test_without_the_index_of_its_files_is_an_error(
        self, tmp_path: Path, shards: tuple[str, ...]
    ) -> None:
        for shard in shards:
            write_safetensors(tmp_path / shard, {"w": _SUPPORTED})
        index = f"{shards[0].partition('-')[0]}.safetensors.index.json"
        with pytest.raises(IsADirectoryError, match=f"without its index {index}; fetch"):
            open_model(tmp_path)
        assert index in run_failing("convert", str(tmp_path), str(tmp_path / "a.mag"))
        assert list(open_model(tmp_path / shards[0])) == ["w"]
        assert validate(tmp_path) == []  # of each file

    def test_opens_while_its_files_are_replaced_whole_or_not_at_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        to_file(make_model(), tmp_path / INDEX, max_shard_bytes=24)
        move, opened = AtomicFile.move, []

        def move_and_open(file: AtomicFile) -> None:
            move(file)
            with suppress(OSError, TensorFormatError):
                opened.append(list(open_model(tmp_path)))

        monkeypatch.setattr(AtomicFile, "move", move_and_open)
        to_file(make_model(1), tmp_path / INDEX, max_shard_bytes=24)
        assert opened
        assert all(names == list(make_model()) for names in opened)

    def test_without_a_model_is_an_error(self, tmp_path: Path) -> None:
        for other in OTHERS:
            (tmp_path / other).touch()
        with pytest.raises(IsADirectoryError, match="pass the path of a file in it"):
            open_model(tmp_path)


INDICES = (
    *(INDEX, "model.fp16.safetensors.index.json"),
    *("model.safetensors.index.fp16.json", "MODEL.safetensors.fp16.index.json"),
)


def write_shards(directory: Path, prefix: str = "", index: str = INDEX) -> Path:
    weight_map = {}
    for number, shard in enumerate(SHARDS):
        write_safetensors(directory / prefix / shard, {f"{number}.w": _SUPPORTED})
        weight_map[f"{number}.w"] = f"{prefix}{shard}"
    return write_index(directory / index, weight_map, total_size=48)


class TestIndex:
    @pytest.mark.parametrize("index", INDICES)
    def test_of_a_variant_opens(self, tmp_path: Path, index: str) -> None:
        path = write_shards(tmp_path, index=index)
        for model in (path, tmp_path):
            assert list(open_model(model)) == ["0.w", "1.w"]
        assert validate(path) == []
        np.testing.assert_array_equal(open_model(path, format="safetensors")["1.w"], WEIGHT)

    @pytest.mark.parametrize("index", INDICES)
    def test_of_a_variant_is_written_with_its_files(self, tmp_path: Path, index: str) -> None:
        to_file(make_model(), tmp_path / index, max_shard_bytes=24)
        variant = ".fp16" if "fp16" in index else ""
        stem = f"{index.partition('.')[0]}{variant}"
        shards = [f"{stem}-0000{number}-of-00002.safetensors" for number in (1, 2)]
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([index, *shards])
        xr.testing.assert_equal(open_model(tmp_path), make_model())

    @pytest.mark.parametrize("prefix", ["shards/", "./", "./a/./b/"])
    def test_names_files_in_subfolders(
        self, tmp_path: Path, prefix: str, memory: MemoryFileSystem
    ) -> None:
        path = write_shards(tmp_path, prefix)
        np.testing.assert_array_equal(open_model(path)["1.w"], WEIGHT)
        assert validate(path) == []
        memory.put(f"{tmp_path}/", "/bucket/model/", recursive=True)
        np.testing.assert_array_equal(open_model("memory://bucket/model")["1.w"], WEIGHT)

    @pytest.mark.parametrize(
        "file",
        [
            *("../a.safetensors", "shards/../../a.safetensors", "/tmp/a.safetensors", "..", "."),
            *("a//b.safetensors", "C:\\a.safetensors", "shards\\..\\a", "a\0b", "", "shards/"),
            *(7, None, ["a.safetensors"]),
        ],
        ids=repr,
    )
    def test_cannot_name_files_elsewhere(self, tmp_path: Path, file: Any) -> None:
        write_safetensors(tmp_path / "a.safetensors", {"w": _SUPPORTED})
        path = write_index(tmp_path / "model" / INDEX, {"w": file})
        with pytest.raises(TensorFormatError, match="in the directory of the index or below"):
            open_model(path)


class TestTotals:
    """Attributes with the names of what an index states are attributes of the user."""

    @pytest.mark.parametrize("name", [INDEX, "model.safetensors", "model.mag"])
    @pytest.mark.parametrize(
        "attrs",
        [
            {"total_size": 48, "total_parameters": 12, "header_crc32": 7, "format": "pt"},
            {"header_crc32": "text", "format": "pt", "total_size": "text", "epoch": 7},
            {"total_size": "text", "title": "a"},
        ],
    )
    def test_attributes_stay_in_their_order(
        self, tmp_path: Path, name: str, attrs: dict[str, Any]
    ) -> None:
        ds = make_model().assign_attrs(attrs)
        ds.attrs = attrs
        for _ in range(2):  # the second time, from the written file
            to_file(ds, tmp_path / name)
            ds = open_model(tmp_path / name).load()
            assert list(ds.attrs.items()) == list(attrs.items())

    def test_index_states_the_size_that_is_written(self, tmp_path: Path) -> None:
        to_file(make_model(), tmp_path / INDEX)
        part = open_model(tmp_path)[["layers.0.weight"]]
        path = tmp_path / "part" / INDEX
        path.parent.mkdir()
        to_file(part, path)
        metadata = json.loads(path.read_text())["metadata"]
        assert metadata["total_size"] == 24
        back = open_model(path)
        assert "total_size" not in back.attrs
        assert back.encoding["tensorfmt"]["total_size"] == 24


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n"


class TestGitLfsPointer:
    """A repository that was cloned without Git LFS has pointers in place of large files."""

    @any_format
    @pytest.mark.parametrize("is_named", [False, True])
    def test_file_is_named(self, tmp_path: Path, name: str, is_named: bool) -> None:
        path = write(make_array(shape=(2, 3)), tmp_path, name)
        path.write_bytes(POINTER)
        with pytest.raises(TensorFormatError, match=r"a Git LFS pointer.*git lfs pull"):
            open_model(path, **({"format": name} if is_named else {}))
        assert "Git LFS pointer" in validate(path)[0].sentence

    @pytest.mark.parametrize("pointer", ["index", *SHARDS])
    def test_part_of_a_model_is_named(self, tmp_path: Path, pointer: str) -> None:
        index = write_shards(tmp_path)
        path = index if pointer == "index" else tmp_path / pointer
        path.write_bytes(POINTER)
        for model in (index, tmp_path):
            with pytest.raises(TensorFormatError, match=f"{path.name}.*Git LFS pointer"):
                open_model(model)

    def test_sibling_files_of_cc4s_are_named(self, tmp_path: Path) -> None:
        path = write(make_array(), tmp_path, "cc4s")
        (elements,) = tmp_path.glob("*.elements")
        elements.write_bytes(POINTER)
        with pytest.raises(TensorFormatError, match=r"elements: .*Git LFS pointer"):
            open_model(path)

    def test_in_a_store(self, tmp_path: Path, memory: MemoryFileSystem) -> None:
        write_shards(tmp_path)
        (tmp_path / SHARDS[1]).write_bytes(POINTER)
        memory.put(f"{tmp_path}/", "/bucket/model/", recursive=True)
        with pytest.raises(TensorFormatError, match=f"{SHARDS[1]}.*Git LFS pointer"):
            open_model("memory://bucket/model")


STORED = {"safetensors": ("bfloat16", *FLOAT8_NAMES), "mag": ("bfloat16", "float8_e4m3fn")}


class TestStoredDtypes:
    """With ``decode_floats=False``, values of narrow floats are not converted."""

    @pytest.mark.parametrize(
        ("suffix", "dtype"), [(suffix, dtype) for suffix in STORED for dtype in STORED[suffix]]
    )
    @pytest.mark.parametrize("chunks", [None, {}], ids=str)
    def test_are_returned_selected_and_written(
        self, tmp_path: Path, suffix: str, dtype: str, chunks: dict[str, int] | None
    ) -> None:
        bits = np.arange(256, dtype="u1").reshape(16, 16)
        bits = bits * np.uint16(257) if dtype == "bfloat16" else bits
        stored = bits.view(getattr(ml_dtypes, dtype))
        ds = xr.Dataset({"w": (("x", "y"), stored), "b": ("x", np.arange(16))})
        to_file(ds, tmp_path / f"a.{suffix}")
        opened = open_model(tmp_path / f"a.{suffix}", decode_floats=False, chunks=chunks)
        assert opened.w.dtype == stored.dtype
        assert opened.b.dtype == np.int64
        for actual, expected in (
            (opened.w, bits),
            (opened.w.isel(x=[3, 1], y=slice(None, None, -2)), bits[[3, 1], ::-2]),
            (opened.w.T[2], bits[:, 2]),
        ):
            np.testing.assert_array_equal(actual.values.view(bits.dtype), expected)
        to_file(opened, tmp_path / f"b.{suffix}")
        decoded = open_model(tmp_path / f"b.{suffix}")
        assert get_stored_name(decoded.w.encoding["dtype"]) == dtype
        np.testing.assert_array_equal(decoded.w, stored.astype("f4"))

    def test_keyword_applies_to_formats_with_such_dtypes(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", a=WEIGHT)
        with pytest.raises(ValueError, match=r"decode_floats=False does not apply to format 'npz'"):
            open_model(tmp_path / "a.npz", decode_floats=False)

    def test_big_endian_bfloat16_is_returned(self) -> None:
        narrow = Narrow("bfloat16", ">").narrow
        layout, raw = Dense((2,), narrow, 0), np.array([0x3F80, 0x4049], ">u2")
        source = RecordingSource(raw.tobytes())
        values = read(layout, source, Selection.everything(layout.shape))
        assert values.dtype == np.dtype(ml_dtypes.bfloat16)
        assert values.astype("f4").tolist() == [1, 3.140625]


class TestTwoForms:
    """A directory with a model in one file and another one in several files."""

    FORMS: ClassVar = [
        ("model.safetensors", INDEX),
        ("model.fp16.safetensors", "model.safetensors.index.fp16.json"),
        ("model.fp16.safetensors", "model.fp16.safetensors.index.json"),
    ]

    @pytest.mark.parametrize(("single", "index"), FORMS)
    @pytest.mark.parametrize("is_index_first", [False, True])
    @pytest.mark.parametrize("protocol", ["", "memory://"])
    def test_other_form_is_not_written(
        self,
        tmp_path: Path,
        memory: MemoryFileSystem,
        single: str,
        index: str,
        *,
        is_index_first: bool,
        protocol: str,
    ) -> None:
        first, second = (index, single) if is_index_first else (single, index)
        directory = f"{protocol}{tmp_path}"
        to_file(make_model(), f"{directory}/{first}")
        for compute in (True, False):
            with pytest.raises(FileExistsError, match=rf"{second} .*{first} is another form"):
                to_file(make_model() * 2, f"{directory}/{second}", compute=compute)
        xr.testing.assert_equal(open_model(f"{directory}/{first}"), make_model())
        xr.testing.assert_equal(open_model(directory), make_model())

    @pytest.mark.parametrize(("single", "index"), FORMS)
    def test_directory_names_both(self, tmp_path: Path, single: str, index: str) -> None:
        to_file(make_model(), tmp_path / index, max_shard_bytes=24)
        (tmp_path / "new").mkdir()
        to_file(make_model(), tmp_path / "new" / single)
        (tmp_path / "new" / single).rename(tmp_path / single)
        message = re.escape(f"several models: {', '.join(sorted([single, index]))}")
        with pytest.raises(IsADirectoryError, match=message):
            open_model(tmp_path)

    INDEXES: ClassVar = [
        *("model.safetensors.index.json", "model.fp16.safetensors.index.json"),
        *("model.safetensors.index.fp16.json", "model.safetensors.fp16.index.json"),
        *("model.fp16.safetensors.INDEX.json", "model.fp16.SAFETENSORS.index.json"),
    ]

    @pytest.mark.parametrize("protocol", ["", "memory://"])
    @pytest.mark.parametrize("second", INDEXES)
    @pytest.mark.parametrize("first", INDEXES)
    def test_two_indexes_share_no_files(
        self, tmp_path: Path, memory: MemoryFileSystem, first: str, second: str, protocol: str
    ) -> None:
        if first == second or (sys.platform in ("win32", "darwin") and first != first.lower()):
            pytest.skip("it is the same index")
        directory, models = f"{protocol}{tmp_path}", {first: make_model()}
        to_file(models[first], f"{directory}/{first}", max_shard_bytes=24)
        try:
            to_file(make_model(1), f"{directory}/{second}", max_shard_bytes=24)
            models[second] = make_model(1)
        except FileExistsError as error:
            assert str(error).startswith(f"{directory}/{second} was not written")  # noqa: PT017
        for index, model in models.items():
            xr.testing.assert_equal(open_model(f"{directory}/{index}"), model)
            assert validate(f"{directory}/{index}") == []

    @pytest.mark.parametrize("protocol", ["", "memory://"])
    @pytest.mark.parametrize("number", [1, 2])
    def test_files_that_the_index_does_not_list_are_kept(
        self, tmp_path: Path, memory: MemoryFileSystem, number: int, protocol: str
    ) -> None:
        directory = f"{protocol}{tmp_path}"
        other, index = (
            f"{directory}/model-0000{number}-of-00002.safetensors",
            f"{directory}/{INDEX}",
        )
        to_file(make_model(7), other)
        for offset in (0, 1):  # the second time, the index exists
            to_file(make_model(offset), index, max_shard_bytes=24)
            xr.testing.assert_equal(open_model(other), make_model(7))
            xr.testing.assert_equal(open_model(index), make_model(offset))
            # The files of the replaced index are removed.
            assert len(fsspec.open_files(f"{directory}/*.safetensors")) == 3
        with pytest.raises(FileExistsError):
            to_file(make_model(), index, max_shard_bytes=24, mode="w-")

    def test_files_keep_their_names_if_their_index_lists_them(self, tmp_path: Path) -> None:
        for count in (3, 2, 2, 3, 1):
            model = xr.Dataset({f"{n}.w": ("x", np.full(6, n, "f4")) for n in range(count)})
            to_file(model, tmp_path / INDEX, max_shard_bytes=24)
            names = [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
            assert sorted(path.name for path in tmp_path.iterdir()) == [*names, INDEX]
            xr.testing.assert_equal(open_model(tmp_path), model)

    def test_index_may_list_the_whole_model(self, tmp_path: Path) -> None:
        write_safetensors(tmp_path / "model.safetensors", {"0.w": _SUPPORTED})
        write_index(tmp_path / INDEX, {"0.w": "model.safetensors"})
        assert list(open_model(tmp_path)) == ["0.w"]
        assert validate(tmp_path) == []


class TestOrderOfDims:
    """Other programs identify dimensions by their position."""

    @pytest.mark.parametrize("suffix", ["safetensors", "mag"])
    def test_weight_that_arithmetic_has_transposed_warns(self, tmp_path: Path, suffix: str) -> None:
        weight = xr.Dataset({"q.weight": (("out", "in"), np.arange(12, dtype="f4").reshape(3, 4))})
        to_file(weight, tmp_path / f"a.{suffix}")
        scale = xr.DataArray(np.ones(4, "f4"), dims="in")
        ds = open_model(tmp_path / f"a.{suffix}")
        message = r"transpose\('out', 'in'\)"
        transposed = ds.transpose("in", "out")
        with pytest.warns(TensorFormatWarning, match=message):
            to_file(transposed, tmp_path / f"b.{suffix}")
        with pytest.warns(TensorFormatWarning, match=message):
            to_file(transposed["q.weight"], tmp_path / f"b.{suffix}")
        with pytest.warns(TensorFormatWarning, match=message):
            to_file(pickle.loads(pickle.dumps(transposed)), tmp_path / f"b.{suffix}")
        to_file(transposed.drop_encoding(), tmp_path / f"b.{suffix}")
        ds["q.weight"] = scale * ds["q.weight"]
        with pytest.warns(TensorFormatWarning, match=message):
            to_file(ds, tmp_path / f"b.{suffix}")
        to_file(ds.transpose("out", "in"), tmp_path / f"b.{suffix}")
        to_file(ds.isel(out=0), tmp_path / f"b.{suffix}")
        tree = xr.open_datatree(tmp_path / f"a.{suffix}", engine="tensorfmt")
        with pytest.warns(TensorFormatWarning, match=r"transpose\('q.out', 'q.in'\)"):
            to_file(tree.map_over_datasets(lambda node: node.transpose()), tmp_path / f"b.{suffix}")

    def test_renamed_file_keeps_no_dims_of_another_tensor(self, tmp_path: Path) -> None:
        """A program that renames the only tensor keeps the metadata of the old name."""
        attrs = {"units": "eV"}
        to_file(xr.Dataset({"w": (("a", "b"), WEIGHT, attrs)}), tmp_path / "a.safetensors")
        content = (
            (tmp_path / "a.safetensors").read_bytes().replace(b'"w":{"dtype"', b'"v":{"dtype"')
        )
        (tmp_path / "a.safetensors").write_bytes(content)
        ds = open_model(tmp_path / "a.safetensors")
        assert ds.v.dims == ("v_dim_0", "v_dim_1")
        assert not ds.v.attrs
