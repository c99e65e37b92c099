"""The command ``xr-tensorfmt``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner, Result

import xr_tensorfmt
from tests import magfiles as mf
from tests import pycausetfiles as pf
from tests import tensfiles as tf
from tests import vespafiles as vf
from tests.families import FILES
from xr_tensorfmt import to_file
from xr_tensorfmt.cli import main, opening
from xr_tensorfmt.cli.attributes import fits
from xr_tensorfmt.cli.converting import keywords
from xr_tensorfmt.cli.opening import open_any
from xr_tensorfmt.cli.words import in_command_words

GAMMA = np.arange(24.0).reshape(4, 3, 2)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def done(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(*arguments: str, code: int = 1) -> str:
    """The one line on stderr of a command that fails."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert not result.stdout
    assert result.stderr.count("\n") == 1 or code == 2
    return result.stderr


def dataset() -> xr.Dataset:
    """What all of MAG, zarr and netCDF hold."""
    values = np.random.default_rng(0).random((20, 30)).astype("f4")
    return xr.Dataset(
        {
            "w": (("row", "col"), values, {"units": "m"}),
            "n": ("row", np.arange(20, dtype="i8")),
            "flag": ("row", np.arange(20) % 2 == 0),
        },
        {"row": np.arange(20) * 2},
        {"title": "x", "epoch": 3, "rate": 0.5},
    )


def save(name: str = "a.mag", ds: xr.Dataset | None = None, **options: Any) -> str:
    xr_tensorfmt.to_file(dataset() if ds is None else ds, name, **options)
    return name


def opened(name: str, **options: Any) -> xr.Dataset:
    engine = {".zarr": "zarr", ".nc": "netcdf4"}.get(Path(name).suffix, "tensorfmt")
    with xr.open_dataset(name, engine=engine, **options) as ds:
        return ds.load()


def vertex(name: str = "vertex.bin") -> str:
    Path(name).write_bytes(tf.version_0_9(GAMMA))
    return name


# The command itself


def test_help_waits_for_no_large_package() -> None:
    code = (
        "import sys\nfrom xr_tensorfmt.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print('LOADED', *sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "convert" in shown
    loaded = set(shown.partition("LOADED")[2].split())
    assert not loaded & {"dask", "fsspec"}


def test_info_does_without_dask() -> None:
    code = f"""import sys
from xr_tensorfmt.cli import main
try: main(["info", {vertex()!r}])
except SystemExit as end: assert not end.code
assert not {{"dask", "fsspec"}} & set(sys.modules)"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("first", ["xarray", "xr_tensorfmt"])
def test_datasets_have_the_accessor_in_whatever_order_packages_come(first: str) -> None:
    code = f"import {first}, xarray, xr_tensorfmt; xarray.Dataset().tensorfmt.explain()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_module_is_the_command() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "xr_tensorfmt", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == f"xr-tensorfmt, version {xr_tensorfmt.__version__}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["info"], "Missing argument"),
        (["info", "a", "--storage-option", "anon"], "not of the form KEY=VALUE"),
        (["convert", "a", "b", "--drop", "values"], "not of name, dims, coords, attrs"),
        (["convert", "a", "b", "--dims", "a,,b"], "list of different names"),
        (["convert", "a", "b", "--to", "csv"], "'csv' is not one of"),
        (["convert", "a", "b", "-o", "seed=1", "-o", "seed=2"], "'seed' is both 1 and 2"),
        (["convert", "a", "b", "--dtype", "i4", "--dtype", "f4"], "both i4 and f4 are asked for"),
        (["explain", "a", "--select", "x=1.5"], "none of 3, 0:10, 0:10:2 and 1,5,7"),
    ],
)
def test_what_makes_no_sense_is_refused_with_exit_code_2(arguments: list[str], words: str) -> None:
    assert words in failed(*arguments, code=2)


def test_examples_of_the_page_print_what_they_say() -> None:
    vertex()
    model = xr.Dataset(
        {
            "embed.weight": (
                ("embed.weight_dim_0", "embed.weight_dim_1"),
                np.zeros((64, 32), "f4"),
            ),
            "norm.weight": ("norm.weight_dim_0", np.ones(32, "f4")),
        },
        attrs={"architecture": "qwen3", "config": {"layers": 2}},
    )
    save("model.mag", model, encoding={"embed.weight": {"dtype": "bfloat16"}})
    content = bytearray(Path("model.mag").read_bytes())
    content[4000] = 0x21
    Path("damaged.mag").write_bytes(content)
    page = Path(__file__).parents[1] / "docs" / "cli.md"
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert len(blocks) > 5
    for block in blocks:
        for command in re.split(r"^\$ xr-tensorfmt ", block, flags=re.MULTILINE)[1:]:
            line, _, expected = command.partition("\n")
            result = run(*line.split())
            assert result.output.replace(f"{Path.cwd()}/", "") == expected, line


# info


@pytest.mark.parametrize("name", FILES)
def test_info_describes_every_container(name: str) -> None:
    path = name if name.endswith(".tbf") else f"{name}.bin"
    Path(path).write_bytes(FILES[name]())
    (facts,) = json.loads(done("info", "--json", path))
    ds = xr.open_dataset(path, engine="tensorfmt")
    assert facts["dims"] == dict(ds.sizes)
    assert list(facts["variables"]) == list(ds.data_vars)
    assert list(facts["coordinates"]) == list(ds.coords)
    assert facts["size"] == Path(path).stat().st_size
    assert facts["attrs"] == ds.attrs
    for key, each in facts["variables"].items():
        assert each["dims"] == list(ds[key].dims)
        assert each["shape"] == list(ds[key].shape)
        assert each["dtype"] == ds[key].dtype.name
        assert each["chunk"] == list(ds[key].encoding["preferred_chunks"].values())
        assert each["on_page"] == (each["offset"] % 4096 == 0)
        assert each["attrs"] == ds[key].attrs
    shown = done("info", path)
    assert shown.startswith(f"{facts['path']}: ")
    assert all(key in shown for key in facts["variables"])


def test_info_says_what_is_stored_and_where() -> None:
    tensors = {
        "w": mf.Put("bfloat16", (2,), b"\x80\x3f\0\0"),
        "t": mf.put(np.zeros((5000, 4000), "f4")),
    }
    Path("a.mag").write_bytes(mf.document(tensors, {"long": "x" * 500, "odd": float("nan")}))
    shown = done("info", "a.mag")
    assert "MAG snapshot 300" in shown
    assert re.search(r"w +\(2\) +float32 \(bfloat16\) +8 B +at byte 4096, on a page\n", shown)
    assert re.search(r"t +\(5000, 4000\) .* at byte 8192, on a page +3 chunks of ", shown)
    assert "long: xxx" in shown
    assert max(map(len, shown.splitlines())) < 200


def test_info_says_the_byte_order() -> None:
    Path("a.bin").write_bytes(tf.version_0_9(np.zeros((2, 3), ">i4")))
    assert "int32 (big-endian)" in done("info", "a.bin")


def test_info_shows_what_is_noted_and_what_the_reader_warns_of() -> None:
    save("a.mag", dataset().drop_vars("flag"))
    assert "with a note by xr_tensorfmt" in done("info", "a.mag")
    repeated = vf.tensor("float", ["x"], {}, [("a",), ("a",)], np.ones((2, 1)))
    Path("b.tbf").write_bytes(repeated)
    assert "Warnings:\n  " in done("info", "b.tbf")


def test_info_of_values_that_are_not_stored() -> None:
    Path("i.pycauset").write_bytes(pf.r1(pf.metadata("IDENTITY", "FLOAT64", 5, 5)))
    (facts,) = json.loads(done("info", "--json", "i.pycauset"))
    assert facts["variables"]["tensor"]["offset"] is None
    assert "at byte" not in done("info", "i.pycauset")


def test_info_of_a_sparse_tensor_that_nobody_could_fill_in() -> None:
    Path("s.tens").write_bytes(tf.index_value((1 << 15,) * 3, [1], np.ones(1)))
    assert "(a: 32768, b: 32768, c: 32768)" in done("info", "s.tens")


def test_json_of_info_is_strict_json() -> None:
    values = {"nan": float("nan"), "map": {"a": [1, None, True]}, "big": 1 << 80}
    Path("a.mag").write_bytes(mf.document({"w": mf.put(np.ones(1, "f4"))}, values))

    def refuse(word: str) -> None:
        raise AssertionError(word)

    (facts,) = json.loads(done("info", "--json", "a.mag"), parse_constant=refuse)
    assert facts["attrs"] == {"nan": "nan", "map": {"a": [1, None, True]}, "big": 1 << 80}


def test_a_bad_file_does_not_keep_info_from_others() -> None:
    Path("bad.mag").write_bytes(b"MAG!")
    result = run("info", "bad.mag", "missing.mag", vertex())
    assert result.exit_code == 1
    assert "vertex.bin: TENS 0.9" in result.stdout
    assert result.stderr.count("Error: ") == 2
    documents = json.loads(run("info", "--json", "bad.mag", "vertex.bin").stdout)
    assert "cut off" in documents[0]["error"]
    assert documents[1]["format"] == "tens"


def test_vespa_under_another_name_needs_its_format() -> None:
    Path("t").write_bytes(vf.tensor("float", [], {"x": 2}, [], np.ones((1, 2))))
    assert "--from vespa" in failed("info", "t")
    assert "Vespa" in done("info", "--from", "vespa", "t")


def test_a_wrong_checksum_can_be_ignored() -> None:
    content = bytearray(mf.archive({"w": mf.put(np.ones(3, "f4"))}))
    content[8] ^= 1
    Path("a.mag").write_bytes(content)
    assert "--no-verify tries to read the rest" in failed("info", "a.mag")
    assert "MAG archive 1" in done("info", "--no-verify", "a.mag")


def test_urls_are_described_checked_explained_and_converted() -> None:
    fsspec = pytest.importorskip("fsspec")
    save()
    url = "memory://folder/a.mag"
    with fsspec.open(url, "wb") as file:
        file.write(Path("a.mag").read_bytes())
    option = ("--storage-option", "skip_instance_cache=true")
    assert done("info", url, *option).startswith(f"{url}: MAG")
    assert done("validate", url, *option) == f"{url}: ok\n"
    assert "requests fetch" in done("explain", url, *option)
    done("convert", url, "b.mag", *option)
    xr.testing.assert_identical(opened("b.mag"), dataset())


# validate


def test_validate_names_findings_and_counts_them() -> None:
    content = bytearray(mf.document({"a": mf.put(np.ones(3, "f4")), "b": mf.put(np.ones(3, "f4"))}))
    content[5000] = 7
    Path("bad.mag").write_bytes(content + b"more")
    result = run("validate", "bad.mag", vertex())
    assert result.exit_code == 1
    first, *findings, last = result.stdout.splitlines()
    assert first == "bad.mag: 2 errors"
    assert sorted(re.findall(r"error at byte (\d+)", "\n".join(findings))) == ["5000", "8204"]
    assert last == "vertex.bin: ok"


def test_warnings_matter_if_one_is_strict() -> None:
    Path("w.tbf").write_bytes(vf.tensor("float", ["x"], {}, [("a",), ("a",)], np.ones((2, 1))))
    assert done("validate", "w.tbf").startswith("w.tbf: ok, but 1 warning\n  warning at byte ")
    assert run("validate", "--strict", "w.tbf").exit_code == 1


def test_a_file_that_cannot_be_read_does_not_keep_validate_from_others() -> None:
    result = run("validate", "missing.mag", vertex())
    assert result.exit_code == 1
    assert result.stdout == "vertex.bin: ok\n"
    assert result.stderr.startswith("Error: ")
    assert result.stderr.endswith("missing.mag: No such file or directory\n")


# explain


def test_explain_says_what_a_selection_would_read() -> None:
    shown = done("explain", vertex(), "-s", "c=1", "-s", "a=0:2")
    assert shown.startswith("1 request fetches 80 B for 48 B (1.67 x)\n")
    renamed = done("explain", "vertex.bin", "--dims", "F,q,r", "-s", "r=0", "-s", "q=0,2")
    assert renamed.splitlines()[-1].split()[0] == "tensor"


def test_explain_of_one_variable() -> None:
    save()
    assert " w " in done("explain", "a.mag")
    assert " w " not in done("explain", "a.mag", "-v", "n")
    assert "there is no variable 'z'; it has 'w', 'n', 'flag'" in failed(
        "explain", "a.mag", "-v", "z"
    )


# convert: between MAG, zarr and netCDF


@pytest.mark.parametrize("between", ["b.zarr", "b.nc"])
def test_there_and_back_is_identical(between: str) -> None:
    save()
    done("convert", "a.mag", between)
    xr.testing.assert_identical(opened(between), dataset())
    done("convert", between, "c.mag")
    xr.testing.assert_identical(opened("c.mag"), dataset())
    assert done("validate", "c.mag") == "c.mag: ok\n"


def test_mag_to_mag_is_identical_with_bfloat16() -> None:
    ds = dataset()
    ds.attrs["config"] = {"a": [1, None]}
    save("a.mag", ds, encoding={"w": {"dtype": "bfloat16"}})
    done("convert", "a.mag", "b.mag")
    xr.testing.assert_identical(opened("b.mag"), opened("a.mag"))
    assert opened("b.mag").w.encoding["dtype"] == "bfloat16"


def test_netcdf_to_zarr_and_back() -> None:
    ds = dataset().assign(z=("col", np.arange(30) * (1 + 2j)), t=("row", ["x", "yy"] * 10))
    ds = ds.assign_coords(time=("row", np.datetime64("2020-01-01", "ns") + np.arange(20)))
    ds.chunk(row=7).to_netcdf("a.nc", engine="h5netcdf")
    done("convert", "a.nc", "b.zarr")
    done("convert", "b.zarr", "c.nc")
    xr.testing.assert_identical(xr.load_dataset("c.nc", engine="h5netcdf"), ds)


def test_netcdf_without_chunks_is_cut() -> None:
    large = xr.Dataset({"w": (("x", "y"), np.zeros((3000, 4000), "f8")), "s": ("x", ["a"] * 3000)})
    large.to_netcdf("a.nc", engine="netcdf4")
    with open_any("a.nc", None, None) as ds:
        assert ds.w.chunks is not None
        assert max(map(len, ds.w.chunks)) > 1
        assert ds.s[:2].values.tolist() == ["a", "a"]


@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8`:UserWarning")  # of zarr before 3.1
def test_labels_become_coordinates_of_zarr() -> None:
    content = vf.tensor("double", ["u"], {"x": 2}, [("a",), ("ö",)], np.ones((2, 2)))
    Path("v.tbf").write_bytes(content)
    done("convert", "v.tbf", "v.zarr")
    assert opened("v.zarr").u.values.tolist() == ["a", "ö"]
    assert opened("v.zarr").tensor.shape == (2, 2)


def test_complex_numbers_become_netcdf() -> None:
    Path("c.bin").write_bytes(tf.version_0_9(GAMMA + 1j))
    done("convert", "c.bin", "c.nc", "--name", "vertex", "--dims", "F,q,r")
    ds = xr.load_dataset("c.nc", engine="h5netcdf")
    np.testing.assert_array_equal(ds.vertex.values, GAMMA + 1j)
    assert ds.vertex.dims == ("F", "q", "r")
    done("convert", "c.nc", "c.zarr")
    assert opened("c.zarr").vertex.dtype == np.complex128


def test_sparse_files_are_converted_either_way() -> None:
    Path("s.tens").write_bytes(tf.index_value((3, 4), [0, 5], np.array([1.0, 2.0])))
    done("convert", "s.tens", "full.zarr")
    done("convert", "s.tens", "pairs.zarr", "--sparse", "stored")
    assert opened("full.zarr").tensor.shape == (3, 4)
    assert opened("pairs.zarr").tensor.values.tolist() == [1.0, 2.0]


def test_formats_may_be_named_where_names_tell_none() -> None:
    save()
    done("convert", "a.mag", "b", "--to", "zarr")
    done("convert", "b", "c", "--from", "zarr", "--to", "mag")
    xr.testing.assert_identical(opened("c"), dataset())
    assert "give one by --to, one of tens, mag" in failed("convert", "a.mag", "d.foo")


@pytest.mark.parametrize("target", ["b.mag", "b.zarr", "b.nc"])
def test_nothing_is_replaced_unless_that_is_wanted(target: str) -> None:
    save()
    done("convert", "a.mag", target)
    save("new.mag", dataset() + 1)
    assert "pass --overwrite to replace it" in failed("convert", "new.mag", target)
    xr.testing.assert_equal(opened(target).w, dataset().w)
    done("convert", "new.mag", target, "--overwrite")
    xr.testing.assert_equal(opened(target).w, dataset().w + 1)


def test_a_folder_that_is_no_store_is_never_replaced() -> None:
    save()
    Path("b.zarr").mkdir()
    Path("b.zarr", "diary").write_text("dear")
    assert "no zarr store" in failed("convert", "a.mag", "b.zarr", "--overwrite")
    assert Path("b.zarr", "diary").read_text() == "dear"


@pytest.mark.parametrize("target", ["b.mag", "b.zarr", "b.nc"])
def test_a_failure_leaves_what_was_there_and_nothing_else(target: str) -> None:
    save()
    done("convert", "a.mag", target)
    bad = tf.header((2,), version=tf.V1_0, kind=b"SINT", size=16)
    bad += tf.chunk(b"DENSDATA", bytes(16) + (2**63).to_bytes(16, "big"))
    Path("bad.tens").write_bytes(bad)
    before = sorted(Path().iterdir())
    message = failed("convert", "bad.tens", target, "--overwrite", "-q")
    assert "the 16-byte integer 9223372036854775808" in message
    assert sorted(Path().iterdir()) == before
    xr.testing.assert_equal(opened(target).w, dataset().w)


@pytest.mark.parametrize("target", ["no/b.mag", "no/b.zarr", "no/b.nc"])
def test_there_must_be_a_folder(target: str) -> None:
    save()
    assert "make it first" in failed("convert", "a.mag", target)


def test_one_variable_under_other_names() -> None:
    save()
    done("convert", "a.mag", "b.mag", "-v", "w", "--name", "v", "--dims", "x,y")
    ds = opened("b.mag")
    assert list(ds.data_vars) == ["v"]
    assert ds.v.dims == ("x", "y")
    assert ds.x.values.tolist() == dataset().row.values.tolist()
    assert ds.attrs == dataset().attrs


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--name", "v"], "--name and --dims are for a sole variable"),
        (["-v", "w", "--dims", "x"], "--dims x gives 1 names to the 2 dimensions row, col of 'w'"),
        (["-v", "z"], "there is no variable 'z'; it has 'w', 'n', 'flag'"),
        (["--dtype", "float16"], "say --dtype NAME=float16"),
        (["--dtype", "z=float16"], "--dtype names 'z', which is none of"),
        (["-v", "w", "--dtype", "f2", "--dtype", "w=f4"], "--dtype asks for 'w' as f2 and as f4"),
        (["--dtype", "w=csv"], "'w' is csv, and MAG holds only float32"),
        (["--option", "version=2"], "to_mag knows 300, 1"),
        (["--option", "revision=2"], "the keywords of to_mag are version"),
        (["--option", "version=1"], "pass --drop coords to leave it out"),
    ],
)
def test_options_that_do_not_fit_the_file(options: list[str], words: str) -> None:
    save()
    assert words in failed("convert", "a.mag", "b.mag", *options)
    assert not Path("b.mag").exists()


def test_numbers_are_rounded_where_that_is_wanted() -> None:
    Path("a.bin").write_bytes(tf.version_0_9(GAMMA / 3))
    assert "choose one by --dtype 'tensor=...'" in failed("convert", "a.bin", "b.mag")
    done("convert", "a.bin", "b.mag", "--dtype", "float32")
    done("convert", "a.bin", "b.zarr", "--dtype", "tensor=float32")
    done("convert", "a.bin", "b.nc", "--dtype", "float32")
    for name in ("b.mag", "b.zarr", "b.nc"):
        np.testing.assert_array_equal(opened(name).tensor.values, (GAMMA / 3).astype("f4"))
    message = failed("convert", "a.bin", "c.zarr", "--dtype", "int8")
    assert "which int8 has no value for" in message
    assert not Path("c.zarr").exists()


def test_dtypes_of_other_packages_are_none_of_zarr() -> None:
    pytest.importorskip("ml_dtypes")  # which adds bfloat16 to numpy
    vertex()
    for dtype in ("bfloat16", "csv", "str"):
        message = failed("convert", "vertex.bin", "d.zarr", "--dtype", dtype)
        assert f"zarr holds no {dtype}; give a dtype of numpy" in message


def test_what_becomes_of_bfloat16_is_said() -> None:
    save("a.mag", encoding={"w": {"dtype": "bfloat16"}})
    result = run("convert", "a.mag", "b.zarr")
    assert "w: bfloat16 in a.mag, float32 in b.zarr; on the way back --dtype" in result.stderr
    assert not run("convert", "a.mag", "c.zarr", "--quiet").stderr
    for target in ("b.tens", "b.pycauset"):
        options = ("convert", "a.mag", target, "-v", "w", "--drop", "attrs")
        assert f"w: bfloat16 in a.mag, float32 in {target};" in run(*options).stderr
    for options in (("d.mag",), ("e.mag", "--dtype", "w=float16"), ("e.zarr", "--dtype", "w=f2")):
        assert not run("convert", "a.mag", *options).stderr
    done("convert", "b.zarr", "c.mag", "--dtype", "w=bfloat16")
    xr.testing.assert_identical(opened("c.mag"), opened("a.mag"))
    assert opened("c.mag").w.encoding["dtype"] == "bfloat16"


def test_attributes_that_netcdf_cannot_hold_are_dropped_if_that_is_allowed() -> None:
    ds = dataset()
    ds.attrs |= {"config": {"a": 1}, "a/b": 1, "flag": True, "none": None, "big": 1 << 70}
    save("a.mag", ds)
    message = failed("convert", "a.mag", "b.nc")
    assert "no place for the attribute 'config' of the Dataset, which is {'a': 1}" in message
    assert "convert to zarr, or pass --drop attrs" in message
    done("convert", "a.mag", "b.nc", "--drop", "attrs")
    assert opened("b.nc").attrs == dataset().attrs
    done("convert", "a.mag", "b.zarr")
    assert opened("b.zarr").attrs == ds.attrs


def test_names_and_dtypes_that_netcdf_cannot_hold() -> None:
    save("a.mag", xr.Dataset({"a/b": ("x", np.ones(3, "f4")), "h": ("x", np.ones(3, "f2"))}))
    assert "choose it by --variable and rename it by --name" in failed("convert", "a.mag", "b.nc")
    done("convert", "a.mag", "b.nc", "-v", "a/b", "--name", "b")
    message = failed("convert", "a.mag", "c.nc", "-v", "h")
    assert "'h' is float16, which netCDF lacks" in message
    done("convert", "a.mag", "c.nc", "-v", "h", "--dtype", "h=float32")


def test_netcdf_and_options_of_writers_have_their_limits() -> None:
    save()
    assert "local paths alone" in failed("convert", "a.mag", "memory://b.nc")
    assert "--option is for tensor files" in failed("convert", "a.mag", "b.nc", "-o", "version=1")


def test_zarr_behind_a_url() -> None:
    pytest.importorskip("fsspec")
    save()
    done("convert", "a.mag", "memory://store/b.zarr")
    done("convert", "memory://store/b.zarr", "c.mag")
    xr.testing.assert_identical(opened("c.mag"), dataset())
    assert run("convert", "a.mag", "memory://store/b.zarr").exit_code == 1
    done("convert", "a.mag", "memory://store/b.zarr", "--overwrite")


def test_a_bar_is_shown_if_wanted() -> None:
    save()
    assert "100% Completed" in run("convert", "a.mag", "b.mag", "--progress").stderr
    assert not run("convert", "a.mag", "c.mag").stderr
    assert not run("convert", "a.mag", "d.mag", "--progress", "--quiet").stderr


def test_keywords_of_writers_are_of_the_types_that_they_list() -> None:
    assert dict(keywords("mag", {"version": "1"})) == {"version": 1}
    assert dict(keywords("pycauset", {"seed": "7"})) == {"seed": 7}
    assert dict(keywords("pycauset", {"seed": "-7"})) == {"seed": "-7"}


def test_a_file_may_be_converted_onto_itself() -> None:
    save()
    done("convert", "a.mag", "a.mag", "--overwrite", "--dtype", "w=float16")
    assert opened("a.mag").w.dtype == np.float16


# convert: all families


def family_file(kind: str) -> str:
    """A file of 3 x 5 numbers that each family holds."""
    values = np.arange(15.0).reshape(3, 5)
    contents: Mapping[str, tuple[str, bytes]] = {
        "tens": ("in.tens", tf.version_1_0(values)),
        "mag": ("in.mag", mf.document({"tensor": mf.put(values.astype("f4"))})),
        "pycauset": (
            "in.pycauset",
            pf.r1(pf.metadata("DENSE_FLOAT", "FLOAT64", 3, 5), values.tobytes()),
        ),
        "vespa": ("in.tbf", vf.tensor("double", [], {"x": 3, "y": 5}, [], values.reshape(1, -1))),
    }
    name, content = contents[kind]
    Path(name).write_bytes(content)
    return name


@pytest.mark.parametrize("to", ["out.tens", "out.mag", "out.pycauset", "out.tbf"])
@pytest.mark.parametrize("kind", ["tens", "mag", "pycauset", "vespa"])
def test_every_family_becomes_every_other(kind: str, to: str) -> None:
    source = family_file(kind)
    # Vespa and TENS have no place for what PyCauset says of a matrix.
    done("convert", source, to, "--dtype", "float32", "--dims", "x,y", "--drop", "attrs")
    ds = opened(to)
    np.testing.assert_array_equal(ds.tensor.values, np.arange(15.0).reshape(3, 5))
    assert ds.tensor.dims == ("x", "y")
    assert ds.tensor.dtype == np.float32
    assert done("validate", "--strict", to) == f"{to}: ok\n"


@pytest.mark.parametrize("to", ["out.tens", "out.pycauset", "out.tbf"])
def test_formats_of_one_tensor_ask_for_a_variable(to: str) -> None:
    save()
    assert "choose one by --variable" in failed("convert", "a.mag", to)
    done("convert", "a.mag", to, "-v", "w", "--drop", "name,coords,attrs")
    (kept,) = opened(to).data_vars.values()
    # Vespa sorts dimensions by their names.
    np.testing.assert_array_equal(kept.transpose("row", "col").values, dataset().w.values)


# Words


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("or pass drop=['attrs'] to", "or pass --drop attrs to"),
        ("pass mode='w' to replace it", "pass --overwrite to replace it"),
        ("pass encoding={'a b': {'dtype': 'float32'}} to", "pass --dtype 'a b=float32' to"),
        ("by encoding={'w': {'dtype': ...}}, or", "by --dtype 'w=...', or"),
        ("open with sparse='stored' to", "open with --sparse stored to"),
        ("or write version=300", "or write --option version=300"),
        ("two\n  lines", "two lines"),
    ],
)
def test_messages_speak_of_options_not_of_keywords(message: str, words: str) -> None:
    assert in_command_words(message) == words


@pytest.mark.parametrize(
    ("value", "netcdf", "zarr"),
    [
        ("text", True, True),
        (1, True, True),
        (1 << 70, False, True),
        (True, False, True),
        (None, False, True),
        ({"a": 1}, False, True),
        ([1, 2.5], True, True),
        (["a", "b"], True, True),
        (["a", 1], False, True),
        ([], False, True),
        (np.arange(3), True, True),
        (np.ones((2, 2)), False, True),
        (np.float32(1), True, True),
        (b"raw", False, False),
        (1j, False, False),
        ({1: 2}, False, False),
    ],
)
def test_which_attributes_fit(value: object, netcdf: bool, zarr: bool) -> None:
    assert fits("netcdf", "name", value) == netcdf
    assert fits("zarr", "name", value) == zarr


@pytest.mark.parametrize("name", ["a/b", "", 3])
def test_names_of_attributes_that_netcdf_refuses(name: object) -> None:
    assert not fits("netcdf", name, 1)


# What would be lost


@pytest.mark.parametrize("key", ["a/b", "/abs", "trailing/", "back\\slash", "..", ".", "zarr.json"])
@pytest.mark.parametrize("to", ["b.zarr", "b.nc"])
def test_names_that_would_become_groups_are_refused(key: str, to: str) -> None:
    Path("a.mag").write_bytes(mf.document({key: mf.put(np.ones(3, "f4"))}))
    assert f"{key!r} cannot be the name of a variable of" in failed("convert", "a.mag", to)
    assert not Path(to).exists()


@pytest.mark.parametrize("store", ["t.nc", "t.zarr"])
def test_groups_are_not_left_out(store: str) -> None:
    below = xr.Dataset({"b": ("y", np.ones(2, "f4"))})
    tree = xr.DataTree.from_dict({"/": xr.Dataset({"a": ("x", np.ones(3, "f4"))}), "/g": below})
    tree.to_netcdf(store) if store == "t.nc" else tree.to_zarr(store, consolidated=False)
    assert "has contents in the groups /g" in failed("convert", store, "t.mag")


def test_no_name_steers_the_terminal() -> None:
    key = "\x1b[31mred\x1b]0;title\x07\nnext"
    Path("a.mag").write_bytes(mf.document({key: mf.put(np.ones(3, "f4"))}, {key: key}))
    for command in ("info", "explain"):
        shown = done(command, "a.mag")
        assert "\\x1b[31mred" in shown
        assert not {"\x1b", "\x07"} & set(shown)
    assert "\x1b" not in failed("convert", "a.mag", "a.tbf")


def test_pairs_stay_pairs() -> None:
    values = np.zeros((30, 20))
    values[3, 4] = 5
    to_file(xr.DataArray(values, dims=("a", "b"), name="v"), "a.tens", sparse=True)
    done("convert", "a.tens", "b.tens")
    assert Path("b.tens").read_bytes() == Path("a.tens").read_bytes()
    done("convert", "a.tens", "c.tens", "-o", "sparse=false")
    assert opened("c.tens").v.encoding["tensorfmt"]["storage"] == "dense"


def test_files_that_only_convert_takes_are_told_from_bad_ones() -> None:
    save()
    done("convert", "a.mag", "b.nc")
    assert "only convert takes zarr and netCDF" in failed("info", "b.nc")


def test_parts_to_drop_add_up() -> None:
    array = xr.DataArray(np.ones(2, "f8"), {"x": [1.5, 2.5]}, ("x",), "v")
    to_file(array, "a.tens")
    assert "no place for the name 'v'" in failed("convert", "a.tens", "b.tens", "-o", "version=0.9")
    drop = ["--drop", "name,dims", "--drop", "coords"]
    done("convert", "a.tens", "b.tens", "-o", "version=0.9", *drop)
    assert opened("b.tens").tensor.dims == ("a",)


def test_groups_are_not_left_out_where_netcdf4_alone_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    netcdf4 = pytest.importorskip("netCDF4")
    monkeypatch.setattr(opening, "find_spec", lambda package: package != "h5netcdf" or None)
    with netcdf4.Dataset("g.nc", "w") as root:
        root.createGroup("notes").remark = "attributes alone"
    assert "has contents in the groups /notes" in failed("convert", "g.nc", "t.mag")
    xr.Dataset({"v": ("x", np.arange(3, dtype="f4"))}).to_netcdf("plain.nc")
    done("convert", "plain.nc", "t.mag")
    assert opened("t.mag").v.values.tolist() == [0, 1, 2]


@pytest.mark.parametrize("store", ["i.nc", "i.zarr"])
@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_integers_do_not_become_others_beside_missing_values(store: str, dtype: str) -> None:
    def save_integers(largest: int) -> None:
        ds = xr.Dataset({"v": ("x", np.array([1, 99, largest], dtype))})
        ds.v.encoding["_FillValue"] = np.array(99, dtype)[()]
        if store == "i.zarr":
            ds.to_zarr(store, mode="w", consolidated=False)
        else:
            ds.to_netcdf(store)

    save_integers(2**53 + 1)
    message = failed("convert", store, "t.tens")
    assert f"{store}: 'v' has integers from 2**53 on beside missing values" in message
    assert "mask_and_scale=False" in message
    assert not Path("t.tens").exists()
    save_integers(2**53 - 1)
    done("convert", store, "t.tens")
    np.testing.assert_array_equal(opened("t.tens").v.values, [1, np.nan, 2**53 - 1])


def test_a_pipe_is_no_netcdf_file() -> None:
    os.mkfifo("p.nc")
    message = failed("convert", "p.nc", "t.mag")
    assert "p.nc is no ordinary file, as a netCDF file is; copy it into one" in message


def test_errors_of_other_packages_name_the_file_that_they_could_not_open() -> None:
    Path("junk.nc").write_bytes(b"junk")
    message = failed("convert", "junk.nc", "t.mag")
    assert "Error: junk.nc is no netCDF file, as it begins with b'junk'; say by --from" in message
    Path("cut.nc").write_bytes(b"\x89HDF\r\n\x1a\n")
    message = failed("convert", "cut.nc", "t.mag")
    assert message.startswith("Error: ")
    assert "cut.nc" in message
    assert "\n" not in message.strip()


@pytest.mark.parametrize("format", ["NETCDF3_64BIT", "NETCDF4"])
def test_texts_beside_numbers_do_not_keep_netcdf_from_being_cut(format: Any) -> None:
    values = np.arange(5000, dtype="i4").reshape(100, 50)
    ds = xr.Dataset(
        {"t": ("x", [f"text {i}" for i in range(100)]), "v": (("x", "y"), values)},
        {"x": [f"label {i}" for i in range(100)], "z": ("x", np.arange(100.0))},
    )
    ds.to_netcdf("t.nc", format=format)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "TARGET", 4000)
        found = open_any("t.nc", None, None)
    assert found.v.data.npartitions > 3
    xr.testing.assert_identical(found.load(), ds)
    assert list(found.variables) == list(xr.open_dataset("t.nc").variables)
    done("convert", "t.nc", "t.mag", "-v", "v")
    xr.testing.assert_identical(opened("t.mag").load(), ds[["v"]])
