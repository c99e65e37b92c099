"""The command with several files, standard input, JSON, and completion."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner, Result
from fsspec.implementations.memory import MemoryFileSystem

import xr_tensorfmt
from tests import magfiles as mf
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
from tests.paths import DOCS
from xr_tensorfmt import to_file
from xr_tensorfmt.cli import main

pytestmark = pytest.mark.usefixtures("working_directory")


def run_with_input(content: bytes, *arguments: str) -> Result:
    """Run the command with bytes in standard input."""
    return run(*arguments, input=content)


# JSON


def write_damaged_file(name: str = "bad.mag") -> str:
    content = bytearray(
        mf.make_document({"a": mf.put(np.ones(3, "f4")), "b": mf.put(np.ones(3, "f4"))})
    )
    content[5000] = 7
    Path(name).write_bytes(content + b"more")
    return name


def test_json_of_validate_has_every_field_of_every_finding() -> None:
    result = run("validate", "--json", write_damaged_file(), write_vertex(), "missing.mag")
    assert result.exit_code == 1
    bad, good, missing = json.loads(result.stdout)
    findings = xr_tensorfmt.validate("bad.mag")
    assert bad == {
        "path": "bad.mag",
        "findings": [
            {name: getattr(finding, name) for name in (*finding.__match_args__, "message")}
            for finding in findings
        ],
    }
    assert len(findings) == 1
    assert good == {"path": "vertex.bin", "findings": []}
    assert missing["path"] == "missing.mag"
    assert "No such file or directory" in missing["error"]
    assert missing["error"] in result.stderr


def test_json_of_explain_has_every_range_and_request() -> None:
    (explained,) = json.loads(
        run_ok("explain", "--json", write_vertex(), "-s", "c=1", "-s", "a=0:2")
    )
    assert explained["path"] == "vertex.bin"
    ds = xr.open_dataset("vertex.bin", engine="tensorfmt", chunks={})
    expected = ds.tensorfmt.explain({"c": 1, "a": slice(0, 2)})
    assert explained["fetched_bytes"] == expected.fetched_bytes == 80
    assert explained["needed_bytes"] == expected.needed_bytes == 48
    assert explained["requests"] == 1
    assert explained["amplification"] == expected.amplification
    (read,) = explained["reads"]
    assert read["ranges"] == [list(range_) for range_ in expected.reads[0].ranges]
    assert read["request_ranges"] == list(map(list, expected.reads[0].request_ranges))
    assert (read["variable"], read["shape"]) == ("tensor", [2, 3])


# Directories


def save_directory(name: str = "models") -> str:
    os.mkdir(name)
    save(f"{name}/a.mag")
    save(
        f"{name}/b.npy", make_dataset()[["w"]].drop_vars("row").drop_attrs(), drop=["name", "dims"]
    )
    save(f"{name}/c.yaml", xr.Dataset({"tensor": ("x", np.ones(3))}))
    save(f"{name}/vertex.tens", xr.Dataset({"tensor": ("x", np.ones(3))}))
    Path(name, "vertex.bin").write_bytes(Path(write_vertex()).read_bytes())
    Path(name, "notes.txt").touch()
    return name


FILES = ["a.mag", "b.npy", "c.yaml", "vertex.bin", "vertex.tens"]


@pytest.mark.parametrize("command", ["info", "validate", "explain"])
def test_directory_is_expanded_to_its_files(command: str, memory: MemoryFileSystem) -> None:
    directory = save_directory()
    documents = json.loads(run_ok(command, "--json", directory))
    assert [Path(document["path"]).name for document in documents] == FILES
    assert run_ok(command, "models/").count("models/a.mag:") == 1
    memory.put(f"{directory}/", "/bucket/models/", recursive=True)
    urls = [f"memory://bucket/models/{file}" for file in FILES]
    documents = json.loads(run_ok(command, "--json", "memory://bucket/models/"))
    assert [document["path"] for document in documents] == urls


def test_a_directory_with_a_model_is_one_dataset() -> None:
    os.mkdir("model")
    save("model/model.safetensors.index.json", make_dataset())
    assert run_ok("info", "model").count("safetensors,") == 1
    assert run_ok("validate", "model") == "model: ok\n"
    assert "4 equal" in run_ok("diff", "model", save())


def test_sizes_are_of_all_files_and_subdirectories_are_named() -> None:
    os.makedirs("models/model")
    save("models/model/model.safetensors.index.json", make_dataset())
    save("models/a.mag")
    result = run("info", "models")
    assert result.stderr == "Warning: models/model is a directory, and is left out\n"
    (document,) = json.loads(run_ok("info", "--json", "models/model"))
    assert document["size"] == sum(file.stat().st_size for file in Path("models/model").iterdir())


def test_a_directory_without_tensor_files_is_an_error() -> None:
    os.mkdir("empty")
    for command in ("info", "validate", "explain"):
        assert "empty is a directory without tensor files; pass" in run_failing(command, "empty")


def test_files_with_the_same_name_are_compared() -> None:
    first = save_directory()
    shutil.copytree(first, "other")
    assert run_ok("diff", first, "other").count("0 different") == len(FILES)
    save("other/a.mag", make_dataset().assign(n=("row", np.zeros(20, "i8"))))
    os.remove("other/b.npy")
    os.remove("models/vertex.bin")
    result = run("diff", first, "other/")
    assert result.exit_code == 1
    assert "n: 19 of 20 values differ" in result.stdout
    assert "b.npy: only in models\nvertex.bin: only in other/\n" in result.stdout
    assert "models/c.yaml and other/c.yaml: variables: 1 equal, 0 different" in result.stdout


# Standard input and output


def test_a_file_is_converted_to_standard_output() -> None:
    result = run("convert", write_vertex(), "-", "--to", "tens")
    assert result.exit_code == 0
    run_ok("convert", "vertex.bin", "b.tens")
    assert result.stdout_bytes == Path("b.tens").read_bytes()
    assert sorted(os.listdir()) == ["b.tens", "vertex.bin"]


OUTPUT_REFUSALS = {
    "a format": (["vertex.bin"], 2, "standard output needs one IN, and the format as --to"),
    "one file": (["vertex.bin", "a.mag", "--to", "tens"], 2, "standard output needs one IN"),
    "one target": (["vertex.bin", "--to", "cc4s"], 1, "cc4s needs several files; pass a path"),
    "no store": (["vertex.bin", "--to", "zarr"], 1, "zarr needs several files; pass a path"),
}


@pytest.mark.parametrize("case", OUTPUT_REFUSALS)
def test_standard_output_needs(case: str) -> None:
    sources, code, message = OUTPUT_REFUSALS[case]
    write_vertex()
    count = 2 if "a.mag" in sources else 1
    assert message in run_failing("convert", *sources[:count], "-", *sources[count:], code=code)


def test_every_command_reads_standard_input() -> None:
    content = Path(write_vertex()).read_bytes()
    assert run_with_input(content, "info", "-").stdout.startswith("<stdin>: TENS 0.9, 248 B\n")
    assert json.loads(run_with_input(content, "info", "--json", "-").stdout)[0]["path"] == "<stdin>"
    assert run_with_input(content, "validate", "-").stdout == "<stdin>: ok\n"
    assert run_with_input(content, "explain", "-").stdout.startswith("1 request fetches 192 B")
    assert run_with_input(content, "convert", "-", "b.mag", "--dtype", "float32").exit_code == 0
    np.testing.assert_array_equal(load_any("b.mag").tensor.values, GAMMA)
    assert sorted(os.listdir()) == ["b.mag", "vertex.bin"]


def test_real_pipe_is_read_to_its_end() -> None:
    values = xr.DataArray(np.arange(1 << 20, dtype="f4"), dims="x", name="v")
    save("a.mag", values.to_dataset())
    with subprocess.Popen(["cat", "a.mag"], stdout=subprocess.PIPE) as source:
        command = [sys.executable, "-m", "xr_tensorfmt", "convert", "-", "b.mag"]
        subprocess.run(command, stdin=source.stdout, check=True, timeout=300)
    xr.testing.assert_identical(load_any("b.mag"), load_any("a.mag"))


def test_errors_about_standard_input_name_it() -> None:
    content = Path(write_vertex()).read_bytes()[:-8]
    for arguments in (["info", "-"], ["explain", "-"], ["convert", "-", "b.tens"]):
        result = run_with_input(content, *arguments)
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: <stdin>: ")
        assert result.stderr.count("\n") == 1
    finding = run_with_input(content, "validate", "-").stdout.splitlines()
    assert finding[0] == "<stdin>: 1 error"
    assert "<stdin>" not in finding[1]
    netcdf = run_with_input(b"CDF", "convert", "-", "b.mag", "--from", "netcdf")
    assert netcdf.stderr == "Error: <stdin>: netcdf is not read from standard input; pass a path\n"


def test_standard_input_without_magic_number_needs_its_format() -> None:
    content = vf.make_tensor("float", [], {"x": 2}, [], np.ones((1, 2)))
    assert (
        "--from for a format that has no magic number: 'cc4s', 'vespa'"
        in run_with_input(content, "info", "-").stderr
    )
    assert "Vespa" in run_with_input(content, "info", "-", "--from", "vespa").stdout


# Several files


def test_directory_is_converted_into_directory() -> None:
    directory = save_directory()
    os.remove(f"{directory}/vertex.bin")
    run_ok("convert", directory, "out/", "--to", "zarr")
    assert sorted(os.listdir("out")) == ["a.zarr", "b.zarr", "c.zarr", "vertex.zarr"]


@pytest.mark.parametrize("directory", ["out/", "new/below/", "out"])
def test_several_files_are_converted_into_directory(directory: str) -> None:
    Path("out").mkdir()
    write_vertex("a.bin")
    write_vertex("b.tens")
    run_ok("convert", "a.bin", "b.tens", directory, "--to", "mag", "--dtype", "float32")
    assert sorted(os.listdir(directory)) == ["a.mag", "b.mag"]
    np.testing.assert_array_equal(load_any(f"{directory}/b.mag").tensor.values, GAMMA)


@pytest.mark.parametrize(
    ("to", "name"), [("zarr", "a.zarr"), ("netcdf", "a.nc"), ("tens", "a.tens"), ("cc4s", "a.yaml")]
)
def test_suffix_in_directory_matches_format(to: str, name: str) -> None:
    write_vertex("a.bin")
    run_ok("convert", "a.bin", "out/", "--to", to)
    assert name in os.listdir("out")


def test_file_is_converted_into_existing_directory() -> None:
    os.mkdir("out")
    run_ok("convert", write_vertex("a.bin"), "out", "--to", "tens")
    assert os.listdir("out") == ["a.tens"]
    assert "File exists" in run_failing("convert", "a.bin", "a.bin/", "--to", "tens")


def test_pattern_without_match_has_reason() -> None:
    message = run_failing("info", "none/*.mag")
    assert "none/*.mag: No file has this name; use xarray.open_mfdataset for a pattern" in message


def test_link_keeps_its_own_name() -> None:
    write_vertex("a.bin")
    Path("b.bin").symlink_to("a.bin")
    run_ok("convert", "a.bin", "b.bin", "out/", "--to", "tens")
    assert sorted(os.listdir("out")) == ["a.tens", "b.tens"]


def test_convert_continues_after_bad_file() -> None:
    write_damaged_file("bad.tens")
    write_vertex("a.bin")
    result = run("convert", "missing.bin", "a.bin", "out/", "--to", "tens")
    assert result.exit_code == 1
    error, summary = result.stderr.splitlines()
    assert "missing.bin: No such file or directory" in error
    assert summary == "2 files, 1 with errors"
    assert os.listdir("out") == ["a.tens"]


def test_urls_become_files_of_their_names() -> None:
    import fsspec  # noqa: PLC0415

    with fsspec.open("memory://in/a.bin", "wb") as file:
        file.write(Path(write_vertex()).read_bytes())
    run_ok("convert", "memory://in/a.bin", "vertex.bin", "memory://out/", "--to", "tens")
    for name in ("a", "vertex"):
        actual = xr.open_dataset(f"memory://out/{name}.tens", engine="tensorfmt")
        np.testing.assert_array_equal(actual.tensor, GAMMA)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.bin", "b.bin", "missing", "--to", "mag"], "append '/' to create it, as in"),
        (["a.bin", "b.bin", "c.mag"], "2 files need a directory as OUT"),
        (["a.bin", "b.bin", "c.zarr/", "--to", "zarr"], "2 files need a directory as OUT"),
        (["a.bin", "out/"], "pass the format as --to"),
        (["a.bin", "in/a.tens", "out/", "--to", "mag"], "would both become a.mag"),
        (["a.bin"], "Missing argument"),
    ],
)
def test_ambiguous_directories_raise(arguments: list[str], words: str) -> None:
    message = " ".join(run_failing("convert", *arguments, code=2).split())
    assert words in message
    assert os.listdir() == []


def test_zarr_store_with_slash_is_store() -> None:
    save()
    run_ok("convert", "a.mag", "b.zarr/")
    xr.testing.assert_identical(load_any("b.zarr"), make_dataset())


# Completion


def complete(*words: str) -> list[str]:
    """Return the completions of the last word."""
    environment = {
        "_XR_TENSORFMT_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("xr-tensorfmt", *words)),
        "COMP_CWORD": str(len(words)),
    }
    runner = CliRunner()
    return runner.invoke(main, prog_name="xr-tensorfmt", env=environment).stdout.split()


def test_shell_completes_commands_options_formats_and_files() -> None:
    assert sorted(complete("c")) == ["plain,convert"]
    assert complete("convert", "--over") == ["plain,--overwrite"]
    assert complete("convert", "--to", "p") == ["plain,pycauset"]
    assert complete("info", "--from", "z") == []
    assert complete("convert", "--to", "z") == ["plain,zarr"]
    for command in ("info", "validate", "convert", "explain"):
        assert complete(command, "a") == ["file,a"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_script_for_shell_is_printed(shell: str) -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert f"_XR_TENSORFMT_COMPLETE={shell}_source xr-tensorfmt" in page
    environment = {"_XR_TENSORFMT_COMPLETE": f"{shell}_source"}
    script = CliRunner().invoke(main, prog_name="xr-tensorfmt", env=environment).stdout
    assert f"_XR_TENSORFMT_COMPLETE={shell}_complete" in script


def test_commands_expand_quoted_patterns() -> None:
    for name in ("a.npy", "b.npy"):
        np.save(name, np.arange(3.0))
    assert len(json.loads(run_ok("info", "--json", "*.npy"))) == 2
    run_ok("convert", "*.npy", "out/", "--to", "mag", "--dtype", "float32")
    assert sorted(os.listdir("out")) == ["a.mag", "b.mag"]
    assert "No file has this name" in run_failing("info", "*.tens")


def test_several_files_have_a_summary() -> None:
    names = [write_damaged_file(), write_vertex(), "missing.mag"]
    result = run("validate", *names)
    assert result.stderr.splitlines()[-1] == "3 files, 2 with errors"
    quiet = run("validate", "-q", *names)
    assert quiet.exit_code == 1
    assert ": ok" not in quiet.stdout
    assert names[0] in quiet.stdout
    assert run("validate", names[1]).stderr == ""
    assert run("validate", "-q", names[1]).output == ""
    result = run("convert", *names, "new/", "--to", "npy", "--drop", "name,dims,attrs")
    assert result.stderr.splitlines()[-1].startswith("3 files, ")
    assert json.loads(run("validate", "--json", *names).stdout)


def test_interrupted_command_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    path = write_vertex()
    for module, name, arguments in (
        ("describe", "open_header", ["info", path]),
        ("describe", "find_faults", ["validate", path]),
        ("stores", "open_input", ["convert", path, "b.npy"]),
    ):
        monkeypatch.setattr(sys.modules[f"xr_tensorfmt.cli.{module}"], name, interrupt)
        result = run(*arguments)
        assert (result.exit_code, result.stderr) == (130, "Aborted!\n")


def test_errors_name_keyword_and_option() -> None:
    save()
    message = run_failing("convert", "a.mag", "b.tens")
    assert "pass one of them as a DataArray or with --variable" in message
    message = run_failing("convert", "a.mag", "b.npy", "--variable", "w")
    assert re.search(r"pass drop=\[.*\] or --drop \w+", message)
    with pytest.raises(FileExistsError, match="pass mode='w' or --overwrite to replace it"):
        to_file(make_dataset(), "a.mag", mode="x")


def test_verbose_shows_the_log(caplog: pytest.LogCaptureFixture) -> None:
    try:
        run_ok("--verbose", "info", save())
        assert logging.getLogger("xr_tensorfmt").isEnabledFor(logging.DEBUG)
    finally:
        logging.getLogger("xr_tensorfmt").setLevel(logging.NOTSET)
