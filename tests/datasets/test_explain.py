"""Explanations of reads, for chunks, computations and printing."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr

import xr_tensorfmt
from tests import tensfiles as tf
from tests.opening import open_lazily
from tests.servers import MemoryStore

MIB = 1 << 20
TENSOR = "memory://bucket/t"
VALUES = np.arange(4 * MIB, dtype="f8").reshape(1024, 4096)


@pytest.fixture
def store():
    with MemoryStore().running() as memory:
        memory.put("t", tf.make_0_9(VALUES))
        yield memory


COMPUTATIONS = {
    "all": lambda t: t,
    "chunked": lambda t: t.chunk({"a": 256}),
    "slices": lambda t: t.isel(b=slice(5, 900, 7), a=3),
    "lists": lambda t: t.isel(a=[1, 5], b=[8, 4000]),
    "points": lambda t: t.isel(a=xr.DataArray([1, 5], dims="p"), b=xr.DataArray([1, 9], dims="p")),
    "transposed": lambda t: t.T.isel(b=7),
    "rechunked": lambda t: t.chunk({"a": 512, "b": -1}),
    "nothing": lambda t: t.isel(a=slice(0, 0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("computation", COMPUTATIONS)
def test_explained_ranges_equal_actual_reads(store, computation: str, inline: bool) -> None:
    tensor = open_lazily(TENSOR, chunks={}, chunk_bytes=8 * MIB, inline_array=inline).tensor
    computed = COMPUTATIONS[computation](tensor)
    store.log.clear()
    explained = computed.tensorfmt.explain()
    assert not store.log.gets
    with dask.config.set(scheduler="synchronous"):
        computed.compute()
    planned = [(a, b - a) for read in explained.reads for _, a, b in read.request_ranges]
    assert sorted(store.log.gets) == sorted(planned)
    assert explained.requests == len(planned)


def test_explain_shows_inefficient_chunks(store) -> None:
    good = open_lazily(TENSOR, chunks={}, chunk_bytes=8 * MIB).tensorfmt.explain()
    assert (good.requests, good.amplification) == (16, 1.0)
    assert [read.chunk for read in good.reads] == [(0, n) for n in range(4)]
    bad = open_lazily(TENSOR, chunks={"a": 64, "b": -1}).tensorfmt.explain()
    assert len(bad.reads) == 16
    assert bad.needed_bytes == good.needed_bytes
    assert bad.fetched_bytes > 15 * good.fetched_bytes


@pytest.mark.slow
def test_explain_selection(store) -> None:
    explained = open_lazily(TENSOR).tensorfmt.explain({"b": 100, "a": slice(0, 10)})
    (read,) = explained.reads
    start = 48 + 100 * 8192
    assert read.request_ranges == [("memory://bucket/t", start, start + 80)]
    assert (read.variable, read.chunk, read.shape) == ("tensor", (), (10,))
    assert (explained.needed_bytes, explained.fetched_bytes) == (80, 80)
    function = xr_tensorfmt.explain(open_lazily(TENSOR).tensor, b=100, a=slice(0, 10))
    assert repr(function) == repr(explained)


def test_explanation_of_one_read_prints_its_properties(store) -> None:
    dataset = open_lazily(TENSOR, chunks={}, chunk_bytes=8 * MIB)
    assert repr(dataset.tensorfmt.explain(b=slice(0, 1024))).splitlines() == [
        "4 requests fetch 8.0 MiB for 8.0 MiB (1.00 x)",
        "variable: tensor",
        "chunk:    0, 0",
        "values:   1,048,576",
        "bytes:    48 to 8388656",
    ]
    assert repr(open_lazily(TENSOR).tensorfmt.explain(a=3)).splitlines() == [
        "11 requests fetch 31.9 MiB for 32.0 KiB (1021.25 x)",
        "variable: tensor",
        "values:   4,096",
        "ranges:   4,096",
        "bytes:    72 to 33546320",
    ]


@pytest.mark.slow
def test_explanation_of_chunks_prints_as_table(store) -> None:
    dataset = open_lazily(TENSOR, chunks={}, chunk_bytes=8 * MIB)
    assert repr(dataset.tensorfmt.explain(b=slice(0, 2048))).splitlines() == [
        "8 requests fetch 16.0 MiB for 16.0 MiB (1.00 x)",
        "variable  chunk     values  requests   needed                bytes",
        "  tensor   0, 0  1,048,576         4  8.0 MiB        48 to 8388656",
        "  tensor   0, 1  1,048,576         4  8.0 MiB  8388656 to 16777264",
    ]
    scattered = dataset.tensorfmt.explain(b=slice(0, 2048), a=3)
    assert repr(scattered).splitlines()[1].split() == [
        *("variable", "chunk", "values", "ranges", "requests", "needed", "fetched", "bytes")
    ]
    many = open_lazily(TENSOR, chunks={}, chunk_bytes=8192 * 100).tensorfmt.explain()
    assert repr(many).splitlines()[-1] == "... and 21 more"


def test_table_names_files_if_there_are_several(tmp_path: Path) -> None:
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.zeros((2, 3)))
    ds = xr.open_mfdataset(
        [tmp_path / "a.npy", tmp_path / "b.npy"],
        engine="tensorfmt",
        combine="nested",
        concat_dim="file",
        chunks={},
    )
    _, heading, *rows = repr(xr_tensorfmt.explain(ds)).splitlines()
    assert heading.split()[:2] == ["file", "variable"]
    assert [row.split()[0] for row in rows] == ["a.npy", "b.npy"]


def test_explanation_of_loaded_data_is_empty(store) -> None:
    dataset = open_lazily(TENSOR)
    assert dataset.tensorfmt.explain().requests == 1 + 10
    dataset.load()
    assert dataset.tensorfmt.explain().reads == ()
    assert repr(dataset.tensorfmt.explain()).startswith("0 requests: no values are read")
    assert dataset.tensorfmt.explain().amplification == 1.0
    assert xr_tensorfmt.explain(xr.Dataset({"x": ("a", [1, 2])})).requests == 0


def test_explanation_without_pairs_is_empty() -> None:
    content = tf.make_index_value((4, 3), [], np.zeros(0))
    explanation = open_lazily(content).tensorfmt.explain()
    assert (explanation.needed_bytes, explanation.requests) == (0, 0)
    assert "0 requests fetch 0 B" in repr(explanation)


@pytest.mark.slow
def test_ranges_of_local_file_share_requests_over_short_gaps(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(tf.make_0_9(VALUES))
    dataset = xr.open_dataset(path, engine="tensorfmt")
    full = dataset.tensorfmt.explain()
    assert full.requests == 1
    assert full.fetched_bytes == 32 * MIB
    row = dataset.tensorfmt.explain(a=3)
    assert (row.requests, row.needed_bytes) == (1, 32768)  # a map, and a page per element
    assert 4096 <= row.fetched_bytes // 4096 <= 4097
    columns = dataset.tensorfmt.explain(b=[0, 9])
    assert (columns.requests, columns.fetched_bytes) == (1, 2 * 3 * 4096)


def test_unknown_dimensions_of_selection_raise(store) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        open_lazily(TENSOR).tensorfmt.explain(nowhere=3)


@pytest.mark.parametrize("chunks", [None, {}])
def test_trees_are_explained_by_path(tmp_path: Path, chunks: dict[str, int] | None) -> None:
    weights = np.ones((4, 2), "f4")
    nodes = {
        "/": xr.Dataset({"scale": ("a", np.ones(4, "f4"))}, {"c": ("a", np.zeros(4, "f4"))}),
        "/layers/0": xr.Dataset({"w": (("a", "b"), weights)}),
    }
    xr.DataTree.from_dict(nodes).tensorfmt.to_file(tmp_path / "a.mag")
    tree = xr.open_datatree(tmp_path / "a.mag", engine="tensorfmt", chunks=chunks)
    reads = xr_tensorfmt.explain(tree).reads
    assert {read.variable: read.needed_bytes for read in reads} == {
        "scale": 16,
        "layers/0/w": 32,
        **({"c": 16} if chunks is None else {}),  # coordinates are loaded with chunks
    }
    assert tree.tensorfmt.explain(b=0).needed_bytes == (48 if chunks is None else 32)
    (read,) = tree["layers"].tensorfmt.explain(b=0).reads
    assert (read.variable, read.needed_bytes) == ("0/w", 16)


def test_parts_of_joined_files_that_are_not_read_are_not_explained(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.mag" for number in range(4)]
    for path in paths:
        xr_tensorfmt.to_file(xr.Dataset({"w": (("a", "b"), np.ones((4, 3), "f4"))}), path, "mag")
    joined = xr.open_mfdataset(
        paths, engine="tensorfmt", combine="nested", concat_dim="step", chunks={}
    )
    (read,) = joined.tensorfmt.explain(step=2).reads
    assert ({file for file, _, _ in read.request_ranges}, read.needed_bytes) == (
        {str(paths[2])},
        48,
    )
    assert joined.tensorfmt.explain().needed_bytes == 4 * 48


def take(values: np.ndarray) -> np.ndarray:
    """Compute values, under the name of a selection."""
    return values + 1


def take_log(values: np.ndarray) -> np.ndarray:
    return np.log(values)


@pytest.mark.parametrize(
    "compute",
    [
        *(lambda w: w + 1, lambda w: w.sum(), lambda w: w.map_blocks(abs)),
        *(
            lambda w: w.copy(data=w.data.map_blocks(take)),
            lambda w: xr.apply_ufunc(take, w, dask="parallelized"),
        ),
        lambda w: w.copy(data=w.data.map_blocks(take_log)),
    ],
)
def test_computations_are_not_explained(tmp_path: Path, compute) -> None:
    xr_tensorfmt.to_file(xr.Dataset({"w": ("a", np.ones(4, "f4"))}), tmp_path / "a.mag")
    w = open_lazily(tmp_path / "a.mag", chunks={}).w
    with pytest.raises(ValueError, match=r"result of a computation .* before the computation"):
        xr_tensorfmt.explain(compute(w))
    assert xr_tensorfmt.explain((w + 1).persist()).requests == 0
    assert xr_tensorfmt.explain(w.rename(None)).reads[0].variable == "<this-array>"


@pytest.mark.parametrize("labels", ["d1", ["d1"], slice("d0", "d1")], ids=str)
def test_labels_in_explain_have_a_hint(tmp_path: Path, labels) -> None:
    table = xr.DataArray(np.ones((2, 3), "f4"), {"doc": ["d0", "d1"]}, dims=("doc", "x"))
    table.tensorfmt.to_file(tmp_path / "a.tbf")
    ds = open_lazily(tmp_path / "a.tbf")
    with pytest.raises((TypeError, IndexError), match=r"select labels with sel\(\) first"):
        ds.tensorfmt.explain(doc=labels)
    assert ds.sel(doc=labels).tensorfmt.explain().requests == 1


def test_labels_without_index_have_a_hint(tmp_path: Path) -> None:
    xr.DataArray(np.ones((2, 3)), dims=("a", "b")).tensorfmt.to_file(tmp_path / "a.bin")
    with pytest.raises(KeyError, match="pass positions as to isel"):
        open_lazily(tmp_path / "a.bin").tensorfmt.explain(a="x")


@pytest.mark.parametrize("error", [IndexError, KeyError, TypeError])
def test_errors_of_a_plan_are_not_translated(monkeypatch, error: type[Exception]) -> None:
    def fail(*_) -> None:
        raise error("a bug")

    monkeypatch.setattr("xr_tensorfmt.datasets.explanation._find_chunk_reads", fail)
    with pytest.raises(error) as caught:
        xr.Dataset({"a": ("x", [1])}).tensorfmt.explain(x=0)
    assert caught.value.args == ("a bug",)


def test_explain_needs_data_of_xarray() -> None:
    with pytest.raises(TypeError, match="must be a Dataset, DataArray or DataTree"):
        xr_tensorfmt.explain("a.mag")  # type: ignore[arg-type]
