"""Layouts of packed rows, triangles and computed values, compared with numpy."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from dask.base import tokenize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import pycausetfiles as pf
from tests.lazyarrays import INDEXERS, SOURCES, assert_same, locate, make_source
from tests.packedbits import BIT, Case, make_causal, make_dense_bits, make_triangle
from tests.recording import HollowSource, RecordingSource
from xr_tensorfmt.core.elements import Element, Plain
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.core.gathered import scale_layout
from xr_tensorfmt.core.layout import Dense, Layout, read, transpose_layout
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.datasets.lazy_array import LazyTensor, TensorArray
from xr_tensorfmt.formats.pycauset.matrices import (
    build_blocks,
    build_complex,
    build_diagonal,
    build_mirrored,
)
from xr_tensorfmt.formats.pycauset.packed import Packed
from xr_tensorfmt.sources import find_source

DOUBLE = Plain(np.dtype("<f8"))


def make_numbers(order: int, dtype: str, *, diagonal: bool = False, unit: int = 8) -> Case:
    values = np.triu(np.arange(1.0, order * order + 1).reshape(order, order), not diagonal)
    values = values.astype(dtype)
    element = Plain(np.dtype(dtype).newbyteorder("<"))
    layout = make_triangle(order, 8, element, diagonal=diagonal, unit=unit)
    raw = pf.pack_triangle(values, diagonal=diagonal, multiple=unit, dirty=True)
    return bytes(8) + raw, layout, values


def make_mirrored(order: int, sign: int) -> Case:
    content, layout, values = make_numbers(order, "f8", diagonal=True)
    assert isinstance(layout, Packed)
    return (
        content,
        build_mirrored(layout, sign),
        values + sign * np.triu(values, 1).T,
    )


def make_diagonal() -> Case:
    values = np.arange(1.0, 6.0)
    return values.tobytes(), build_diagonal((5, 5), Dense((5,), DOUBLE, 0)), np.diag(values)


def make_planes() -> Case:
    halves = np.arange(24, dtype="<f2").reshape(2, 3, 4)
    half = Plain(np.dtype("<f2"))
    layout = build_complex(Dense((3, 4), half, 0), Dense((3, 4), half, 24))
    return halves.tobytes(), layout, (halves[0] + 1j * halves[1]).astype("c8")


def make_scaled(scalar: complex, case: Case) -> Case:
    content, layout, values = case
    scaled = scale_layout(layout, scalar)
    return content, scaled, (values * scalar).astype(scaled.dtype)


def make_blocks() -> Case:
    parts = [[make_numbers(3, "f8"), make_dense_bits(3, 4)], [make_dense_bits(2, 3), make_planes()]]
    parts[1][1] = make_scaled(2, make_dense_bits(2, 4))
    corners = [[(0, 0), (0, 3)], [(3, 0), (3, 3)]]
    blocks = tuple(
        (find_source(raw)[0], layout, corner)
        for row, places in zip(parts, corners, strict=True)
        for (raw, layout, _), corner in zip(row, places, strict=True)
    )
    values = np.block([[value[2] for value in row] for row in parts])
    return b"", build_blocks((5, 7), blocks), values


CASES: dict[str, Case] = {
    "dense bits": make_dense_bits(5, 131),
    "dense bits, long rows": make_dense_bits(4, 70, 64),
    "causal 1": make_causal(1),
    "causal 2": make_causal(2),
    "causal 65": make_causal(65),
    "causal 130": make_causal(130),
    "int32 triangle": make_numbers(7, "i4"),
    "int32 triangle, not padded": make_numbers(7, "i4", unit=4),
    "int16 triangle": make_numbers(6, "i2"),
    "float64 triangle": make_numbers(6, "f8"),
    "symmetric": make_mirrored(7, 1),
    "antisymmetric": make_mirrored(6, -1),
    "diagonal": make_diagonal(),
    "identity": (b"", build_diagonal((3, 5)), np.eye(3, 5)),
    "row of a unit vector": (b"", build_diagonal((1, 6), shift=4), np.eye(6)[4:5]),
    "two planes": make_planes(),
    "scaled bits": make_scaled(2.5, make_causal(70)),
    "scaled by a complex number": make_scaled(1 - 2j, make_numbers(5, "f8")),
    "scaled planes": make_scaled(3.0, make_planes()),
    "blocks": make_blocks(),
}
CASES |= {
    f"transposed {name}": (
        CASES[name][0],
        transpose_layout(CASES[name][1], (1, 0)),
        CASES[name][2].T,
    )
    for name in ("dense bits", "causal 65", "int32 triangle", "identity", "blocks")
}
_, planes_layout, planes_values = CASES["two planes"]
CASES["conjugated"] = (
    CASES["two planes"][0],
    scale_layout(planes_layout, 1, is_conjugated=True),
    planes_values.conj(),
)
VECTORS: dict[str, Case] = {
    "vector of bits": (
        make_dense_bits(1, 75)[0],
        replace(make_dense_bits(1, 75)[1], is_vector=True),
        make_dense_bits(1, 75)[2][0],
    ),
    "unit vector": (b"", build_diagonal((9,), shift=3), np.eye(9)[3]),
}


def make_pair(
    source: object, layout: Layout, values: np.ndarray
) -> tuple[xr.DataArray, xr.DataArray]:
    dims = ("a", "b")[: values.ndim]
    lazy = xr.DataArray(xr.Variable(dims, LazyTensor(TensorArray(source, layout))))  # type: ignore[arg-type]
    return lazy, xr.DataArray(xr.Variable(dims, values.astype(layout.dtype)))


@pytest.mark.parametrize("name", [*CASES, *VECTORS])
@pytest.mark.parametrize("source_type", SOURCES)
def test_full_read_is_exact(
    name: str, source_type: str, tmp_path: Path, always_mapped: None
) -> None:
    content, layout, values = (CASES | VECTORS)[name]
    source = make_source(source_type, content or b"\0", tmp_path / "file")
    assert layout.dtype == values.dtype
    assert_same(*make_pair(source, layout, values))


@pytest.mark.parametrize(
    ("name", "indexer"),
    [(name, indexer) for name in CASES for indexer in INDEXERS]
    # xarray's strategy has no vectorised keys for one axis.
    + [(name, indexer) for name in VECTORS for indexer in ("basic", "outer")],
)
def test_every_key_matches_numpy(name: str, indexer: str) -> None:
    content, layout, values = (CASES | VECTORS)[name]
    lazy, eager = make_pair(find_source(content)[0], layout, values)

    few = settings.default.max_examples // 6  # of each layout

    @settings(max_examples=few, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        sizes = dict(eager.sizes)
        key = data.draw(INDEXERS[indexer](sizes=sizes))
        assert_same(lazy.isel(key), eager.isel(key))

    check()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("columns", [[0, 3], [1], [2, 4]])
def test_few_columns_far_apart_are_fetched_one_by_one(
    name: str, columns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xr_tensorfmt.formats.pycauset.packed._SPARSE_BYTES", 0)
    monkeypatch.setattr("xr_tensorfmt.formats.pycauset.packed.MAX_RUNS", 3)
    content, layout, values = CASES[name]
    columns = [column for column in columns if column < values.shape[1]]
    lazy, eager = make_pair(find_source(content)[0], layout, values)
    assert_same(lazy.isel(b=columns), eager.isel(b=columns))


@pytest.mark.parametrize("limit", [pytest.param(1, marks=pytest.mark.nightly), 100, 2000])
def test_small_windows_and_blocks_give_same_values(
    limit: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, always_mapped: None
) -> None:
    monkeypatch.setattr(Source, "batch_bytes", limit)
    for name in ("causal 130", "dense bits", "float64 triangle"):
        content, layout, values = CASES[name]
        source = make_source("mmap", content, tmp_path / name)
        for key in ({}, {"b": slice(3, 60)}, {"a": [0, 3, 4], "b": slice(2, None)}):
            lazy, eager = make_pair(source, layout, values)
            assert_same(lazy.isel(key), eager.isel(key))


@pytest.mark.parametrize("element", [BIT, *(Plain(np.dtype(f"<f{size}")) for size in (2, 4, 8))])
@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("order", [0, 1, 2, 64, 65, 130, 321])
def test_closed_form_of_row_offsets_agrees_with_loop(
    element: Element, diagonal: bool, order: int
) -> None:
    bits = 1 if element is BIT else 8 * element.stored.itemsize
    rows = make_triangle(order, 4096, element, diagonal=diagonal)
    offset, expected = 4096, []
    for row in range(order):
        expected.append(offset)
        offset += -(-(order - row - (not diagonal)) * bits // 64) * 8
    assert rows.compute_starts(np.arange(order)).tolist() == expected
    assert rows.nbytes == offset - 4096


def test_offsets_of_matrix_of_million_rows_need_no_table() -> None:
    rows = make_triangle(10**6, 4096)
    assert rows.nbytes == sum(-(-length // 64) * 8 for length in range(10**6))
    assert make_triangle(10**5, 4096).nbytes == 625_387_560
    assert len(pickle.dumps(rows)) < 400
    last = rows.compute_starts(np.array([10**6 - 1]))
    assert last.tolist() == [4096 + rows.nbytes]


def test_block_of_rows_is_one_request_of_their_bytes() -> None:
    content, layout, values = make_causal(300)
    source = RecordingSource(content)
    part = read(layout, source, Selection((300, 300), (range(20, 90), range(300))))
    np.testing.assert_array_equal(part, values[20:90])
    begin, end = layout.compute_starts(np.array([20, 90])).tolist()  # type: ignore[attr-defined]
    assert source.requests == [(begin, end - begin)]


@pytest.mark.parametrize("name", ["causal 130", "float64 triangle", "int32 triangle"])
def test_unstored_half_of_triangle_needs_no_request(name: str) -> None:
    content, layout, values = CASES[name]
    source = RecordingSource(content)
    lazy, _ = make_pair(source, layout, values)
    half = values.shape[0] // 2
    assert not lazy.isel(a=slice(half, None), b=slice(0, half)).values.any()
    assert not lazy.isel(a=slice(half, None), b=half).values.any()
    points = xr.DataArray(np.arange(values.shape[0]), dims="p")
    assert not lazy.isel(a=points, b=points).values.any()
    assert source.requests == []
    assert not len(layout.locate(Selection(values.shape, (range(half, half + 1), range(1)))))


@pytest.mark.parametrize("name", ["identity", "row of a unit vector", "unit vector"])
def test_computed_values_cost_no_request(name: str) -> None:
    _, layout, values = (CASES | VECTORS)[name]
    source = RecordingSource(b"")
    assert_same(*make_pair(source, layout, values))
    assert source.requests == []
    assert not locate(layout, source, Selection.everything(layout.shape))


def test_column_is_one_short_piece_per_row() -> None:
    layout = make_triangle(20_000, 4096)
    selection = Selection(layout.shape, (range(20_000), range(15_000, 15_001)))
    extents = layout.locate(selection)
    assert len(extents) == 15_000
    assert set(extents.lengths.tolist()) <= {1, 2}
    source = HollowSource(b"", 4096 + layout.nbytes)  # type: ignore[attr-defined]
    assert not read(layout, source, selection).any()
    # The gaps between rows are small, so they are fetched too, several MiB at a time.
    assert len(source.requests) <= 5


def test_extents_of_symmetric_matrix_are_each_stored_byte_once() -> None:
    content, layout, _ = make_mirrored(8, 1)
    source = find_source(content)[0]
    found = locate(layout, source, Selection.everything((8, 8)))
    assert {extents.bounds for extents in found} == {(8, len(content))}
    assert len(found) == 2  # the triangle, and its mirror image
    (below,) = locate(layout, source, Selection((8, 8), (range(6, 8), range(2))))
    assert below.lengths.tolist() == [16, 16]


def test_extents_that_touch_are_joined_and_empty_ones_dropped() -> None:
    starts, stops = np.array([0, 4, 4, 9, 12]), np.array([4, 4, 8, 12, 13])
    joined = Extents.from_bounds(starts, stops)
    assert joined.starts.tolist() == [0, 9]
    assert joined.lengths.tolist() == [8, 4]
    assert len(Extents.from_bounds(starts[:0], stops[:0])) == 0


def test_chunks_are_whole_rows_within_memory_target() -> None:
    layout = make_triangle(100_000, 4096)
    assert layout.chunk_shape(32 << 20) == (256, 100_000)
    assert transpose_layout(layout, (1, 0)).chunk_shape(32 << 20) == (100_000, 256)
    dense = Packed(100_000, 100_000, BIT, 64, 4096)
    assert dense.chunk_shape(32 << 20) == (256, 100_000)
    assert scale_layout(layout, 2.0).chunk_shape(32 << 20) == (41, 100_000)
    assert make_triangle(0, 0).chunk_shape(1 << 20) == (1, 1)
    assert Packed(2**48, 0, BIT, 64, 0).chunk_shape(31 << 20) == (2**48, 1)
    assert Packed(0, 2**48, BIT, 64, 0).chunk_shape(31 << 20) == (1, 2**48)


@pytest.mark.parametrize("scalar", [np.inf, np.nan, complex(np.inf, 1)])
def test_zeros_times_any_scalar_are_zero(scalar: complex) -> None:
    content, layout, values = make_causal(9)
    actual = read(
        scale_layout(layout, scalar), find_source(content)[0], Selection.everything((9, 9))
    )
    assert not actual[~values].any()
    assert not np.isfinite(actual[values]).any()


@pytest.mark.parametrize("name", sorted({*CASES, *VECTORS} - {"blocks", "transposed blocks"}))
def test_layouts_are_small_values(name: str) -> None:
    _, layout, _ = (CASES | VECTORS)[name]
    pickled = pickle.dumps(layout)
    assert len(pickled) < 2000
    assert tokenize(pickle.loads(pickled)) == tokenize(layout)


def test_scaled_block_matrix_reads_only_its_blocks() -> None:
    _, layout, _ = make_blocks()
    source, view = find_source(b"")[0], scale_layout(layout, 2.0)
    points = Selection(layout.shape, (np.array([0, 4]), np.array([1, 6])), True)
    assert len(locate(view, source, Selection.everything(layout.shape))) == 4
    assert len(locate(view, source, points)) == 2
