"""Writing a region of an existing file."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import re
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests import magfiles as mf
from tests.opening import load
from tests.work import limit_calls, limit_memory
from tests.workflows.formats import WRITABLE, make_array, open_array, write
from xr_tensorfmt import SourceChangedError, TensorFormatError, to_file
from xr_tensorfmt.core.elements import Plain, get_stored_name
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.layout import Dense, Transposed, read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.formats.vespa import read as vespa_read
from xr_tensorfmt.formats.vespa.spec import decode_labels
from xr_tensorfmt.sources import find_source
from xr_tensorfmt.sources.local import LocalFile
from xr_tensorfmt.writing.blocks import divide_variables, plan_tasks
from xr_tensorfmt.writing.file_plan import Conversion, PlannedVariable


def make_base() -> xr.Dataset:
    return xr.Dataset(
        {
            "a": (("x", "y"), np.arange(24, dtype="f4").reshape(4, 6)),
            "b": ("y", np.arange(6, dtype="i2")),
        },
        {"x": [1.5, 2.5, 3.5, 4.5], "label": "text", "level": ("y", np.arange(6, dtype="i4"))},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "a.mag"
    to_file(make_base(), file, "mag", encoding={"a": {"dtype": "bfloat16"}})
    return file


def patch(*shape: int, value: float = -1, dtype: str = "f4", dims=("x", "y")) -> xr.Dataset:
    return xr.Dataset({"a": (dims, np.full(shape, value, dtype))})


def test_only_region_changes(path: Path) -> None:
    size = path.stat().st_size
    to_file(patch(2, 3), path, "mag", region={"x": slice(1, 3), "y": slice(-3, None)})
    expected = make_base()
    expected.a[1:3, 3:] = -1
    xr.testing.assert_identical(load(path), expected)
    assert path.stat().st_size == size
    assert (
        get_stored_name(xr.open_dataset(path, engine="tensorfmt").a.encoding["dtype"]) == "bfloat16"
    )
    assert os.listdir(path.parent) == ["a.mag"]


CONTENT = bytearray()  # a global, because dask copies its arguments


class InMemory:
    def write(self, batches) -> int:
        for extents, raw in batches:
            position = 0
            for offset, count in zip(extents.starts, extents.lengths, strict=True):
                CONTENT[offset : offset + count] = raw[position : position + count].tobytes()
                position += count
        return 0


@given(data=st.data())
def test_any_region_of_any_chunks_in_any_order_of_axes(data) -> None:
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    axes = data.draw(st.permutations(range(len(lengths))))
    before = np.arange(np.prod(lengths), dtype=">i4").reshape(lengths)
    CONTENT[:] = b"head" + before.tobytes()
    inner = Dense(tuple(lengths), Plain(np.dtype(">i4")), 4)
    layout = Transposed(inner, tuple(axes))
    cut, chunks = [], []
    for length in layout.shape:
        start = data.draw(st.integers(0, length))
        stop = data.draw(st.integers(start, length))
        middle = data.draw(st.integers(0, stop - start))
        cut.append(slice(start, stop))
        chunks.append((middle, stop - start - middle))
    expected = before.transpose(axes).copy()
    part = -1 - expected[tuple(cut)].astype("i4")
    expected[tuple(cut)] = part

    dims = [f"d{axis}" for axis in range(len(lengths))]
    variable = xr.Variable(dims, da.from_array(part, chunks=tuple(chunks)))
    indices = tuple(range(part.start, part.stop) for part in cut)
    in_file_order = tuple(indices[axes.index(axis)] for axis in range(len(axes)))
    conversion = Conversion("a", inner.element, exact=True)
    placed = PlannedVariable(variable, layout, conversion, in_file_order)
    files = [(InMemory(), divide_variables([placed]))]
    plan_tasks(files).compute(scheduler="synchronous")
    actual = read(layout, find_source(bytes(CONTENT))[0], Selection.everything(layout.shape))
    np.testing.assert_array_equal(actual, expected)
    assert CONTENT[:4] == b"head"


def test_dims_may_have_another_order(path: Path) -> None:
    values = np.arange(4, dtype="f4").reshape(2, 2)
    to_file(
        xr.Dataset({"a": (("y", "x"), values)}),
        path,
        "mag",
        region={"x": slice(2), "y": slice(1, 3)},
    )
    np.testing.assert_array_equal(load(path).a[:2, 1:3], values.T)


def test_empty_region_writes_whole_variables(path: Path) -> None:
    to_file(make_base()[["b"]].drop_vars("level") * np.int16(2), path, region={})
    xr.testing.assert_identical(load(path), make_base().assign(b=make_base().b * np.int16(2)))


def test_delayed_region(path: Path) -> None:
    task = to_file(patch(1, 6).chunk(y=2), path, "mag", region={"x": slice(1)}, compute=False)
    xr.testing.assert_identical(load(path), make_base())
    task.compute()
    assert (load(path).a[0] == -1).all()


def test_empty_regions_change_nothing(path: Path) -> None:
    to_file(patch(0, 6), path, "mag", region={"x": slice(2, 2)})
    xr.testing.assert_identical(load(path), make_base())


def test_files_of_other_programs_are_written_to(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    path.write_bytes(mf.make_archive({"w": mf.put(np.arange(6, dtype="f2").reshape(2, 3))}))
    dims = ("w_dim_0", "w_dim_1")
    to_file(
        xr.Dataset({"w": (dims, np.ones((2, 1), "f8"))}),
        path,
        "mag",
        region={"w_dim_1": slice(1, 2)},
    )
    np.testing.assert_array_equal(load(path).w, [[0, 1, 2], [3, 1, 5]])


def test_numbers_are_rounded_only_if_requested(path: Path) -> None:
    with pytest.raises(ValueError, match=r"'a' contains .*1\.1.*, which bfloat16 cannot represent"):
        to_file(patch(1, 6, value=1.1), path, "mag", region={"x": slice(1)})
    to_file(
        patch(1, 6, value=1.1),
        path,
        "mag",
        region={"x": slice(1)},
        encoding={"a": {"dtype": "bfloat16"}},
    )
    assert (load(path).a[0] == np.float32(1.1015625)).all()


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("suffix", ["tens", "mag", "safetensors", "pycauset"])
@pytest.mark.parametrize("attribute", ["_FillValue", "missing_value"])
def test_masked_integers_are_rounded_only_if_requested(
    tmp_path: Path, attribute: str, suffix: str, is_chunked: bool
) -> None:
    path = tmp_path / f"a.{suffix}"
    whole = xr.Dataset({"w": ("x", [1, np.nan, 3])})
    to_file(whole, path, encoding={"w": {"dtype": "i2", attribute: -1}})
    part = xr.Dataset({"w": ("x", [2.6])})
    part = part.chunk() if is_chunked else part
    check_refused(part, path, {"x": [0]}, r"'w' contains .*2\.6.*, which int16 cannot represent")
    to_file(part.round(), path, region={"x": [1]})
    to_file(part, path, region={"x": [2]}, encoding={"w": {"dtype": "i2"}})
    np.testing.assert_array_equal(load(path).w, [1, 3, 3])


def check_refused(data: xr.Dataset, path: Path, region, match: str, **options) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match=match):
        to_file(data, path, region=region, **options)
    assert path.read_bytes() == before


SLICES = [slice(0, 4, 2), slice(None, None, -1), slice("a", "b")]


@pytest.mark.parametrize("requested", SLICES, ids=map(str, SLICES))
def test_region_requires_slices_of_step_1(path: Path, requested) -> None:
    check_refused(patch(4, 6), path, {"x": requested}, "a slice of positions with step 1")


@pytest.mark.parametrize("requested", [1, "x", None])
def test_region_requires_slices_or_lists(path: Path, requested) -> None:
    check_refused(patch(4, 6), path, {"x": requested}, "pass a slice .*, a list of positions")


@pytest.mark.parametrize("requested", [[0, 0, 1, 2], [0, 1, 2, 4], [-1, 0, 1, 2], [1, 0, 3, 3]])
def test_listed_positions_are_different_and_in_the_file(path: Path, requested) -> None:
    check_refused(patch(4, 6), path, {"x": requested}, "expected different ones from 0 to 3")


@pytest.mark.slow
def test_listed_positions_and_labels_of_the_data_may_have_any_order(path: Path) -> None:
    part = make_base()[["a"]].isel(x=[3, 0, 1]).drop_vars("level") * np.float32(-1)
    expected = make_base()
    expected.a[[3, 0, 1]] *= -1
    for region in (
        {"x": [3, 0, 1]},
        {"x": [3, 0, 1]},
        {"x": xr.Variable("x", [3, 0, 1])},
        {"x": "auto"},
    ):
        to_file(make_base().a.to_dataset().drop_vars("level"), path, region={"x": slice(None)})
        for data in (part, part.chunk(x=2, y=3)):
            to_file(data, path, region=region)
            xr.testing.assert_identical(load(path), expected)
    both = patch(2, 2, value=7)
    to_file(both, path, region={"x": np.array([2, 0]), "y": [5, 1]})
    expected.a[[2, 0], [5, 1]] = 7
    expected.a[2, 1] = expected.a[0, 5] = 7
    xr.testing.assert_identical(load(path), expected)
    check_refused(patch(2, 6), path, {"x": [0, 1, 2]}, "selects 3 of 4 elements along 'x'")
    for labels in ([1.5, 2.5], ["a", "b"], [("a", 1), ("b", 2)], part.x, [True, False]):
        check_refused(patch(2, 6), path, {"x": labels}, r"indexes\['x'\].get_indexer\(labels\)")


@pytest.mark.parametrize("suffix", ["tbf", "pycauset", "safetensors", "tens", "npy"])
def test_scattered_rows_of_every_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    values = np.random.default_rng(0).random((500, 70)) < 0.5 if suffix == "pycauset" else None
    values = np.arange(500 * 70, dtype="f8").reshape(500, 70) if values is None else values
    doc = {"doc": [f"d{n}" for n in range(500)]} if suffix == "tbf" else {}
    table = xr.DataArray(values, doc, ("doc", "x"), name="tensor")
    to_file(table, path, drop=["dims", "name"] if suffix == "npy" else [])
    table = load(path).tensor
    rows = np.random.default_rng(1).permutation(500)[:100]
    changed = table.copy(data=~values if values.dtype == bool else -values)
    to_file(changed[rows], path, region={table.dims[0]: rows})
    values[rows] = changed.values[rows]
    np.testing.assert_array_equal(load(path).tensor, values)
    if doc:
        positions = table.indexes["doc"].get_indexer(["d9", "d2"])
        to_file(changed.isel(doc=[9, 2]), path, region={"doc": positions})
        assert (load(path).tensor[[2, 9]] == changed[[2, 9]]).all()


def test_positions_of_labels_select_a_region(tmp_path: Path) -> None:
    path = tmp_path / "a.tbf"
    table = xr.DataArray(np.ones((3, 2)), {"doc": ["b", "c", "a"]}, dims=("doc", "x"))
    to_file(table, path)
    rows = table.indexes["doc"].slice_indexer("c", "a")
    to_file(2 * table.sel(doc=["c", "a"]), path, region={"doc": rows})
    assert load(path).tensor[:, 0].values.tolist() == [1, 2, 2]
    with pytest.raises(ValueError, match=r"no variable 'emb', only .*; rename the variable"):
        to_file(table.rename("emb"), path, region={})


def test_labels_that_are_not_utf8_elsewhere_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "a.tbf"
    labels = ["b", "\udcff", "a"]
    table = xr.DataArray(np.ones((3, 2)), {"doc": labels}, dims=("doc", "x"), name="tensor")
    to_file(table, path)
    for region in ({"doc": [2]}, {"doc": "auto"}, "auto"):
        to_file(table[[2]] * 5, path, region=region)
    to_file(table[[1]] * 3, path, region="auto")
    kept = xr.open_dataset(path, engine="tensorfmt")
    assert kept.tensor[:, 0].values.tolist() == [1, 3, 5]


@pytest.mark.slow
def test_scattered_blocks_need_little_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, decoded = tmp_path / "a.tbf", []

    def record(window: Any, starts: Any, dimension: int) -> list[str]:
        decoded.append(starts.size)
        return decode_labels(window, starts, dimension)

    monkeypatch.setattr(vespa_read, "decode_labels", record)
    labels = [f"d{n:05}" for n in range(20_000)]
    table = xr.DataArray(np.zeros((20_000, 2)), {"doc": labels}, dims=("doc", "x"), name="tensor")
    to_file(table, path)
    part = table[::40] + 1
    with limit_calls(80_000):  # three for each block that is scanned
        to_file(part, path, region={"doc": np.arange(0, 20_000, 40)})
    assert decoded == [500]
    np.testing.assert_array_equal(load(path).tensor.values[::40], part)
    assert load(path).tensor.sum() == 1000


def test_moved_block_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.tbf"
    table = xr.DataArray(np.ones((3, 2)), {"doc": ["aa", "bb", "cc"]}, ("doc", "x"), name="tensor")
    to_file(table, path)
    task = to_file(2 * table[1:2], path, region={"doc": slice(1, 2)}, compute=False)
    to_file(table.assign_coords(doc=["a", "bbb", "cc"]), tmp_path / "other.tbf")
    before = (tmp_path / "other.tbf").read_bytes()
    with path.open("r+b") as stream:  # keeps the inode
        stream.write(before)
    with pytest.raises(SourceChangedError):
        task.compute()
    assert path.read_bytes() == before


@pytest.mark.parametrize("requested", [slice(0, 3), slice(3, 8), slice(9, 11), slice(2, 1)])
def test_region_has_the_length_of_the_data(path: Path, requested: slice) -> None:
    check_refused(patch(2, 6), path, {"x": requested}, "of 4 elements along 'x', but the data")


def test_region_cannot_extend_file(path: Path) -> None:
    check_refused(
        patch(2, 6), path, {"x": slice(4, 6)}, "of the same length, which cannot extend the file"
    )


def test_dimension_that_is_not_sliced_is_written_whole(path: Path) -> None:
    check_refused(patch(4, 2), path, {"x": slice(4)}, "selects 6 of 6 elements along 'y'")


def test_unknown_dimension_raises(path: Path) -> None:
    check_refused(
        patch(4, 6), path, {"z": slice(1)}, "names 'z', expected some of the dimensions 'x'"
    )


def test_unknown_variable_raises(path: Path) -> None:
    check_refused(
        patch(4, 6).rename(a="c"), path, {}, "has no variable 'c', only 'a', 'b', 'level'"
    )


def test_renaming_to_the_dims_of_the_file_is_named(path: Path) -> None:
    ds = xr.open_dataset(path, engine="tensorfmt", dims={"a": ("u", "v")})[["a"]].load()
    message = re.escape("rename them by ds.rename({'u': 'x', 'v': 'y'}), also in region=")
    check_refused(ds, path, {"u": slice(None)}, message)
    to_file(ds.rename({"u": "x", "v": "y"}) * 2, path, region={"x": slice(None)})


def test_other_dims_raise(path: Path) -> None:
    check_refused(
        patch(4, 6).rename(x="u"), path, {}, r"has dims \('u', 'y'\), but .* has \('x', 'y'\)"
    )


def test_labels_along_region_must_be_those_of_file(path: Path) -> None:
    part = make_base()[["a"]].isel(x=slice(1, 3))
    to_file(part * 2, path, "mag", region={"x": slice(1, 3)})
    expected = make_base().a.values
    expected[1:3] *= 2
    np.testing.assert_array_equal(load(path).a, expected)
    differs = r"the coordinate 'x' is .*, but the region of .* has .*; correct region="
    check_refused(part, path, {"x": slice(2, 4)}, differs)
    check_refused(part.assign_coords(x=part.x + 1), path, {"x": slice(1, 3)}, differs)
    check_refused(part, path, {"x": slice(1, 4)}, "selects 3 of 4 elements along 'x'")


def test_error_lists_all_other_coordinates(path: Path) -> None:
    part = make_base()[["a"]].isel(x=slice(1, 3)).assign_coords(level=("y", np.zeros(6, "i4")))
    part = part.assign_coords(x=[1.0, 2.0], number=("x", [7, 8]))
    check_refused(
        part,
        path,
        {"x": slice(1, 3)},
        r"'level' is 0, .*, but the region of the file has 0, 1, .*; "
        r"the coordinate 'x' is 1\.0, 2\.0, but the region of the file has 2\.5, 3\.5; "
        r"the coordinate 'number' is 7, 8, but the region of the file has none; .*"
        r"drop_vars\(\['level', 'x', 'number'\]\)",
    )
    to_file(part.drop_vars(["x", "level", "number"]), path, region={"x": slice(1, 3)})


def test_kept_labels_must_equal_those_of_the_file(path: Path) -> None:
    one = make_base()[["a"]].isel(x=slice(1)).drop_vars("x")
    to_file(one * 2, path, "mag", region={"x": slice(1)})
    np.testing.assert_array_equal(load(path).a[0], 2 * make_base().a[0])
    region = {"x": slice(1)}
    check_refused(one.assign_coords(label="other"), path, region, "'label' is other, but")
    check_refused(one.assign_coords(level=("y", np.zeros(6))), path, region, "'level' is 0.0, 0.0")
    check_refused(one.assign_coords(new=1), path, region, "'new' is 1, but .* has none; cor")


def test_values_unsupported_by_dtype_raise(path: Path) -> None:
    check_refused(patch(4, 6, dtype="c8"), path, {}, "and as bfloat16 it would lose its imag")
    text = xr.Dataset({"b": ("y", np.array(list("abcdef")))})
    check_refused(text, path, {}, "'b' is str32, but 'b' in the file supports only int16")
    requested = {"encoding": {"a": {"dtype": "float16"}}}
    check_refused(
        patch(4, 6), path, {}, "'a' is float16, but .* file supports only bfloat16", **requested
    )
    requested = {"encoding": {"a": {"scale_factor": 0.5}}}
    check_refused(patch(4, 6), path, {}, "cannot give 'a' the encoding .*scale_factor", **requested)


@pytest.mark.parametrize("chunks", [None, {}])
def test_file_is_not_changed_while_it_is_read(path: Path, chunks) -> None:
    lazy = xr.open_dataset(path, engine="tensorfmt", chunks=chunks)[["a"]].drop_vars("x")
    changed = lazy if chunks is None else (lazy + 1).astype("f4")
    link = path.parent / "link.mag"
    link.symlink_to(path)
    for target in (path, link):
        expected = changed.isel(x=[1, 0]).a.values
        to_file(changed.isel(x=[1, 0]), target, "mag", region={"x": slice(2)})
        np.testing.assert_array_equal(load(path).a[:2], expected)
        lazy = xr.open_dataset(path, engine="tensorfmt", chunks=chunks)[["a"]].drop_vars("x")
        changed = lazy if chunks is None else (lazy + 1).astype("f4")


def test_loaded_values_are_not_changed_by_writing_into_their_file(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    before = make_wide(0)
    to_file(before, path)
    loaded = xr.open_dataset(path, engine="tensorfmt").load()
    to_file(make_wide(1), path, region={"x": slice(100)})
    xr.testing.assert_identical(loaded, before)
    xr.testing.assert_identical(load(path), make_wide(1))


@pytest.mark.parametrize("way", ["persist", "mmap"])
@pytest.mark.parametrize("compute", [True, False])
def test_mapped_values_are_not_changed_while_they_are_read(
    tmp_path: Path, way: str, compute: bool
) -> None:
    path = tmp_path / "a.mag"
    values = np.arange(500 * 500, dtype="f4").reshape(500, 500)
    to_file(xr.Dataset({"a": (("x", "y"), values)}), path)
    if way == "persist":
        chunks = {"chunks": {}, "chunk_bytes": "100KiB"}
        held = xr.open_dataset(path, engine="tensorfmt", **chunks).persist()
    else:
        held = xr.open_dataset(path, engine="tensorfmt", io="mmap").load()
    data = held.isel(x=slice(None, None, -1))
    task = to_file(data, path, region={"x": slice(500)}, compute=compute)
    if task is not None:
        task.compute()
    np.testing.assert_array_equal(load(path).a, values[::-1])


@pytest.mark.parametrize(
    "order", [slice(None, None, -1), np.arange(1024)[::-1]], ids=["view", "copy"]
)
@pytest.mark.parametrize("kind", ["memmap", "mmap", "dask"])
def test_maps_of_other_programs_are_not_written_into_their_own_file(
    tmp_path: Path, kind: str, order: Any
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(1024.0))
    if kind == "mmap":
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        values = np.frombuffer(content, offset=128)
    else:
        values = np.load(path, mmap_mode="r")
    array = xr.DataArray(values, dims="dim_0", name="tensor").isel(dim_0=order)
    array = array.chunk(dim_0=100) if kind == "dask" else array
    region = {"dim_0": slice(1024)}
    to_file(array, path, region=region)
    np.testing.assert_array_equal(np.load(path), np.arange(1024.0)[::-1])


def test_map_of_the_file_beside_lazy_values_of_another_is_loaded(tmp_path: Path) -> None:
    path, other = tmp_path / "a.mag", tmp_path / "b.mag"
    values = np.arange(500 * 500, dtype="f4").reshape(500, 500)
    for name in (path, other):
        to_file(xr.Dataset({"a": (("x", "y"), values)}), name)
    chunks = {"chunks": {}, "chunk_bytes": "100KiB"}
    held = xr.open_dataset(path, engine="tensorfmt", **chunks).persist()
    lazy = xr.open_dataset(other, engine="tensorfmt", **chunks)
    both = xr.concat([held.isel(x=slice(300)), lazy.isel(x=slice(100))], "x")
    expected = both.a.values.copy()
    to_file(both, path, region={"x": slice(100, 500)})
    np.testing.assert_array_equal(load(path).a[100:], expected)


def make_wide(value: float) -> xr.Dataset:
    return xr.Dataset({"a": (("x", "y"), np.full((100, 1000), value, "f4"))})


def test_device_has_another_number_on_another_machine(path: Path, monkeypatch) -> None:
    task = to_file(patch(1, 6), path, "mag", region={"x": slice(1)}, compute=False)
    stat = os.stat

    def elsewhere(*args: Any, **keywords: Any) -> os.stat_result:
        status = stat(*args, **keywords)
        times = {name: getattr(status, name) for name in dir(status) if name.endswith("_ns")}
        return os.stat_result((*status[:2], status[2] + 1, *status[3:]), times)

    monkeypatch.setattr("xr_tensorfmt.writing.region.os.stat", elsewhere)
    task.compute()
    monkeypatch.undo()
    assert (load(path).a[0] == -1).all()


def test_hard_link_is_same_file(path: Path) -> None:
    link = path.with_name("link.mag")
    link.hardlink_to(path)
    lazy = xr.open_dataset(link, engine="tensorfmt", chunks={})[["a"]].drop_vars("x")
    expected = lazy.a[1:3].values
    to_file(lazy.isel(x=slice(1, 3)), path, "mag", region={"x": slice(2)})
    np.testing.assert_array_equal(load(path).a[:2], expected)


def test_another_file_is_read_while_one_is_changed(path: Path) -> None:
    other = path.parent / "b.mag"
    to_file(make_base() * np.float32(2), other, "mag")
    lazy = xr.open_dataset(other, engine="tensorfmt", chunks={})[["a"]].drop_vars("x")
    to_file(lazy.isel(x=[0]), path, "mag", region={"x": slice(1)})
    np.testing.assert_array_equal(load(path).a[0], 2 * make_base().a[0])


def test_replaced_file_is_not_changed(path: Path) -> None:
    task = to_file(patch(1, 6), path, "mag", region={"x": slice(1)}, compute=False)
    to_file(xr.Dataset({"other": ("z", np.zeros(9, "i4"))}), path, "mag")
    before = path.read_bytes()
    with pytest.raises(SourceChangedError, match="replaced, expected the file whose header"):
        task.compute()
    assert path.read_bytes() == before


def test_earlier_reads_detect_change(path: Path) -> None:
    lazy = xr.open_dataset(path, engine="tensorfmt")
    to_file(patch(1, 6), path, "mag", region={"x": slice(1)})
    with pytest.raises(SourceChangedError, match=r"verify_unchanged=False .* written by region="):
        lazy.load()


@pytest.mark.parametrize("chunks", [None, {}])
def test_one_opened_file_is_changed_part_by_part(path: Path, chunks: Any) -> None:
    expected = 2 * load(path).a
    opened = xr.open_dataset(path, engine="tensorfmt", chunks=chunks, verify_unchanged=False)
    for start in range(0, expected.sizes["x"], 2):
        part = {"x": slice(start, start + 2)}
        to_file(2 * opened[["a"]].isel(part), path, "mag", region=part)
    np.testing.assert_array_equal(load(path).a, expected)


@pytest.mark.parametrize("mode", ["r+", "a"])
def test_modes_of_regions_in_zarr(path: Path, mode: Any) -> None:
    to_file(patch(1, 6), path, "mag", region={"x": slice(1)}, mode=mode)
    assert (load(path).a[0] == -1).all()
    with pytest.raises(ValueError, match="is neither 'w'"):
        to_file(patch(1, 6), path, "mag", mode=mode)


def test_mode_x_and_region_exclude_each_other(path: Path) -> None:
    check_refused(patch(4, 6), path, {}, "existing file, but mode= is for new files", mode="x")


def test_without_file_there_is_no_region(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        to_file(patch(4, 6), tmp_path / "none.mag", region={})


def test_store_has_no_regions() -> None:
    with pytest.raises(ValueError, match="no store can change a part of an object"):
        to_file(patch(4, 6), "s3://bucket/a.mag", region={})


def test_others_may_write_while_header_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = LocalFile.read

    def touched(source, extents):
        os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 10**9))
        return full(source, extents)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFile, "read", touched)
        to_file(patch(1, 6), path, "mag", region={"x": slice(1)})
    assert (load(path).a[0] == -1).all()


def write_rows(path: str, first: int) -> None:
    for row in range(first, 24, 2):
        values = np.full((1, 1000), row, "f4")
        to_file(
            xr.Dataset({"a": (("x", "y"), values)}), path, "mag", region={"x": slice(row, row + 1)}
        )


@pytest.mark.slow
def test_two_processes_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    to_file(xr.Dataset({"a": (("x", "y"), np.zeros((24, 1000), "f4"))}), path, "mag")
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=write_rows, args=(str(path), first)) for first in (0, 1)]
    for file in both:
        file.start()
    for file in both:
        file.join(60)
        assert file.exitcode == 0
    expected = np.broadcast_to(np.arange(24)[:, np.newaxis], (24, 1000))
    np.testing.assert_array_equal(load(path).a, expected)


def test_extents_of_region_do_not_touch_its_neighbours() -> None:
    layout = Dense((4, 6), Plain(np.dtype("<f4")), 100)
    extents = layout.locate(Selection((4, 6), (range(1, 3), range(3, 6))))
    assert isinstance(extents, Extents)
    assert extents.starts.tolist() == [136, 160]
    assert extents.lengths.tolist() == [12, 12]


PACKED: dict[str, dict[str, Any]] = {
    "scale": {"scale_factor": 0.5, "add_offset": 1.0},
    "fill value": {"_FillValue": np.int16(3)},
    "missing value": {"missing_value": np.int16(3), "units": "K"},
    "time": {"units": "days since 2000-01-01", "calendar": "proleptic_gregorian"},
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("suffix", ["mag", "safetensors", "tens"])
def test_decoded_values_are_encoded_as_in_the_file(tmp_path: Path, suffix: str, name: str) -> None:
    path = tmp_path / f"a.{suffix}"
    ds = xr.Dataset({"p": ("x", np.arange(6, dtype="i2"), PACKED[name])})
    to_file(ds, path)
    before = path.read_bytes()
    region = {"x": slice(2, 4)}
    decoded = xr.open_dataset(path, engine="tensorfmt").load().isel(region)
    raw = xr.open_dataset(path, engine="tensorfmt", decode_cf=False).load().isel(region)
    attribute = next(iter(PACKED[name]))
    for data in (decoded, decoded.chunk(), decoded.drop_encoding()):
        to_file(data, path, region=region)
        assert path.read_bytes() == before
    if name == "time":  # numbers are not times
        with pytest.raises(ValueError, match=r"'p' has units=.* but the int16 data lack it"):
            to_file(raw.drop_attrs(), path, region=region)
    other = raw.assign(p=raw.p.assign_attrs({attribute: 7}))
    with pytest.raises(ValueError, match=rf"'p' has {attribute}=.* but .* need 7"):
        to_file(other, path, region=region)
    assert path.read_bytes() == before
    to_file(raw * 0 + raw.astype("i2"), path, region=region)  # keeps attributes
    assert path.read_bytes() == before
    changed = raw.copy(data={"p": np.array([9, 8], "i2")})
    to_file(changed, path, region=region)
    after = xr.open_dataset(path, engine="tensorfmt", decode_cf=False)
    np.testing.assert_array_equal(after.p, [0, 1, 9, 8, 4, 5])
    assert after.p.attrs == ds.p.attrs


def test_attributes_without_a_meaning_for_values_may_differ(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    attrs = {"_FillValue": np.float32("nan"), "units": "eV", "note": "first"}
    to_file(xr.Dataset({"p": ("x", np.zeros(3, "f4"), attrs)}), path, "mag")
    data = xr.Dataset({"p": ("x", np.ones(3, "f4"), {"note": 2})})
    for same in (data, data.assign(p=data.p.assign_attrs(_FillValue=np.float32("nan")))):
        to_file(same, path, "mag", region={})
    np.testing.assert_array_equal(load(path).p, [1, 1, 1])
    with pytest.raises(ValueError, match=r"has units='eV' in the file, .* need 'K'"):
        to_file(data.assign(p=data.p.assign_attrs(units="K")), path, "mag", region={})


@pytest.mark.parametrize("suffix", ["yaml", "safetensors", "pycauset"])
def test_values_without_the_unit_of_the_file_raise(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"v.{suffix}"
    to_file(xr.Dataset({"v": ("x", np.zeros(3), {"unit": 0.5})}), path, drop=["dims"])
    before = path.read_bytes()
    data = xr.open_dataset(path, engine="tensorfmt").load()
    for attrs in ({}, {"applied_unit": 0.5}):
        data.v.attrs = attrs
        with pytest.raises(ValueError, match=r"'v' has unit=0\.5 .* lack it;"):
            to_file(data, path, region={})
    assert path.read_bytes() == before
    data.v.attrs = {"unit": 0.5}
    to_file(data, path, region={})


def test_values_that_the_dtype_of_the_file_cannot_represent_raise(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    to_file(xr.Dataset({"i": ("x", np.arange(4)), "f": ("x", np.ones(4, "f4"))}), path, "mag")
    halves = xr.Dataset({"i": ("x", [0.5, 1.0])})
    for encoding in (None, {"i": {"dtype": "int64"}}):
        with pytest.raises(ValueError, match="change the values, or choose another dtype for"):
            to_file(halves, path, "mag", region={"x": slice(0, 2)}, encoding=encoding)
    tenths = xr.Dataset({"f": ("x", [0.1, 1.0])})
    with pytest.raises(
        ValueError, match=r"pass encoding=.* to approximate such values, or choose 'float64'"
    ):
        to_file(tenths, path, "mag", region={"x": slice(0, 2)})
    to_file(tenths, path, "mag", region={"x": slice(0, 2)}, encoding={"f": {"dtype": "float32"}})
    np.testing.assert_array_equal(load(path).f, np.float32([0.1, 1, 1, 1]))


def test_variables_without_the_dimensions_of_the_region_raise(path: Path) -> None:
    part = make_base()[["a", "b"]].isel(x=slice(1, 2)).drop_vars(["x", "label", "level"])
    check_refused(part, path, {"x": slice(1, 2)}, r"'b' has none of .*drop_vars\('b'\)")
    to_file(part.drop_vars("b"), path, region={"x": slice(1, 2)})


def test_region_is_found_by_labels(path: Path) -> None:
    part = make_base()[["a"]].isel(x=slice(1, 3)) * np.float32(-1)
    part = part.drop_vars("level")
    to_file(part, path, region={"x": "auto"})
    expected = make_base()
    expected.a[1:3] *= -1
    xr.testing.assert_identical(load(path), expected)
    to_file(part * 2, path, region="auto")  # the other dimension has no labels
    expected.a[1:3] *= 2
    xr.testing.assert_identical(load(path), expected)
    check_refused(
        part, path, dict.fromkeys("xy", "auto"), "written data has no coordinate 'y'; pass"
    )
    unlabelled = part.drop_vars("x")
    example = r"data has no coordinate 'x'; pass positions such as region=\{'x': slice\(0, 2\)\}"
    check_refused(unlabelled, path, "auto", example)
    check_refused(part.isel(x=0), path, {"x": "auto"}, "select with a list, as in")
    wrong = part.assign_coords(x=[1.5, 9.0])
    check_refused(wrong, path, {"x": "auto"}, "the labels 9.0 of 'x' do not occur once")
    times = xr.DataArray(
        np.arange(5.0), {"t": np.arange(5).astype("M8[D]").astype("M8[ns]")}, dims="t", name="v"
    )
    file = path.with_suffix(".tens")
    to_file(times, file)
    opened = xr.open_dataset(file, engine="tensorfmt").load()
    to_file(opened.isel(t=slice(2, 4)) * 10, file, region="auto")
    assert load(file).v.values.tolist() == [0, 1, 20, 30, 4]


def test_repeated_labels_are_not_found(tmp_path: Path) -> None:
    file, labels = tmp_path / "a.mag", ["a", "b", "a"]
    to_file(xr.Dataset({"v": ("d", [0, 0, 0])}, {"d": labels}), file)
    for label in "ab":
        part = xr.Dataset({"v": ("d", [1])}, {"d": [label]})
        check_refused(part, file, "auto", f"labels {label} of 'd' do not occur once")
    to_file(xr.Dataset({"v": ("d", [0, 0, 0])}, {"d": ["a", "b", "c"]}), file)
    part = xr.Dataset({"v": ("d", [1, 2])}, {"d": ["b", "b"]})
    check_refused(part, file, "auto", "expected different ones")


@pytest.mark.parametrize("name", WRITABLE)
def test_header_is_compared_before_each_task_writes(tmp_path: Path, name: str) -> None:
    """Another file of the same size may have the same inode."""
    file = write(make_array(shape=(4, 6)), tmp_path, name)
    if name in ("vespa-json", "pycauset"):  # dims of PyCauset are behind the values
        return
    array = open_array(file).load()
    dim = array.dims[0]
    part = array.isel({dim: slice(1)})
    task = to_file(part, file, name, region={dim: slice(1)}, compute=False, drop=["name", "attrs"])
    other = write(make_array(shape=(6, 4)), tmp_path, name, "other")
    changed = [file.with_suffix(".yaml")] if name == "cc4s" else [file]
    sizes = [path.stat().st_size for path in changed]
    for path in changed:
        content = other.read_bytes().replace(b"other", b"file ")
        with path.open("r+b") as stream:  # keeps the inode
            stream.write(content[: sizes[0]].ljust(sizes[0]))
    before = [path.read_bytes() for path in tmp_path.iterdir()]
    with pytest.raises((SourceChangedError, ValueError, TensorFormatError)):
        task.compute()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == before


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["safetensors", "mag"])
def test_tasks_do_not_parse_the_header(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.{suffix}"
    to_file(xr.Dataset({f"v{i}": ("x", np.zeros(16, "f4")) for i in range(300)}), file)
    part = xr.Dataset({"v7": ("x", da.ones(16, dtype="f4", chunks=1))})
    task = to_file(part, file, region={}, compute=False)
    with dask.config.set(scheduler="synchronous"), limit_calls(20_000):
        task.compute()
    assert load(file).v7.values.tolist() == [1] * 16


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [None, 10_000])
def test_memory_of_a_column_is_bounded(tmp_path: Path, chunks: int | None) -> None:
    file = tmp_path / "a.npy"
    np.save(file, np.zeros((40_000, 2)))
    column = xr.DataArray(np.ones((40_000, 1)), name="tensor").isel(dim_1=[0])
    column = column.chunk(dim_0=chunks) if chunks else column
    to_file(column, file, region={"dim_1": [0]})  # imports modules
    with dask.config.set(scheduler="synchronous"), limit_memory(2_000_000):
        to_file(column, file, region={"dim_1": [1]})
    np.testing.assert_array_equal(np.load(file), np.ones((40_000, 2)))


@pytest.mark.filterwarnings("ignore:Times can't be serialized")
@pytest.mark.parametrize(("dtype", "time"), [("i8", "2000-01-01T12"), ("i2", "2262-01-01")])
def test_times_that_do_not_fit_the_units_of_the_file_raise(
    tmp_path: Path, dtype: str, time: str
) -> None:
    file = tmp_path / "a.mag"
    to_file(xr.Dataset({"t": ("x", np.arange(3, dtype=dtype), PACKED["time"])}), file)
    part = xr.Dataset({"t": ("x", np.array([time], "M8[ns]"))})
    words = "has units='days since.* need 'hours since.*; round|int16 cannot represent; change"
    check_refused(part, file, {"x": slice(1)}, words)


MEANINGS: list[dict[str, Any]] = [
    {"scale_factor": 0.5}, {"add_offset": 1}, {"_FillValue": 1}, {"missing_value": [1, 2]},
    {"_Unsigned": "true"}, {"dtype": "bool"}, {"unit": 0.5},
    {"units": "days since 2000-01-01"}, {"units": "days", "dtype": "timedelta64[ns]"},
]  # fmt: skip


@pytest.mark.parametrize("suffix", ["mag", "safetensors", "tens", "pycauset"])
@pytest.mark.parametrize("attrs", MEANINGS, ids=str)
def test_stored_values_do_not_get_another_meaning(
    tmp_path: Path, suffix: str, attrs: dict[str, Any]
) -> None:
    """Data with attributes of CF that the file does not have were written as they are."""
    ints = xr.Dataset({"v": ("x", np.arange(4, dtype="i2"))})
    raw = ints.assign(v=ints.v.assign_attrs(attrs))
    attribute = next(iter(attrs))
    path = tmp_path / f"a.{suffix}"
    to_file(ints, path)
    check_refused(raw, path, {}, f"'v' has {attribute}=None in the file, but .* need .*;")
    to_file(raw, path)
    other = attrs | {attribute: {"units": "hours since 2000-01-01"}.get(attribute, 3)}
    match = rf"has {attribute}=.* in the file, but .* need "
    check_refused(ints.assign(v=ints.v.assign_attrs(other)), path, {}, match)
    if {"_Unsigned", "dtype", "unit", "units"} & attrs.keys():
        check_refused(ints, path, {}, rf"has {attribute}=.* in the file, but .* lack it;")
    before = path.read_bytes()
    to_file(raw, path, region={})
    assert path.read_bytes() == before


DAYS = np.array(["2000-01-03", "2000-01-02"], "M8[ns]")
NOONS = DAYS + np.timedelta64(12, "h")
NOLEAP = xr.date_range("2001-01-02", periods=2, calendar="noleap", use_cftime=True)
SINCE = "days since 2000-01-01"
TIMES_IN_FILES: list[tuple[dict[str, Any], Any, dict[str, Any], Any]] = [
    # attributes of the file, data and their attributes, stored values or words of the error
    ({"units": SINCE}, DAYS, {}, [2, 1]),
    ({"units": f"{SINCE} 00:00:00"}, DAYS, {}, [2, 1]),
    ({"units": "Days since 2000-1-1"}, DAYS, {}, [2, 1]),
    ({"units": SINCE, "calendar": "noleap"}, DAYS, {}, [2, 1]),
    ({"units": SINCE, "calendar": "noleap"}, NOLEAP, {}, [366, 367]),
    ({"units": SINCE}, NOLEAP, {}, [367, 368]),
    ({"units": SINCE, "_FillValue": -1}, np.array(["NaT", "2000-01-02"], "M8[ns]"), {}, [-1, 1]),
    ({"units": SINCE, "scale_factor": 0.5}, NOONS, {}, [5, 3]),
    ({"units": SINCE}, NOONS, {}, "data need 'hours since 2000-01-01'; round"),
    ({"units": SINCE}, DAYS - DAYS[1], {}, f"has units='{SINCE}' .*timedelta.* lack it"),
    ({"units": "days"}, DAYS - DAYS[1], {}, [1, 0]),
    ({"units": "days", "dtype": "timedelta64[s]"}, DAYS - DAYS[1], {}, [1, 0]),
    ({"units": "days"}, NOONS - DAYS[1], {}, "has units='days' in .* need 'hours'; round"),
    ({"units": "days"}, DAYS, {}, "is datetime64.* supports only int16; convert it"),
    ({"units": "K"}, DAYS - DAYS[1], {}, "is timedelta64.* supports only int16; convert it"),
    ({}, DAYS, {}, "is datetime64.* supports only int16; convert it"),
    ({"units": SINCE}, np.array([7, 8]), {"units": f"{SINCE} 00:00:00"}, [7, 8]),
    ({"units": SINCE}, np.array([7, 8]), {"units": SINCE, "calendar": "gregorian"}, [7, 8]),
    (
        {"units": SINCE},
        np.array([7, 8]),
        {"units": SINCE, "calendar": "noleap"},
        "calendar=None in",
    ),
    ({"units": SINCE}, np.array([7, 8]), {"units": "hours since 2000-01-01"}, "need 'hours"),
]


@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
@pytest.mark.filterwarnings("ignore:Time(delta)?s can't be serialized")
@pytest.mark.parametrize("suffix", ["mag", "safetensors", "tens"])
@pytest.mark.parametrize(("stored", "values", "attrs", "expected"), TIMES_IN_FILES)
def test_times_are_written_in_the_units_of_the_file(
    tmp_path: Path, suffix: str, stored: Any, values: Any, attrs: Any, expected: Any
) -> None:
    path = tmp_path / f"a.{suffix}"
    to_file(xr.Dataset({"v": ("x", np.arange(4, dtype="i2"), stored)}), path)
    part = xr.Dataset({"v": ("x", values, attrs)})
    if isinstance(expected, str):
        check_refused(part, path, {"x": slice(1, 3)}, expected)
        return
    to_file(part, path, region={"x": slice(1, 3)})
    after = xr.load_dataset(path, engine="tensorfmt", decode_cf=False)
    np.testing.assert_array_equal(after.v, [0, *expected, 3])
    assert after.v.attrs == stored


LATE = np.array(["2000-01-03T06:00:01"], "M8[ns]")
NEAR = np.array(["1900-01-01T00:00:02"], "M8[ns]")
TIMES_OF_A_DTYPE: list[tuple[dict[str, Any], Any, Any, str]] = [
    ({"dtype": "f4", "units": "seconds since 1900-01-01"}, NEAR, LATE, "3155868001"),
    ({"dtype": "f4", "units": "seconds"}, NEAR - NEAR, LATE - NEAR, "3155867999"),
    ({"dtype": "i4", "units": SINCE}, DAYS[:1], ["NaT"], r"\(NaT in times\)"),
]


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(("encoding", "stored", "new", "words"), TIMES_OF_A_DTYPE)
def test_times_that_the_dtype_of_the_file_cannot_represent_raise(
    tmp_path: Path, is_chunked: bool, encoding: dict[str, Any], stored: Any, new: Any, words: str
) -> None:
    path = tmp_path / "a.tens"
    to_file(xr.Dataset({"t": ("x", stored)}), path, encoding={"t": encoding})
    part = xr.Dataset({"t": ("x", np.asarray(new, stored.dtype))})
    part = part.chunk() if is_chunked else part
    check_refused(part, path, {}, f"'t' contains .*{words}.*, which .* cannot represent")
    to_file(xr.Dataset({"t": ("x", stored)}), path, region={})
    if encoding["dtype"] == "f4":
        to_file(part, path, region={}, encoding={"t": {"dtype": "f4"}})


def test_labels_that_are_rounded_times_do_not_prevent_writing(tmp_path: Path) -> None:
    encoding = {"t": {"dtype": "f4", "units": "days since 1999-01-01"}}
    times = xr.date_range("2000-01-01T08", periods=3)
    for suffix in ("tens", "mag"):
        path = tmp_path / f"a.{suffix}"
        to_file(xr.Dataset({"w": ("t", np.ones(3, "f4"))}, {"t": times}), path, encoding=encoding)
        part = load(path).isel(t=[1]) * 5
        to_file(part, path, region="auto")
        np.testing.assert_array_equal(load(path).w, [1, 5, 1])


@pytest.mark.filterwarnings("ignore:Times can't be serialized")
def test_regions_are_found_by_times(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    days = xr.date_range("2000-01-01", periods=20)
    base = xr.Dataset({"v": ("t", np.zeros(20, "f4"))}, {"t": days})
    to_file(base, path, encoding={"t": {"units": SINCE, "dtype": "int16"}})
    part = xr.Dataset({"v": ("t", np.ones(2, "f4"))}, {"t": days[[13, 2]]})
    to_file(part, path, region="auto")
    np.testing.assert_array_equal(np.flatnonzero(load(path).v), [2, 13])
    noon = part.isel(t=[0]).assign_coords(t=[np.datetime64("2000-01-01T12", "ns")])
    raw = part.assign_coords(t=("t", [48, 24], {"units": "hours since 2000-01-01"}))
    # These are hours 12, 24 and 48 since the first day, and not days 12, 24 and 48.
    check_refused(noon, path, "auto", "'t' has units='days since .* need 'hours since")
    check_refused(raw, path, "auto", "'t' has units='days since .* need 'hours since")
    attrs = {"units": f"{SINCE} 00:00:00", "calendar": "proleptic_gregorian"}
    same = part.assign_coords(t=("t", [4, 3], attrs))
    to_file(same, path, region="auto")
    np.testing.assert_array_equal(np.flatnonzero(load(path).v), [2, 3, 4, 13])


@pytest.mark.parametrize("changed", ["a.safetensors.index.json", "a-00002-of-00002.safetensors"])
def test_headers_of_sibling_files_are_compared_before_each_task_writes(
    tmp_path: Path, changed: str
) -> None:
    index = tmp_path / "a.safetensors.index.json"
    values = {name: (f"{name}_dim_0", np.arange(64.0)) for name in ("v", "w")}
    to_file(xr.Dataset(values), index, max_shard_bytes=512)
    part = load(index)[["w"]].isel(w_dim_0=slice(1)) + 1
    task = to_file(part, index, region={"w_dim_0": slice(1)}, compute=False)
    content = (tmp_path / changed).read_bytes()
    assert content.count(b'"w"') == 1
    with (tmp_path / changed).open("r+b") as stream:  # keeps the inode
        stream.write(content.replace(b'"w"', b'"x"'))
    with pytest.raises(SourceChangedError, match="replaced"):
        task.compute()
    assert (tmp_path / changed).read_bytes() == content.replace(b'"w"', b'"x"')


def test_each_task_reads_heads_of_its_own_file_and_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "a.safetensors.index.json"
    values = {name: (f"{name}_dim_0", np.arange(64.0)) for name in "vwxyz"}
    to_file(xr.Dataset(values), index, max_shard_bytes=512)
    opened: list[str] = []

    def count(path: str, mode: str) -> Any:
        opened.append(os.path.basename(path))
        return open(path, mode)

    monkeypatch.setattr("xr_tensorfmt.writing.region.open", count, raising=False)
    part = load(index)[["w"]].chunk(w_dim_0=16) + 1
    task = to_file(part, index, region={"w_dim_0": slice(64)}, compute=False)
    planned = len(opened)
    task.compute()
    expected = {index.name, "a-00002-of-00005.safetensors"}
    assert set(opened) == expected
    assert (planned, len(opened)) == (2, 2 + 4 * 2)


def test_triangle_without_stored_elements_has_a_region(tmp_path: Path) -> None:
    file, array = tmp_path / "a.pycauset", xr.DataArray(np.zeros((1, 1)), dims=("row", "col"))
    to_file(array.rename("tensor"), file, matrix_type="TRIANGULAR_FLOAT")
    to_file(array.rename("tensor"), file, region={"row": [0]})
    assert not load(file).tensor.any()
