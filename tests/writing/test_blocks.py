"""Block grids, encoding and conversion, without I/O."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import dask
import ml_dtypes
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests.opening import load
from tests.strategies import bits
from xr_tensorfmt import to_file
from xr_tensorfmt.core import layout as layouts
from xr_tensorfmt.core.elements import Boolean, Element, Narrow, Plain, build_file_dtype
from xr_tensorfmt.core.layout import WHOLE, Dense, InMemory, Transposed, file_order, read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.sources import find_source
from xr_tensorfmt.writing import blocks as graph
from xr_tensorfmt.writing.blocks import (
    merge_chunks,
)
from xr_tensorfmt.writing.file_plan import Conversion, format_dtype, is_numeric

chunks_of_axes = st.lists(
    st.lists(st.integers(0, 300), min_size=1, max_size=6).map(tuple), max_size=4
).map(tuple)


@given(chunks=chunks_of_axes, data=st.data())
def test_chunks_are_merged_and_never_cut(chunks, data) -> None:
    units = [data.draw(st.sampled_from([1, 8, 64, WHOLE])) for _ in chunks]
    merged = merge_chunks(chunks, units)
    assert [sum(item) for item in merged] == [sum(chunk) for chunk in chunks]
    for before, after, unit in zip(chunks, merged, units, strict=True):
        stops = list(accumulate(after))
        assert set(stops) <= set(accumulate(before))
        if unit == WHOLE:
            assert len(after) == 1
        else:
            assert all(stop % unit == 0 for stop in stops[:-1])
            assert set(after) == set(before) or unit > 1


@st.composite
def selections(draw) -> Selection:
    extent = draw(st.lists(st.integers(1, 6), max_size=4))
    indices = []
    for length in extent:
        start = draw(st.integers(0, length))
        stop = draw(st.integers(start, length))
        indices.append(range(start, stop))
    return Selection(tuple(extent), tuple(indices))


ELEMENTS = (
    *(Plain(np.dtype(item)) for item in ("<f4", ">f4", "<i2", ">u8", ">c16", "u1")),
    Narrow("bfloat16"),
    Narrow("bfloat16", ">"),
    Narrow("float8_e4m3fn"),
    Boolean(),
)


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda item: f"{item.name}-{item.stored}")
@given(
    selection=selections(), order=st.sampled_from("CFR"), batch=st.sampled_from([1, 40, 1 << 20])
)
def test_encoded_values_round_trip(
    element: Element, selection: Selection, order, batch: int
) -> None:
    rng = np.random.default_rng(0)
    layout = Dense(selection.tensor_shape, element, 7)
    values = element.decode(bits(rng, selection.shape, element.stored))
    held = {"C": values, "F": np.array(values, order="F"), "R": values.T.copy().T}[order]
    size = int(np.prod(selection.tensor_shape)) * element.stored.itemsize
    content = bytearray(b"\xa5" * (7 + size))
    touched = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layouts, "BATCH_BYTES", batch)
        for extents, raw in layout.encode(selection, held):
            assert raw.dtype == np.uint8
            assert raw.nbytes == extents.nbytes
            position = 0
            for start, length in zip(extents.starts, extents.lengths, strict=True):
                content[start : start + length] = raw[position : position + length].tobytes()
                position += length
            touched += extents.nbytes
    assert touched == selection.size * element.stored.itemsize
    if selection.size:
        actual = read(layout, find_source(bytes(content))[0], selection)
        np.testing.assert_array_equal(actual, values)
    others = np.ones(selection.tensor_shape, bool)
    others[np.ix_(*selection.index_arrays)] = False
    raw = np.frombuffer(content, element.stored, offset=7).reshape(selection.tensor_shape)
    assert (np.frombuffer(raw[others].tobytes(), "u1") == 0xA5).all()


def test_layouts_that_are_only_read_raise() -> None:
    with pytest.raises(TypeError, match="in the layout InMemory can only be read"):
        file_order(InMemory(np.zeros(3)))


def test_transposed_layouts_are_written_in_file_order() -> None:
    inner = Dense((2, 3, 4), Plain(np.dtype("<f8")), 0)
    assert file_order(Transposed(inner, (2, 0, 1))) == (inner, (1, 2, 0))
    stored, axes = file_order(inner)
    assert (stored, tuple(axes)) == (inner, (0, 1, 2))


def make_plain(dtype: str) -> Plain:
    return Plain(np.dtype(dtype))


KEPT = {
    "the same": ([1.5, np.nan, -0.0], "f4", make_plain("<f4"), True),
    "other byte order": ([1.5, np.nan, -0.0], ">f4", make_plain("<f4"), True),
    "wider": ([1, 2], "i1", make_plain("<i8"), True),
    "exact floats": ([1.5, np.inf, -np.inf, np.nan], "f8", make_plain("<f2"), True),
    "exact integers": ([0, 1 << 53], "i8", make_plain("<f8"), True),
    "integers of floats": ([3.0, -0.0], "f4", make_plain("<i2"), False),
    "the least integer": ([-(2.0**63)], "f8", make_plain("<i8"), False),
    "rounded": ([0.1, np.inf, np.nan], "f8", make_plain("<f2"), False),
    "exact integers in bfloat16": ([256, 258], "i8", Narrow("bfloat16"), False),
    "bool": ([True, False], "?", make_plain("<f4"), True),
    "truth": ([0.0, 1.0], "f4", Boolean(), True),
    "complex": ([1 + 2j, complex(np.nan, np.inf)], "c16", make_plain("<c8"), False),
    "real as complex": ([1.5], "f4", make_plain("<c8"), True),
    "bfloat16": ([1.0, np.inf, np.nan, -0.0], "f4", Narrow("bfloat16"), True),
    "rounded bfloat16": ([0.1], "f4", Narrow("bfloat16"), False),
    "float8": ([448.0, np.nan, -0.0], "f4", Narrow("float8_e4m3fn"), True),
    "rounded float8": ([449.0, 464.0, 0.001], "f4", Narrow("float8_e4m3fn"), False),
    "nothing": ([], "f4", make_plain("<i1"), True),
}


@pytest.mark.parametrize("case", KEPT)
def test_exact_conversions_succeed(case: str) -> None:
    values, dtype, element, exact = KEPT[case]
    array = np.array(values, dtype)
    actual = Conversion("v", element, exact).apply(array)
    assert actual.dtype == element.dtype
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(actual, array.astype(element.dtype))
    if element.dtype.kind == array.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(actual), np.signbit(array))


LOST = {
    "rounded": ([1.0, 0.1], "f8", make_plain("<f4"), True, "0.1"),
    "too large": ([1e39], "f8", make_plain("<f4"), False, "1e+39"),
    "too large, exact": ([1e39], "f8", make_plain("<f4"), True, "1e+39"),
    "too long": ([(1 << 53) + 1], "i8", make_plain("<f8"), True, "9007199254740993"),
    "the largest integer": ([2**63 - 1], "i8", make_plain("<f8"), True, "9223372036854775807"),
    "the largest of all": ([2**64 - 1], "u8", make_plain("<f8"), True, "18446744073709551615"),
    "too long to round": ([(1 << 53) + 1], "i8", make_plain("<f8"), False, "9007199254740993"),
    "too long for bfloat16": ([257], "i8", Narrow("bfloat16"), False, "257"),
    "in half precision": ([70000], "i4", make_plain("<f2"), False, "70000"),
    "just too large": ([2.0**63], "f8", make_plain("<i8"), False, "9.223372036854776e+18"),
    "just too large, unsigned": (
        [2.0**64],
        "f8",
        make_plain("<u8"),
        False,
        "1.8446744073709552e+19",
    ),
    "half precision to integers": ([np.inf], "f2", make_plain("<u8"), False, "inf"),
    "other integer": ([1, 300], "i8", make_plain("u1"), False, "300"),
    "negative byte": ([-1], "i1", make_plain("u1"), False, "-1"),
    "too large for a sign": ([200], "u1", make_plain("i1"), False, "200"),
    "negative": ([-1], "i8", make_plain("<u8"), False, "-1"),
    "fraction": ([0.5], "f4", make_plain("<i4"), False, "0.5"),
    "no integer": ([np.nan], "f4", make_plain("<i4"), False, "nan"),
    "infinite integer": ([-np.inf], "f4", make_plain("<i4"), False, "-inf"),
    "no truth": ([2], "i1", Boolean(), False, "2"),
    "complex": ([complex(0, 1e300)], "c16", make_plain("<c8"), False, "1e+300j"),
    "half infinite": ([complex(np.inf, 1e300)], "c16", make_plain("<c8"), False, "1e+300j"),
    "bfloat16": ([1.001], "f4", Narrow("bfloat16"), True, "1.001"),
    "large bfloat16": ([3.4e38], "f4", Narrow("bfloat16"), False, "3.4e+38"),
    "float8": ([465.0], "f4", Narrow("float8_e4m3fn"), False, "465.0"),
    "infinite float8": ([np.inf], "f4", Narrow("float8_e4m3fn"), False, "inf"),
    "infinite float8, exact": ([np.inf], "f4", Narrow("float8_e4m3fn"), True, "inf"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", LOST)
def test_inexact_conversions_raise(case: str) -> None:
    values, dtype, element, exact, first = LOST[case]
    array = np.array(values, dtype)
    with pytest.raises(ValueError, match=re.escape(first)) as caught:
        Conversion("v", element, exact).apply(array)
    message = str(caught.value)
    assert message.startswith("'v' contains ")
    assert f"which {element.name} cannot represent; " in message
    if exact and array.dtype.kind not in "iu":  # integers are never rounded
        name = element.name
        hint = f"pass encoding={{'v': {{'dtype': '{name}'}}}} or --dtype v={name} to approximate"
        assert f"{hint} such values, or choose '{array.dtype}' for the file to keep them" in message
    else:
        assert message.endswith(
            "change the values, or choose another dtype for the file to keep them"
        )


@pytest.mark.parametrize("element", [Narrow("bfloat16"), Narrow("float8_e4m3fn")])
def test_rounding_equals_ml_dtypes(element: Element) -> None:
    rng = np.random.default_rng(0)
    values = (rng.normal(size=10000) * 10).astype("f4")
    expected = values.astype(getattr(ml_dtypes, element.name)).astype("f4")
    converted = Conversion("v", element, exact=False).apply(values)
    np.testing.assert_array_equal(element.decode(element.encode(converted)), expected)


def test_scalars_are_encoded() -> None:
    for element in (Narrow("bfloat16"), Narrow("float8_e4m3fn"), Boolean()):
        value = np.ones((), element.dtype)
        assert element.decode(np.asarray(element.encode(value))) == value


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float32, "float32"),
        (">i2", "int16"),
        ("bfloat16", "bfloat16"),
        (np.dtype(ml_dtypes.bfloat16), "bfloat16"),
        (build_file_dtype("float8_e4m3fn", np.dtype("f4")), "float8_e4m3fn"),
        (float, "float64"),
        ("no such", "no such"),
        (3, "3"),
    ],
)
def test_dtypes_are_called_by_their_usual_names(dtype, name: str) -> None:
    assert format_dtype(dtype) == name


@pytest.mark.parametrize(
    ("dtype", "numeric"),
    [
        *((item, True) for item in ("?", "f2", "c8", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)),
        *((item, False) for item in ("O", "S3", "U3", "M8[ns]", "m8[s]", "V4", "i4,i4")),
    ],
)
def test_is_numeric_by_dtype(dtype, numeric: bool) -> None:
    assert is_numeric(np.dtype(dtype)) == numeric


def test_only_dask_arrays_are_written_by_the_scheduler(tmp_path: Path) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("workers")

    path = tmp_path / "a.mag"
    ds = xr.Dataset({"a": ("x", np.arange(6, dtype="f4")), "b": ("y", np.ones(3, dtype="f4"))})
    with dask.config.set(scheduler=refuse):
        to_file(ds, path, "mag")
        to_file(ds[["a"]] * 2, path, "mag", region={})
        xr.testing.assert_equal(load(path), ds.assign(a=ds.a * 2))
        with pytest.raises(ConnectionError, match="workers"):
            to_file(ds.chunk(y=1), path, "mag")
    xr.testing.assert_equal(load(path), ds.assign(a=ds.a * 2))


@pytest.mark.parametrize("name", ["a.safetensors", "a.mag"])
def test_small_values_in_memory_need_no_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(graph, "plan_tasks", None)
    ds = xr.Dataset({f"v{i}": (("x", "y"), np.full((2, 3), i, "f4")) for i in range(50)})
    to_file(ds, tmp_path / name)
    xr.testing.assert_equal(load(tmp_path / name), ds)
    # Opened with dask, each of them is one chunk.
    chunked = xr.open_dataset(tmp_path / name, engine="tensorfmt", chunks={})
    to_file(chunked, tmp_path / f"copied.{name}")
    xr.testing.assert_equal(load(tmp_path / f"copied.{name}"), ds)


def test_small_neighbours_of_several_dtypes_are_written(tmp_path: Path) -> None:
    ds = xr.Dataset({f"v{i}": (("x", "y"), np.full((2, 3), i, "f4").T.copy().T) for i in range(50)})
    ds["v7"], ds["v8"] = ds.v7.astype("f8"), ds.v8.astype(bool)
    ds["large"] = "z", np.arange(1 << 16)
    to_file(ds, tmp_path / "a.safetensors", encoding={"v9": {"dtype": "bfloat16"}})
    xr.testing.assert_equal(load(tmp_path / "a.safetensors"), ds)


@pytest.mark.parametrize("is_contiguous", [True, False])
def test_native_contiguous_values_are_written_at_once(is_contiguous: bool) -> None:
    layout = Dense((1024, 1024), Plain(np.dtype("<f4")), 8)
    values = np.ones((1024, 1024 if is_contiguous else 2048), "f4")[:, :1024]
    batches = list(layout.encode(Selection.everything(layout.shape), values))
    assert len(batches) == (1 if is_contiguous else 4)
    assert np.shares_memory(batches[0][1], values) == is_contiguous
    assert sum(extents.nbytes for extents, _ in batches) == values.nbytes
