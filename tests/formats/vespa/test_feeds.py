"""Feeds: documents with a tensor, one per line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from xr_tensorfmt import vespa

PREFIX = "id:shop:user::"
IDS: dict[str, Any] = {"field": "vector", "dim": "user", "prefix": PREFIX}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vespa, "BATCH_DOCUMENTS", 3)


def make_users(count: int = 8, dtype: str = "float32") -> xr.DataArray:
    values = np.random.default_rng(0).normal(size=(count, 5)).astype(dtype)
    labels = [f"u{i}" for i in range(count)]
    return xr.DataArray(values, {"user": labels}, ("user", "x"), name="tensor")


def make_chunks() -> xr.Dataset:
    """Return blocks of documents and their chunks, in an order that mixes documents."""
    coords = {"user": ("block", list("abcab")), "chunk": ("block", list("00011"))}
    return xr.Dataset({"tensor": (("block", "x"), np.arange(10, dtype="f4").reshape(5, 2))}, coords)


@pytest.mark.parametrize("form", ["hex", "short", "long"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@pytest.mark.parametrize("chunks", [None, 2])
def test_feed_round_trips(form: Any, dtype: str, chunks: Any, tmp_path: Path) -> None:
    users = make_users(dtype=dtype)
    data = users.chunk(user=chunks) if chunks else users
    vespa.to_jsonl(data, tmp_path / "feed.jsonl", form=form, **IDS)
    back = vespa.from_jsonl(tmp_path / "feed.jsonl", **IDS).tensor
    xr.testing.assert_equal(back, users)
    assert back.dtype == dtype


def test_documents_are_those_of_vespa(tmp_path: Path) -> None:
    vespa.to_jsonl(make_users(2), tmp_path / "feed.jsonl", **IDS)
    first, _ = map(json.loads, (tmp_path / "feed.jsonl").read_text().splitlines())
    vector = vespa.to_json(make_users().isel(user=0, drop=True), "hex")
    assert first == {"put": "id:shop:user::u0", "fields": {"vector": vector}}


@pytest.mark.parametrize("dim", ["user", "chunk"])
def test_several_blocks_per_document_round_trip(dim: str, tmp_path: Path) -> None:
    blocks = make_chunks()
    vespa.to_jsonl(blocks, tmp_path / "feed.jsonl", field="f", dim=dim)
    documents = [json.loads(line) for line in (tmp_path / "feed.jsonl").read_text().splitlines()]
    assert [document["put"] for document in documents] == sorted({*blocks[dim].values})
    back = vespa.from_jsonl(documents, field="f", dim=dim)
    wide = [ds.set_index(block=["user", "chunk"]).tensor.unstack() for ds in (blocks, back.load())]
    xr.testing.assert_equal(*wide)


LINES = [
    "[",
    '{"put": "id:shop:user::a", "fields": {"vector": [1, 2]}},',
    '{"update": "id:shop:user::b", "fields": {"vector": {"assign": {"values": "01FF"}}}},',
    '{"id": "id:shop:user::c", "fields": {"other": 1}},',
    '{"put": "id:shop:user::c", "fields": {"vector": null}},',
    '{"id": "id:shop:user::d", "fields": {"vector": {"type": "tensor<float>(x[2])"}}}',
    "]",
    "",
]


@pytest.mark.parametrize("kind", ["lines", "bytes", "dicts", "path", "file"])
def test_sources_of_documents_are_equivalent(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "feed.jsonl"
    path.write_text("\n".join(LINES))
    documents = [json.loads(line.strip(",")) for line in LINES if line.startswith("{")]
    with path.open("rb") as file:
        sources: dict[str, Any] = {
            "lines": LINES, "bytes": [line.encode() for line in LINES], "dicts": documents,
            "path": path, "file": file,
        }  # fmt: skip
        ds = vespa.from_jsonl(sources[kind], "tensor<float>(x[2])", **IDS)
    assert ds.user.values.tolist() == ["a", "b", "d"]
    np.testing.assert_array_equal(ds.tensor, [[1, 2], [1, -1], [0, 0]])


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no JSON": ([LINES[1], "{"], {}, "line 2: '{' is not JSON"),
    "no type": (LINES, {"type": None}, "line 2: the JSON states no type"),
    "shape": ([LINES[1].replace("[1, 2]", "[1]")], {}, r"line 1: .*expected \(2,\)"),
    "other type": (
        [{"put": PREFIX, "fields": {"vector": {"type": f"tensor(x[{n}])", "values": [1] * n}}}
         for n in (1, 2)],
        {"type": None}, "line 2: the JSON states the type"),
    "no field": (LINES, {"field": "vectr"}, "no line is a document with the field 'vectr'"),
    "no documents": ([""], {}, "no line is a document with the field"),
    "other id": (LINES, {"prefix": "id:x"}, "line 2: the id .* 'id:shop:user::a', expected .id:x"),
    "no id": ([{"fields": {"vector": [1, 2]}}], {}, "line 1: the id of the document is None"),
    "id": ([{"put": PREFIX + "\ud800", "fields": {"vector": [1, 2]}}], {}, "line 1: .*surrogates"),
    "removed": ([LINES[1], {"remove": PREFIX + "a"}], {}, "line 2: it removes a document, exp"),
    "repeated": (
        [*LINES, LINES[1]], {},
        "line 9: 'a' occurs again, expected one line per document; omit the others"),
    "list": ([LINES[1], "[1]"], {}, "line 2: it is not a JSON object, expected a put"),
    "dim": (LINES, {"dim": "x"}, "dim='x' is a dimension of tensor"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "values", "message"),
    [
        ("int8", [300, 0], "300.0 is not an integer"),
        ("float", "3F8000004000000", "'3F8000004000000' are not 8 hexadecimal digits per cell"),
        ("float", "3F80 00004000000", "are not 8 hexadecimal"),
        ("float", "3F80000040000G00", "are not 8 hexadecimal"),
    ],
)
def test_wrong_cells_name_their_line(cells: str, values: Any, message: str) -> None:
    good = "01FF" if cells == "int8" else "3F80000040000000"
    lines = [{"put": f"{n}", "fields": {"v": good if n != 4 else values}} for n in range(8)]
    with pytest.raises(ValueError, match=f"line 5: .*{message}"):
        vespa.from_jsonl(lines, f"tensor<{cells}>(x[2])", field="v")


def test_digits_of_other_cell_types_are_converted() -> None:
    values = ["3F80000040000000", "3FF00000000000004000000000000000", [1.0, 2.0], "3F804000"]
    lines = [{"put": f"{n}", "fields": {"v": value}} for n, value in enumerate(values)]
    ds = vespa.from_jsonl(lines, "tensor<float>(x[2])", field="v")
    np.testing.assert_array_equal(ds.tensor, [[1, 2]] * 4)


@pytest.mark.parametrize("case", WRONG)
def test_other_feeds_raise(case: str) -> None:
    lines, options, message = WRONG[case]
    with pytest.raises(ValueError, match=f"^<Vespa feed>: {message}"):
        vespa.from_jsonl(lines, **({"type": "tensor<float>(x[2])"} | IDS | options))


def test_dimension_without_labels_raises(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"dim=.usr. .did you mean .user... has no labels, expected"
    ):
        vespa.to_jsonl(make_users(), tmp_path / "feed.jsonl", **(IDS | {"dim": "usr"}))


def test_failed_feed_leaves_old_one(tmp_path: Path) -> None:
    path = tmp_path / "feed.jsonl"
    path.write_text("old")
    lazy = make_users().chunk(user=2)
    broken = lazy.copy(data=lazy.data.map_blocks(lambda _: 1 / 0, dtype="f4", meta=lazy.data._meta))
    with pytest.raises(ZeroDivisionError):
        vespa.to_jsonl(broken, path, **IDS)
    with pytest.raises(FileExistsError):
        vespa.to_jsonl(lazy, path, mode="x", **IDS)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


def test_progress_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vespa.to_jsonl(make_users(), tmp_path / "feed.jsonl", progress=True, **IDS)
    vespa.from_jsonl(tmp_path / "feed.jsonl", progress=True, **IDS)
    shown = capsys.readouterr().err
    assert "8/8" in shown
    assert "8 lines" in shown
