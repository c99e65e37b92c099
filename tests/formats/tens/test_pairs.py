"""Reading TENS files of pairs."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests import tensfiles as tf
from tests.headers import read_header
from tests.opening import open_lazily
from tests.recording import RecordingSource
from tests.work import limit_memory
from xr_tensorfmt import TensorFormatError
from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.layout import read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.formats.tens import pairs
from xr_tensorfmt.formats.tens.pairs import Operation, Pairs

IDENTITY = (Operation((0, 1), 1),)


@st.composite
def sparse_tensors(draw: st.DrawFn) -> tuple[np.ndarray, list[int]]:
    dtype = draw(st.sampled_from(["<f8", "<f4", "<c16", ">i4", "u1"]))
    lengths = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    total = int(np.prod(lengths))
    indices = draw(st.lists(st.integers(0, total - 1), unique=True, max_size=40))
    if draw(st.booleans()):
        indices = sorted(indices)
    flat = np.zeros(total, dtype=dtype)
    flat[indices] = (np.arange(len(indices)) + 1).astype(dtype)
    return flat.reshape(lengths, order="F"), indices


def make_content(dense: np.ndarray, indices: list[int]) -> bytes:
    return tf.make_index_value(dense.shape, indices, dense.ravel(order="F")[indices])


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pairs") / "tensor"


@given(created=sparse_tensors(), io=st.sampled_from(["auto", "mmap", "read"]), data=st.data())
def test_index_value_files_open_dense_with_zeros_elsewhere(
    created: tuple[np.ndarray, list[int]], io: str, data: st.DataObject, scratch: Path
) -> None:
    dense, indices = created
    scratch.write_bytes(make_content(dense, indices))
    native = dense.astype(dense.dtype.newbyteorder("="))
    sizes = dict(zip("abc", dense.shape, strict=False))
    some = {dim: data.draw(st.slices(size)) for dim, size in sizes.items()}
    picks = [st.lists(st.integers(0, size - 1), min_size=3, max_size=3) for size in sizes.values()]
    points = {
        dim: xr.DataArray(data.draw(pick), dims="p") for dim, pick in zip(sizes, picks, strict=True)
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "ELEMENTS_AT_ONCE", 8)
        patch.setattr("xr_tensorfmt.sources.local._MIN_WINDOW", 1)
        tensor = xr.open_dataset(scratch, engine="tensorfmt", io=io).tensor
        np.testing.assert_array_equal(tensor.values, native, strict=True)
        eager = tensor.copy(data=native)
        # Each selection is the first of an opened file, which finds the pairs.
        for key in (some, points):
            lazy = xr.open_dataset(scratch, engine="tensorfmt", io=io).tensor.isel(key)
            np.testing.assert_array_equal(lazy.values, eager.isel(key).values)


def make_quaternions() -> tuple[bytes, np.ndarray]:
    values = np.arange(8, dtype="<f4").reshape(2, 4)
    dense = np.zeros((3, 4), dtype="f4")
    dense[[2, 0]] = values
    return tf.make_index_value((3,), [2, 0], values, numbers=4), dense


def test_values_of_several_components() -> None:
    content, dense = make_quaternions()
    tensor = open_lazily(content).tensor
    assert tensor.dims == ("a", "component")
    np.testing.assert_array_equal(tensor.values, dense)
    np.testing.assert_array_equal(
        open_lazily(content).tensor.isel(component=[3, 1]).values, dense[:, [3, 1]]
    )
    points = {"a": xr.DataArray([2, 1], dims="p"), "component": xr.DataArray([3, 0], dims="p")}
    assert open_lazily(content).tensor.isel(points).values.tolist() == [3.0, 0.0]


def test_scalar_of_pairs() -> None:
    assert open_lazily(tf.make_index_value((), [0], np.array([2.5]))).tensor.values == 2.5
    assert open_lazily(tf.make_index_value((), [], np.array([]))).tensor.values == 0.0


def test_pairs_may_follow_chunks() -> None:
    content = tf.make_index_value(
        (2, 2), [1], np.ones(1), tf.pack_chunk(b"COMMENT ", b"hi"), tf.pack_symmetry("x", "ba")
    )
    tensor = open_lazily(content).tensor
    assert tensor.values.tolist() == [[0, 0], [1, 0]]
    file_info = tensor.encoding["tensorfmt"]
    assert (file_info["symmetries"], file_info["skipped_chunks"]) == ("x ba", ["COMMENT "])


def test_index_out_of_range_raises() -> None:
    content = tf.make_index_value((2, 2), [1, 4], np.ones(2))
    with pytest.raises(TensorFormatError, match="below 4"):
        open_lazily(content).load()


@pytest.mark.parametrize(
    "indices", [[0, 1, 2, 3, 3], [0, 1, 2, 3, 4, 5, 6, 7, 7], [9, 1, 2, 3, 4, 5, 6, 7, 8, 9]]
)
def test_duplicates_are_found(indices: list[int]) -> None:
    content = tf.make_index_value((10,), indices, np.ones(len(indices)))
    with pytest.raises(TensorFormatError, match=f"pair {len(indices) - 1} .*as in another pair"):
        open_lazily(content).load()


def test_indices_above_2_53_are_exact() -> None:
    indices = [1 << 53, (1 << 53) + 2]
    content = tf.make_index_value((1 << 24, 1 << 30), indices, np.array([5.0, 7.0]))
    column = xr.open_dataset(content, engine="tensorfmt", sparse="dense").tensor[:, 1 << 29]
    for start, stop in [(0, 1), (1, 2), (2, 3), (0, 3), (1, 3)]:
        np.testing.assert_array_equal(column[start:stop], [5.0, 0.0, 7.0][start:stop])


def test_pairs_are_scanned_once_and_are_not_pickled() -> None:
    content = tf.make_index_value((1000,), range(0, 1000, 5), np.ones(200))
    source = RecordingSource(content)
    layout = read_header(source).tensors[0].layout
    assert source.fetched < len(content) or len(content) < 4096
    source.requests.clear()
    empty = Selection((1000,), (range(1, 2),))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: read(layout, source, empty), range(16)))
    assert [length for _, length in source.requests] == [200 * 16]
    copy = pickle.loads(pickle.dumps(layout))
    assert copy == layout
    assert read(copy, source, Selection((1000,), (range(6),))).tolist() == [1, 0, 0, 0, 0, 1]
    assert len(pickle.dumps(layout)) < 2000


SYMMETRIES = {
    "symmetric": [("x", "ba")],
    "antisymmetric": [("-x", "ba")],
    "cyclic": [("x", "bca")],
    "all of S3": [("x", "bac"), ("x", "bca")],
    "Coulomb integrals": [("x", "badc"), ("x", "cdab")],
    "antisymmetrised": [("-x", "bacd"), ("-x", "abdc")],
}


@pytest.mark.parametrize("case", SYMMETRIES)
def test_packed_symmetries_fill_all_related_elements(case: str) -> None:
    names = "abcd"[: len(SYMMETRIES[case][0][1])]
    rng = np.random.default_rng(1)
    values = rng.normal(size=(3,) * len(names))
    images = [(tuple(range(len(names))), 1)]
    for _ in range(4):  # compute the closure by brute force
        for code, index_map in SYMMETRIES[case]:
            axes = tuple(names.index(name) for name in index_map)
            images += [
                (tuple(a[i] for i in axes), s * (-1 if code == "-x" else 1)) for a, s in images
            ]
            images = list(dict.fromkeys(images))
    dense = sum(sign * values.transpose(np.argsort(axes)) for axes, sign in images)
    dense[np.abs(dense) < 1e-12] = 0  # values that cancel must cancel exactly
    done, indices = set(), []
    for flat in rng.permutation(dense.size):
        index = np.unravel_index(flat, dense.shape, order="F")
        related = {tuple(index[a] for a in axes) for axes, _ in images}
        if not related & done and dense[index]:
            indices.append(int(flat))
        done |= related
    chunks = [
        tf.pack_symmetry(code, index_map, packed=True) for code, index_map in SYMMETRIES[case]
    ]
    content = tf.make_index_value(dense.shape, indices, dense.ravel(order="F")[indices], *chunks)
    assert len(indices) < dense.size / 1.4
    np.testing.assert_allclose(open_lazily(content).tensor.values, dense, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        open_lazily(content).tensor[1, ..., :2].values, dense[1, ..., :2], rtol=1e-12, atol=1e-12
    )
    points = {name: xr.DataArray([2, 0, 1, 1][:4], dims="p") for name in names[:-1]}
    points[names[-1]] = xr.DataArray([0, 1, 2, 2], dims="p")
    expected = dense[tuple(points[name].values for name in names)]
    np.testing.assert_allclose(
        open_lazily(content).tensor.isel(points).values, expected, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("dtype", ["<f8", "<c16"])
def test_stored_zero_of_antisymmetric_tensor_is_positive(dtype) -> None:
    chunk = tf.pack_symmetry("-x", "ba", packed=True)
    filled = open_lazily(tf.make_index_value((2, 2), [0, 2], np.array([0, 0], dtype), chunk)).tensor
    assert filled.values.tobytes() == np.zeros((2, 2), dtype).tobytes()


def test_related_elements_may_both_be_stored_if_they_agree() -> None:
    chunk = tf.pack_symmetry("-x", "ba", packed=True)
    content = tf.make_index_value((2, 2), [1, 2, 0], np.array([3.0, -3.0, 0.0]), chunk)
    assert open_lazily(content).tensor.values.tolist() == [[0, -3], [3, 0]]
    nan = tf.make_index_value((2, 2), [1, 2], np.array([np.nan, np.nan]), chunk)
    assert np.isnan(open_lazily(nan).tensor.values[0, 1])


@pytest.mark.slow
def test_memory_for_many_pairs_is_a_multiple_of_their_size(tmp_path: Path) -> None:
    path = tmp_path / "pairs"
    count = 1 << 22  # 64 MiB
    table = np.empty(count, dtype=[("index", "<u8"), ("value", "<f8")])
    table["index"] = np.arange(count, dtype="u8") * 3
    table["value"] = 1.0
    head = tf.pack_header((3 << 11, 1 << 11), version=tf.V1_0, flags=1)
    path.write_bytes(head + count.to_bytes(8, "little") + table.tobytes())
    del table
    tensor = xr.open_dataset(path, engine="tensorfmt", chunks={}).tensor
    with limit_memory(400 << 20):
        first = tensor.isel(b=slice(0, 2)).compute()
    assert float(first.sum()) == 2 * (1 << 11)


def test_extents_of_pairs_cover_all_pairs() -> None:
    layout = Pairs((2, 2), Plain(np.dtype("<f8")), 1, 56, 3, IDENTITY)
    assert layout.bounds == (56, 56 + 48)
