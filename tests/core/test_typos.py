"""Errors about unknown names suggest similar names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.commands import run_failing
from tests.magfiles import make_document, put
from tests.opening import open_lazily
from xr_tensorfmt import to_file
from xr_tensorfmt.core.file_format import Format
from xr_tensorfmt.errors import did_you_mean
from xr_tensorfmt.formats import recognition, registry

KEYS = ("embed.weight", "layers.0.norm", "layers.0.query", "layers.10.norm", "scale")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    tensors = {key: put(np.arange(4, dtype=np.int32)) for key in KEYS}
    Path("model.mag").write_bytes(make_document(tensors, {}))
    return "model.mag"


SQUARE = xr.Dataset({"weight": (("row", "col"), np.eye(3, dtype=bool))})

MISTAKES: dict[str, tuple[Callable[[str], Any], str]] = {
    "format": (lambda path: open_lazily(path, format="pycausat"), "(did you mean 'pycauset'?)"),
    "engine": (lambda path: open_lazily(path, dim={}), "'dim' (did you mean 'dims'?)"),
    "URL": (
        lambda _: open_lazily("memory://missing.mag", storage_option={}),
        "'storage_option' (did you mean 'storage_options'?)",
    ),
    "tree": (
        lambda path: xr.open_datatree(path, engine="tensorfmt", seperator="/"),
        "'seperator' (did you mean 'separator'?) is not a keyword of the engine",
    ),
    "dims": (lambda path: open_lazily(path, dims={"scal": ["x"]}), "'scal' (did you mean 'scale'"),
    "group": (lambda path: open_lazily(path, group="layer.0"), "'layer.0' (did you mean 'layers.0"),
    "path": (lambda path: open_lazily(path, group="Layers/0"), "'Layers/0' (did you mean 'layers"),
    "suffix": (lambda path: to_file(SQUARE, "x.pycasuet"), "format (did you mean '.pycauset'?)"),
    "feed": (lambda path: to_file(SQUARE, "x.jsonl"), "xr_tensorfmt.vespa.to_json and to_jsonl"),
    "dtype": (
        lambda path: to_file(SQUARE, "x.mag", dtype="f4"),
        "pass encoding={'dtype': ...}, or --dtype",
    ),
    "encoding": (
        lambda path: to_file(SQUARE, "x.mag", encoding={"wieght": {"dtype": "f4"}}),
        "names 'wieght' (did you mean 'weight'?)",
    ),
    "encoding in a tree": (
        lambda path: to_file(SQUARE.rename(weight="l.weight"), "x.mag", encoding={"weight": {}}),
        "names 'weight' (did you mean 'l.weight'?)",
    ),
    "option of a file system": (
        lambda path: open_lazily(path, headers={}), "pass options of a file system in storage_opt"
    ),
    "keyword": (
        lambda path: to_file(SQUARE, "x.pycauset", matrix_typ="CAUSAL"),
        "'matrix_typ' (did you mean 'matrix_type'?)",
    ),
    "keyword of to_file": (
        lambda path: to_file(SQUARE, "x.pycauset", encodings={}),
        "'encodings' (did you mean 'encoding'?)",
    ),
    "value": (
        lambda path: to_file(SQUARE, "x.pycauset", matrix_type="causal"),
        "'causal' (did you mean 'CAUSAL'?)",
    ),
    "region": (
        lambda path: to_file(SQUARE, "square.mag", region={"rwo": slice(0, 3)}),
        "'rwo' (did you mean 'row'?)",
    ),
    "variable of region": (
        lambda path: to_file(SQUARE.rename(weight="weigth"), "square.mag", region={}),
        "'weigth' (did you mean 'weight'?)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_error_suggests_similar_name(model: str, mistake: str) -> None:
    to_file(SQUARE, "square.mag")
    call, hint = MISTAKES[mistake]
    with pytest.raises((ValueError, TypeError)) as error:
        call(model)
    assert hint in str(error.value)


def test_command_suggests_similar_name(model: str) -> None:
    hint = "'scle' (did you mean 'scale'?)"
    assert hint in run_failing("convert", model, "x.tens", "--variable", "scle")
    assert "'mga' is not one of 'tens', 'cc4s', 'mag'" in run_failing(
        "info", model, "--from", "mga", code=2
    )
    arguments = ("convert", model, "x.tens", "-v", "scale", "-o")
    assert "'versoin' (did you mean 'version'?) is not a keyword" in run_failing(
        *arguments, "versoin=1"
    )


def test_no_suggestion_without_similar_name(model: str) -> None:
    assert did_you_mean("tensor", ["row", "col"]) == ""
    assert did_you_mean(3, [1, 2]) == ""
    assert did_you_mean("*.wieght", ["embed.weight"]) == ""
    with pytest.raises(ValueError, match=r"format='zarr' is not one of"):
        open_lazily(model, format="zarr")


@pytest.mark.parametrize("suffixes", [(".mag",), ()])
def test_formats_may_share_a_suffix_or_have_none(
    suffixes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(Format):
        name, title = "other", "Other"
        read = registry.find_format("npy").read
        plan = registry.find_format("npy").plan

    Other.suffixes = suffixes
    monkeypatch.setattr(registry, "load_plugins", lambda: (Other(),))
    to_file(xr.DataArray([1.0], name="tensor"), tmp_path / "x.mag", "other", drop=["dims"])
    assert (tmp_path / "x.mag").read_bytes().startswith(b"\x93NUMPY")


def test_other_packages_are_listed_only_if_their_suffix_can_be_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(Format):
        name, title, suffixes, magics = "other", "Other", (".x.mag",), (b"MAG!",)
        read = registry.find_format("mag").read

    for name in ("a.mag", "a.x.mag"):
        to_file(SQUARE, tmp_path / name, "mag")
    calls: list[str] = []
    monkeypatch.setattr(registry, "load_plugins", lambda: (calls.append("listed"), Other())[1:])
    for name, expected in (("a.mag", "mag"), ("a.x.mag", "other")):
        assert not calls
        assert recognition.choose_format(recognition.open_header(tmp_path / name)).name == expected
    assert calls == ["listed"]


def test_suggestions_ignore_case_and_are_shortened() -> None:
    assert did_you_mean("weight", ["WEIGHT"]) == " (did you mean 'WEIGHT'?)"
    assert len(did_you_mean("x" * 1000, ["x" * 1001])) < 300


@pytest.mark.parametrize("group", ["layers.0", "layers/0", "/layers/0", "layers/0/", "/layers.0"])
def test_group_is_prefix_or_path(model: str, group: str) -> None:
    assert list(open_lazily(model, group=group)) == ["norm", "query"]
    actual = open_lazily(model, group=group, dims={"norm": ["x"]})
    assert actual.norm.dims == ("x",)
    assert list(xr.open_datatree(model, engine="tensorfmt", group=group)) == ["norm", "query"]


def test_slashes_of_names_are_quoted_in_paths(tmp_path: Path) -> None:
    path = tmp_path / "model.mag"
    path.write_bytes(make_document({"a/b.c": put(np.arange(2, dtype=np.int32))}, {}))
    for group in ("a%2Fb/", "/a%2Fb", "a/b"):
        assert list(open_lazily(str(path), group=group)) == ["c"]
    assert list(open_lazily(str(path), group="a", separator="/")) == ["b.c"]


def test_errors_list_no_keywords_that_cannot_be_passed(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"expected one of data, path, format, .*, fs$"):
        to_file(SQUARE, tmp_path / "a.mag", format_options={})
