"""The command with several files, standard input, JSON, and completion."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem

import xr_tensorfmt
from tests import magfiles as mf
from tests.commands import (
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


@pytest.mark.parametrize("command", ["info", "validate"])
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
    warning = "Warning: models/model is a directory, and is left out\n"
    assert result.stderr == warning
    os.remove("models/a.mag")
    for path in ("models", "model[s]"):
        assert "other directory, such as models/model or models/*" in run_failing("info", path)
    assert run_ok("validate", "models/*") == "models/model: ok\n"
    (document,) = json.loads(run_ok("info", "--json", "models/model"))
    assert document["size"] == sum(file.stat().st_size for file in Path("models/model").iterdir())


def test_only_file_of_a_directory_or_pattern_is_compared_and_converted() -> None:
    directory = save_directory()
    message = "; pass the path of one of them"
    for command in (["diff", directory, directory], ["convert", directory, "c.nc"]):
        output = run_failing(*command, code=2 if command[0] == "diff" else 1)
        assert f"{directory} has 5 files" in output
        assert message in output
    Path("one").mkdir()
    save("one/a.mag")
    Path("one/README").write_text("no tensor")
    save("a.mag")
    for name in ("one", "one/*.mag"):
        assert "4 equal, 0 different" in run_ok("diff", name, "a.mag")
        run_ok("convert", name, "c.safetensors", "--overwrite")
        assert "4 equal, 0 different" in run_ok("diff", "c.safetensors", name)


def test_a_directory_without_tensor_files_is_an_error() -> None:
    os.mkdir("empty")
    for command in ("info", "validate"):
        assert "empty is a directory without tensor files; pass" in run_failing(command, "empty")
        result = run(command, "--json", "empty", write_vertex())
        failed, described = json.loads(result.stdout)
        assert (result.exit_code, failed["path"], described["path"]) == (1, "empty", "vertex.bin")
        assert "error" in failed


# Several files


def test_pattern_without_match_has_reason() -> None:
    message = run_failing("info", "none/*.mag")
    assert "none/*.mag: No such file or directory" in message


@pytest.mark.parametrize("target", ["out/", "out"])
def test_a_file_is_not_converted_into_a_directory(target: str) -> None:
    os.mkdir("out")
    write_vertex("a.bin")
    assert "out" in run_failing("convert", "a.bin", target, "--to", "tens")
    assert "out" in run_failing("convert", "a.bin", target, "--to", "tens", "--overwrite")
    assert "unexpected extra argument" in run_failing("convert", "a.bin", "b.bin", "out", code=2)
    assert os.listdir("out") == []


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


def test_reading_decides_whether_a_file_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = save("a.mag"), save("b.mag")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # root can read all files
    assert run_ok("validate", *paths) == "a.mag: ok\nb.mag: ok\n"
    run_ok("convert", *paths, "--overwrite")  # a file that its owner keeps secret is replaced


def test_shell_completes_commands_options_formats_and_files() -> None:
    assert sorted(complete("c")) == ["plain,convert"]
    assert complete("convert", "--over") == ["plain,--overwrite"]
    assert complete("convert", "--to", "p") == ["plain,pycauset"]
    assert complete("diff", "--from", "z") == ["plain,zarr"]
    assert complete("convert", "--to", "z") == ["plain,zarr"]
    for command in ("info", "validate", "convert"):
        assert complete(command, "a") == ["file,a"]


def test_page_shows_how_shells_complete() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    for shell in ("bash", "zsh"):
        assert f"_XR_TENSORFMT_COMPLETE={shell}_source xr-tensorfmt" in page


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_script_for_shell_is_printed(shell: str) -> None:
    environment = {"_XR_TENSORFMT_COMPLETE": f"{shell}_source"}
    script = CliRunner().invoke(main, prog_name="xr-tensorfmt", env=environment).stdout
    assert f"_XR_TENSORFMT_COMPLETE={shell}_complete" in script


def test_commands_expand_quoted_patterns() -> None:
    for name in ("a.npy", "b.npy"):
        np.save(name, np.arange(3.0))
    assert len(json.loads(run_ok("info", "--json", "*.npy"))) == 2
    assert "No such file or directory" in run_failing("info", "*.tens")


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
    assert json.loads(run("validate", "--json", *names).stdout)


def test_interrupted_command_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    path = write_vertex()
    for module, name, arguments in (
        ("describe", "open_group", ["info", path]),
        ("describe", "find_faults", ["validate", path]),
        ("convert", "open_input", ["convert", path, "b.npy"]),
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


LABELS = {dim: (dim, ["a", "b", "c", "d"]) for dim in ("x", "y")}
CUBE = xr.Dataset({"tensor": (("x", "y", "z"), np.ones((4, 4, 2), "f4"))})
HINTS = {
    "several variables": ('info {} --open-option dims=["a"]', "dims={name: [...]} or --variable"),
    "no such keyword": ("info {} --open-option anon=true", "storage_options= or --storage-option"),
    "number of names": (
        'info {} --open-option dims={{"w*":["a"]}}',
        "pass a name for each dimension, or call ds.rename",
    ),
    "keyword for dtype": ("convert {} b.mag -o dtype=float16", "{'dtype': ...}, or --dtype"),
}


@pytest.mark.parametrize("case", HINTS)
def test_hints_are_for_the_command_as_well(case: str) -> None:
    line, hint = HINTS[case]
    assert hint in run_failing(*line.format(save()).split())


def test_hints_about_cubes_are_for_the_command_as_well() -> None:
    path = save("a.npy", CUBE.rename(x="dim_0", y="dim_1", z="dim_2"))
    assert "or --option matrix_type=, stack" in run_failing("convert", path, "b.pycauset")
    message = run_failing("convert", path, "b.tens", "--dims", "x,y")
    assert "(or another name= or --name)" in message
    CUBE.assign_coords(LABELS).to_netcdf("a.nc")
    assert "or choose another format" in run_failing("convert", "a.nc", "b.tbf")


def test_existing_directory_is_no_file_to_overwrite() -> None:
    save()
    os.mkdir("b")
    message = run_failing("convert", "a.mag", "b/", "--to", "mag")
    assert "b/ is a directory, expected a file; append a name" in message


def test_verbose_shows_the_log(caplog: pytest.LogCaptureFixture) -> None:
    try:
        run_ok("--verbose", "info", save())
        assert logging.getLogger("xr_tensorfmt").isEnabledFor(logging.DEBUG)
    finally:
        logging.getLogger("xr_tensorfmt").setLevel(logging.NOTSET)


def test_elements_are_not_their_own_sibling() -> None:
    tensor = xr.DataArray(np.ones(4), dims="x", name="a")
    tensor.tensorfmt.to_file("a.yaml")
    (document,) = json.loads(run_ok("info", "a.elements", "--json"))
    assert (document["size"], document["files"]) == (32, [])
