"""The command ``xr-tensorfmt diff``, totals in ``info``, and ``--group``."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.commands import load_any, make_dataset, run, run_failing, run_ok, save, write_vertex
from tests.workflows.formats import WRITABLE, make_array, write
from xr_tensorfmt import to_file
from xr_tensorfmt.cli.diff import are_close, compare, find_largest_difference, iterate_blocks
from xr_tensorfmt.tutorial import get_path

pytestmark = pytest.mark.usefixtures("working_directory")


def run_for_different(*arguments: str) -> str:
    """Return the output of the command for different files."""
    result = run("diff", *arguments)
    assert result.exit_code == 1, result.output
    assert not result.stderr
    return result.stdout


def test_files_of_same_content_are_equal() -> None:
    save("a.mag")
    save("b.mag")
    output = run_ok("diff", "a.mag", "b.mag")
    assert output == "a.mag and b.mag: variables: 4 equal, 0 different, 0 in only one file\n"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["b.zarr", "b.nc", "b.mag"])
def test_formats_may_differ(target: str) -> None:
    run_ok("convert", save("a.mag"), target)
    assert "4 equal, 0 different" in run_ok("diff", "a.mag", target)
    assert "4 equal, 0 different" in run_ok("diff", target, "a.mag")


def test_directories_of_calculations_are_compared_and_converted() -> None:
    shutil.copytree(get_path("LiH").parent, "a")
    shutil.copytree("a", "b")
    run_ok("convert", "a", "a.zarr")
    for other in ("b", "a.zarr"):
        assert "5 equal, 0 different" in run_ok("diff", "a", other)
    with Path("b/CoulombVertex.elements").open("r+b") as file:
        file.write(bytes(8))
    assert "CoulombVertex: 1 of 4000 values differ" in run_for_different("a", "b")
    assert "state_2: only in b" in run_for_different("a/EigenEnergies.yaml", "b")


def test_byte_orders_and_complex_netcdf_make_no_difference() -> None:
    ones = xr.Dataset({"tensor": (("a", "b"), np.ones((2, 3), "c16"))})
    save("a.tens", ones)
    run_ok("convert", "a.tens", "b.nc")
    assert "1 equal" in run_ok("diff", "a.tens", "b.nc")
    run_ok("convert", write_vertex(), "v.tens")
    assert "1 equal" in run_ok("diff", "vertex.bin", "v.tens")


def test_names_of_single_variables_may_differ() -> None:
    save("a.mag", xr.Dataset({"vertex": (("x", "y"), np.eye(3, dtype="f4"))}))
    run_ok("convert", "a.mag", "b.tens", "--drop", "name,dims", "--dtype", "float64")
    assert "1 equal" in run_ok("diff", "a.mag", "b.tens", "--atol", "1e-9")
    assert "vertex: the dtypes are float32 and float64" in run_for_different("a.mag", "b.tens")


def test_diff_lists_names_dtypes_shapes_and_largest_difference() -> None:
    ds = make_dataset()
    save("a.mag", ds)
    other = ds.drop_vars("flag").assign(more=ds.n, n=("line", np.arange(3)))
    other["w"] = ds.w.copy(deep=True)
    other.w[3, 4] += 0.25
    other.w[7, 29] -= 2
    save("b.mag", other, encoding={"row": {"dtype": "int32"}})
    output = run_for_different("a.mag", "b.mag").splitlines()
    assert output[0] == "flag: only in a.mag"
    assert output[1] == "more: only in b.mag"
    assert "row: the dtypes are int64 and int32" in output
    assert "n: the shapes are (20,) and (3,)" in output
    (values,) = (line for line in output if line.startswith("w: "))
    assert values.startswith("w: 2 of 600 values differ, by up to 2, ")
    assert values.endswith(" at [row=14, 29]")
    assert output[-1].endswith("variables: 0 equal, 3 different, 2 in only one file")


def test_rounding_is_difference_of_dtypes_and_of_values() -> None:
    run_ok("convert", save("a.mag"), "b.mag", "--dtype", "bfloat16")
    output = run_for_different("a.mag", "b.mag")
    assert "w: the dtypes are float32 and bfloat16\n" in output
    assert "of 600 values differ, by up to 0.00" in output
    assert "3 equal, 1 different" in output


def test_tolerances_are_those_of_isclose_and_allow_other_dtypes() -> None:
    ds = make_dataset()
    save("a.mag", ds)
    run_ok("convert", "a.mag", "half.mag", "--dtype", "w=float16")
    assert "4 equal" in run_ok("diff", "a.mag", "half.mag", "--rtol", "1e-3", "--atol", "1e-6")
    run_ok("convert", "half.mag", "wide.mag", "--dtype", "w=float32")
    assert "dtypes" in run_for_different("half.mag", "wide.mag")
    assert "4 equal" in run_ok("diff", "half.mag", "wide.mag", "--rtol", "0")
    assert "of 600 values differ, by" in run_for_different("a.mag", "half.mag", "--atol", "0")
    other = ds.copy(deep=True)
    other.w[0, 0], other.w[3, 4], other.w[5, 6] = ds.w[0, 0] + 0.1, ds.w[3, 4] + 0.5, np.nan
    save("b.mag", other)
    output = run_for_different("a.mag", "b.mag", "--atol", "0.2")
    assert "w: 2 of 600 values differ beyond the tolerance, by up to nan" in output
    other.w[5, 6] = ds.w[5, 6]
    save("b.mag", other)
    output = run_for_different("a.mag", "b.mag", "--atol", "0.2")
    assert "w: 1 of 600 values differ beyond the tolerance, by up to 0.5, " in output
    assert "not in the range" in run_failing("diff", "a.mag", "b.mag", "--rtol=-1", code=2)


TOLERATED: dict[str, tuple[Any, Any]] = {
    "relative to the second": ([100.0, 110.0], [110.0, 100.0]),
    "infinities": ([np.inf, 1.0, -np.inf, np.inf], [1.0, np.inf, np.inf, np.inf]),
    "NaN": ([np.nan, np.nan, 1.0], [np.nan, 1.0, np.nan]),
    "integers": (np.array([0, 200], np.uint8), np.array([255, 210], np.uint8)),
    "half precision": (np.array([6e4, 1e-7], "f2"), np.array([-6e4, 1.5e-7])),
    "complex": ([100 + 1j, 1j], [105 + 0j, -1j]),
    "bools": ([True, True], [True, False]),
}


@pytest.mark.parametrize("case", TOLERATED)
@pytest.mark.parametrize(("rtol", "atol"), [(0.0, 0.6), (0.095, 0.0), (0.05, 5.0)])
def test_tolerances_agree_with_numpy(case: str, rtol: float, atol: float) -> None:
    first, second = map(np.array, TOLERATED[case])
    expected = np.isclose(first, second, rtol, atol, equal_nan=True)
    np.testing.assert_array_equal(are_close(first, second, rtol, atol), expected)


def test_strings_are_compared_exactly_with_a_tolerance() -> None:
    same = are_close(np.array(["a", "b"]), np.array(["a", "c"]), 1.0, 1.0)
    assert same.tolist() == [True, False]


@pytest.mark.parametrize("suffix", ["mag", "safetensors", "zarr", "nc"])
def test_attributes_are_compared(suffix: str) -> None:
    ds = xr.Dataset({"v": ("x", np.arange(3.0, dtype="f4"))}, attrs={"sizes": [1, 2], "old": "a"})
    ds.v.attrs = {"unit": 0.5, "comment": "same"}
    other = ds.assign_attrs(sizes=[1, 3]).drop_attrs(deep=False).assign_attrs(sizes=[1, 3])
    other.v.attrs["unit"] = 1.0
    for name, data in (("a", ds), ("b", other)):
        run_ok("convert", save(f"{name}0.mag", data), f"{name}.{suffix}")
    assert "1 equal" in run_ok("diff", "a0.mag", f"a.{suffix}")
    assert run_for_different(f"a.{suffix}", f"b.{suffix}").splitlines() == [
        f"the attribute 'old' only in a.{suffix}",
        "the attribute 'sizes' differs: [1, 2] and [1, 3]",
        "v: the attribute 'unit' differs: 0.5 and 1.0",
        f"a.{suffix} and b.{suffix}: variables: 0 equal, 1 different, 0 in only one file",
    ]


def test_attributes_that_a_reader_makes_are_no_difference() -> None:
    save("a.tbf", make_table("abc", [1, 2, 3]).rename(v="tensor"))
    run_ok("convert", "a.tbf", "a.safetensors")
    assert " 0 different" in run_ok("diff", "a.tbf", "a.safetensors")


@pytest.mark.parametrize("option", ["decode_cf=false", "mask_and_scale=true", "verify=false"])
def test_options_to_open_apply_to_both_files(option: str) -> None:
    ds = xr.Dataset({"w": ("x", np.arange(4, dtype="i2"), {"scale_factor": 0.5})})
    for name in "ab":
        save(f"{name}.mag", ds)
    assert "1 equal" in run_ok("diff", "a.mag", "b.mag", "--open-option", option)
    hidden = run_ok("diff", "a.mag", "b.mag", "--open-option", 'drop_variables="w"')
    assert "variables: 0 equal" in hidden


def test_error_has_exit_code_2() -> None:
    assert "missing.mag" in run_failing("diff", save(), "missing.mag", code=2)
    assert "group='layers' is not in the file" in run_failing(
        "diff", "a.mag", "a.mag", "--group", "layers", code=2
    )


F4 = np.float32
PAIRS: dict[str, tuple[Any, Any, Any]] = {
    "equal": ([1.0, np.nan], [1.0, np.nan], None),
    "the largest": ([1.0, 2.0, 3.0], [1.5, 0.0, 3.0], (2, 2.0, (1,))),
    "NaN is larger than infinity": ([np.inf, 1.0], [0.0, np.nan], (2, "nan", (1,))),
    "the same infinity": ([np.inf, 1.0], [np.inf, 1.25], (1, 0.25, (1,))),
    "signs of infinity": ([np.inf], [-np.inf], (1, np.inf, (0,))),
    "the ends of int64": ([-(2**63), 0], [2**63 - 1, 0], (1, 2**64 - 1, (0,))),
    "large integers": ([2**62, 2**62], [2**62, 2**62 + 1], (1, 1, (1,))),
    "large integers with and without sign": (
        np.array([2**53 + 1]),
        np.array([2**53], np.uint64),
        (1, 1.0, (0,)),
    ),
    "a negative integer": (np.array([-1, 5]), np.array([1, 5], np.uint64), (1, 2.0, (0,))),
    "bools": ([True, False], [True, True], (1, 1.0, (1,))),
    "complex": ([1 + 1j, 0], [1 + 1j, 3 + 4j], (1, 5.0, (1,))),
    "strings": (["a", "b", "c"], ["a", "x", "y"], (2, None, (1,))),
    "a scalar": (1.0, 3.0, (1, 2.0, ())),
    "bool and number": ([True], [3.0], (1, 2.0, (0,))),
    "floats too far apart": ([1.7e308], [-1.7e308], (1, np.inf, (0,))),
    "complex numbers too far apart": ([1.7e308 + 1.7e308j], [0j], (1, np.inf, (0,))),
}


@pytest.mark.parametrize("case", PAIRS)
def test_largest_difference_of_values(case: str) -> None:
    *values, expected = PAIRS[case]
    first, second = map(np.array, values)
    same = are_close(first, second)
    if expected is None:
        assert same.all()
        return
    index, distance = find_largest_difference(first, second, same)
    largest = "nan" if distance != distance else distance
    assert (np.count_nonzero(~same), largest, index) == expected


def test_complex_numbers_are_shown_whole() -> None:
    values = np.array([-1.2345678901234567e-100 - 9.876543210987654e-101j])
    first, second = (xr.Dataset({"a": ("x", x)}) for x in (values, values.conj()))
    line, _ = compare(first, second)
    assert f"{str(values[0])!r} and {str(values[0].conj())!r} at [0]" in line


def test_difference_larger_than_float64_is_infinite() -> None:
    for name, value in (("a", 1.7e308), ("b", -1.7e308)):
        save(f"{name}.tens", xr.Dataset({"tensor": ("x", [0.0, value])}))
    output = run_for_different("a.tens", "b.tens")
    assert "1 of 2 values differ, by up to inf, 1.7e+308 and -1.7e+308 at [1]" in output


@pytest.mark.slow
def test_large_variables_are_compared_in_blocks_that_cover_them() -> None:
    values = np.zeros((3000, 5000))
    seen = np.zeros(values.shape, int)
    one = xr.Dataset({"a": (("x", "y"), values.copy())})
    keys = list(iterate_blocks(one.a.variable))
    for key in keys:
        seen[key] += 1
    assert (seen == 1).all()
    assert len(keys) == 4
    values[1, 1], values[2999, 4999] = 1.0, 2.0
    actual, _ = compare(one, xr.Dataset({"a": (("x", "y"), values)}))
    expected = "a: 2 of 15000000 values differ, by up to 2, 0.0 and 2.0 at [2999, 4999]"
    assert actual == expected


def make_table(labels: str, values: list[float]) -> xr.Dataset:
    return xr.Dataset(
        {"v": (("doc", "x"), np.full((3, 2), np.array(values, "f8")[:, None]))},
        {"doc": list(labels)},
    )


def test_labels_are_added_removed_and_changed() -> None:
    first, second = make_table("abc", [1, 2, 3]), make_table("cbd", [3, 5, 7])
    *labels, values, summary = compare(first, second)
    assert "variables: 0 equal, 2 different, 0 in only one file" in summary
    assert labels == ["doc: 'a' only in A", "doc: 'd' only in B", "doc: values at 'b' differ"]
    assert values.startswith("v: 2 of 4 values differ")
    reordered, summary = compare(first, make_table("cab", [3, 1, 2]))
    assert reordered == "doc: the labels have another order"
    assert "variables: 1 equal, 1 different" in summary
    *_, summary = compare(first, first.isel(doc=[0, 1]))
    assert "variables: 1 equal, 1 different" in summary
    assert len(compare(first, first)) == 1


def test_labels_of_blocks_that_differ_are_counted() -> None:
    table = make_table("abc", [1, 2, 3]).rename_vars(doc="user").rename_dims(doc="block")
    blocks = table.assign_coords(film=("block", list("xyz")))
    *found, summary = compare(blocks, blocks.assign_coords(film=("block", list("xyw"))))
    assert found == ["block: ['c', 'z'] only in A", "block: ['c', 'w'] only in B"]
    assert "variables: 2 equal, 1 different" in summary


@pytest.mark.parametrize("dtype", ["i8", "u1", "M8[ns]"])
def test_integers_and_times_are_labels(dtype: str) -> None:
    first = make_table("abc", [1, 2, 3]).assign_coords(doc=np.array([1, 2, 3], dtype))
    second = first.isel(doc=[2, 1]).copy(deep=True)
    second.v[0, 0] = 7
    *labels, values, _ = compare(first, second)
    pattern = r"doc: '?(1970.*)?{}'? only in A", r"doc: values at '?(1970.*)?{}'? differ"
    assert len(labels) == 2
    for line, expected, number in zip(labels, pattern, "13", strict=True):
        assert re.fullmatch(expected.format(number), line), line
    assert re.fullmatch(r"v: 1 of 4 .*, 3.0 and 7.0 at \[doc='?(1970.*)?3'?, 0\]", values), values
    missing = first.assign_coords(doc=np.array([1, 2, "NaT"], dtype)) if dtype[0] == "M" else first
    assert "2 equal, 0 different" in compare(missing, missing)[0]
    strings = compare(first, first.assign_coords(doc=["1", "2", "3"]))
    assert strings[-2].startswith("doc: 3 of 3 values differ, ")  # compared by position


def test_many_labels_are_listed_in_one_line() -> None:
    first = xr.Dataset({"v": ("doc", np.arange(5.0))}, {"doc": [f"u{n}" for n in range(5)]})
    lines = compare(first, first.assign_coords(doc=[f"w{n}" for n in range(5)]))
    assert lines[:-1] == [
        "doc: 5 labels, 'u0', 'u1', 'u2', 'u3', 'u4' only in A",
        "doc: 5 labels, 'w0', 'w1', 'w2', 'w3', 'w4' only in B",
    ]
    wide = xr.Dataset({"v": ("doc", np.arange(2000.0))}, {"doc": [f"u{n}" for n in range(2000)]})
    *lines, _ = compare(wide, first)
    assert len(lines) == 1
    assert re.fullmatch(r"doc: 1995 labels, 'u5', .* ... .* 'u1999' only in A", lines[0])


@pytest.mark.slow
def test_coordinates_are_listed_once_for_all_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = xr.Dataset({f"w{i}": (f"w{i}_dim_0", np.arange(3)) for i in range(50)})
    listed, coords = [], xr.Dataset.coords.fget
    monkeypatch.setattr(xr.Dataset, "coords", property(lambda ds: listed.append(ds) or coords(ds)))
    assert len(compare(ds, ds)) == 1
    assert len(listed) == 2


@pytest.mark.parametrize("name", ["a.tbf", "a.nc", "a.zarr"])
def test_labels_of_files_are_compared(name: str) -> None:
    second = name.replace("a.", "b.")
    for path, ds in ((name, make_table("abc", [1, 2, 3])), (second, make_table("cbd", [3, 5, 7]))):
        table = ds.rename(v="tensor")
        save("table.tbf", table)
        run_ok("convert", "table.tbf", path, "--overwrite")
    output = run_for_different(name, second)
    assert f"doc: 'a' only in {name}\n" in output
    assert f"doc: 'd' only in {second}\n" in output
    assert "doc: values at 'b' differ\n" in output
    assert "the shapes" not in output


def test_tensors_of_one_shape_are_compared_and_described_one_by_one() -> None:
    names = [f"w{i}" for i in range(6)]
    values = np.arange(24, dtype="f4").reshape(6, 4)
    ds = xr.Dataset({name: (f"{name}_dim_0", row) for name, row in zip(names, values, strict=True)})
    save("a.safetensors", ds)
    other = ds.copy(deep=True)[names[::-1]]  # another order
    other["w1"][2], other["w4"][:] = 7.5, np.nan
    save("b.safetensors", other.assign(scale=2.0))
    output = run_for_different("a.safetensors", "b.safetensors")
    assert "w1: 1 of 4 values differ, by up to 1.5, 6.0 and 7.5 at [2]\n" in output
    assert "w4: 4 of 4 values differ, by up to nan, 16.0 and 'nan' at [0]\n" in output
    assert "4 equal, 2 different, 1 in only one file" in output


def write_pair(name: str, directory: Path) -> tuple[Path, Path]:
    """Write equal tensors to two directories, so that sibling files keep their names."""
    for part in ("a", "b"):
        (directory / part).mkdir()
    first = write(make_array(), directory / "a", name)
    for file in (directory / "a").iterdir():
        shutil.copy2(file, directory / "b")
    return first, directory / "b" / first.name


@pytest.mark.parametrize("name", WRITABLE)
def test_one_value_or_byte_is_found(name: str, tmp_path: Path) -> None:
    first, copy = write_pair(name, tmp_path)
    array = make_array()
    array[7, 9] += 1
    write(array, copy.parent, name, mode="w")
    output = run_for_different(str(first), str(copy))
    assert "1 of 150000 values differ, by up to 1, " in output


@pytest.mark.parametrize("suffix", ["yaml", "safetensors.index.json"])
def test_siblings_of_copies_are_compared(suffix: str, tmp_path: Path) -> None:
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        ds = xr.Dataset({"tensor": (("State", "State_2"), np.full((3, 3), ord(part), "f8"))})
        options: dict[str, Any] = {"drop": ["name", "dims"]} if suffix == "yaml" else {}
        to_file(ds, tmp_path / part / f"model.{suffix}", **options)
    first, second = (tmp_path / part / f"model.{suffix}" for part in ("a", "b"))
    second.write_bytes(first.read_bytes())
    assert "9 of 9 values differ" in run_for_different(str(first), str(second))


def test_warnings_of_copies_name_both_files() -> None:
    content = Path(save("a.mag")).read_bytes() + b"more"
    for path in ("a.mag", "b.mag"):
        Path(path).write_bytes(content)
    result = run("diff", "a.mag", "b.mag", "--open-option", "verify=false")
    assert result.exit_code == 0
    warned = [line.split(": ")[1] for line in result.stderr.splitlines()]
    assert [Path(path).name for path in warned] == ["a.mag", "b.mag"]


# --group, and totals


def make_layers() -> xr.Dataset:
    ones = np.ones((2, 3), "f4")
    keys = ("embed", "layers.0.w", "layers.0.b", "layers.1.w")
    return xr.Dataset(dict.fromkeys(keys, (("m", "n"), ones)), attrs={"model": "tiny"})


def test_info_shows_totals() -> None:
    layers = [name for name in make_layers() if str(name).startswith("layers.")]
    save("a.mag", make_layers(), encoding={key: {"dtype": "bfloat16"} for key in layers})
    assert "Total:\n  4 tensors, 24 parameters, 60 B\n" in run_ok("info", "a.mag")
    (actual,) = json.loads(run_ok("info", "a.mag", "--json"))
    assert actual["totals"] == {"tensors": 4, "parameters": 24, "size": 60}
    assert "Total" not in run_ok("info", write_vertex())


def test_info_of_group() -> None:
    save("a.mag", make_layers())
    for group in ("layers.0", "/layers/0"):
        (actual,) = json.loads(run_ok("info", "a.mag", "--group", group, "--json"))
        assert list(actual["variables"]) == ["w", "b"]
        assert actual["totals"]["parameters"] == 12
        assert actual["size"] == Path("a.mag").stat().st_size
    assert "group='head' is not in the file" in run("info", "a.mag", "--group", "head").stderr


def test_group_is_converted() -> None:
    save("a.mag", make_layers())
    run_ok("convert", "a.mag", "b.mag", "--group", "layers.0")
    assert list(load_any("b.mag")) == ["w", "b"]
    ds = make_layers().rename({key: key.replace(".", "::") for key in make_layers()})
    save("d.mag", ds)
    group = ["--group", "layers::0", "--open-option", "separator=::"]
    run_ok("convert", "d.mag", "e.mag", *group)
    assert list(load_any("e.mag")) == ["w", "b"]
    assert "2 equal" in run_ok("diff", "b.mag", "e.mag")


@pytest.mark.parametrize("store", ["b.zarr", "b.nc"])
def test_group_of_store_is_converted_and_compared(store: str) -> None:
    make_layers()[["embed"]].to_zarr("b.zarr", group="layers/0", consolidated=False)
    make_layers()[["embed"]].to_netcdf("b.nc", group="layers/0")
    for group in ("layers.0", "/layers/0"):
        run_ok("convert", store, "c.mag", "--group", group, "--overwrite")
        assert list(load_any("c.mag")) == ["embed"]


def test_group_of_two_files_is_compared() -> None:
    save("a.mag", make_layers())
    save("b.mag", make_layers().assign(embed=make_layers().embed + 1))
    assert "1 different" in run_for_different("a.mag", "b.mag")
    assert "2 equal" in run_ok("diff", "a.mag", "b.mag", "--group", "layers.0")


def test_file_without_group_is_named() -> None:
    save("a.mag", make_layers())
    save("b.mag", make_layers())
    result = run("diff", "a.mag", "b.mag", "--group", "zz")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: a.mag: group='zz'")
