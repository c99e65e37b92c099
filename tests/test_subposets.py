"""Parts of causal matrices, by lists of elements: read quickly, and written as what they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tests import pycausetfiles as pf
from tests.recording import RecordingSource
from xr_tensorfmt.core import indexing
from xr_tensorfmt.core.indexing import plan_outer
from xr_tensorfmt.formats.pycauset import packed
from xr_tensorfmt.formats.pycauset.packed import Bits, Rows
from xr_tensorfmt.sources.memory import Memory


def causal_values(order: int) -> np.ndarray:
    return np.triu(np.random.default_rng(order).random((order, order)) < 0.5, 1)


def causal_file(values: np.ndarray) -> bytes:
    return pf.r1(pf.metadata("CAUSAL", "BIT", *values.shape), pf.triangle(values))


def opened(content: bytes | Path, **keywords: object) -> xr.DataArray:
    return xr.open_dataset(content, engine="tensorfmt", **keywords).tensor


@pytest.mark.parametrize("unpacked", [1, 1 << 10, 2 << 20])
@pytest.mark.parametrize("order", [1, 7, 8, 65, 150])
@pytest.mark.parametrize("diagonal", [None, 1])
def test_columns_of_bits_are_taken_eight_rows_at_a_time(
    order: int, unpacked: int, diagonal: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_UNPACKED", unpacked)
    values = np.random.default_rng(1).random((order, order)) < 0.5
    values = values if diagonal is None else np.triu(values, 1)
    content = pf.dense_bits(values, 8) if diagonal is None else pf.triangle(values)
    layout = Bits(Rows(order, order, 1, 8, 0, diagonal))
    rng = np.random.default_rng(order)
    for count in {1, order // 2 or 1, order - order // 10}:
        rows, columns = (np.sort(rng.permutation(order)[:count]) for _ in range(2))
        plan = plan_outer((rows, columns), layout.shape)
        found = plan.read(layout, Memory(content))
        np.testing.assert_array_equal(found, values[np.ix_(rows, columns)], strict=True)


@pytest.mark.parametrize("most", [1, 1000, 1 << 20])
def test_elements_in_any_order_are_read_once(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "_MOST_REORDERED", most)
    values = causal_values(100)
    content = causal_file(values)
    data = opened(content)
    rng = np.random.default_rng(3)
    for some in (rng.permutation(100), rng.permutation(100)[:90], rng.integers(0, 100, 130)):
        expected = values[np.ix_(some, some)]
        np.testing.assert_array_equal(data.isel(row=some, col=some), expected, strict=True)
        np.testing.assert_array_equal(
            data.isel(row=some, col=slice(9, 2, -1)), values[some, 9:2:-1]
        )
        np.testing.assert_array_equal(data.isel(row=some, col=5), values[some, 5])
        source = RecordingSource(pf.triangle(values))
        layout = Bits(Rows(100, 100, 1, 8, 0, 1))
        found = plan_outer((some, some), layout.shape).read(layout, source)
        np.testing.assert_array_equal(found, expected, strict=True)
        assert source.fetched <= len(pf.triangle(values))


@pytest.mark.parametrize("most", [1, 1 << 20])
def test_all_axes_of_more_than_two_are_brought_into_order(
    most: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(indexing, "_MOST_REORDERED", most)
    cube = xr.DataArray(np.arange(4 * 5 * 6).reshape(4, 5, 6), dims=("x", "y", "z"))
    cube.to_dataset(name="cube").tensorfmt.to_file(tmp_path / "cube.mag")
    lazy = xr.open_dataset(tmp_path / "cube.mag", engine="tensorfmt").cube
    for key in (
        {"x": [3, 1, 1], "y": [4, 0], "z": [2, 2, 5, 0]},
        {"x": [2, 0, 1], "y": 3, "z": [1, 0]},
        {"x": [2, 0, 1], "y": slice(None, None, -2), "z": [1, 0]},
        {"x": [2, 0, 1], "y": [], "z": [1, 0]},
    ):
        xr.testing.assert_equal(lazy.isel(key), cube.isel(key))
