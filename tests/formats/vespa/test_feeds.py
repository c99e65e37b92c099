"""Feeds: documents with a tensor, one per line."""

from __future__ import annotations

import fileinput
import gzip
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr

from tests.work import limit_calls, limit_memory
from xr_tensorfmt import vespa
from xr_tensorfmt.formats.vespa import feeds, write

PREFIX = "id:shop:user::"
IDS: dict[str, Any] = {"field": "vector", "dim": "user", "prefix": PREFIX}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "BATCH_DOCUMENTS", 3)


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


@pytest.mark.parametrize(("chunk", "dim"), [(2, "user"), (3, "user"), (7, "user"), (2, "chunk")])
def test_chunks_are_computed_once(chunk: int, dim: str, tmp_path: Path) -> None:
    computed, data = [], make_users(20)
    if dim == "chunk":
        labels = [f"{number // 4}" for number in range(20)]
        data = data.rename(user="block").assign_coords(user=("block", data.user.values))
        data = data.drop_vars("block").assign_coords(chunk=("block", labels))

    def compute(block: Any) -> Any:
        computed.append(block.shape)
        return block

    lazy = data.chunk({data.dims[0]: chunk})
    lazy = lazy.copy(data=lazy.data.map_blocks(compute, meta=lazy.data._meta))
    vespa.to_jsonl(lazy, tmp_path / "feed.jsonl", **IDS | {"dim": dim})
    assert len(computed) == len(lazy.chunks[0])


def test_documents_are_those_of_vespa(tmp_path: Path) -> None:
    vespa.to_jsonl(make_users(2), tmp_path / "feed.jsonl", **IDS)
    first, _ = map(json.loads, (tmp_path / "feed.jsonl").read_text().splitlines())
    vector = vespa.to_json(make_users().isel(user=0, drop=True), "hex")
    assert first == {"put": "id:shop:user::u0", "fields": {"vector": vector}}


@pytest.mark.filterwarnings("ignore:Vespa requires ids")
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
    '{"update": "id:shop:user::b", "fields": {"vector": {"assign": "3F800000BF800000"}}},',
    '{"id": "id:shop:user::c", "fields": {"other": 1}},',
    '{"put": "id:shop:user::c", "fields": {"vector": null}},',
    '{"id": "id:shop:user::d", "fields": {"vector": {"type": "tensor<float>(x[2])"}}}',
    "]",
    "",
]


LEFT_OUT = (
    "documents without cells in the field 'vector' are left out: 1, the first in line [45] of "
)


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
        with pytest.warns(UserWarning, match=LEFT_OUT):
            ds = vespa.from_jsonl(sources[kind], "tensor<float>(x[2])", **IDS)
    assert ds.user.values.tolist() == ["a", "b", "d"]
    np.testing.assert_array_equal(ds.tensor, [[1, 2], [1, -1], [0, 0]])


@pytest.mark.parametrize("text", ["[{}", "[{},", "[\n{},\n", "[\n {},\n {}\n"])
def test_list_that_does_not_end_is_incomplete(tmp_path: Path, text: str) -> None:
    path = tmp_path / "feed.json"
    path.write_text(text.replace("{}", json.dumps(put("a", [1]))))
    with pytest.raises(
        ValueError, match=r"feed\.json: line \d: the list of documents does not end"
    ):
        read_values(path)


def test_conditions_are_ignored_with_a_warning() -> None:
    documents = [put("a", [1]), put("a", [2]) | {"condition": "false"}]
    expected = "operations with a condition, which is ignored: 1$"
    with pytest.warns(UserWarning, match=expected):
        assert read_values(documents) == {"a": [2]}


def test_update_does_not_restore_a_removed_document() -> None:
    update = {"update": "a", "fields": {"v": {"assign": {"values": [3]}}}}
    feed = [put("a", [1]), put("b", [2]), {"remove": "a"}, update]
    assert read_values(feed) == {"b": [2]}
    assert read_values([*feed[:3], update | {"create": True}]) == {"b": [2], "a": [3]}
    assert read_values([*feed, put("a", [4]), update]) == {"b": [2], "a": [3]}
    created = {"update": "a", "create": True, "fields": {"other": {"assign": 1}}}
    assert read_values([*feed[:3], created, update]) == {"b": [2], "a": [3]}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_documents_follow_text_of_several_lines(count: int) -> None:
    lines = json.dumps(put("a", [1]), indent=2).splitlines()
    documents = [put("b", [2]), put("c", [3])]
    assert read_values([*lines, *documents[:count], *lines]) == {"a": [1]} | dict(
        [("b", [2]), ("c", [3])][:count]
    )
    joined = json.dumps(put("d", [4])) + json.dumps(put("e", [5]))
    assert [*read_values([joined, *documents])] == ["d", "e", "b", "c"]


PARTIAL = {
    "error": {"errors": [{"code": 12, "summary": "Timed out"}]},
    "coverage": {"coverage": {"coverage": 50, "full": False}},
}


@pytest.mark.parametrize("name", PARTIAL)
def test_partial_results_warn(name: str) -> None:
    root = {"children": [put("a", [1])], **PARTIAL[name]}
    with pytest.warns(UserWarning, match="hits may be missing.*(Timed out|full)"):
        assert read_values([{"root": root}]) == {"a": [1]}


def test_visit_with_continuation_warns() -> None:
    with pytest.warns(UserWarning, match="more documents follow"):
        assert read_values([{"documents": [put("a", [1])], "continuation": "AAA"}]) == {"a": [1]}


@pytest.mark.parametrize("kind", ["responses", "files"])
def test_only_the_last_page_of_a_visit_warns_of_its_continuation(kind: str, tmp_path: Path) -> None:
    pages: list[Any] = [{"documents": [put(x, [1])], "continuation": "AAA"} for x in "abc"]

    def read_pages(pages: list[Any]) -> dict[str, Any]:
        paths = [tmp_path / f"{number}.json" for number in range(len(pages))]
        for path, page in zip(paths, pages, strict=True):
            path.write_text(json.dumps(page))
        return read_values(pages if kind == "responses" else paths)

    assert [*read_pages([*pages, {"documents": [put("d", [1])]}])] == ["a", "b", "c", "d"]
    assert [*read_pages([*pages, {"pathId": "/document/v1/", "documents": []}])] == ["a", "b", "c"]
    with pytest.warns(UserWarning, match="the last response has a continuation") as caught:
        assert [*read_pages(pages)] == ["a", "b", "c"]
    assert len(caught) == 1


@pytest.mark.parametrize("kind", ["dicts", "lines"])
def test_lines_of_a_visit_without_documents_are_skipped(kind: str) -> None:
    def read_stream(*ends: Any) -> dict[str, Any]:
        stream: list[Any] = [
            put("a", [1]), {"continuation": {"token": "A", "percentFinished": 50.0}},
            {"message": {"text": "hello", "severity": "info"}}, put("b", [2]),
            {"sessionTrace": {"trace": []}}, {"sessionStats": {"documentCount": 2}}, *ends,
        ]  # fmt: skip
        return read_values([json.dumps(line) for line in stream] if kind == "lines" else stream)

    assert read_stream({"continuation": {"percentFinished": 100.0}}) == {"a": [1], "b": [2]}
    with pytest.warns(UserWarning, match="last response has a continuation, so more documents"):
        read_stream()
    with pytest.warns(UserWarning, match="last response has a continuation, so more documents"):
        read_stream({"continuation": "AAA"})
    warning = {"message": {"text": "No such type", "severity": "error"}}
    with pytest.warns(UserWarning, match="documents may be missing, .* 'No such type'"):
        read_stream(warning, {"continuation": {"percentFinished": 100.0}})


def test_error_in_response_to_visit_warns() -> None:
    response = {"pathId": "/document/v1/", "message": "No such type"}
    with pytest.warns(UserWarning, match="missing, because of an error: 'No such type'"):
        assert read_values([response, put("a", [1])]) == {"a": [1]}
    with pytest.warns(UserWarning, match="No such type"):
        assert read_values([response | {"documents": [put("a", [1])]}]) == {"a": [1]}


def test_other_source_raises() -> None:
    with pytest.raises(TypeError, match="source= is None, expected a path, lines"):
        read_values(None)


def test_list_of_vespa_visit_is_a_feed() -> None:
    """``vespa visit --make-feed`` prints these lines."""
    lines = [f"[{LINES[1]}\n", f"{LINES[2]}\n", "{}\n", "]\n"]
    ds = vespa.from_jsonl(lines, "tensor<float>(x[2])", **IDS)
    assert ds.user.values.tolist() == ["a", "b"]


@pytest.mark.parametrize("suffix", ["gz", "bz2"])
def test_compressed_feed_round_trips(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"feed.jsonl.{suffix}"
    vespa.to_jsonl(make_users(), path, **IDS)
    assert path.read_bytes()[:2] in (b"\x1f\x8b", b"BZ")
    xr.testing.assert_equal(vespa.from_jsonl(path, **IDS).tensor, make_users())


@pytest.mark.parametrize("suffix", [".zst", ".lz4", ".Z", ".br"])
def test_suffix_without_a_codec_raises(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(fsspec.utils.compressions, suffix[1:], raising=False)
    path = tmp_path / f"a.jsonl{suffix}"
    with pytest.raises(ValueError, match=f"no codec for '{suffix}' .* lz4 .*decompress .* use .gz"):
        vespa.to_jsonl(make_users(), path, **IDS)
    assert not list(tmp_path.iterdir())
    path.write_text("{}\n")
    with pytest.raises(ValueError, match=f"no codec for '{suffix}'"):
        vespa.from_jsonl(path, **IDS)


@pytest.mark.parametrize("content", [b"\7\1\1\4user\1\1x\2\0", b"\x04\x22\x4d\x18abc\xff"])
def test_binary_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content * 20)
    with pytest.raises(ValueError, match="line 1: it is binary; open tensors by xarray"):
        vespa.from_jsonl(path, **IDS)
    with pytest.raises(ValueError, match=r"a\.jsonl: it is binary; open tensors by xarray"):
        vespa.from_json(path)


def test_compressed_json_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(fsspec.utils.compressions, "lz4", raising=False)
    path = tmp_path / "constant.json.gz"
    path.write_bytes(gzip.compress(b'{"type": "tensor(x[2])", "values": [1, 2]}', mtime=0))
    assert vespa.from_json(path).tensor.values.tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"no codec for '\.lz4' is installed; pip install lz4"):
        vespa.from_json(path.rename(tmp_path / "constant.json.lz4"))


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"fill_value": 0}, ValueError, "fill_value=0 requires sparse='dense'"),
        ({"sparse": "full"}, ValueError, "sparse='full' is not one of"),
        ({"chunk": {}}, TypeError, "'chunk' is not a keyword"),
        ({"verify": 0}, TypeError, "verify=0 must be of type bool"),
        ({"prefix": None}, TypeError, "prefix=None must be a str"),
        ({"dim": 1}, TypeError, "dim=1 must be a str"),
    ],
)
def test_keywords_are_checked_before_reading(
    keywords: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "feed.jsonl"
    path.write_text("no JSON")
    with pytest.raises(error, match=message):
        vespa.from_jsonl(path, **IDS | keywords)


def test_keywords_may_depend_on_the_feed() -> None:
    feed = [put("a", [1]), put("b", [2])]
    keywords: dict[str, Any] = {"dims": ["d", "y"], "chunks": {"y": 1}, "name": "t"}
    ds = vespa.from_jsonl(feed, "tensor(x[1])", field="v", **keywords)
    assert ds.t.dims == ("d", "y")
    assert ds.t.chunks == ((2,), (1,))


def test_other_coordinates_are_dropped_as_the_message_says(tmp_path: Path) -> None:
    users = make_users(2).assign_coords(lang=("user", ["en", "de"]))
    with pytest.raises(ValueError, match=r"'lang'; call drop_vars.* or pass drop=\['coords'\]"):
        vespa.to_jsonl(users, tmp_path / "a.jsonl", **IDS)
    vespa.to_jsonl(users, tmp_path / "a.jsonl", drop=["coords"], **IDS)
    assert vespa.from_jsonl(tmp_path / "a.jsonl", **IDS).user.values.tolist() == ["u0", "u1"]


def test_list_on_one_line_is_a_feed(tmp_path: Path) -> None:
    documents = [put("a", [1]), put("b", [2])]
    path = tmp_path / "feed.json"
    for end in ("", "\n", "\n\n"):
        path.write_text(json.dumps(documents) + end)
        assert read_values(path) == {"a": [1], "b": [2]}
    path.write_text(f"{json.dumps(documents)}\n[\n")
    with pytest.raises(ValueError, match="the list of documents does not end"):
        read_values(path)


@pytest.mark.parametrize("kind", ["name", "file"])
def test_gzip_without_its_suffix_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.jsonl" if kind == "name" else "a.jsonl.gz")
    path.write_bytes(gzip.compress(b"{}\n", mtime=0))
    with (
        path.open("rb") as file,
        pytest.raises(ValueError, match=r"line 1: it is .* by gzip; pass"),
    ):
        vespa.from_jsonl(path if kind == "name" else file, **IDS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}\n", r"line 1: .* by gzip fails .*; fetch .*, or omit .gz if it is not"),
        (gzip.compress(b"{}\n" * 9, mtime=0)[:-9], r"line 1: .*\(Compressed .*; fetch the file"),
        (gzip.compress(b"{}\n", mtime=0)[:10] + b"\xff" * 20, r"line 1: .*\(.*invalid"),
    ],
    ids=["text", "truncated", "corrupt"],  # the time is in the content
)
def test_wrong_compressed_feed_raises(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "feed.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"feed.jsonl.gz: {message}"):
        vespa.from_jsonl(path, **IDS)


@pytest.mark.parametrize("suffix", [".bz2", ".xz", ".lzma", ".zip"])
def test_text_with_the_suffix_of_a_codec_raises(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_text("{}\n")
    reason = rf"line 1: the decompression by \w+ fails .*, or omit {suffix} if it is not"
    with pytest.raises(ValueError, match=f"^{path}: {reason}"):
        vespa.from_jsonl(path, **IDS)


def test_feed_in_a_store_is_opened() -> None:
    with fsspec.open("memory://feeds/feed.jsonl.gz", "wt", compression="gzip") as file:
        file.write('{"put": "a", "fields": {"v": [1, 2]}}\n')
    ds = vespa.from_jsonl("memory://feeds/feed.jsonl.gz", "tensor(x[2])", field="v")
    assert ds.tensor.values.tolist() == [[1, 2]]


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no JSON": ([LINES[1], "{"], {}, "line 2: '{' is not JSON"),
    "no type": (LINES, {"type": None}, "line 2: document .*a., field .*: the JSON states no type"),
    "shape": ([LINES[1].replace("[1, 2]", "[1]")], {}, r"line 1: .*expected \(2,\)"),
    "other type": (
        [{"put": f"{PREFIX}{n}",
          "fields": {"vector": {"type": f"tensor(x[{n}])", "values": [1] * n}}} for n in (1, 2)],
        {"type": None}, "line 2: document .*: the JSON states the type"),
    "no field": (
        LINES, {"field": "vectr"},
        r"no document has .* field 'vectr' .did you mean 'vector'.., expected one of .'other', "),
    "null": (
        [{"fields": {"vector": None}}], {}, "no .* tensor in the field 'vector'; .* line 1 of",
    ),
    "no documents": ([""], {}, "no document has a tensor in .*; the feed has no documents, or"),
    "no fields": ([{"put": "a", "field": {}}], {}, "no document .*; the documents have no fields"),
    "other id": (
        LINES, {"prefix": "id:x"},
        "line 2: the id .* 'id:shop:user::a', expected 'id:x...'; pass prefix='id:shop:user::'",
    ),
    "short id": (
        [{"put": "a", "fields": {"vector": [1, 2]}}], {},
        "line 1: the id .* 'a', expected 'id:shop:user::...'; pass prefix='', or correct",
    ),
    "no id": ([{"fields": {"vector": [1, 2]}}], {}, "line 1: the id of the document is None"),
    "id": ([{"put": PREFIX + "\ud800", "fields": {"vector": [1, 2]}}], {}, "line 1: .*surrogates"),
    "removed": ([LINES[1], {"remove": PREFIX + "a"}], {}, "no document has a tensor in"),
    "list": ([LINES[1], "[1]"], {}, "line 2: 1 is not a JSON object, expected a put"),
    "not closed": ([LINES[1], "{", '"put": 1'], {}, "line 2: .* is not JSON: "),
    "dict in a document": (["{", {"put": "a"}], {}, "line 1: '{' is not JSON: "),
    "closed twice": ([LINES[1], "}", LINES[1]], {}, "line 2: '}' is not JSON: "),
    "words": (["{", "} word {}"], {}, "line 2: 'word {}' is not JSON: "),
    "not UTF-8": ([LINES[1], b'{"put": "\xff"}'], {}, "line 2: .* is not JSON: byte 9 is not UTF"),
    "dim": (LINES, {"dim": "x"}, "line 2: .*dim='x' is a dimension of tensor"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "values", "message"),
    [
        ("int8", [300, 0], "document '4', field 'v': 300 is not an integer"),
        (
            "float",
            [0, 1e300],
            r"document '4', field 'v': 1e.300 is not a number .*for tensor<float>\(x",
        ),
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


@pytest.mark.filterwarnings("ignore:Vespa requires ids")
@pytest.mark.parametrize("cells", ["double", "float", "bfloat16"])
@pytest.mark.parametrize("form", ["short", "long", "hex"])
def test_numbers_that_are_not_finite_are_kept(cells: str, form: Any, tmp_path: Path) -> None:
    values = [None, "Infinity", "-inf", float("nan"), 1.5]
    feed = [{"put": "a", "fields": {"v": values}}]
    ds = vespa.from_jsonl(feed, f"tensor<{cells}>(x[5])", field="v")
    np.testing.assert_array_equal(ds.tensor[0], [np.nan, np.inf, -np.inf, np.nan, 1.5])
    vespa.to_jsonl(ds, tmp_path / "feed.jsonl", field="v", form=form)
    xr.testing.assert_identical(vespa.from_jsonl(tmp_path / "feed.jsonl", field="v"), ds)


@pytest.mark.parametrize("form", ["hex", "short", "long"])
def test_feed_of_updates_round_trips(form: Any, tmp_path: Path) -> None:
    vespa.to_jsonl(make_users(2), tmp_path / "a.jsonl", form=form, operation="update", **IDS)
    first, _ = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    vector = vespa.to_json(make_users().isel(user=0, drop=True), form)
    assert first == {"update": "id:shop:user::u0", "fields": {"vector": {"assign": vector}}}
    back = vespa.from_jsonl(tmp_path / "a.jsonl", **IDS)
    xr.testing.assert_equal(back.tensor, make_users(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "a"}, "mode='a' is neither 'w' "),
        ({"operation": "remove"}, "operation='remove' is not one of 'put', 'update'"),
        ({"prefix": "u"}, "the label 'u0' already begins with prefix='u'; omit"),
    ],
)
def test_wrong_options_of_a_feed_raise(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        vespa.to_jsonl(make_users(), tmp_path / "a.jsonl", **(IDS | options))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["documents", "root"])
def test_responses_of_vespa_are_feeds(key: str) -> None:
    documents = [{"id": name, "fields": {"v": [1]}} for name in "ab"]
    response = {"documents": documents} if key == "documents" else {"root": {"children": documents}}
    for source in (response, [json.dumps(response)], documents):
        ds = vespa.from_jsonl(source, "tensor(x[1])", field="v")
        assert ds.document.values.tolist() == ["a", "b"]


def test_directory_of_feeds_raises(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=f"{tmp_path} is a directory; .* to from_jsonl"):
        vespa.from_jsonl(tmp_path, **IDS)


def test_empty_tensors_are_counted() -> None:
    blocks: list[Any] = [{"0": [1]}, {}, []]
    lines = [{"put": f"{n}", "fields": {"v": {"blocks": x}}} for n, x in enumerate(blocks)]
    with pytest.warns(UserWarning, match="without cells .* out: 2, the first in line 2 of"):
        ds = vespa.from_jsonl(lines, "tensor(chunk{},x[1])", field="v")
    assert ds.document.values.tolist() == ["0"]


def write_parts(directory: Path) -> None:
    for number in range(3):
        users = make_users().isel(user=slice(3 * number, 3 * number + 3))
        vespa.to_jsonl(users, directory / f"feed-{number}.jsonl.gz", **IDS)


@pytest.mark.parametrize("pattern", ["feed-*.jsonl.gz", "*", "feed-[0-9].jsonl.gz", "f??d-?.*"])
def test_several_feeds_are_one_dataset(pattern: str, tmp_path: Path) -> None:
    write_parts(tmp_path)
    for source in (tmp_path / pattern, f"{tmp_path}/{pattern}"):
        xr.testing.assert_equal(vespa.from_jsonl(source, **IDS).tensor, make_users())


def test_lines_of_several_feeds_are_one_dataset(tmp_path: Path) -> None:
    write_parts(tmp_path)
    files = sorted(tmp_path.iterdir())
    with fileinput.input(files, openhook=fileinput.hook_compressed, mode="rb") as lines:
        xr.testing.assert_equal(vespa.from_jsonl(lines, **IDS).tensor, make_users())
    patterns = [str(files[0]), f"{tmp_path}/feed-[12]*"]
    for names in ([*map(str, files)], patterns, [fsspec.open(file) for file in files]):
        xr.testing.assert_equal(vespa.from_jsonl(names, **IDS).tensor, make_users())
    for paths in (tmp_path.glob("*.gz"), iter(map(str, files)), dict.fromkeys(files).keys()):
        assert vespa.from_jsonl(paths, **IDS).sizes["user"] == 8
    with pytest.raises(FileNotFoundError, match=r"no feed matches .*x\*"):
        vespa.from_jsonl([*patterns, f"{tmp_path}/x*"], **IDS)


@pytest.mark.parametrize("name", ["feed[1].jsonl", "feed?.jsonl", "feed*.jsonl"])
@pytest.mark.parametrize("store", ["file", "memory"])
def test_file_with_the_name_of_a_pattern_is_opened(name: str, store: str, tmp_path: Path) -> None:
    if store == "file" and os.name == "nt" and "[" not in name:
        pytest.skip("Windows has no files of such names")
    fs, root = fsspec.filesystem(store), tmp_path if store == "file" else "memory://patterns"
    for other in ("feed1.jsonl", name):
        fs.pipe(f"{root}/{other}", b'{"put": "%s", "fields": {"v": [1]}}' % other[:6].encode())
    ds = vespa.from_jsonl(f"{root}/{name}", "tensor(x[1])", field="v")
    assert ds.document.values.tolist() == [name[:6]]


@pytest.mark.parametrize("text", ["{0}\n{0}\n", " [\n{0}]", "[{0}]", b"{}"])
def test_text_of_a_feed_raises(text: Any) -> None:
    content = text if isinstance(text, bytes) else text.replace("{0}", LINES[1])
    with pytest.raises(ValueError, match=r"text of a feed; pass text.splitlines\(\), or a path$"):
        vespa.from_jsonl(content, **IDS)


def test_errors_name_one_of_several_feeds(tmp_path: Path) -> None:
    write_parts(tmp_path)
    with fsspec.open(tmp_path / "feed-2.jsonl.gz", "at", compression="gzip") as file:
        file.write("{\n")
    with pytest.raises(ValueError, match=r"feed-2.jsonl.gz: line 3: '{' is not JSON"):
        vespa.from_jsonl(f"{tmp_path}/*.gz", **IDS)
    with pytest.raises(FileNotFoundError, match=r"no feed matches .*x\*.jsonl"):
        vespa.from_jsonl(f"{tmp_path}/x*.jsonl", **IDS)


@pytest.mark.parametrize(
    "text",
    [
        "[{0}, {1}]",
        "[\n{0},\n{1}\n]\n",
        "[{0},\n{1}]",
        "{0}\r\n\r\n{1}\r\n",
        "\n\n{0}\n   \n  {1}",
    ],
)
def test_lists_and_other_line_ends_are_read(text: str, tmp_path: Path) -> None:
    documents = ['{"put": "a", "fields": {"v": [1]}}', '{"put": "b", "fields": {"v": [2]}}']
    content = text.replace("{0}", documents[0]).replace("{1}", documents[1])
    (tmp_path / "feed.json").write_bytes(content.encode())
    ds = vespa.from_jsonl(tmp_path / "feed.json", "tensor(x[1])", field="v")
    assert ds.document.values.tolist() == ["a", "b"]
    assert ds.tensor.values.tolist() == [[1], [2]]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_is_named(encoding: str, tmp_path: Path) -> None:
    vespa.to_jsonl(make_users(), tmp_path / "a.jsonl", **IDS)
    text = ("\ufeff" if encoding[-2:] == "be" else "") + (tmp_path / "a.jsonl").read_text()
    (tmp_path / "a.jsonl").write_bytes(text.encode(encoding))
    with pytest.raises(ValueError, match=r"line 1: it is UTF-16, .*; pass open"):
        vespa.from_jsonl(tmp_path / "a.jsonl", **IDS)
    with (tmp_path / "a.jsonl").open(encoding="utf-16") as file:
        xr.testing.assert_equal(vespa.from_jsonl(file, **IDS).tensor, make_users())


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    vespa.to_jsonl(make_users(), tmp_path / "a.jsonl", **IDS)
    marked = b"\xef\xbb\xbf" + (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "b.jsonl").write_bytes(marked)
    xr.testing.assert_equal(vespa.from_jsonl(tmp_path / "b.jsonl", **IDS).tensor, make_users())


@pytest.mark.parametrize("name", ["feed.jsonl", "feed.jsonl.gz"])
def test_feed_for_a_store_is_uploaded(name: str) -> None:
    url = f"memory://uploads/{name}"
    vespa.to_jsonl(make_users(), url, storage_options={}, **IDS)
    xr.testing.assert_equal(vespa.from_jsonl(url, **IDS).tensor, make_users())
    with pytest.raises(FileExistsError, match=rf"it exists already; .*: '{url}'"):
        vespa.to_jsonl(make_users(2), url, mode="x", **IDS)
    assert vespa.from_jsonl("memory://uploads/feed*", **IDS).sizes["x"] == 5
    fs = fsspec.filesystem("memory")
    vespa.to_jsonl(make_users(2), f"/uploads/{name}", fs=fs, **IDS)
    file = fsspec.open(url)
    xr.testing.assert_equal(vespa.from_jsonl(file, **IDS).tensor, make_users(2))
    fs.rm("uploads", recursive=True)


@pytest.mark.parametrize("case", WRONG)
def test_other_feeds_raise(case: str) -> None:
    lines, options, message = WRONG[case]
    with pytest.raises(ValueError, match=f"^<Vespa feed>: {message}"):
        vespa.from_jsonl(lines, **({"type": "tensor<float>(x[2])"} | IDS | options))


def test_wrong_type_is_not_an_error_of_a_line() -> None:
    with pytest.raises(ValueError, match=r"^'tensor<float64>.*' is not the type of"):
        vespa.from_jsonl(LINES, "tensor<float64>(x[2])", **IDS)


def test_labels_that_are_not_utf_8_raise(tmp_path: Path) -> None:
    users = make_users(1).assign_coords(user=["\udcff"])
    with pytest.raises(ValueError, match="wrong label: str is not valid UTF-8"):
        vespa.to_jsonl(users, tmp_path / "feed.jsonl", **IDS)
    assert not list(tmp_path.iterdir())


def test_dimension_without_labels_raises(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"dim=.usr. .did you mean .user... has no labels, expected"
    ):
        vespa.to_jsonl(make_users(), tmp_path / "feed.jsonl", **(IDS | {"dim": "usr"}))
    with pytest.raises(ValueError, match=r"dim='x' has no labels, .*; call assign_coords.x=...."):
        vespa.to_jsonl(make_users(), tmp_path / "feed.jsonl", **(IDS | {"dim": "x"}))


@pytest.mark.parametrize(
    ("labels", "drop", "message"),
    [
        (range(8), [], r"'user' are int64, not str; call assign_coords\(user=.*astype\(str\)\)$"),
        (range(8), ["coords"], r"'user' are int64, not str; call assign_coords\(user=.*astype"),
        (None, [], r"no labels, expected one of \['user', 'x'\] .*assign_coords"),
    ],
)
def test_ids_that_are_not_str_raise(labels: Any, drop: Any, message: str, tmp_path: Path) -> None:
    users = make_users().drop_vars("user")
    users = users if labels is None else users.assign_coords(user=labels)
    with pytest.raises(ValueError, match=message):
        vespa.to_jsonl(users, tmp_path / "feed.jsonl", drop=drop, **IDS)


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


TENSOR = '{"type": "tensor<float>(x[2])", "values": "%s"}'
GOOD = '{"put": "id:%s", "fields": {"title": "ü", "v": ' + TENSOR + "}}"
ODD = {
    "numbers": GOOD.replace('"%s"}', "[5, 6]}") % 9,
    "small letters": GOOD % (9, "3f80000040a00000"),
    "no field": '{"put": "id:9", "fields": {"title": 1}}',
    "null": '{"put": "id:9", "fields": {"v": null}}',
    "spaces": (GOOD % (9, "3F80000040A00000")).replace(" ", "  "),
    "another order": '{"fields": {"v": {"values": "3F80000040A00000"}}, "put": "id:9"}',
    "update": '{"update": "id:9", "fields": {"v": {"assign": "3F80000040A00000"}}}',
    "escaped id": GOOD % ("\\u0061\\n", "3F80000040A00000"),
    "two in a line": f"[{GOOD % (8, '3F80000040A00000')}, {GOOD % (9, '3F80000040A00000')}]",
    "hit of a query": (GOOD % (9, "3F80000040A00000")).replace('"put": "id:9"', '"id": "index:9"')
    .replace('"title": "ü"', '"documentid": "id:9"'),
    "two without brackets": f"{GOOD % (8, '3F80000040A00000')}, {GOOD % (9, '-')}",
    "repeated key": (GOOD % (9, "3F80000040A00000")).replace("}}", ', "values": ""}}'),
    "of a copy": (GOOD % (9, "")).replace('"title": "ü"', '"a": {"v": {"type": '
                  '"tensor<float>(x[2])", "values": "3F80000040A00000"}}'),
    "cut": (GOOD % (9, "3F80000040A00000"))[:-3],
    "too long": GOOD % (9, "3F80000040A0000000"),
    "no digits": GOOD % (9, "3F80000040A0000G"),
    "id again": GOOD % (2, "3F80000040A00000"),
    "other prefix": (GOOD % (9, "3F80000040A00000")).replace("id:9", "ib:9"),
    "id is a number": (GOOD % (9, "3F80000040A00000")).replace('"id:9"', "9"),
    "remove": '{"remove": "id:9"}',
    "other type": (GOOD % (9, "3F80000040A00000")).replace("<float>", "<int8>"),
    "blank": "",
    "deep": "[" * 10000,
}  # fmt: skip


def open_feed(source: Any) -> tuple[Any, str]:
    """Return the tensor or the error of a feed, and its warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result: Any = vespa.from_jsonl(source, field="v", prefix="id:").tensor
        except ValueError as error:
            result = str(error)
    name = str(source) if isinstance(source, Path) else "<Vespa feed>"
    text = " ".join(str(warning.message) for warning in caught).replace(name, "F")
    return (result.replace(name, "F") if isinstance(result, str) else result), text


@pytest.mark.parametrize("first", ["digits", "numbers"])
@pytest.mark.parametrize("odd", ODD)
def test_documents_are_equal_line_by_line(odd: str, first: str, tmp_path: Path) -> None:
    """Lines of bytes that are like the first one are read at once, lines of str are not."""
    lines = [GOOD % (n, f"3F80000040{n}00000") for n in range(7)]
    lines.insert(4, ODD[odd])
    if first == "numbers":
        lines.insert(0, GOOD.replace('"%s"}', "[5, 6]}") % 7)
    (tmp_path / "feed.jsonl").write_text("\n".join(lines), encoding="utf-8")
    result, warned = open_feed(tmp_path / "feed.jsonl")
    expected, expected_warning = open_feed(lines)
    assert warned == expected_warning
    if isinstance(expected, str):
        assert result == expected
    else:
        xr.testing.assert_identical(result, expected)


def test_hits_of_a_query_are_labelled_by_their_documents() -> None:
    lines = [(GOOD % (n, "3F80000040A00000")).replace("put", "id") for n in range(3)]
    hits = [line.replace('"id:', '"index:').replace('"title": "ü"', f'"documentid": "id:{n}"')
            for n, line in enumerate(lines)]  # fmt: skip
    assert open_feed(hits)[0].document.values.tolist() == ["0", "1", "2"]
    xr.testing.assert_identical(open_feed(hits)[0], open_feed(lines)[0])


@pytest.mark.store
def test_missing_feed_is_named_without_its_query(http: Any) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        vespa.from_jsonl(f"{http.url}/a.jsonl?secret=1", **IDS)
    assert (
        str(caught.value)
        == f"[Errno 2] the server answered 404 Not Found: '{http.url}/a.jsonl?...'"
    )
    with pytest.raises(FileNotFoundError, match=r"missing.jsonl"):
        vespa.from_jsonl("missing.jsonl", **IDS)


def put(name: str, value: Any) -> dict[str, Any]:
    return {"put": name, "fields": {"v": value}}


def read_values(source: Any, type_: Any = "tensor(x[1])", **options: Any) -> dict[str, Any]:
    """Return the values of a feed by document."""
    tensor = vespa.from_jsonl(source, type_, **({"field": "v"} | options)).tensor
    return dict(zip(tensor.document.values.tolist(), tensor.values.tolist(), strict=True))


PRETTY: dict[str, Any] = {
    "one document": json.dumps(put("a", [1]), indent=2),
    "list": json.dumps([put("a", [1]), put("b", [2])], indent=2),
    "list on one line": json.dumps([put("a", [1]), put("b", [2])]),
    "list with joined braces": "[{\n" + json.dumps(put("a", [1]), indent=1)[2:-1] + "}, {\n"
    + json.dumps(put("b", [2]), indent=1)[2:-1] + "}]",
    "documents": "\n".join(json.dumps(put(name, [1]), indent=4) for name in "ab"),
    "documents without a separator": json.dumps(put("a", [1])) + json.dumps(put("b", [2])),
    "braces in strings": json.dumps(put("a}\\", [1]) | {"note": '{"}[\\'}, indent=2),
    "lists": f'[[{json.dumps(put("a", [1]))}],\n[{json.dumps(put("b", [2]), indent=1)}]]',
    "visit": json.dumps({"pathId": "/", "documents": [put("a", [1])]}, indent=2),
    "query": json.dumps({"root": {"children": [{"id": "a", "fields": {"v": [1]}}]}}, indent=2),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["path", "lines", "bytes"])
@pytest.mark.parametrize("case", PRETTY)
def test_documents_over_several_lines_are_read(case: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "feed.json"
    path.write_text(PRETTY[case])
    lines = PRETTY[case].splitlines()
    sources = {"path": path, "lines": lines, "bytes": [line.encode() for line in lines]}
    first, *others = {"braces in strings": ["a}\\"]}.get(case, ["a", "b"])
    found = read_values(sources[kind])
    assert found[first] == [1]
    assert found.keys() - {first} <= {*others}
    assert len(found) == PRETTY[case].count('"v"')


def test_place_of_a_document_is_its_first_line(tmp_path: Path) -> None:
    documents = [put("a", [1]), put("b", [1, 2]), put("c", [3])]
    path = tmp_path / "feed.json"
    path.write_text(json.dumps(documents, indent=1))
    line = 1 + path.read_text().splitlines().index('  "put": "b",')
    with pytest.raises(ValueError, match=f"feed.json: line {line - 1}: document 'b'"):
        read_values(path)
    path.write_text(json.dumps(documents[::2], indent=1)[:-40])
    with pytest.raises(ValueError, match=r"feed.json: line \d+: .* is not JSON"):
        read_values(path)
    other = tmp_path / "other.json"
    other.write_text(json.dumps(put("d", [1])))
    with pytest.raises(ValueError, match=r"feed.json: line \d+: .* is not JSON"):
        read_values(tmp_path / "*.json")


UPDATE = {"update": "a", "fields": {"v": {"assign": [5]}}}
OPERATIONS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "the last put counts": ([put("a", [1]), put("b", [2]), put("a", [3])], {"a": [3], "b": [2]}),
    "a put without a tensor": ([put("a", [1]), put("b", [2]), {"put": "a", "fields": {}}],
                               {"b": [2]}),
    "remove": ([put("a", [1]), put("b", [2]), {"remove": "a"}], {"b": [2]}),
    "remove of another": ([put("a", [1]), {"remove": "c"}, {"remove": 3}], {"a": [1]}),
    "put after remove": ([{"remove": "a"}, put("a", [1])], {"a": [1]}),
    "update": ([put("a", [1]), UPDATE], {"a": [5]}),
    "update of another field": (
        [put("a", [1]), {"update": "a", "fields": {"w": {"assign": 2}}}], {"a": [1]}),
    "update to null": (
        [put("a", [1]), put("b", [2]), {"update": "a", "fields": {"v": {"assign": None}}}],
        {"b": [2]}),
    "update alone": ([UPDATE], {"a": [5]}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.* are left out")
@pytest.mark.parametrize("case", OPERATIONS)
@pytest.mark.parametrize("kind", ["dicts", "path", "gz"])
def test_operations_take_effect_in_sequence(case: str, kind: str, tmp_path: Path) -> None:
    operations, expected = OPERATIONS[case]
    source: Any = operations
    if kind != "dicts":
        source = tmp_path / ("feed.jsonl" + (".gz" if kind == "gz" else ""))
        with fsspec.open(source, "wt", compression="infer") as file:
            file.writelines(json.dumps(operation) + "\n" for operation in operations)
    assert read_values(source) == expected


PARTIAL_UPDATES = {
    "modify": {"modify": {"operation": "add", "cells": {"0": 1}}},
    "add": {"add": {"cells": {"1": 1}}},
    "remove": {"remove": {"addresses": [{"x": "0"}]}},
}


@pytest.mark.parametrize("name", PARTIAL_UPDATES)
def test_updates_of_some_cells_leave_out_their_documents(name: str) -> None:
    update = {"update": "a", "fields": {"v": PARTIAL_UPDATES[name]}}
    feed = [put("a", [1]), put("b", [2]), update]
    expected = r"are left out: 1, the first in line 3 of .*, an update of some cells; open the"
    with pytest.warns(UserWarning, match=expected):
        assert read_values(feed) == {"b": [2]}
    with pytest.raises(
        ValueError, match=r"no document has .*line 1 of .*, an update of some cells"
    ):
        read_values([update])
    assert read_values([*feed, put("a", [3])]) == {"b": [2], "a": [3]}


def test_documents_without_a_tensor_and_with_updates_are_counted_apart() -> None:
    update = {"update": "b", "fields": {"v": PARTIAL_UPDATES["add"]}}
    feed = [put("a", [1]), put("b", [2]), put("c", None), put("d", None), update]
    with pytest.warns(UserWarning, match="are left out") as caught:
        assert read_values(feed) == {"a": [1]}
    without, updated = sorted(str(warning.message) for warning in caught)[::-1]
    assert "without cells in the field 'v' are left out: 2, the first in line 3 of" in without
    assert "unknown cells in the field 'v' are left out: 1, the first in line 5 of" in updated


def test_updates_of_the_path_of_a_cell_leave_out_their_documents() -> None:
    fields = {"v{0}": {"assign": [5]}}
    feed = [put("a", [1]), put("b", [2]), {"update": "a", "fields": fields}]
    with pytest.warns(UserWarning, match=r"left out: 1, the first in line 3 of .*, an update of"):
        assert read_values(feed) == {"b": [2]}
    other = {"update": "a", "fields": {"vector{0}": {"assign": [5]}, "w[1]": {"assign": 1}}}
    assert read_values([*feed[:2], other]) == {"a": [1], "b": [2]}


def test_rows_that_are_masked_are_written_with_a_warning(tmp_path: Path) -> None:
    users = make_users().astype("float32")
    masked = users.where(users.user != users.user[1])
    label = str(users.user.values[1])
    with pytest.warns(UserWarning, match=f"blocks contain only NaN: 1, the first is '{label}'; c"):
        vespa.to_jsonl(masked, tmp_path / "feed.jsonl", **IDS)
    back = vespa.from_jsonl(tmp_path / "feed.jsonl", **IDS).tensor
    np.testing.assert_array_equal(back, masked)
    vespa.to_jsonl(masked.dropna("user", how="all"), tmp_path / "feed.jsonl", **IDS)
    back = vespa.from_jsonl(tmp_path / "feed.jsonl", **IDS).tensor
    assert back.user.values.tolist() == [x for x in users.user.values if x != label]
    users[1, 0] = np.nan
    vespa.to_jsonl(users, tmp_path / "feed.jsonl", **IDS)


@pytest.mark.parametrize("field", [["a", "b"], None, 3])
def test_field_that_is_no_str_raises(field: Any, tmp_path: Path) -> None:
    message = re.escape(f"field={field!r} must be a str")
    with pytest.raises(TypeError, match=message):
        vespa.from_jsonl([put("a", [1])], "tensor(x[1])", field=field)
    with pytest.raises(TypeError, match=message):
        vespa.to_jsonl(make_users(), tmp_path / "feed.jsonl", field=field, dim="user")
    if field is not None:
        with pytest.raises(TypeError, match=message):
            vespa.from_json({"fields": {"a": [1]}}, "tensor(x[1])", field=field)


def test_documents_keep_the_place_of_their_first_put() -> None:
    feed = [put("a", [1]), put("b", [2]), put("a", [3]), {"remove": "c"}, UPDATE]
    assert list(read_values(feed).items()) == [("a", [5]), ("b", [2])]


def test_misspelt_operation_is_named() -> None:
    for operation in ("udpate", "remvoe"):
        wrong = {operation: "a", "fields": {"v": {"assign": [1]}} if operation == "udpate" else {}}
        with pytest.raises(ValueError, match=f"line 2: '{operation}' .did you mean '.*'.. is not"):
            read_values([put("a", [1]), wrong])


def test_features_of_a_query_are_found() -> None:
    for group in ("matchfeatures", "summaryfeatures"):
        hit = {"id": "h", "fields": {"documentid": "a", group: {"query(q)": [7], "bm25": 2.5}}}
        assert read_values({"root": {"children": [hit]}}, field="query(q)") == {"a": [7]}
        assert vespa.from_json(hit, "tensor(x[1])", field="query(q)").tensor.values == [7]
        with pytest.raises(ValueError, match=r"did you mean 'query\(q\)'"):
            read_values([hit], field="query(p)")


def test_ids_that_vespa_refuses_warn(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Vespa requires ids such as .*, not 'u0'; use prefix="):
        vespa.to_jsonl(make_users(), tmp_path / "a.jsonl", field="v", dim="user")
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 8
    for prefix in ("id:doc:page:", "id:doc:page", "id:doc::"):
        with pytest.warns(UserWarning, match=f"not '{prefix}u0'; use prefix="):
            vespa.to_jsonl(make_users(), tmp_path / "a.jsonl", field="v", dim="user", prefix=prefix)


def test_hits_of_a_grouped_query_are_read() -> None:
    hits = [{"id": f"h{n}", "relevance": 1.0, "fields": {"documentid": f"{n}", "v": [n]}}
            for n in range(4)]  # fmt: skip
    groups = [
        {"id": f"group:string:{n}", "relevance": 1.0, "fields": {"count()": 2},
         "children": [{"id": "hitlist:hits", "label": "hits", "children": hits[n : n + 2]}]}
        for n in (0, 2)
    ]  # fmt: skip
    counts = {"id": "group:string:b", "relevance": 0.5, "fields": {"count()": 1}}
    grouplist = {"id": "grouplist:a", "label": "a", "children": [*groups, counts]}
    root = {"id": "group:root:0", "relevance": 1.0, "children": [grouplist]}
    response = {
        "root": {"id": "toplevel", "fields": {"totalCount": 4}, "children": [root, hits[0]]}
    }
    for source in (response, [response], [json.dumps(response)]):
        assert {*read_values(source)} == {*"0123"}


def test_misspelt_field_is_named() -> None:
    lines = [{"put": f"{n}", "fields": {"vector": [1], "title": "x"}} for n in range(3)]
    expected = r"no document has .* field 'vektor' .did you mean 'vector'.., expected one of"
    with pytest.raises(ValueError, match=expected):
        vespa.from_jsonl(lines, "tensor(x[1])", field="vektor")


@pytest.mark.slow
def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "feed.jsonl"
    path.write_bytes(b"\n" * 100_000 + json.dumps(put("a", [1])).encode() + b"\n" * 1000)
    with limit_calls(1_000_000):
        assert read_values(path) == {"a": [1]}


BOMBS = {
    "line": b"0" * (1 << 16),
    "blank lines": b"\n" * (1 << 16),
    "documents": b"{}\n" * (1 << 14),
    "open object": b'{"a":' + b"[\n" * (1 << 14),
    "lists": b"[" * (1 << 16),
}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["bz2", "gz", "xz"])
@pytest.mark.parametrize("kind", BOMBS)
def test_size_of_a_decompressed_feed_is_limited(
    kind: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_LINE_BYTES", 3 << 14)
    monkeypatch.setattr(feeds, "MAX_EXPANSION", 10)
    monkeypatch.setattr(feeds, "_BUFFER_BYTES", 1 << 20)  # is as large as the limit
    path = tmp_path / f"feed.jsonl.{suffix}"
    with fsspec.open(path, "wb", compression="infer") as file:
        for _ in range(24):
            file.write(BOMBS[kind])
    expected = f"{path}: line .*(the limit of a line|more than 10 times larger|not JSON)"
    with limit_memory(16 << 20), pytest.raises(ValueError, match=expected):
        read_values(path)


@pytest.mark.parametrize(
    "values", [b"1," * 50, b"[]," * 50, b"{}," * 50, b'"a",' * 100], ids=["1", "2", "3", "4"]
)
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_size_of_a_line_is_limited(
    values: bytes, end: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_LINE_BYTES", 350)
    monkeypatch.setattr(feeds, "MAX_VALUES", 40)
    content = b'{"put": "a", "fields": {"v": [1]}, "note": [' + end + values + b"0]}\n"
    (tmp_path / "feed.json").write_bytes(content)
    for source in (tmp_path / "feed.json", content.splitlines()):
        with pytest.raises(
            ValueError, match=r"line 1: it has more than (350 bytes|40 values), the limit of a line"
        ):
            read_values(source)


def test_truncated_line_is_named_before_many_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MAX_LINE_BYTES", 200)
    lines = [json.dumps(put(f"{n}", [1])) for n in range(20)]
    lines[5] = lines[5].replace("[1]}}", "[1")
    with pytest.raises(ValueError, match=r"line 6: .*put.: .5.*is not JSON: .*it is truncated; "):
        read_values(lines[:6])
    with pytest.raises(ValueError, match="line 6: it is truncated, or continues on more than 200 "):
        read_values(lines)


def test_limit_on_values_of_documents_on_several_lines_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_VALUES", 40)
    path = tmp_path / "feed.json"
    path.write_text(json.dumps([put(f"{n}", [1]) for n in range(20)], indent=1))
    expected = "line 2: it is truncated, or continues on more than 40 values, the limit of .* lines"
    with pytest.raises(ValueError, match=expected):
        read_values(path)


@pytest.mark.parametrize("indent", [None, 1])
def test_list_above_the_limit_is_read_after_json_load(
    indent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_LINE_BYTES", 200)
    path = tmp_path / "feed.json"
    path.write_text(json.dumps([put(f"{n}", [1]) for n in range(20)], indent=indent))
    expected = (
        r"200 bytes, the limit of .*; pass json\.load\(file\) to from_jsonl, or write one doc"
    )
    with pytest.raises(ValueError, match=expected):
        read_values(path)
    with path.open() as file:
        assert len(read_values(json.load(file))) == 20


@pytest.mark.parametrize("value", [None, ""])
@pytest.mark.parametrize("operation", ["put", "update", "remove"])
def test_operation_without_an_id_raises(operation: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"'{operation}' is {value!r}, expected the id of"):
        read_values([put("a", [1]), {operation: value, "fields": {"v": {"assign": [1]}}}])


def test_files_are_read_in_the_given_sequence(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("b.jsonl", "a.jsonl")]
    for number, path in enumerate(paths):
        path.write_text(json.dumps(put("d", [number])))
    assert read_values(paths) == {"d": [1]}
    assert read_values(paths[::-1]) == {"d": [0]}
    assert read_values(tmp_path / "*.jsonl") == {"d": [0]}


def test_short_vectors_need_few_calls() -> None:
    lines = [json.dumps(put(f"{n}", [1.5, n])) for n in range(1000)]
    read_values(lines[:1], "tensor(x[2])")  # the first call imports modules
    with limit_calls(67_000):
        assert len(read_values(lines, "tensor(x[2])")) == 1000


def test_cells_of_a_document_are_parsed_at_once() -> None:
    cells = [{"address": {"x": f"{n}"}, "value": n} for n in range(2000)]
    with limit_calls(20_000):
        found = read_values([put("a", {"cells": cells})], "tensor(x[2000])")
    assert found == {"a": [*range(2000)]}


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ("[1e400]}}", "write a finite number, null for NaN"),
        ("[NaN]}}", "write a finite number, null for NaN"),
        ("[-Infinity]}}", "'Infinity' as a string"),
        ("'1'}}", "write valid JSON, one document per line"),
    ],
)
def test_line_that_is_not_json_is_named_before_many_lines(
    values: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_LINE_BYTES", 200)
    lines = [json.dumps(put(f"{n}", [1])) for n in range(20)]
    lines[5] = lines[5].replace("[1]}}", values)
    (tmp_path / "feed.jsonl").write_text("\n".join(lines))
    for source in (tmp_path / "feed.jsonl", lines, lines[:6]):
        with pytest.raises(ValueError, match=rf"line 6: .*put.: .5.*is not JSON: .*{hint}"):
            read_values(source)


def test_unrelated_file_before_colons_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("unrelated")
    (tmp_path / "run::2").mkdir()
    for name in ("run::2/feed.jsonl", "run::2/feed.jsonl.gz", "run::3.jsonl"):
        path = tmp_path / name
        vespa.to_jsonl(make_users(), path, **IDS)
        vespa.to_jsonl(make_users(), str(path), **IDS)
        xr.testing.assert_equal(vespa.from_jsonl(str(path), **IDS).tensor, make_users())
    assert (tmp_path / "run").read_text() == "unrelated"


@pytest.mark.store
def test_feed_is_read_like_other_files(http: Any) -> None:
    """Requests are conditional, limited and retried, and secrets are not shown."""
    http.files["a.jsonl"] = json.dumps(put("a", [1])).encode()
    url = http.url.replace("//", "//user:secret@") + "/a.jsonl?token=secret"
    assert read_values(url, timeout=5) == {"a": [1]}
    assert vespa.from_json(url, "tensor(x[1])", field="v").tensor.values.tolist() == [1]
    fs = fsspec.filesystem("memory")
    fs.pipe("/feeds/b.jsonl", http.files["a.jsonl"])
    assert read_values("/feeds/*.jsonl", fs=fs) == {"a": [1]}
    http.files["a.jsonl"] = b"no JSON"
    for read in (read_values, vespa.from_json):
        with pytest.raises(ValueError, match=r"a\.jsonl") as caught:
            read(url)
        assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="is not JSON") as caught:
        vespa.from_json("other://user:secret@host/a.json")
    assert "secret" not in str(caught.value)


@pytest.mark.store
def test_failed_requests_of_a_feed_are_retried_or_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests import fault_server as faults  # noqa: PLC0415  # its packages take their time

    monkeypatch.setattr("xr_tensorfmt.sources.requests.FIRST_PAUSE", 0)
    with faults.FaultServer().running() as server:
        server.files["a.jsonl"] = json.dumps(put("a", [1])).encode()
        server.faults.extend([faults.status(503), faults.reset, faults.short_body])
        assert read_values(f"{server.url}/a.jsonl") == {"a": [1]}
        server.always = faults.stalled
        with pytest.raises(OSError, match=r"a\.jsonl"):
            read_values(f"{server.url}/a.jsonl", timeout=0.2)
