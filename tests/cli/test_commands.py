"""The command ``xr-tensorfmt``."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from errno import EIO
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr

import xr_tensorfmt
from tests import magfiles as mf
from tests import pycausetfiles as pf
from tests import tensfiles as tf
from tests import vespafiles as vf
from tests.commands import (
    GAMMA,
    load_any,
    make_dataset,
    run,
    run_failing,
    run_ok,
    save,
    write_vertex,
)
from tests.families import FILES
from tests.processes import run_python
from xr_tensorfmt import to_file
from xr_tensorfmt.cli import main
from xr_tensorfmt.core.elements import get_stored_name

pytestmark = pytest.mark.usefixtures("working_directory")


# The command itself


def test_commands_have_their_options_without_being_run() -> None:
    for command in main.commands.values():
        assert command.callback is not None
        assert command.params


def test_each_command_has_help_of_its_function() -> None:
    for name in main.commands:
        assert f"Usage: main {name} " in run_ok(name, "--help")
    assert "No such command 'inf'" in run_failing("inf", code=2)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["xarray", "xr_tensorfmt"])
def test_datasets_have_accessor_in_any_order_of_imports(first: str) -> None:
    code = f"import {first}, xarray, xr_tensorfmt; xarray.Dataset().tensorfmt.explain()"
    run_python("-c", code)


@pytest.mark.slow
def test_module_is_command() -> None:
    output = run_python("-m", "xr_tensorfmt", "--version").stdout
    assert output.strip() == f"xr-tensorfmt, version {xr_tensorfmt.__version__}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["info"], "Missing argument"),
        (["info", "a", "--storage-option", "anon"], "must have the form KEY=VALUE"),
        (["convert", "a", "b", "--drop", "values"], "not one of 'name', 'dims', 'coords', 'attrs'"),
        (["convert", "a", "b", "--drop", "name,"], "not one of 'name', 'dims', 'coords', 'attrs'"),
        (["convert", "a", "b", "--to", "csv"], "'csv' is not one of"),
        (["convert", "a", "b.mag", "--dtype", "w="], "'w=' is neither DTYPE nor NAME=DTYPE"),
        (["convert", "a", "b.mag", "--dtype", ""], "'' is neither DTYPE nor NAME=DTYPE"),
        (["convert", "a", "b.mag", "--dtype", "=f4"], "'=f4' is neither DTYPE nor NAME=DTYPE"),
    ],
)
def test_invalid_options_exit_with_code_2(arguments: list[str], words: str) -> None:
    assert words in run_failing(*arguments, code=2)


def test_examples_are_not_copied_to_existing_directory() -> None:
    run_ok("examples", "tensors")
    assert "File exists" in run_failing("examples", "tensors")
    assert "is a URL; pass the path of a new" in run_failing("examples", "memory://tensors")


# info


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_info_describes_every_container(name: str) -> None:
    path = name if name.endswith((".tbf", ".safetensors")) else f"{name}.bin"
    Path(path).write_bytes(FILES[name]())
    (file_info,) = json.loads(run_ok("info", "--json", path))
    ds = xr.open_dataset(path, engine="tensorfmt")
    assert file_info["dims"] == dict(ds.sizes)
    assert list(file_info["variables"]) == list(ds.data_vars)
    assert list(file_info["coordinates"]) == list(ds.coords)
    assert file_info["size"] == Path(path).stat().st_size
    assert file_info["attrs"] == ds.attrs
    for key, item in file_info["variables"].items():
        assert item["dims"] == list(ds[key].dims)
        assert item["shape"] == list(ds[key].shape)
        assert item["dtype"] == ds[key].dtype.name
        assert item["attrs"] == ds[key].attrs
        assert not item["encoding"].keys() & {"format", "version", "dtype"}  # listed elsewhere
    output = run_ok("info", path)
    assert output.startswith(f"{file_info['path']}: ")
    assert all(key in output for key in file_info["variables"])


@pytest.mark.slow
def test_info_shows_storage_and_offsets() -> None:
    tensors = {
        "w": mf.Put("bfloat16", (2,), b"\x80\x3f\0\0"),
        "t": mf.put(np.zeros((5000, 4000), "f4")),
    }
    Path("a.mag").write_bytes(mf.make_document(tensors, {"long": "x" * 500, "odd": float("nan")}))
    output = run_ok("info", "a.mag")
    assert "MAG snapshot 300" in output
    assert re.search(r"w +float32 \(bfloat16\) +4 B +\(2\) +at byte 4096", output)
    assert re.search(r"t +float32 +76.3 MiB +\(5000, 4000\)", output)
    assert "long: xxx" in output
    assert max(map(len, output.splitlines())) < 200


def test_sizes_are_those_in_the_file() -> None:
    bits = xr.Dataset({"tensor": (("row", "col"), np.eye(100, dtype=bool))})
    save("bits.pycauset", bits)
    save(
        "empty.safetensors",
        xr.Dataset({"w": ("x", np.zeros(0, "f4"))}),
        encoding={"dtype": "bfloat16"},
    )
    for path, size in (("bits.pycauset", 100 * 64), ("empty.safetensors", 0)):
        (document,) = json.loads(run_ok("info", "--json", path))
        assert document["totals"]["size"] == size


def test_info_of_a_model_fits_80_columns() -> None:
    keys = [f"model.layers.{layer}.post_attention_layernorm.weight" for layer in (0, 31)]
    weights = {key: ([f"{key}_dim_0", f"{key}_dim_1"], np.ones((8, 8), "f4")) for key in keys}
    bfloat16 = {"dtype": "bfloat16"}
    to_file(xr.Dataset(weights), "m.safetensors.index.json", encoding=bfloat16)
    output = run_ok("info", "m.safetensors.index.json")
    assert f"  {keys[1]}\n    float32 (bfloat16)  128 B  (8, 8)\n" in output
    assert max(map(len, output.splitlines())) <= 80


def test_patterns_of_urls() -> None:
    for name in "ab":
        save(f"{name}.mag", make_dataset().drop_vars("flag"))
    url = f"file://{Path.cwd().as_posix()}"
    documents = json.loads(run_ok("info", "--json", f"{url}/*.mag"))
    assert [os.path.basename(document["path"]) for document in documents] == ["a.mag", "b.mag"]
    assert run_ok("validate", f"{url}/*.mag").count(": ok") == 2
    assert "*.npy: No such file" in run_failing("validate", f"{url}/*.npy")


def test_info_shows_byte_order() -> None:
    Path("a.bin").write_bytes(tf.make_0_9(np.zeros((2, 3), ">i4")))
    assert "int32 (big-endian)" in run_ok("info", "a.bin")


def test_info_shows_warnings() -> None:
    np.savez("b.npz", a=np.ones(2), b=np.zeros(2, "V3"))
    assert run("info", "b.npz").stderr.startswith("Warning: ")


def test_info_of_values_that_are_not_stored() -> None:
    Path("i.pycauset").write_bytes(pf.r1(pf.make_metadata("IDENTITY", "FLOAT64", 5, 5)))
    (file_info,) = json.loads(run_ok("info", "--json", "i.pycauset"))
    assert file_info["variables"]["tensor"]["offset"] is None
    assert "at byte" not in run_ok("info", "i.pycauset")


def test_info_of_sparse_tensor_too_large_to_fill() -> None:
    Path("s.tens").write_bytes(tf.make_index_value((1 << 15,) * 3, [1], np.ones(1)))
    assert "--open-option sparse=dense" in run_failing("info", "s.tens")
    output = run_ok("info", "s.tens", "--open-option", "sparse=dense")
    assert "(a: 32768, b: 32768, c: 32768)" in output


def test_json_of_info_is_strict_json() -> None:
    values = {"nan": float("nan"), "map": {"a": [1, None, True]}, "big": 1 << 80}
    Path("a.mag").write_bytes(mf.make_document({"w": mf.put(np.ones(1, "f4"))}, values))

    def refuse(word: str) -> None:
        raise AssertionError(word)

    (file_info,) = json.loads(run_ok("info", "--json", "a.mag"), parse_constant=refuse)
    assert file_info["attrs"] == {"nan": "nan", "map": {"a": [1, None, True]}, "big": 1 << 80}


def test_info_continues_after_bad_file() -> None:
    Path("bad.mag").write_bytes(b"MAG!")
    result = run("info", "bad.mag", "missing.mag", write_vertex())
    assert result.exit_code == 1
    assert "vertex.bin: TENS 0.9" in result.stdout
    assert result.stderr.count("Error: ") == 2
    documents = json.loads(run("info", "--json", "bad.mag", "vertex.bin").stdout)
    assert "truncated" in documents[0]["error"]
    assert documents[1]["format"] == "tens"


def test_vespa_under_another_name_needs_its_format() -> None:
    Path("t").write_bytes(vf.make_tensor("float", [], {"x": 2}, [], np.ones((1, 2))))
    assert "--from for a format that has no magic number: 'cc4s', 'vespa'" in run_failing(
        "info", "t"
    )
    assert "Vespa" in run_ok("info", "--from", "vespa", "t")


def test_wrong_checksum_can_be_ignored() -> None:
    content = bytearray(mf.make_archive({"w": mf.put(np.ones(3, "f4"))}))
    content[8] ^= 1
    Path("a.mag").write_bytes(content)
    assert "--open-option verify=false ignores the checksum" in run_failing("info", "a.mag")
    assert "MAG archive 1" in run_ok("info", "--open-option", "verify=false", "a.mag")


def test_urls_are_described_checked_and_converted() -> None:
    save()
    url = "memory://folder/a.mag"
    with fsspec.open(url, "wb") as file:
        file.write(Path("a.mag").read_bytes())
    option = ("--storage-option", "skip_instance_cache=true")
    assert run_ok("info", url, *option).startswith(f"{url}: MAG")
    assert run_ok("validate", url, *option) == f"{url}: ok\n"
    run_ok("convert", url, "b.mag", *option)
    xr.testing.assert_identical(load_any("b.mag"), make_dataset())


# validate


def test_validate_names_findings_and_counts_them() -> None:
    content = mf.make_document({"a": mf.put(np.ones(3, "f4")), "b": mf.put(np.ones(3, "f4"))})
    Path("bad.mag").write_bytes(content + b"more")
    result = run("validate", "bad.mag", write_vertex())
    assert result.exit_code == 1
    first, *findings, last = result.stdout.splitlines()
    assert first == "bad.mag: 1 error"
    assert sorted(re.findall(r"error at byte (\d+)", "\n".join(findings))) == ["8204"]
    assert last == "vertex.bin: ok"


def test_strict_validate_fails_on_warnings() -> None:
    Path("w.tbf").write_bytes(vf.make_tensor("float", ["x"], {}, [("a",), ("a",)], np.ones((2, 1))))
    assert run_ok("validate", "w.tbf").startswith("w.tbf: ok, but 1 warning\n  warning at byte ")
    assert run("validate", "--strict", "w.tbf").exit_code == 1


def test_json_is_no_format_and_has_next_step() -> None:
    Path("hit.json").write_text('{"fields": {"a": [1], "b": [2]}}')
    for command in ("validate", "info"):
        result = run(command, "hit.json")
        call = "or with xr_tensorfmt.vespa.from_json(pathlib.Path(path)) if it is a tensor"
        assert call in result.stdout + result.stderr
    Path("feed.jsonl").write_text('{"put": "id:a:b::1", "fields": {"a": [1]}}\n' * 2)
    opener = "xr_tensorfmt.vespa.from_jsonl(path, field='...') if it is a feed"
    for arguments in (["info", "feed.jsonl"], ["convert", "feed.jsonl", "out.zarr"]):
        assert opener in run(*arguments).stderr
    save("a.tbf", xr.Dataset({"tensor": ("x", np.ones(2))}))
    assert "xr_tensorfmt.vespa.to_json and to_jsonl" in run_failing("convert", "a.tbf", "b.json")


def test_unknown_storage_option_is_named() -> None:
    message = run_failing("info", "http://127.0.0.1:1/a.mag", "--storage-option", "annon=1")
    assert "argument 'annon'" in message


def test_validate_limits_similar_findings_without_all() -> None:
    content = vf.make_tensor("float", ["k"], {}, [("a",)] * 3, np.ones((3, 1), "f4"))
    Path("a.tbf").write_bytes(content)
    first = run("validate", "a.tbf")
    assert first.stdout.startswith("a.tbf: ok, but 1 warning\n  warning at byte ")
    every = run("validate", "--all", "a.tbf")
    assert every.stdout.startswith("a.tbf: ok, but 2 warnings\n")
    assert first.exit_code == every.exit_code == 0


def test_validate_continues_after_unreadable_file() -> None:
    result = run("validate", "missing.mag", write_vertex())
    assert result.exit_code == 1
    assert result.stdout == "vertex.bin: ok\n"
    assert result.stderr.startswith("Error: ")
    assert "missing.mag: No such file or directory\n" in result.stderr


def test_format_of_one_variable_names_the_option_that_chooses_it() -> None:
    xr.Dataset({"a": ("x", np.ones(3, "f4")), "b": ("x", np.ones(3, "f4"))}).tensorfmt.to_file(
        "a.mag"
    )
    message = run_failing("convert", "a.mag", "b.tens")
    assert "pass one of them as a DataArray or with --variable, or choose a format" in message


# convert


def test_mag_to_mag_is_identical_with_bfloat16() -> None:
    ds = make_dataset()
    ds.attrs["config"] = {"a": [1, None]}
    save("a.mag", ds, encoding={"w": {"dtype": "bfloat16"}})
    run_ok("convert", "a.mag", "b.mag")
    xr.testing.assert_identical(load_any("b.mag"), load_any("a.mag"))
    assert get_stored_name(load_any("b.mag").w.encoding["dtype"]) == "bfloat16"


@pytest.mark.slow
def test_format_option_replaces_suffix() -> None:
    save()
    run_ok("convert", "a.mag", "b", "--to", "zarr")
    run_ok("convert", "b", "c", "--from", "zarr", "--to", "mag")
    xr.testing.assert_identical(load_any("c"), make_dataset())
    message = run_failing("convert", "a.mag", "d.foo")
    for words in (
        "d.foo: the suffix names no format",
        "pass format= or --to, one of 'tens', ",
        "'netcdf', or use",
        ".zarr, .nc,",
    ):
        assert words in message


def test_misspelt_suffix_has_suggestion() -> None:
    save()
    assert "(did you mean '.zarr'?)" in run_failing("convert", "a.mag", "b.zar")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["b.mag", "b.zarr", "b.nc"])
def test_existing_file_is_replaced_only_with_overwrite(target: str) -> None:
    save()
    run_ok("convert", "a.mag", target)
    save("new.mag", make_dataset() + 1)
    message = run_failing("convert", "new.mag", target)
    hint = "it exists already; pass mode='w' or --overwrite to replace it"
    assert re.fullmatch(f"Error: (.*/)?{target}: {hint}\n", message)
    xr.testing.assert_equal(load_any(target).w, make_dataset().w)
    run_ok("convert", "new.mag", target, "--overwrite")
    xr.testing.assert_equal(load_any(target).w, make_dataset().w + 1)


@pytest.mark.parametrize("target", ["b.mag", "b.nc"])
def test_convert_keeps_write_protected_file(target: str) -> None:
    save()
    run_ok("convert", "a.mag", target)
    Path(target).chmod(0o444)
    message = run_failing("convert", "a.mag", target, "--overwrite")
    assert "(mode 0444) or its file system is write-protected" in message
    Path(target).chmod(0o644)
    run_ok("convert", "a.mag", target, "--overwrite")


def test_unfinished_netcdf_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    save()
    run_ok("convert", "a.mag", "b.nc")
    Path("b.nc").chmod(0o640)
    modes, to_netcdf = set(), xr.Dataset.to_netcdf

    def look(ds: xr.Dataset, path: str, **options: Any) -> None:
        to_netcdf(ds, path, **options)
        modes.add(stat.S_IMODE(Path(path).stat().st_mode))

    monkeypatch.setattr(xr.Dataset, "to_netcdf", look)
    run_ok("convert", "a.mag", "b.nc", "--overwrite")
    assert modes == {0o600}
    assert stat.S_IMODE(Path("b.nc").stat().st_mode) == 0o640


@pytest.mark.parametrize("target", ["b.mag", "b.nc", "b.zarr"])
def test_failed_convert_leaves_only_old_file(target: str) -> None:
    save()
    run_ok("convert", "a.mag", target)
    Path("bad.tens").write_bytes(tf.make_index_value((3,), [1, 1], np.ones(2, "f4")))
    before = sorted(Path().iterdir())
    message = run_failing("convert", "bad.tens", target, "--overwrite")
    assert "the index of pair 1 at byte 60: 1, as" in message
    assert sorted(Path().iterdir()) == before
    xr.testing.assert_equal(load_any(target).w, make_dataset().w)


@pytest.mark.parametrize("failing", [1, 2])
def test_store_is_restored_if_renaming_fails(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run_ok("convert", save(), "b.zarr")
    save("new.mag", make_dataset() + 1)
    before, rename, calls = sorted(Path().iterdir()), os.rename, []

    def rename_or_fail(source: str, target: str) -> None:
        calls.append(source)
        if len(calls) == failing:
            raise OSError(EIO, os.strerror(EIO), source)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename_or_fail)
        assert os.strerror(EIO) in run_failing("convert", "new.mag", "b.zarr", "--overwrite")
    assert sorted(Path().iterdir()) == before
    xr.testing.assert_equal(load_any("b.zarr").w, make_dataset().w)
    run_ok("convert", "new.mag", "b.zarr", "--overwrite")
    assert sorted(Path().iterdir()) == before
    xr.testing.assert_equal(load_any("b.zarr").w, make_dataset().w + 1)


@pytest.mark.parametrize("name", ["b.zarr", "b.nc", "b.mag"])
def test_link_is_replaced_and_not_its_target(name: str) -> None:
    run_ok("convert", save(), name)
    save("new.mag", make_dataset() + 1)
    for target in (name, f"missing-{name}"):
        link = Path("links", target)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"../{target}")
        assert "exists already; pass" in run_failing("convert", "new.mag", str(link))
        assert link.is_symlink()
        run_ok("convert", "new.mag", str(link), "--overwrite")
        assert not link.is_symlink()
        assert sorted(Path("links").iterdir()) == [link]
        xr.testing.assert_equal(load_any(str(link)).w, make_dataset().w + 1)
        link.rename(target if target != name else "moved")
    xr.testing.assert_equal(load_any(name).w, make_dataset().w)


def test_directory_must_exist() -> None:
    save()
    for target in ("no/b.mag", "no/b.nc"):
        assert f"{target}: there is no directory" in run_failing("convert", "a.mag", target)


def test_converting_file_onto_itself_raises() -> None:
    save()
    content = Path("a.mag").read_bytes()
    Path("link.mag").symlink_to("a.mag")
    for same in ("a.mag", "./a.mag", "link.mag", f"file://{Path.cwd()}/a.mag"):
        message = run_failing("convert", "a.mag", same, "--overwrite")
        assert "a.mag is the input a.mag; choose another target" in message.replace("link", "a")
    assert Path("a.mag").read_bytes() == content


def test_one_variable_under_other_dims() -> None:
    save()
    run_ok("convert", "a.mag", "b.mag", "-v", "w", "--dims", "x,y")
    ds = load_any("b.mag")
    assert (list(ds.data_vars), ds.w.dims) == (["w"], ("x", "y"))
    assert ds.x.values.tolist() == make_dataset().row.values.tolist()
    assert ds.attrs == make_dataset().attrs


@pytest.mark.parametrize(
    ("target", "options", "version"),
    [
        ("b.bin", (), "0.9"),
        ("b.tens", (), "0.9"),
        ("b.tens", ("--option", "version=1.0"), "1.0"),
        ("b.tens", ("--option", "version=0.9"), "0.9"),
        ("b.bin", ("--option", 'version="1.0"'), "1.0"),
    ],
)
def test_tens_version_is_kept_unless_requested(
    target: str, options: tuple[str, ...], version: str
) -> None:
    Path("a.bin").write_bytes(tf.make_0_9(GAMMA))
    assert run("convert", "a.bin", target, *options).stderr == ""
    assert f"{target}: TENS {version}" in run_ok("info", target)


def test_convert_warns_of_tens_files_that_cc4s_cannot_load() -> None:
    Path("a.bin").write_bytes(tf.make_0_9(GAMMA))
    result = run("convert", "a.bin", "b.tens", "--name", "gamma")
    assert result.exit_code == 0
    assert result.stderr.startswith("Warning: b.tens: the file has version 1.0, which cc4s and")
    assert "cannot store the name 'gamma'" in run_failing("convert", "b.tens", "b.bin")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--name", "v"], "name='v' does not apply to format 'mag'"),
        (["-v", "w", "--dims", "x"], "cannot name the dimensions "),
        (["-v", "w", "--dims", "a,"], "must be a sequence of non-empty str"),
        (["-v", "z"], "there is no variable 'z'; it has 'w', 'n', 'flag'"),
        (["--dtype", "complex64"], "matches no variable of its kind"),
        (["--dtype", "csv"], "'w' is csv, but MAG supports only float32"),
        (["--dtype", "z=float16"], "encoding= or --dtype names 'z'"),
        (["--dtype", "w=csv"], "'w' is csv, but MAG supports only float32"),
        *(
            (["--option", f"{key}=1"], "is not a keyword for MAG files")
            for key in ("version", "mode", "fs", "compute", "region", "encoding")
        ),
    ],
)
def test_unsuitable_options_raise(options: list[str], words: str) -> None:
    save()
    assert words in run_failing("convert", "a.mag", "b.mag", *options)
    assert not Path("b.mag").exists()


def test_numbers_are_rounded_on_request() -> None:
    Path("a.bin").write_bytes(tf.make_0_9(GAMMA / 3))
    assert "'tensor' is float64, but MAG supports only" in run_failing("convert", "a.bin", "b.mag")
    run_ok("convert", "a.bin", "b.mag", "--dtype", "float32")
    run_ok("convert", "a.bin", "c.mag", "--dtype", "tensor=float32")
    for name in ("b.mag", "c.mag"):
        np.testing.assert_array_equal(load_any(name).tensor.values, (GAMMA / 3).astype("f4"))


def test_drop_options_accumulate() -> None:
    array = xr.DataArray(np.ones(2, "f8"), {"x": [1.5, 2.5]}, ("x",), "v")
    to_file(array, "a.tens")
    assert "cannot store the name 'v'" in run_failing(
        "convert", "a.tens", "b.tens", "-o", "version=0.9"
    )
    drop = ["--drop", "name,dims", "--drop", "coords"]
    run_ok("convert", "a.tens", "b.tens", "-o", "version=0.9", "--dims", "left", *drop)
    assert load_any("b.tens").tensor.dims == ("a",)


def test_errors_list_options_of_formats() -> None:
    save()
    message = run_failing("convert", "a.mag", "b.tens", "-o", "versoin=1")
    assert "'versoin' (did you mean 'version'?) is not a keyword for TENS files" in message


# convert: all families


def write_family_file(kind: str) -> str:
    """Write a file of 3 x 5 numbers that all formats support."""
    values = np.arange(15.0).reshape(3, 5)
    contents: Mapping[str, tuple[str, bytes]] = {
        "tens": ("in.tens", tf.make_1_0(values)),
        "mag": ("in.mag", mf.make_document({"tensor": mf.put(values.astype("f4"))})),
        "pycauset": (
            "in.pycauset",
            pf.r1(pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 5), values.tobytes()),
        ),
        "vespa": (
            "in.tbf",
            vf.make_tensor("double", [], {"x": 3, "y": 5}, [], values.reshape(1, -1)),
        ),
    }
    name, content = contents[kind]
    Path(name).write_bytes(content)
    return name


@pytest.mark.parametrize("to", ["out.tens", "out.mag", "out.pycauset", "out.tbf"])
@pytest.mark.parametrize("kind", ["tens", "mag", "pycauset", "vespa"])
def test_every_family_converts_to_every_other(kind: str, to: str) -> None:
    source = write_family_file(kind)
    # Vespa and TENS cannot store the attributes of a PyCauset matrix.
    run_ok("convert", source, to, "--dtype", "float32", "--dims", "x,y", "--drop", "attrs")
    ds = load_any(to)
    np.testing.assert_array_equal(ds.tensor.values, np.arange(15.0).reshape(3, 5))
    assert ds.tensor.dims == ("x", "y")
    assert ds.tensor.dtype == np.float32
    assert run_ok("validate", "--strict", to) == f"{to}: ok\n"


@pytest.mark.parametrize("to", ["out.tens", "out.pycauset", "out.tbf"])
def test_single_tensor_formats_require_variable_option(to: str) -> None:
    save()
    assert "'w', 'n', 'flag'" in run_failing("convert", "a.mag", to)
    drop = ["--drop", "name", "--drop", "coords", "--drop", "attrs"]
    run_ok("convert", "a.mag", to, "-v", "w", *drop)
    (expected,) = load_any(to).data_vars.values()
    # Vespa sorts dimensions by their names.
    np.testing.assert_array_equal(expected.transpose("row", "col").values, make_dataset().w.values)


def test_convert_applies_the_unit_of_cc4s() -> None:
    ds = xr.Dataset({"v": (("p", "q"), np.eye(3), {"unit": 0.5})})
    drop = ["--drop", "name", "--drop", "attrs"]
    xr_tensorfmt.to_file(ds, "v.yaml")
    refusal = run_failing("convert", "v.yaml", "v.bin")
    assert "or --drop name,attrs to leave them out" in refusal
    run_ok("convert", "v.yaml", "v.bin", *drop)
    np.testing.assert_array_equal(load_any("v.bin").tensor, np.eye(3))
    unit = ["--open-option", "apply_unit=true"]
    run_ok("convert", "v.yaml", "v.bin", "--overwrite", *unit, *drop)
    np.testing.assert_array_equal(load_any("v.bin").tensor, np.eye(3) / 2)


def test_control_characters_in_names_are_escaped() -> None:
    key = "\x1b[31mred\x1b]0;title\x07\nnext"
    Path("a.mag").write_bytes(mf.make_document({key: mf.put(np.ones(3, "f4"))}, {key: key}))
    output = run_ok("info", "a.mag")
    assert "\\x1b[31mred" in output
    assert not {"\x1b", "\x07"} & set(output)
    assert "\x1b" not in run_failing("convert", "a.mag", "a.tbf")


def test_control_characters_in_json_are_escaped() -> None:
    key = "\x9b31m\x7f\u202e\u2028 \xe4 \U000e0001"
    Path("a.mag").write_bytes(mf.make_document({key: mf.put(np.ones(3, "f4"))}))
    for command in ("info", "validate"):
        output = run_ok(command, "--json", "a.mag")
        assert all(char.isprintable() for char in output.replace("\n", ""))
        assert command == "validate" or repr(key)[1:-1] in str(json.loads(output))


def test_lines_of_sharded_model_fit_a_terminal() -> None:
    run_ok("examples", "tensors")
    output = run_ok("info", "tensors/model")
    assert max(map(len, output.splitlines())) <= 80
    assert output.startswith("tensors/model: safetensors")
    assert (
        "  model.layers.0.mlp.up_proj.weight       float32 (bfloat16)  512 B    (32, 8)\n" in output
    )
    assert "  model-00001-of-00002.safetensors\n" in output
