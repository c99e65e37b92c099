"""The dtypes of many variables: for all, and by patterns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.commands import run_ok
from xr_tensorfmt import to_file

KEYS = ("embed", "layers.0.w", "layers.0.norm", "layers.1.w", "layers.1.norm")


def make_model() -> xr.Dataset:
    """Weights of floating-point numbers, positions, a mask, and a coordinate of floats."""
    ds = xr.Dataset({key: ("n", np.linspace(0, 1, 4, dtype="f4")) for key in KEYS})
    ds = ds.assign_coords(n=np.linspace(0, 1, 4, dtype="f4"))
    return ds.assign(position=("n", np.arange(4)), mask=("n", np.arange(4) > 1))


def read_dtypes(path: str | Path) -> dict[str, str]:
    """Return the stored dtypes of the variables of a file."""
    ds = xr.open_dataset(path, engine="tensorfmt")
    return {str(name): str(item.encoding["dtype"]) for name, item in ds.variables.items()}


OWN = {**dict.fromkeys((*KEYS, "n"), "float32"), "position": "int64", "mask": "bool"}
FLOATS = dict.fromkeys(KEYS, "bfloat16")
LAYERS = dict.fromkeys(KEYS[1:], "bfloat16")

CASES: dict[str, tuple[list[str], Any, dict[str, str]]] = {
    "all": (["bfloat16"], {"dtype": "bfloat16"}, FLOATS),
    "all integers": (["int32"], {"dtype": np.int32}, {"position": "int32"}),
    "a pattern": (["layers.*=bfloat16"], {"layers.*": {"dtype": "bfloat16"}}, LAYERS),
    "a set of characters": (
        ["layers.[1-9].*=bfloat16"],
        {"layers.[1-9].*": {"dtype": "bfloat16"}},
        dict.fromkeys(KEYS[3:], "bfloat16"),
    ),
    "a name wins over a pattern": (
        ["layers.0.w=float16", "layers.*=bfloat16"],
        {"layers.0.w": {"dtype": "float16"}, "layers.*": {"dtype": "bfloat16"}},
        LAYERS | {"layers.0.w": "float16"},
    ),
    "patterns win over all, and the first wins": (
        ["bfloat16", "*.norm=float16", "layers.1.*=float32"],
        {"dtype": "bfloat16", "*.norm": {"dtype": "f2"}, "layers.1.*": {"dtype": "f4"}},
        FLOATS
        | {"layers.0.norm": "float16", "layers.1.norm": "float16", "layers.1.w": "float32"},
    ),
    "the name of a coordinate": (
        ["float16", "n=bfloat16"],
        {"dtype": "f2", "n": {"dtype": "bfloat16"}},
        dict.fromkeys(KEYS, "float16") | {"n": "bfloat16"},
    ),
    "a name of another kind": (
        ["position=float16"], {"position": {"dtype": "f2"}}, {"position": "float16"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_encoding_for_all_and_for_patterns(tmp_path: Path, case: str) -> None:
    options, encoding, changed = CASES[case]
    to_file(make_model(), tmp_path / "a.mag")
    to_file(make_model(), tmp_path / "b.mag", encoding=encoding)
    dtypes = [word for option in options for word in ("--dtype", option)]
    run_ok("convert", str(tmp_path / "a.mag"), str(tmp_path / "c.mag"), *dtypes)
    assert read_dtypes(tmp_path / "b.mag") == read_dtypes(tmp_path / "c.mag") == OWN | changed


def test_encoding_for_all_changes_single_variable_of_any_dtype(tmp_path: Path) -> None:
    numbers = xr.Dataset({"a": ("x", np.arange(3))})
    for requested in ({"dtype": "f4"}, {"a*": {"dtype": "f4"}}):
        to_file(numbers, tmp_path / "a.mag", encoding=requested)
        assert read_dtypes(tmp_path / "a.mag") == {"a": "float32"}


def test_names_may_have_characters_of_patterns(tmp_path: Path) -> None:
    ones = np.ones(2, "f4")
    ds = xr.Dataset({"w[0]": ("x", ones), "w0": ("x", ones), "dtype": ("x", ones)})
    to_file(ds, tmp_path / "a.mag", encoding={"w[0]": {"dtype": "f2"}, "dtype": {"dtype": "f2"}})
    assert read_dtypes(tmp_path / "a.mag") == {
        "w[0]": "float16",
        "w0": "float32",
        "dtype": "float16",
    }


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ({"dtype": "complex64"}, "matches no complex variable; the variables are 'embed' "),
        (
            {"head.*": {"dtype": "f2"}},
            r"'head\.\*': .* matches no variable",
        ),
        ({"posi*": {"dtype": "f2"}}, "matches no floating-point variable"),
        ({"n?": {"dtype": "f2"}}, "matches no variable"),
        ({"layers.2": {"dtype": "f2"}}, r"names 'layers\.2' .*, which is not one of the variables"),
        ({"layers.*": {"scale": 2}}, "has 'scale', expected some of '_FillValue'"),
    ],
)
def test_encoding_without_effect_raises(tmp_path: Path, encoding: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        to_file(make_model(), tmp_path / "a.mag", encoding=encoding)


@pytest.mark.parametrize(
    ("dtype", "similar"),
    [("bf16", "bfloat16"), ("fp16", "float16"), ("fp8", "float8_e4m3fn"), ("F8_E5M2", "float8_e5")],
)
def test_a_dtype_of_another_library_has_a_hint(tmp_path: Path, dtype: str, similar: str) -> None:
    ds = xr.Dataset({"w": ("x", np.ones(3, "f4"))})
    with pytest.raises(ValueError, match=rf"'w' is {dtype} \(did you mean '{similar}"):
        to_file(ds, tmp_path / "a.safetensors", encoding={"w": {"dtype": dtype}})


def test_times_that_overflow_the_dtype_raise(tmp_path: Path) -> None:
    encoding = {"t": {"units": "days since 2000-01-01", "dtype": "int8"}}
    times = xr.Dataset({"t": ("x", np.array(["2000-01-03", "2001-01-02"], "M8[ns]"))})
    for data in (times, times.chunk()):
        with pytest.raises(ValueError, match=r"'t' contains .*367.*, which int8 cannot represent"):
            to_file(data, tmp_path / "a.mag", encoding=encoding)
    to_file(times.isel(x=[0]), tmp_path / "a.mag", encoding=encoding)
    with xr.open_dataset(tmp_path / "a.mag", decode_cf=False) as stored:
        assert stored.t.dtype == "int8"
        assert stored.t.values.tolist() == [2]
