"""Every type of key gives the same values as numpy, for every layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xarray.core.indexing import (
    BasicIndexer,
    LazilyIndexedArray,
    NumpyIndexingAdapter,
    OuterIndexer,
    VectorizedIndexer,
)

from tests.lazyarrays import (
    INDEXERS,
    SOURCES,
    assert_same,
    make_numbers,
    make_pair,
    make_source,
    make_stored,
)
from xr_tensorfmt.core import selection as vectorized
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets.lazy_array import TensorArray
from xr_tensorfmt.sources import find_source
from xr_tensorfmt.sources.local import LocalFile

DTYPES = ["<f8", ">f8", "<f4", ">c16", "<c8", "u1", "<i2", ">i4", "<u8", "bool"]


@pytest.fixture(autouse=True)
def _small_limits(always_mapped: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, so that small examples use the code for many elements."""
    monkeypatch.setattr(vectorized, "_LARGE_POINT", 6)
    monkeypatch.setattr(vectorized, "_MAX_POINTS", 5)
    monkeypatch.setattr("xr_tensorfmt.core.layout.MAX_RUNS", 4)
    monkeypatch.setattr("xr_tensorfmt.sources.local._MAX_WINDOW", 300)
    monkeypatch.setattr(Source, "batch_bytes", 40)
    monkeypatch.setattr(Source, "short_gap", 16)
    monkeypatch.setattr(LocalFile, "short_gap", 16)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "tensor.bin"


@st.composite
def tensors(draw: st.DrawFn) -> tuple[np.ndarray, str, int]:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    values = make_numbers(shape, draw(st.sampled_from(DTYPES)))
    return values, draw(st.sampled_from("CF")), draw(st.sampled_from([0, 3, 40]))


fixtures_are_not_reset = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("indexers", INDEXERS)
@fixtures_are_not_reset
@given(tensor=tensors(), data=st.data())
def test_all_types_of_indexers_agree_with_numpy(
    indexers: str, scratch: Path, tensor: tuple, data: st.DataObject
) -> None:
    values, order, offset = tensor
    if indexers == "vectorized" and values.ndim < 2:
        values = values[np.newaxis]
    content, layout = make_stored(values, order, offset)
    sizes = dict(zip("abcdef", values.shape, strict=False))
    key = data.draw(INDEXERS[indexers](sizes=sizes))
    for kind in SOURCES:
        lazy, eager = make_pair(make_source(kind, content, scratch), layout, values)
        assert_same(lazy.isel(key), eager.isel(key))


@fixtures_are_not_reset
@given(tensor=tensors(), data=st.data())
def test_chained_selections_and_transposes_match_numpy(
    scratch: Path, tensor: tuple, data: st.DataObject
) -> None:
    values, order, offset = tensor
    content, layout = make_stored(values, order, offset)
    mapped, eager = make_pair(make_source("mmap", content, scratch), layout, values)
    read, _ = make_pair(LocalFile.open_head(scratch, "read")[0], layout, values)
    arrays = [eager, mapped, read]
    for step in range(data.draw(st.integers(1, 3))):
        axes = data.draw(st.permutations(list(arrays[0].dims)))
        arrays = [array.transpose(*axes) for array in arrays]
        sizes = {dim: size for dim, size in arrays[0].sizes.items() if size}
        if not sizes:
            break
        key = data.draw(st.one_of([indexers(sizes=sizes) for indexers in INDEXERS.values()]))
        key = {dim: _fresh_dims(entry, step) for dim, entry in key.items()}
        arrays = [array.isel(key) for array in arrays]
    for lazy in arrays[1:]:
        assert_same(lazy, arrays[0])


@st.composite
def far_entries(draw: st.DrawFn, length: int, step: int):
    """Draw entries of a key. Slices may begin and end outside of the axis."""
    ends = st.none() | st.integers(-2 * length - 2, 2 * length + 2)
    slices = st.builds(slice, ends, ends, st.sampled_from([None, 1, 2, 5, -1, -2, -5]))
    indices = st.integers(-length, length - 1) if length else st.nothing()
    points = st.lists(indices, min_size=2, max_size=2)
    points = points.map(lambda item: xr.DataArray(item, dims=f"p{step}"))
    lists = st.lists(indices, max_size=4) if length else st.just([])
    return draw(slices | slices | lists | points | indices if length else slices | lists)


@fixtures_are_not_reset
@given(tensor=tensors(), data=st.data())
def test_out_of_bounds_slices_match_numpy(tensor: tuple, data: st.DataObject) -> None:
    values, order, offset = tensor
    content, layout = make_stored(values, order, offset)
    lazy, eager = make_pair(find_source(content)[0], layout, values)
    for step in range(data.draw(st.integers(1, 3))):
        axes = data.draw(st.permutations(list(eager.dims)))
        lazy, eager = lazy.transpose(*axes), eager.transpose(*axes)
        key = {dim: data.draw(far_entries(size, step)) for dim, size in eager.sizes.items()}
        lazy, eager = lazy.isel(key), eager.isel(key)
        assert lazy.shape == eager.shape
    assert_same(lazy, eager)


def _fresh_dims(entry, step: int):
    if isinstance(entry, xr.DataArray):
        return entry.rename({dim: f"{dim}_{step}" for dim in entry.dims})
    return entry


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize(
    "key",
    [
        pytest.param({"a": slice(0, 0, -1)}, id="empty-with-negative-step"),
        pytest.param({"a": slice(3, 3)}, id="empty"),
        pytest.param({"a": []}, id="empty-list"),
        pytest.param({"a": [], "b": [1, 0]}, id="empty-and-list"),
        pytest.param({"a": slice(None, None, -2)}, id="negative-step"),
        pytest.param({"a": slice(-7, None, -1)}, id="begins-before-the-first"),
        pytest.param({"a": slice(-7, None, -1), "b": [0, 2]}, id="begins-before-and-list"),
        pytest.param({"c": slice(-6, -9, -2), "b": 1}, id="ends-before-the-first"),
        pytest.param({"a": slice(-1, -4, -1), "c": slice(None, None, 3)}, id="both-ways"),
        pytest.param({"a": -1, "b": -2, "c": 0}, id="one-element"),
        pytest.param({"a": [3, 0, 3], "c": [-1, 1]}, id="unsorted-and-repeated"),
        pytest.param({"b": [2, 1, 0]}, id="descending-list"),
        pytest.param({"c": [0, 2, 4]}, id="regular-list"),
        pytest.param({"b": [1, 1]}, id="constant-list"),
        pytest.param({"c": [0, 1, 4]}, id="ascending-list"),
    ],
)
def test_difficult_keys(kind: str, order: str, key: dict, scratch: Path) -> None:
    values = make_numbers((4, 3, 5), ">f8")
    content, layout = make_stored(values, order, 8)
    lazy, eager = make_pair(make_source(kind, content, scratch), layout, values)
    assert_same(lazy.isel(key), eager.isel(key))


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_scalars_and_lengths_of_0_and_1(kind: str, shape: tuple[int, ...], scratch: Path) -> None:
    values = make_numbers(shape, "<f8")
    content, layout = make_stored(values, "F", 8)
    lazy, eager = make_pair(make_source(kind, content, scratch), layout, values)
    assert_same(lazy, eager)
    assert_same(lazy.T, eager.T)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize(
    "key",
    [
        pytest.param({"a": ("p", [0, 1, 3]), "b": ("p", [2, 2, 0])}, id="points-and-outer"),
        pytest.param({"a": ("p", [0, 1, 0]), "b": ("p", [2, 2, 2]), "c": 1}, id="repeated"),
        pytest.param({"a": ("p", [0, 3]), "b": ("q", [2, 0])}, id="outer-product"),
        pytest.param({"a": ("p", [0, 0]), "b": ("p", [1, 1])}, id="constant"),
        pytest.param({"a": (("p", "q"), [[0, 3], [1, 1]])}, id="one-array-two-dims"),
        pytest.param(
            {"a": ("p", [0, 3]), "c": ("p", [1, 4]), "b": ("q", [2, 0, 0])}, id="both-kinds"
        ),
        pytest.param(
            {"a": ("p", [0, 3]), "c": ("p", [1, 4]), "b": slice(-9, None, -1)},
            id="points-and-a-slice-that-begins-before",
        ),
    ],
)
def test_vectorised_keys(order: str, key: dict, scratch: Path) -> None:
    values = make_numbers((4, 3, 5), "<i2")
    content, layout = make_stored(values, order, 3)
    key = {
        dim: xr.DataArray(e[1], dims=e[0]) if isinstance(e, tuple) else e for dim, e in key.items()
    }
    lazy, eager = make_pair(make_source("mmap", content, scratch), layout, values)
    assert_same(lazy.isel(key), eager.isel(key))
    assert_same(
        lazy.isel(key).isel(p=slice(None, None, -1)), eager.isel(key).isel(p=slice(None, None, -1))
    )


def test_xarray_lazy_array_still_needs_empty_slice_fix() -> None:
    # If this fails, `LazyTensor._updated_key` can be removed.
    own = xr.Variable("x", LazilyIndexedArray(np.arange(5)))
    assert own[-7::-1].size == 5


def test_array_accepts_three_indexer_types() -> None:
    values = make_numbers((4, 3, 5), "<f8")
    content, layout = make_stored(values, "C", 0)
    array = TensorArray(find_source(content)[0], layout)
    basic = BasicIndexer((slice(None), 1, slice(4, None, -2)))
    outer = OuterIndexer((np.array([3, 1]), slice(None), np.array([0, 4])))
    points = np.array([0, 3, 2]), np.array([2, 0, 1])
    assert np.array_equal(array[basic], values[:, 1, 4::-2])
    assert np.array_equal(array[outer], values[np.ix_([3, 1], [0, 1, 2], [0, 4])])
    rows = np.array([[1], [2]])
    mixed = VectorizedIndexer((points[0][np.newaxis], rows, points[1][np.newaxis]))
    assert np.array_equal(array[mixed], values[points[0], rows, points[1]])


@fixtures_are_not_reset
@given(data=st.data())
def test_vectorized_keys_can_have_slices_whose_axes_follow(data: st.DataObject) -> None:
    values = make_numbers((4, 3, 5), "<f8")
    content, layout = make_stored(values, "C", 0)
    shape = data.draw(st.sampled_from([(2,), (1, 3), (3, 2)]))
    key: list[slice | np.ndarray] = []
    for length in values.shape:
        indices = st.lists(st.integers(0, length - 1), min_size=6, max_size=6)
        points = indices.map(lambda chosen: np.resize(chosen, shape))
        ends = st.none() | st.integers(0, length)
        slices = st.builds(slice, ends, ends, st.sampled_from([None, 1, 2]))
        key.append(data.draw(slices | points))
    indexer = VectorizedIndexer(tuple(key))
    expected = NumpyIndexingAdapter(values).vindex[indexer]
    np.testing.assert_array_equal(TensorArray(find_source(content)[0], layout)[indexer], expected)


@pytest.mark.parametrize("key", [{"a": 4}, {"a": [0, 4]}, {"a": ("p", [4, 0]), "b": ("p", [0, 0])}])
def test_out_of_bounds_keys_raise_index_error(key: dict) -> None:
    values = make_numbers((4, 3), "<f8")
    content, layout = make_stored(values, "C", 0)
    lazy, _ = make_pair(find_source(content)[0], layout, values)
    key = {
        dim: xr.DataArray(e[1], dims=e[0]) if isinstance(e, tuple) else e for dim, e in key.items()
    }
    with pytest.raises(IndexError):
        lazy.isel(key).load()
