"""Functions for causal sets equal the matrix product of numpy, for files and arrays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from xr_tensorfmt import pycauset, to_file
from xr_tensorfmt.formats.pycauset.packed import Packed

SIZE = 75


def make_order(size: int = SIZE) -> np.ndarray:
    u, v = np.random.default_rng(2).random((2, size))
    order = np.argsort(u + v)
    u, v = u[order], v[order]
    return (u[:, None] < u) & (v[:, None] < v)


def wrap(bits: np.ndarray) -> xr.DataArray:
    time = ("row", np.arange(len(bits)) * 0.5)
    return xr.DataArray(bits, {"time": time}, ("row", "col"), name="tensor")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pycauset, "_BLOCK", 32)


@pytest.fixture(params=["file", "chunks", "memory", "dask", "dense", "cyclic"])
def causal(request: pytest.FixtureRequest, tmp_path: Path) -> xr.DataArray:
    """A causal matrix in a file or in memory; the last two are not triangles of bits."""
    bits = make_order()
    if request.param == "dense":
        shuffled = np.random.default_rng(0).permutation(SIZE)
        bits = bits[shuffled][:, shuffled]
    if request.param == "cyclic":
        bits = np.random.default_rng(1).random((SIZE, SIZE)) < 0.2
    if request.param == "memory":
        return wrap(bits)
    if request.param == "dask":
        return wrap(bits).chunk(row=10, col=20)
    to_file(wrap(bits), tmp_path / "order.pycauset")
    chunks = {} if request.param == "chunks" else None
    return xr.open_dataarray(tmp_path / "order.pycauset", engine="tensorfmt", chunks=chunks)


def test_count_between_equals_product(causal: xr.DataArray) -> None:
    bits = causal.values.astype(int)
    counts = pycauset.count_between(causal)
    assert counts.name == "count_between"
    assert counts.chunks == ((32, 32, 11),) * 2
    assert counts.dtype == np.int32
    np.testing.assert_array_equal(counts, bits @ bits)
    xr.testing.assert_equal(counts.time, causal.time)


def test_links_have_no_event_between(causal: xr.DataArray) -> None:
    bits = causal.values
    product = bits.astype(int) @ bits.astype(int)
    links = pycauset.links(causal)
    assert links.dtype == bool
    np.testing.assert_array_equal(links, bits & (product == 0))


def test_interval_sizes_count_related_pairs(causal: xr.DataArray) -> None:
    bits = causal.values
    product = bits.astype(int) @ bits.astype(int)
    sizes = pycauset.interval_sizes(causal)
    np.testing.assert_array_equal(sizes, np.bincount(product[bits], minlength=SIZE))


def test_events_that_precede_themselves_have_no_intervals() -> None:
    causal = xr.DataArray(np.ones((4, 4), bool), dims=("row", "col"))
    with pytest.raises(ValueError, match="an event precedes itself; set the diagonal"):
        pycauset.interval_sizes(causal).compute()


@pytest.mark.parametrize("function", [pycauset.links, pycauset.interval_sizes])
def test_blocks_without_relations_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any
) -> None:
    decode, decoded = Packed.decode, []

    def record(layout: Packed, packed: Any, selection: Any) -> Any:
        decoded.append(selection.size)
        return decode(layout, packed, selection)

    monkeypatch.setattr(Packed, "decode", record)
    sizes = []
    for order in (256, 512):  # the number of relations doubles
        bits = np.triu(np.tri(order, k=20, dtype=bool), 1)
        to_file(wrap(bits), tmp_path / "band.pycauset", matrix_type="CAUSAL")
        causal = xr.open_dataarray(tmp_path / "band.pycauset", engine="tensorfmt")
        decoded.clear()
        function(causal).compute()
        sizes.append(sum(decoded))
    assert sizes[1] < 2.2 * sizes[0]


def test_counts_of_a_file_do_not_load_the_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_file(wrap(make_order()), tmp_path / "order.pycauset")
    causal = xr.open_dataarray(tmp_path / "order.pycauset", engine="tensorfmt", chunks={})
    shapes = []
    read = pycauset._CausalMatrix.read

    def record(matrix: object, row: int, column: int) -> np.ndarray:
        block = read(matrix, row, column)  # type: ignore[arg-type]
        shapes.append(block.shape)
        return block

    monkeypatch.setattr(pycauset._CausalMatrix, "read", record)
    between = pycauset.count_between(causal)
    assert not shapes
    between.compute()
    assert max(shapes) == (32, 32)


def test_result_is_written_and_read(tmp_path: Path) -> None:
    counts = pycauset.count_between(wrap(make_order()))
    to_file(counts.rename("tensor"), tmp_path / "between.pycauset")
    opened = xr.open_dataarray(tmp_path / "between.pycauset", engine="tensorfmt")
    np.testing.assert_array_equal(opened, counts)


@pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info >= (3, 14), reason="pycauset has no wheel"
)
def test_counts_equal_those_of_pycauset(tmp_path: Path) -> None:
    package = pytest.importorskip("pycauset")
    causal = wrap(make_order())
    to_file(causal, tmp_path / "order.pycauset")
    matrix = package.load(str(tmp_path / "order.pycauset"))
    with pytest.warns(package.PyCausetDTypeWarning):
        product = matrix.multiply(matrix)
    expected = [[product[i, j] for j in range(SIZE)] for i in range(SIZE)]
    np.testing.assert_array_equal(pycauset.count_between(causal), expected)


@pytest.mark.parametrize(
    "function", [pycauset.count_between, pycauset.links, pycauset.interval_sizes]
)
def test_wrong_matrices_are_refused(function: object) -> None:
    assert callable(function)
    with pytest.raises(TypeError, match=r"DataArray of bool, .*, not DataArray of float64"):
        function(xr.DataArray(np.ones((3, 3))))
    with pytest.raises(TypeError, match="not ndarray of bool"):
        function(np.ones((3, 3), bool))
    with pytest.raises(ValueError, match=r"square, but the shape is \(3, 2\)"):
        function(xr.DataArray(np.ones((3, 2), bool)))


def test_empty_matrix_has_no_relations() -> None:
    empty = wrap(make_order()).isel(row=[], col=[])
    for function in (pycauset.count_between, pycauset.links):
        assert function(empty).compute().shape == (0, 0)
    assert pycauset.interval_sizes(empty).compute().shape == (0,)
