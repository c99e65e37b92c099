"""Writing TENS files of pairs in bounded memory."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
import weakref
from math import prod

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tensfiles as tf
from tests.opening import open_lazily
from tests.processes import run_script
from tests.tensfiles import make_values
from xr_tensorfmt import validate
from xr_tensorfmt.writers import to_tens


def read_embedded(content: bytes) -> bytes:
    """Return the embedded metadata with their padding."""
    return content[content.index(b"XRTENSOR") + 16 : 4088]


def make_expected(values: np.ndarray, embedded: bytes, names: str, *before: bytes) -> bytes:
    """Return a file of all elements with a set bit, by the specification."""
    flat = values.ravel(order="F")
    bits = flat.view(np.uint8).reshape(flat.size, flat.itemsize).any(axis=1)
    indices = np.flatnonzero(bits).tolist()
    chunks = (*before, tf.pack_chunk(b"XRTENSOR", embedded))
    return tf.make_index_value(values.shape, indices, flat[indices], *chunks, names=names)


@st.composite
def sparse_arrays(draw: st.DrawFn) -> xr.DataArray:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    values = make_values(shape, draw(st.sampled_from(["<f8", "<f4", "<c16", "<c8", "<i2", "<u1"])))
    values = np.asarray(values)
    random = np.random.default_rng(draw(st.integers(0, 9)))
    values = np.where(random.random(shape) < draw(st.sampled_from([0, 0.3, 1])), values, 0)
    values = values.astype(values.dtype, order=draw(st.sampled_from("CF")))
    return xr.DataArray(values, dims=list("pqr"[: len(shape)]), name="T", attrs={"units": "eV"})


@settings(max_examples=35)
@given(array=sparse_arrays(), data=st.data())
def test_pairs_in_memory_or_in_chunks_of_file_equal_specification(
    array, data, tmp_path_factory
) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    with pytest.MonkeyPatch.context() as patch:
        target = data.draw(st.sampled_from([1, 100, 31 << 20]))
        patch.setattr("xr_tensorfmt.formats.tens.write.DEFAULT_CHUNK_BYTES", target)
        patch.setattr("xr_tensorfmt.formats.tens.write_pairs.DEFAULT_CHUNK_BYTES", target)
        if array.ndim and data.draw(st.booleans()):
            array = array.chunk({array.dims[-1]: 2})
        to_tens(array, path, sparse=True)
    content = path.read_bytes()
    assert content == make_expected(array.values, read_embedded(content), "".join(array.dims))
    xr.testing.assert_identical(open_lazily(path), array.to_dataset())


@settings(max_examples=35)
@given(array=sparse_arrays(), data=st.data())
def test_pairs_of_any_chunks_give_the_same_tensor(array, data, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    chunks = {dim: data.draw(st.integers(1, 3)) for dim in array.dims}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xr_tensorfmt.writing.block_grids.MIN_RUN_BYTES", 1)
        to_tens(array.chunk(chunks), path, sparse=True)
    back = open_lazily(path)
    xr.testing.assert_identical(back, array.to_dataset())
    assert back["T"].dtype == array.dtype
    to_tens(open_lazily(path, chunks={}), path, sparse=True)  # over the file that is read
    xr.testing.assert_identical(open_lazily(path), array.to_dataset())


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_nan_and_negative_zero_are_kept(dtype, tmp_path) -> None:
    values = np.array([0.0, -0.0, np.nan, 0.0, np.inf], dtype)
    to_tens(xr.DataArray(values, dims="a"), tmp_path / "t", sparse=True)
    stored = open_lazily(tmp_path / "t", sparse="stored")
    assert stored.a.values.tolist() == [1, 2, 4]
    back = open_lazily(tmp_path / "t").tensor.values
    assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize(("other", "word"), [(3, "3"), (1, "1")])
def test_values_that_differ_each_time_raise(other, word, tmp_path) -> None:
    (tmp_path / "t").write_bytes(b"before")
    calls = itertools.count()

    def unstable() -> np.ndarray:
        return (np.arange(5) < (2 if next(calls) == 0 else other)).astype("f8")

    array = da.from_delayed(dask.delayed(unstable, pure=False)(), (5,), "f8")
    ds = xr.Dataset({"tensor": ("a", array)})
    message = f"2 values of a chunk were not zero when they were counted, and {word} when they"
    with pytest.raises(ValueError, match=message):
        to_tens(ds, tmp_path / "t", sparse=True)
    assert (tmp_path / "t").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


class Tracked(np.ndarray):
    """An array that can have a weak reference."""


class Loader:
    """Create chunks, and count those in memory."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.lock, self.live, self.most, self.loads = threading.Lock(), 0, 0, 0

    def __call__(self, block_id=None) -> np.ndarray:
        created = np.full(self.shape, sum(block_id) % 2, float).view(Tracked)
        with self.lock:
            self.loads += 1
            self.live += 1
            self.most = max(self.most, self.live)
        weakref.finalize(created, self.gone)
        return created

    def gone(self) -> None:
        with self.lock:
            self.live -= 1


def test_both_passes_hold_few_chunks_at_once(tmp_path) -> None:
    loader = Loader((1, 4000))
    chunks = ((1,) * 64, (4000,))
    array = da.map_blocks(loader, chunks=chunks, dtype=float, meta=np.empty((0, 0)))
    with dask.config.set(num_workers=4):
        to_tens(xr.DataArray(array, dims=("b", "a")).T, tmp_path / "t", sparse=True)
    assert loader.loads == 64 + 32  # half of the chunks have no pairs
    assert loader.most <= 12
    back = open_lazily(tmp_path / "t", sparse="stored")
    assert back.sizes == {"entry": 32 * 4000}


def test_delayed_write_writes_on_compute(tmp_path) -> None:
    seen = []

    def seen_block(block):
        if block.size:
            seen.append(block.shape)
        return block

    array = da.eye(6, chunks=3).map_blocks(seen_block, dtype=float, meta=np.empty((0, 0)))
    ds = xr.Dataset({"tensor": (("a", "b"), array)})
    tasks = [
        to_tens(ds, tmp_path / name, sparse=True, compute=False, symmetries=symmetries)
        for name, symmetries in {"s": None, "t": None, "u": "x ba"}.items()
    ]
    assert not seen
    assert not list(tmp_path.iterdir())
    dask.compute(*tasks)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "t", "u"]
    for path in tmp_path.iterdir():
        xr.testing.assert_identical(open_lazily(path), ds)


CLUSTER = """
import sys
import dask.array as da, numpy as np, xarray as xr, xr_tensorfmt
from distributed import Client, LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
                      memory_limit="1GiB") as cluster, Client(cluster):
        values = da.eye(40, chunks=10) * da.arange(1, 41, chunks=10)
        ds = xr.Dataset({"tensor": (("a", "b"), values)})
        xr_tensorfmt.to_tens(ds, sys.argv[1], sparse=True, symmetries=["x ba"])
        back = xr.open_dataset(sys.argv[1], engine="tensorfmt", chunks={})
        xr.testing.assert_identical(back, ds)
        xr_tensorfmt.to_tens(back, sys.argv[1], sparse=True)
        stored = xr.open_dataset(sys.argv[1], engine="tensorfmt", sparse="stored", chunks={})
        xr_tensorfmt.to_tens(stored, sys.argv[1])
        xr_tensorfmt.to_tens(ds, sys.argv[1], sparse=True, compute=False).compute()
        xr.testing.assert_identical(xr.open_dataset(sys.argv[1], engine="tensorfmt"), ds)
        print("written")
"""


@pytest.mark.cluster
def test_cluster_of_processes_writes_pairs(tmp_path) -> None:
    assert run_script(CLUSTER, tmp_path / "t", directory=tmp_path) == "written\n"


def test_version_0_9_has_no_pairs(tmp_path) -> None:
    ds = xr.Dataset({"tensor": ("a", np.eye(3)[0])})
    to_tens(ds, tmp_path / "t", sparse=True)
    for data, sparse in ((ds, True), (open_lazily(tmp_path / "t", sparse="stored"), False)):
        with pytest.raises(ValueError, match=r"TENS 0\.9 .* supports neither pairs nor"):
            to_tens(data, tmp_path / "u", version="0.9", sparse=sparse)


def make_dense(shape: tuple[int, ...] = (3, 4, 2)) -> xr.Dataset:
    values = np.where(np.arange(prod(shape)) % 3, 0, np.arange(prod(shape)) + 1.5).reshape(shape)
    return xr.Dataset(
        {"T": (["left", "q", "r"][: len(shape)], values, {"units": "eV"})},
        {"time": 3, "left": list("abc")[: shape[0]]},
        {"title": "some"},
    )


@pytest.mark.parametrize("chunks", [None, {"entry": 3}])
def test_stored_pairs_are_written_sorted(chunks, tmp_path) -> None:
    ds = make_dense()
    to_tens(ds.chunk(left=2, q=2), tmp_path / "t", sparse=True)
    stored = open_lazily(tmp_path / "t", sparse="stored")
    stored = stored if chunks is None else stored.chunk(chunks)
    assert stored["T"].dims == ("entry",)
    assert list(stored.coords) == ["left", "q", "r", "time"]
    assert stored.attrs == {"title": "some"}
    assert stored["T"].attrs == {"units": "eV"}
    to_tens(stored, tmp_path / "u")
    again = open_lazily(tmp_path / "u", sparse="stored")
    order = np.lexsort((stored.left, stored.q, stored.r))
    assert order.tolist() != sorted(order.tolist())
    xr.testing.assert_identical(again, stored.isel(entry=order))
    # Labels of whole dimensions do not fit the pairs.
    back = ds.drop_vars("left").assign_coords(time=3)
    xr.testing.assert_identical(open_lazily(tmp_path / "u"), back)


def test_stored_pairs_can_be_chosen_changed_and_renamed(tmp_path) -> None:
    to_tens(make_dense().drop_vars("left"), tmp_path / "t", sparse=True)
    stored = open_lazily(tmp_path / "t", sparse="stored").rename(left="F", T="V")
    some = stored.isel(entry=slice(None, None, -2))
    some["V"] = some["V"].astype("f4").assign_attrs(some["V"].attrs)
    some["V"].encoding = stored["V"].encoding
    to_tens(some, tmp_path / "u")
    back = open_lazily(tmp_path / "u", sparse="stored")
    xr.testing.assert_identical(back, some.isel(entry=slice(None, None, -1)))
    assert open_lazily(tmp_path / "u").V.dims == ("F", "q", "r")


def test_stored_pairs_of_one_element_raise(tmp_path) -> None:
    to_tens(make_dense().drop_vars("left"), tmp_path / "t", sparse=True)
    stored = open_lazily(tmp_path / "t", sparse="stored").load()
    stored = stored.isel(entry=[0, 1, 2, 1])
    message = r"'T' has two pairs for the element {'left': \d, 'q': \d, 'r': 0}; drop one of them"
    with pytest.raises(ValueError, match=message):
        to_tens(stored, tmp_path / "u")
    assert not (tmp_path / "u").exists()


def test_symmetries_of_stored_pairs_are_an_attribute(tmp_path) -> None:
    content = tf.make_index_value((3, 3), [0, 4], np.ones(2), tf.pack_symmetry("x", "ba"))
    (tmp_path / "t").write_bytes(content)
    stored = open_lazily(tmp_path / "t", sparse="stored")
    to_tens(stored, tmp_path / "u")
    assert b"SYMMETRY" not in (tmp_path / "u").read_bytes()
    back = open_lazily(tmp_path / "u", sparse="stored")
    assert back.tensor.attrs == {"symmetries": "x ba"}
    xr.testing.assert_identical(back, stored)
    with pytest.raises(ValueError, match="not supported for pairs opened with sparse='stored'"):
        to_tens(stored, tmp_path / "u", symmetries="x ba")


def test_stored_pairs_of_packed_symmetries_raise(tmp_path) -> None:
    chunk = tf.pack_symmetry("-x", "ji", packed=True)
    content = tf.make_index_value((3, 3), [3, 2], np.array([1.0, 2.0]), chunk, names="ij")
    (tmp_path / "t").write_bytes(content)
    message = "symmetries such as '-x ji' are not supported for pairs opened with sparse='stored'"
    with pytest.raises(ValueError, match=message):
        to_tens(open_lazily(tmp_path / "t", sparse="stored"), tmp_path / "u")
    assert not (tmp_path / "u").exists()
    to_tens(open_lazily(tmp_path / "t"), tmp_path / "u", sparse=True)
    xr.testing.assert_identical(open_lazily(tmp_path / "u"), open_lazily(tmp_path / "t"))


@pytest.mark.parametrize("shape", [(), (3,)])
def test_files_without_pairs_are_written_again(shape, tmp_path) -> None:
    to_tens(
        xr.DataArray(np.zeros(shape), dims=list("a")[: len(shape)]), tmp_path / "t", sparse=True
    )
    stored = open_lazily(tmp_path / "t", sparse="stored")
    assert stored.sizes == {"entry": 0}
    to_tens(stored, tmp_path / "u")
    assert (tmp_path / "u").read_bytes() == (tmp_path / "t").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ds: ds.drop_vars("q"), r"lost the coordinates .*\(for dimension 1 of 3\); keep"),
        (
            lambda ds: ds.assign_coords(extra=("entry", np.zeros(ds.sizes["entry"]))),
            r"cannot store the coordinate 'extra' of pairs; call drop_vars\('extra'\), or pass d",
        ),
        (
            lambda ds: ds.assign_coords(q=ds.q.assign_attrs(units="m")),
            "cannot store the attributes 'units' of the index 'q'; move them to the variable, or",
        ),
    ],
)
def test_stored_pairs_that_do_not_fit_raise(change, message, tmp_path) -> None:
    to_tens(make_dense().drop_vars("left"), tmp_path / "t", sparse=True)
    stored = open_lazily(tmp_path / "t", sparse="stored")
    changed = change(stored)
    changed["T"].encoding = stored["T"].encoding
    for name in {"left", "q", "r"} & set(changed.coords):
        changed[name].encoding = stored[name].encoding
    with pytest.raises(ValueError, match=message):
        to_tens(changed, tmp_path / "u")
    assert not (tmp_path / "u").exists()


def test_index_outside_of_tensor_raises(tmp_path) -> None:
    to_tens(make_dense().drop_vars("left"), tmp_path / "t", sparse=True)
    stored = open_lazily(tmp_path / "t", sparse="stored").load()
    stored["q"] = stored.q.astype("f8").assign_attrs(stored.q.attrs)
    stored.q.encoding = open_lazily(tmp_path / "t", sparse="stored").q.encoding
    for value in (-1.0, 4.0, np.nan):
        stored.q[2] = value
        with pytest.raises(
            ValueError, match=f"has a pair whose index 'q' is {value}, expected 0 to "
        ):
            to_tens(stored, tmp_path / "u")


def make_symmetric(operations: list[tuple[tuple[int, ...], int]], shape, dtype="f8") -> np.ndarray:
    """Return a tensor with the symmetry of some permutations of its axes."""
    values = np.random.default_rng(1).integers(-9, 9, shape).astype(dtype)
    for _ in range(8):
        for axes, sign in operations:
            values = values + sign * values.transpose(axes)
    return np.where(np.abs(values) % 7 < 5, values, 0)


GROUPS = {
    "x ba": ([((1, 0), 1)], (5, 5)),
    "-x ba": ([((1, 0), -1)], (5, 5)),
    "x acb": ([((0, 2, 1), 1)], (2, 4, 4)),
    "-x bacd, -x abdc": ([((1, 0, 2, 3), -1), ((0, 1, 3, 2), -1)], (3, 3, 4, 4)),
    "x badc, x cdab": ([((1, 0, 3, 2), 1), ((2, 3, 0, 1), 1)], (3, 3, 3, 3)),
}


@pytest.mark.parametrize("text", GROUPS)
@pytest.mark.parametrize("array_type", ["numpy", "alike", "unlike", "lazy", "lazy chunks"])
@pytest.mark.parametrize("sparse", [False, True])
def test_symmetries_are_stated_and_no_element_is_omitted(
    text, array_type, sparse, tmp_path, monkeypatch
) -> None:
    operations, shape = GROUPS[text]
    values = make_symmetric(operations, shape)
    array = xr.DataArray(values, dims=list("abcd"[: values.ndim]), name="tensor")
    monkeypatch.setattr("xr_tensorfmt.formats.tens.write.DEFAULT_CHUNK_BYTES", 200)
    monkeypatch.setattr("xr_tensorfmt.formats.tens.write_pairs.DEFAULT_CHUNK_BYTES", 200)
    if array_type == "alike":
        array = array.chunk(2)
    elif array_type == "unlike":
        array = array.chunk(a=1, b=3)
    elif array_type.startswith("lazy"):
        to_tens(array, tmp_path / "source")
        array = open_lazily(
            tmp_path / "source", chunks={} if "chunks" in array_type else None
        ).tensor
    to_tens(array, tmp_path / "t", sparse=sparse, symmetries=text)
    assert not validate(tmp_path / "t")
    back = open_lazily(tmp_path / "t")
    xr.testing.assert_identical(back.tensor, array.load())
    file_info = back.tensor.encoding["tensorfmt"]
    assert file_info["symmetries"] == text
    assert "packed_symmetries" not in file_info
    if sparse:
        stored = open_lazily(tmp_path / "t", sparse="stored")
        assert stored.sizes["entry"] == np.count_nonzero(values)
    broken = array.load().copy()
    broken[(0,) * (values.ndim - 2) + (0, 1)] += 1
    with pytest.raises(ValueError, match=r"'tensor' is .* at .*, which the symmetry .* does not"):
        to_tens(broken.chunk(2), tmp_path / "t", sparse=sparse, symmetries=text)


def test_bytes_of_pairs_with_symmetry_equal_specification(tmp_path) -> None:
    values = make_symmetric([((1, 0), -1)], (4, 4))
    to_tens(
        xr.DataArray(values, dims=("a", "b")), tmp_path / "t", sparse=True, symmetries=["-x ba"]
    )
    content = (tmp_path / "t").read_bytes()
    assert content == make_expected(
        values, read_embedded(content), "ab", tf.pack_symmetry("-x", "ba")
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_packed_files_are_written_in_full(sparse, conformance, tmp_path) -> None:
    before = open_lazily(conformance / "tens" / "spec_1.0" / "ix_packed_antisym.tens")
    packed = before.tensor.encoding["tensorfmt"]["packed_symmetries"]
    to_tens(before, tmp_path / "t", sparse=sparse)
    back = open_lazily(tmp_path / "t")
    xr.testing.assert_identical(back, before)
    file_info = back.tensor.encoding["tensorfmt"]
    assert file_info["symmetries"] == packed
    assert "packed_symmetries" not in file_info
    if sparse:
        stored = open_lazily(tmp_path / "t", sparse="stored")
        assert stored.sizes["entry"] == np.count_nonzero(before.tensor)


def test_symmetries_hold_up_to_rounding(tmp_path) -> None:
    values = np.array([[1.0, 2.0], [2.0 * (1 + 1e-14), 3.0]])
    array = xr.DataArray(values, dims=("a", "b"))
    for sparse in (False, True):
        to_tens(array, tmp_path / "t", sparse=sparse, symmetries="x ba")
        assert not validate(tmp_path / "t")
        np.testing.assert_array_equal(open_lazily(tmp_path / "t").tensor, values)
    array[0, 1] = 2.001
    with pytest.raises(ValueError, match=r"'tensor' is 2\.0.* at a=., b=. and 2\.0.* at a=., b=."):
        to_tens(array, tmp_path / "t", symmetries="x ba")


def test_file_that_no_longer_has_its_symmetry_raises(tmp_path) -> None:
    content = tf.make_index_value(
        (2, 2), [2], np.ones(1), tf.pack_symmetry("-x", "ba", packed=True)
    )
    (tmp_path / "t").write_bytes(content)
    changed = open_lazily(tmp_path / "t").load()
    changed.tensor[1, 0] = 5
    message = (
        r"'tensor' is 1.0 at a=0, b=1 and 5.0 at a=1, b=0, which the symmetry '-x ba' does not "
        "allow; pass symmetries= without it"
    )
    with pytest.raises(ValueError, match=message):
        to_tens(changed, tmp_path / "t", sparse=True)
    assert (tmp_path / "t").read_bytes() == content


@pytest.mark.parametrize(
    ("values", "symmetries", "message"),
    [
        (
            np.ones((2, 3)),
            "x ba",
            r"'x ba' cannot hold with the lengths \(2, 3\), expected indices of equal lengths; lea",
        ),
        (np.ones((2, 2)), "conj ba", "with the operation 'conj', expected 'x' or '-x'; leave it o"),
        (np.ones((2, 2)), "ba", "with the operation '', expected 'x' or '-x'; leave it out of sym"),
        (
            np.ones((2, 2)),
            "x bc",
            "with the index map 'bc', expected a permutation of the names 'ab'; lea",
        ),
        (np.ones((2, 2), "u1"), "-x ba", "with unsigned numbers, expected numbers that can be n"),
        (np.array([[0, -128], [-128, 0]], "i1"), "-x ba", "'tensor' is -128 at a=0, b=1 and -128"),
        (np.ones((2, 2)), ["-x ba"], "'tensor' is 1.0 at a=0, b=0 and 1.0 at a=0, b=0, which the"),
    ],
)
def test_symmetries_that_cannot_be_raise(values, symmetries, message, tmp_path) -> None:
    array = xr.DataArray(values, dims=list("abcdefgh"[: values.ndim]))
    with pytest.raises(ValueError, match=message):
        to_tens(array, tmp_path / "t", sparse=True, symmetries=symmetries)
    assert not list(tmp_path.iterdir())


def test_symmetries_are_strings(tmp_path) -> None:
    array = xr.DataArray(np.ones((2, 2)), dims=("a", "b"))
    with pytest.raises(TypeError, match=r"symmetries=\[3\] is not a list of strings such as '-x"):
        to_tens(array, tmp_path / "t", sparse=True, symmetries=[3])


def test_nan_equals_nan_in_checks_of_symmetries(tmp_path) -> None:
    values = np.array([[1, np.nan], [np.nan, 0.0]])
    ds = xr.Dataset({"tensor": (("first", "second"), values)})
    to_tens(ds, tmp_path / "t", sparse=True, symmetries="x ba")
    xr.testing.assert_identical(open_lazily(tmp_path / "t"), ds)
    assert open_lazily(tmp_path / "t", sparse="stored").first.values.tolist() == [0, 1, 0]


def test_dim_of_components_keeps_its_place_under_symmetries(tmp_path) -> None:
    values = make_symmetric([((1, 0, 2), 1)], (3, 3, 4), "i4")
    raw = np.moveaxis(values, -1, 0)
    head = tf.pack_header((3, 3), version=tf.V1_0, numbers=4, number_type=b"sint", size=4)
    (tmp_path / "t").write_bytes(
        head + tf.pack_chunk(b"DENSDATA", raw.astype("<i4").tobytes(order="F"))
    )
    ds = open_lazily(tmp_path / "t")
    to_tens(ds, tmp_path / "u", sparse=True, symmetries="x bac")
    xr.testing.assert_identical(open_lazily(tmp_path / "u"), ds)


def test_check_of_symmetries_holds_few_chunks_at_once(tmp_path) -> None:
    loader, count = Loader((8, 8)), 16
    chunks = ((8,) * count,) * 2
    array = da.map_blocks(loader, chunks=chunks, dtype=float, meta=np.empty((0, 0)))
    ds = xr.Dataset({"tensor": (("a", "b"), array)})
    with dask.config.set(num_workers=4), pytest.MonkeyPatch.context() as patch:
        patch.setattr("xr_tensorfmt.writing.block_grids.MIN_RUN_BYTES", 1)
        to_tens(ds, tmp_path / "t", sparse=True, symmetries="x ba")
    # To check, to count, and to write the chunks with pairs.
    assert loader.loads == 2 * count**2 + count**2 // 2
    assert loader.most <= 24
    xr.testing.assert_identical(open_lazily(tmp_path / "t"), ds)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [None, {}])
def test_rewriting_opened_file_has_bounded_memory(chunks, tmp_path, monkeypatch) -> None:
    values = np.random.default_rng(0).random((2400, 2400))
    values = np.where(values + values.T > 1.9, 1.0, 0)
    to_tens(xr.DataArray(values, dims=("a", "b")), tmp_path / "t")
    monkeypatch.setattr("xr_tensorfmt.formats.tens.write.DEFAULT_CHUNK_BYTES", 400_000)
    monkeypatch.setattr("xr_tensorfmt.formats.tens.write_pairs.DEFAULT_CHUNK_BYTES", 400_000)
    limit = {} if chunks is None else {"chunk_bytes": 400_000}
    ds = open_lazily(tmp_path / "t", chunks=chunks, io="read", **limit)
    tracemalloc.start()
    try:
        to_tens(ds, tmp_path / "u", sparse=True, symmetries="x ba")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Two to four MB, depending on chunks and threads only.
    assert most < values.nbytes / 6
    xr.testing.assert_identical(open_lazily(tmp_path / "u"), ds)


def test_pairs_of_tensor_with_dim_called_entry_are_indexed_by_letters(tmp_path) -> None:
    ds = xr.Dataset({"T": (("entry", "b"), np.eye(3))}, {"entry": [1, 2, 3], "n": 5})
    to_tens(ds, tmp_path / "t", sparse=True)
    xr.testing.assert_identical(open_lazily(tmp_path / "t"), ds)
    stored = open_lazily(tmp_path / "t", sparse="stored")
    assert list(stored.coords) == ["a", "b", "n"]
    to_tens(stored, tmp_path / "u")
    xr.testing.assert_identical(open_lazily(tmp_path / "u", sparse="stored"), stored)
    # The whole tensor with this dim is not written as pairs.
    to_tens(open_lazily(tmp_path / "t").isel(b=0, drop=True), tmp_path / "u")
    xr.testing.assert_identical(open_lazily(tmp_path / "u"), ds.isel(b=0, drop=True))
