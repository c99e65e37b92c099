"""Finding blocks: correct, fast, and with little memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests import vespafiles as vf
from tests.lazyarrays import locate
from tests.recording import RecordingSource
from tests.work import limit_memory
from xr_tensorfmt import TensorFormatError, to_file
from xr_tensorfmt.core.extents import Integers
from xr_tensorfmt.core.file_format import OpenOptions
from xr_tensorfmt.core.gathered import Gathered
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.core.layout import read as read_selected
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.formats.recognition import read_container
from xr_tensorfmt.formats.vespa import VespaFormat, spec
from xr_tensorfmt.formats.vespa.read import gather_product
from xr_tensorfmt.formats.vespa.spec import VespaHeader, find_blocks
from xr_tensorfmt.sources import find_source

COUNT = 5000
RANDOM = np.random.default_rng(5)
LENGTHS = cycle(RANDOM.integers(0, 45, 100_003).tolist())
LABELS: dict[str, Callable[[int], bytes]] = {
    "one length": lambda i: b"doc%07d" % i,
    "numbered": lambda i: b"doc%d" % i,
    "random": lambda i: b"x" * next(LENGTHS),
    "rarely very long": lambda i: b"y" * (3000 if i % 997 == 996 else 7),
    "empty": lambda i: b"",
    "long from the middle on": lambda i: b"z" * (5 if i < COUNT // 2 else 200),
}
CELLS: dict[str, Callable[[int], np.ndarray]] = {
    "floats": lambda size: (
        RANDOM.normal(size=(COUNT, -(-size // 8))).astype(">f8").view("u1")[:, :size]
    ),
    "zeros": lambda size: np.zeros((COUNT, size), "u1"),
    "small bytes": lambda size: RANDOM.integers(0, 12, (COUNT, size), np.uint8),
}
"""Bytes of the cells of all blocks."""


def make_header(labels: int, size: int, blocks: int = COUNT, stop: int = 0) -> VespaHeader:
    """Return the header of blocks with a number of labels and bytes of cells."""
    return VespaHeader(7, "int8", ("k", "l", "m")[:labels], ("x",), (size,), blocks, stop)


def make_file(label: Callable, cells: Callable, labels: int, size: int) -> tuple[bytes, Integers]:
    """Return blocks, and the offsets of all blocks and of the end."""
    pieces = [
        b"".join([vf.pack_string(label(number)) for _ in range(labels)]) + block.tobytes()
        for number, block in enumerate(cells(size))
    ]
    return b"".join(pieces), np.cumsum([0, *map(len, pieces)])


@pytest.mark.slow
@pytest.mark.parametrize("cells", CELLS)
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize(("labels", "size"), [(1, 4), (1, 64), (2, 17), (3, 1)])
def test_scan_finds_every_block(monkeypatch, label, cells, labels, size) -> None:
    monkeypatch.setattr(spec, "LOCAL_WINDOW_BYTES", 75_000)
    content, edges = make_file(LABELS[label], CELLS[cells], labels, size)
    source, _ = find_source(b"head" + content)
    batches = list(find_blocks(source, make_header(labels, size, stop=4)))
    starts = np.concatenate([start + found[:-1] for start, _, found in batches])
    np.testing.assert_array_equal(starts, edges[:-1] + 4)
    assert batches[-1][0] + batches[-1][2][-1] == edges[-1] + 4


def test_labels_longer_than_window_and_blocks_too_large_for_one(monkeypatch) -> None:
    monkeypatch.setattr(spec, "LOCAL_WINDOW_BYTES", 100)
    labels = [("a" * 5000, "b"), ("c", "d" * 300), ("", "")]
    values = vf.make_values("int8", (3, 70000))
    content = vf.make_tensor("int8", ["k", "l"], {"x": 70000}, labels, values)
    ds = xr.open_dataset(memoryview(content), engine="tensorfmt", format="vespa")
    assert list(zip(ds.k.values, ds.l.values, strict=True)) == labels
    np.testing.assert_array_equal(ds.tensor.values, values)
    np.testing.assert_array_equal(ds.tensor[[2, 0], 5:60000:7].values, values[[2, 0], 5:60000:7])
    points = xr.DataArray([2, 0, 2], dims="p")
    np.testing.assert_array_equal(ds.tensor[points, points].values, values[[2, 0, 2], [2, 0, 2]])


@pytest.mark.parametrize("sparse", ["auto", "stored"])
def test_lengths_of_labels_that_cancel_out_between_other_blocks_move_no_cell(sparse: str) -> None:
    labels = [(f"{number:05}",) for number in range(100)]
    labels[70], labels[71] = ("0070",), ("000071",)
    values = vf.make_values("int8", (100, 500))
    content = vf.make_tensor("int8", ["k"], {"x": 500}, labels, values)
    tensor = open_stored(content, sparse=sparse).tensor
    np.testing.assert_array_equal(tensor[71, 0].values, values[71, 0])
    np.testing.assert_array_equal(tensor[70:72].values, values[70:72])
    assert tensor.k[69:73].values.tolist() == ["00069", "0070", "000071", "00072"]


@pytest.mark.parametrize(("block", "length"), [(1250, 9), (1250, 11), (1250, 255), (COUNT - 2, 9)])
def test_corrupt_label_is_error_at_opening(block: int, length: int) -> None:
    content, edges = make_file(LABELS["one length"], CELLS["zeros"], 1, 64)
    head = vf.pack_header("int8", ["k"], {"x": 64}, COUNT)
    damaged = bytearray(head + content)
    damaged[len(head) + edges[block]] = length
    with pytest.raises(TensorFormatError, match=r"block \d+ at byte|the end of"):
        open_stored(bytes(damaged))


def test_equal_strides_do_not_mean_equal_lengths() -> None:
    labels = [("a", "bb"), ("cc", "d"), ("e", "ff")]
    content = vf.make_tensor("int8", ["k", "l"], {}, labels, np.array([1, 2, 3]))
    ds = xr.open_dataset(memoryview(content), engine="tensorfmt", format="vespa")
    assert list(zip(ds.k.values, ds.l.values, strict=True)) == labels
    assert ds.tensor.values.tolist() == [1, 2, 3]


def open_stored(content: bytes, **keywords) -> xr.Dataset:
    keywords = {"engine": "tensorfmt", "format": "vespa", "sparse": "stored"} | keywords
    return xr.open_dataset(memoryview(content), **keywords)


def make_numbered(count: int, cells: str = "float", width: int = 8) -> tuple[bytes, np.ndarray]:
    values = vf.make_values(cells, (count, width))
    labels = [(f"doc{number}",) for number in range(count)]
    return vf.make_tensor(cells, ["user"], {"x": width}, labels, values), values


def test_chunks_are_equal_counts_of_blocks_near_target() -> None:
    content, values = make_numbered(3000)
    ds = xr.open_dataset(
        memoryview(content),
        engine="tensorfmt",
        format="vespa",
        sparse="stored",
        chunks={},
        chunk_bytes=8192,
    )
    (rows, _) = ds.tensor.chunks
    assert ds.user.chunks is None  # loaded, because there are few
    assert len(set(rows[:-1])) == 1
    assert rows[-1] <= rows[0]
    assert 4096 < rows[0] * (len(content) / 3000) <= 8192 + 64
    np.testing.assert_array_equal(ds.tensor.values, values)
    assert ds.user.values[2999] == "doc2999"


def test_block_larger_than_chunk_is_cut() -> None:
    content, values = make_numbered(3, width=100)
    ds = xr.open_dataset(
        memoryview(content), engine="tensorfmt", format="vespa", chunks={}, chunk_bytes=100
    )
    assert ds.tensor.chunks == ((1, 1, 1), (25,) * 4)
    np.testing.assert_array_equal(ds.tensor.values, values)


def test_offsets_of_blocks_are_once_in_graph() -> None:
    content, _ = make_numbered(3000)
    open_one = {"engine": "tensorfmt", "format": "vespa", "sparse": "stored"}
    sizes = [
        len(pickle.dumps(dict(ds.tensor.__dask_graph__())))
        for chunk_bytes in (1 << 20, 4096)
        for ds in [
            xr.open_dataset(memoryview(content), chunks={}, chunk_bytes=chunk_bytes, **open_one)
        ]
    ]
    chunks = 30
    assert sizes[1] - sizes[0] < chunks * 1000


@given(st.data())
def test_any_selection_of_blocks_and_cells(data) -> None:
    content, values = make_numbered(40)
    tensor = xr.open_dataset(
        memoryview(content), engine="tensorfmt", format="vespa", sparse="stored"
    ).tensor
    key = tuple(data.draw(axis_key(length)) for length in values.shape)
    by_axis = dict(zip(tensor.dims, key, strict=True))
    expected = values
    for axis in (1, 0):
        expected = expected[(slice(None),) * axis + (key[axis],)]
    np.testing.assert_array_equal(tensor.isel(by_axis).values, expected)
    labels = np.array([f"doc{number}" for number in range(40)], dtype=object)
    assert np.array_equal(tensor.user.isel(block=key[0]).values, labels[key[0]])


def axis_key(length: int):
    index = st.integers(-length, length - 1)
    step = st.integers(-3, 3).filter(bool)
    return st.one_of(index, st.lists(index, max_size=9), st.builds(slice, index, index, step))


@given(st.data())
def test_any_selection_of_outer_product(data) -> None:
    pair = st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz"))
    pairs = data.draw(st.sets(pair, min_size=1))
    labels, values = sorted(pairs), vf.make_values("float", (len(pairs), 3))
    content = vf.make_tensor("float", ["k", "l"], {"n": 3}, labels, values)
    tensor = xr.open_dataset(
        memoryview(content), engine="tensorfmt", format="vespa", sparse="dense", cache=False
    ).tensor
    complete = np.full(tensor.shape, np.nan, "f4")
    for (first, second), row in zip(labels, values, strict=True):
        complete[tensor.indexes["k"].get_loc(first), tensor.indexes["l"].get_loc(second)] = row
    key = tuple(data.draw(axis_key(length)) for length in complete.shape)
    expected = complete
    for axis in (2, 1, 0):
        expected = expected[(slice(None),) * axis + (key[axis],)]
    picked = tensor.isel(dict(zip(tensor.dims, key, strict=True)))
    np.testing.assert_array_equal(picked.values, expected)
    points = tuple(
        data.draw(st.lists(st.integers(0, n - 1), min_size=5, max_size=5)) for n in complete.shape
    )
    by_point = tensor.isel({d: ("p", list(k)) for d, k in zip(tensor.dims, points, strict=True)})
    np.testing.assert_array_equal(by_point.values, complete[points])


def make_blocks(source: Source) -> Layout:
    options = OpenOptions(format_options={"sparse": "stored"})
    (tensor,) = read_container(HeaderReader(source), VespaFormat(), options).tensors
    return tensor.layout


def test_outer_product_reads_blocks_that_it_needs() -> None:
    labels = [(f"u{number % 50}", f"i{number // 50}") for number in range(2000)]
    values = vf.make_values("float", (2000, 64))
    content = vf.make_tensor("float", ["k", "l"], {"n": 64}, labels, values)
    source = RecordingSource(content)
    blocks = make_blocks(source)
    gather = partial(gather_product, blocks, 1, np.arange(2000), np.arange(2000))
    layout = Gathered((2000, 64), blocks.dtype, gather, fill_value=np.nan)
    source.requests.clear()
    selection = Selection(layout.shape, (range(500, 510), range(64)))
    np.testing.assert_array_equal(read_selected(layout, source, selection), values[500:510])
    assert source.fetched < 10 * 300
    (extents,) = locate(layout, source, selection)
    assert extents.nbytes == 10 * 256


def test_outer_product_in_chunks_and_without_blocks() -> None:
    labels = [(f"u{number}", f"i{number % 3}") for number in range(100)]
    values = vf.make_values("float", (100, 4))
    content = vf.make_tensor("float", ["k", "l"], {"n": 4}, labels, values)
    keywords = {"engine": "tensorfmt", "format": "vespa", "sparse": "dense", "fill_value": 0}
    ds = xr.open_dataset(memoryview(content), chunks={}, chunk_bytes=960, **keywords)
    assert ds.tensor.chunks[0] == (20,) * 5
    assert ds.tensor.sum().values == values.sum()
    np.testing.assert_array_equal(ds.tensor.sum("l").values, values)
    rows = ds.tensor.isel(k=slice(0, 0)).values
    assert rows.shape == (0, 3, 4)
    empty = vf.make_tensor("float", ["k", "l"], {"n": 4}, [], values[:0])
    source = find_source(empty)[0]
    blocks = make_blocks(source)
    nothing = np.empty(0, np.int64)
    gather = partial(gather_product, blocks, 2, nothing, nothing)
    layout = Gathered((2, 2, 4), blocks.dtype, gather, fill_value=7.0)
    points = Selection(layout.shape, (np.array([0, 1]), np.array([1, 1]), np.array([0, 3])), True)
    assert read_selected(layout, source, points).tolist() == [7.0, 7.0]
    everything = Selection.everything(layout.shape)
    assert (read_selected(layout, source, everything) == 7.0).all()
    assert not locate(layout, source, everything)


def test_chunks_of_each_opening_have_own_names() -> None:
    content, values = make_numbered(300)
    keywords = {"engine": "tensorfmt", "format": "vespa", "sparse": "stored"}
    first, again = (
        xr.open_dataset(memoryview(content), **keywords).chunk(block=100) for _ in range(2)
    )
    np.testing.assert_array_equal(first.tensor.values, values)
    assert first.tensor.data.name != again.tensor.data.name


@pytest.mark.slow
def test_scan_needs_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "LOCAL_WINDOW_BYTES", 1 << 18)
    short = [b"\x03%03d" % (number % 1000) + bytes(4) for number in range(100_000)]
    long = [b"\x24" + b"%036d" % number + bytes(4) for number in range(40_000)]
    source, _ = find_source(b"".join(short + long))
    with limit_memory(4 << 20):
        starts = np.concatenate(
            [
                start + found[:-1]
                for start, _, found in find_blocks(source, make_header(1, 4, 140_000))
            ]
        )
    np.testing.assert_array_equal(starts, np.cumsum([0, *map(len, short + long)])[:-1])


@pytest.mark.parametrize("seed", range(4))
def test_runs_of_equal_lengths_and_other_labels_are_found(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    lengths = np.repeat(random.integers(0, 9, 12), random.integers(1, 300, 12))
    labels = [
        f"{i:x}".rjust(5, "é" if i % 97 == 3 else "y") + "x" * k for i, k in enumerate(lengths)
    ]
    labels[7] += "\0"
    if seed % 2:
        labels[500] = "long" * 50
    table = xr.DataArray(np.arange(len(labels), dtype="f4"), {"u": labels}, "u", name="tensor")
    to_file(table, tmp_path / "a.tbf")
    actual = xr.open_dataset(tmp_path / "a.tbf", engine="tensorfmt").tensor
    xr.testing.assert_equal(actual, table)
