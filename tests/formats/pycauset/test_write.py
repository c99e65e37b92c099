"""Writing PyCauset files: bytes and round trips."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import pycausetfiles as pf
from tests.opening import open_lazily
from xr_tensorfmt import TensorFormatWarning, to_file
from xr_tensorfmt.core.embedded_metadata import array_to_json
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.formats.pycauset import decode_map, encode_map, packed
from xr_tensorfmt.formats.pycauset.write import WRITTEN
from xr_tensorfmt.sources import find_source

RNG = np.random.default_rng(3)


def make_numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    values = RNG.integers(0, 100, shape).astype(dtype)
    return values * (1 - 0.5j) if values.dtype.kind == "c" else values


def make_square(order: int) -> np.ndarray:
    return RNG.random((order, order))


def make_bits(*shape: int) -> np.ndarray:
    return RNG.random(shape) < 0.5


SPECIAL: dict[str, Callable[[int], np.ndarray]] = {
    "CAUSAL": lambda n: np.triu(make_bits(n, n), 1),
    "TRIANGULAR_FLOAT": lambda n: np.triu(make_square(n), 1),
    "TRIANGULAR_INTEGER": lambda n: np.triu(make_numbers((n, n), "i4"), 1),
}
DATA_TYPES = {"CAUSAL": "BIT", "TRIANGULAR_INTEGER": "INT32"}


def make_array(values: Any, **more: Any) -> xr.DataArray:
    dims = ("index",) if values.ndim == 1 else ("row", "col")
    return xr.DataArray(values, **({"dims": dims, "name": "tensor"} | more))


def get_storage_attrs(path: Path, name: str = "tensor") -> dict[str, Any]:
    return open_lazily(path)[name].encoding["tensorfmt"]


def read_metadata(content: bytes) -> dict[str, Any]:
    offset, length = (int.from_bytes(content[item : item + 8], "little") for item in (40, 48))
    return decode_map(HeaderReader(find_source(content)[0]), offset + 32, offset + length)


def check_bytes(path: Path, payload: bytes, **expected: Any) -> dict[str, Any]:
    """Compare a container with one that the tests make of the same metadata."""
    content = path.read_bytes()
    metadata = read_metadata(content)
    assert content == pf.r1(metadata, payload)
    fields = pf.make_metadata(
        expected["matrix_type"], expected["data_type"], expected["rows"], expected["cols"]
    )
    fields |= {"payload_uuid": metadata["payload_uuid"]}
    fields["payload_layout"] = metadata["payload_layout"]
    fields["seed"] = expected.get("seed", 0)
    assert {key: metadata[key] for key in fields} == fields
    assert len(metadata["payload_uuid"]) == 32
    return metadata


@pytest.mark.parametrize("name", pf.NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(3, 5), (7,)])
def test_dense_values_of_every_dtype(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    values = make_numbers(shape, pf.NUMPY_DTYPES[name])
    path = tmp_path / "t.pycauset"
    to_file(make_array(values), path)
    matrix_type = "VECTOR" if len(shape) == 1 else "INTEGER" if "INT" in name else "DENSE_FLOAT"
    size = {"rows": shape[0], "cols": 1 if len(shape) == 1 else shape[1]}
    check_bytes(path, values.tobytes(), matrix_type=matrix_type, data_type=name, **size)
    back = open_lazily(path)
    xr.testing.assert_identical(back, make_array(values).to_dataset())
    assert back.tensor.dtype == values.dtype


@pytest.mark.parametrize("columns", [1, 64, 67, 512, 513])
def test_bits_are_padded_to_64_bytes_per_row_and_to_8_in_vector(
    tmp_path: Path, columns: int
) -> None:
    values, path = make_bits(5, columns), tmp_path / "t"
    to_file(make_array(values), path, "pycauset")
    check_bytes(
        path,
        pf.pack_bits(values, 64),
        matrix_type="DENSE_FLOAT", data_type="BIT", rows=5, cols=columns,
    )  # fmt: skip
    to_file(make_array(values[0]), path, "pycauset")
    vector = {"matrix_type": "VECTOR", "data_type": "BIT", "rows": columns, "cols": 1}
    check_bytes(path, pf.pack_row(values[0], 8), **vector)
    xr.testing.assert_identical(open_lazily(path), make_array(values[0]).to_dataset())


@pytest.mark.parametrize("matrix_type", SPECIAL)
@pytest.mark.parametrize("order", [1, 2, 3, 64, 65, 130])
def test_every_type_of_matrix(tmp_path: Path, matrix_type: str, order: int) -> None:
    values, path = SPECIAL[matrix_type](order), tmp_path / "t"
    expected = {
        "matrix_type": matrix_type,
        "data_type": DATA_TYPES.get(matrix_type, "FLOAT64"),
        "rows": order,
        "cols": order,
    }
    for data in (values, da.from_array(values, chunks=-(-order // 3))):
        to_file(make_array(data), path, "pycauset", matrix_type=matrix_type)
        check_bytes(path, pf.pack_triangle(values), **expected)
        xr.testing.assert_identical(open_lazily(path).load(), make_array(values).to_dataset())


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (0,)])
@pytest.mark.parametrize("dtype", ["bool", "f8", "i4"])
def test_empty_matrix_is_written(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    data = make_array(np.zeros(shape, dtype))
    to_file(data, tmp_path / "t", "pycauset")
    xr.testing.assert_identical(open_lazily(tmp_path / "t"), data.to_dataset())
    to_file(data.chunk(), tmp_path / "t", "pycauset")
    xr.testing.assert_identical(open_lazily(tmp_path / "t"), data.to_dataset())


def test_payload_layout_matches_pycauset(tmp_path: Path) -> None:
    for matrix_type, make in SPECIAL.items():
        to_file(make_array(make(4)), tmp_path / matrix_type, "pycauset", matrix_type=matrix_type)
        layout = read_metadata((tmp_path / matrix_type).read_bytes())["payload_layout"]
        assert layout == {"kind": "raw_triangular", "params": {}}
    to_file(make_array(make_square(3)), tmp_path / "t", "pycauset")
    layout = read_metadata((tmp_path / "t").read_bytes())["payload_layout"]
    assert layout["kind"] == "raw_dense"


@st.composite
def subjects(draw: st.DrawFn) -> tuple[xr.Dataset, str | None]:
    """A Dataset of one variable, and the type of matrix to write it as."""
    matrix_type = draw(st.sampled_from([None, *SPECIAL]))
    if matrix_type is not None:
        values = SPECIAL[matrix_type](draw(st.integers(1, 140)))
    else:
        shape = draw(st.lists(st.integers(0, 140), min_size=1, max_size=2).map(tuple))
        dtype = draw(st.sampled_from([*pf.NUMPY_DTYPES.values(), "bool"]))
        values = make_bits(*shape) if dtype == "bool" else make_numbers(shape, dtype)
    dims = draw(st.lists(st.text("xyz_", min_size=1), min_size=2, max_size=2, unique=True))
    dims = dims[: values.ndim]
    name = draw(st.text("abc", min_size=1))
    coords: dict[str, Any] = {}
    if draw(st.booleans()):
        coords[dims[0]] = np.arange(values.shape[0]) * 0.5
    if draw(st.booleans()):
        coords["label"] = (dims[-1], [f"é{i}" for i in range(values.shape[-1])], {"a": [1, None]})
    attrs = draw(st.dictionaries(st.text("seduch"), st.integers() | st.text(max_size=3)))
    data = xr.Dataset({name: (dims, values, attrs)}, coords, {"about": "ü"})
    return data, matrix_type


@given(subjects(), st.sampled_from(["memory", "dask", "lazy"]), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_dataset_round_trips(
    tmp_path: Path, checked: tuple[xr.Dataset, str | None], form: str, draws: st.DataObject
) -> None:
    data, matrix_type = checked
    (name,) = data
    path, again = tmp_path / "t", tmp_path / "again"
    given_data = data
    if form == "dask":
        sizes = {dim: draws.draw(st.integers(1, 60)) for dim in data[name].dims}
        given_data = data.chunk(sizes)
    with pytest.MonkeyPatch.context() as patch:
        limit = draws.draw(st.sampled_from([1, 60, packed.BATCH_BYTES]))
        patch.setattr(packed, "BATCH_BYTES", limit)
        to_file(given_data, path, "pycauset", matrix_type=matrix_type)
    xr.testing.assert_identical(open_lazily(path).load(), data)
    if matrix_type is not None:
        assert get_storage_attrs(path, str(name))["matrix_type"] == matrix_type
    if form == "lazy":
        # Without being told it is of the same type again.
        to_file(open_lazily(path), again, "pycauset")
        xr.testing.assert_identical(open_lazily(again).load(), data)
        assert (
            get_storage_attrs(again, str(name))["matrix_type"]
            == get_storage_attrs(path, str(name))["matrix_type"]
        )


@given(st.dictionaries(st.text(max_size=5), pf.numbers_and_strings))
def test_numbers_strings_and_maps_are_encoded(value: Any) -> None:
    assert encode_map({"key": value, "a": 1}) == pf.encode({"key": value, "a": 1})


def test_real_files_round_trip(conformance: Path, tmp_path: Path) -> None:
    root = conformance / "pycauset"
    for number, record in enumerate(json.loads((root / "manifest.json").read_text())["files"]):
        if record.get("expect") == "error":
            continue
        # Every other one in chunks; some twice, as the second file has a note and the first none.
        chunks = {"chunks": {}, "chunk_bytes": 1000} if number % 2 else {}
        first = open_lazily(root / record["file"], **chunks)
        to_file(first, tmp_path / "first", "pycauset")
        last = open_lazily(tmp_path / "first")
        if number % 5 == 0:
            to_file(last, tmp_path / "second", "pycauset")
            last = open_lazily(tmp_path / "second")
        xr.testing.assert_identical(last.load(), first.load())
        assert last.tensor.dtype == first.tensor.dtype
        old, new = (ds.tensor.encoding["tensorfmt"] for ds in (first, last))
        is_view = old["scalar"] != [1, 0] or old["is_transposed"]
        if not is_view and old["matrix_type"] in WRITTEN:
            assert new["matrix_type"] == old["matrix_type"]


# The type of matrix.


def write_causal_file(directory: Path, order: int = 70) -> Path:
    path = directory / "causal.pycauset"
    path.write_bytes(
        pf.r1(
            pf.make_metadata("CAUSAL", "BIT", order, order),
            pf.pack_triangle(SPECIAL["CAUSAL"](order)),
        )
    )
    return path


def test_type_of_bools_depends_on_values(tmp_path: Path) -> None:
    upper = SPECIAL["CAUSAL"](20)
    for values, matrix_type in (
        (upper, "CAUSAL"),
        (upper.T, "DENSE_FLOAT"),
        (upper[:9], "DENSE_FLOAT"),
    ):
        to_file(make_array(values), tmp_path / "t", "pycauset")
        assert get_storage_attrs(tmp_path / "t")["matrix_type"] == matrix_type
        to_file(make_array(values).chunk(), tmp_path / "t", "pycauset")
        assert get_storage_attrs(tmp_path / "t")["matrix_type"] == "DENSE_FLOAT"
    to_file(make_array(upper), tmp_path / "t", "pycauset", matrix_type="DENSE_FLOAT")
    assert get_storage_attrs(tmp_path / "t")["matrix_type"] == "DENSE_FLOAT"


@pytest.mark.parametrize("matrix_type", ["CAUSAL", "TRIANGULAR_FLOAT"])
def test_values_changed_in_memory_are_stored_dense(tmp_path: Path, matrix_type: str) -> None:
    to_file(
        make_array(SPECIAL[matrix_type](30)), tmp_path / "t", "pycauset", matrix_type=matrix_type
    )
    data = open_lazily(tmp_path / "t").load()
    to_file(data, tmp_path / "t", "pycauset")
    assert get_storage_attrs(tmp_path / "t")["matrix_type"] == matrix_type
    data.tensor[20, 3] = 1
    to_file(data, tmp_path / "t", "pycauset")
    assert get_storage_attrs(tmp_path / "t")["matrix_type"] == "DENSE_FLOAT"
    xr.testing.assert_identical(open_lazily(tmp_path / "t").load(), data)


def test_type_that_is_not_written_is_stored_dense(tmp_path: Path) -> None:
    half = make_square(9)
    values = half + half.T
    payload = pf.pack_triangle(values, diagonal=True)
    path = tmp_path / "symmetric"
    path.write_bytes(pf.r1(pf.make_metadata("SYMMETRIC", "FLOAT64", 9, 9), payload))
    with pytest.raises(ValueError, match=r"values in the layout Gathered can only be read"):
        to_file(make_array(values[:2]), path, "pycauset", region={"row": slice(0, 2)})
    to_file(open_lazily(path), tmp_path / "t", "pycauset")
    assert get_storage_attrs(tmp_path / "t")["matrix_type"] == "DENSE_FLOAT"
    np.testing.assert_array_equal(open_lazily(tmp_path / "t").tensor, values)


def test_part_or_other_dtype_is_stored_dense(tmp_path: Path) -> None:
    data = open_lazily(write_causal_file(tmp_path), chunks={})
    for part in (data.isel(row=slice(5, 9)), data.isel(row=slice(9), col=slice(5, 14))):
        to_file(part, tmp_path / "t", "pycauset")
        assert get_storage_attrs(tmp_path / "t")["matrix_type"] == "DENSE_FLOAT"
        xr.testing.assert_identical(open_lazily(tmp_path / "t").load(), part.load().drop_attrs())
    to_file(data, tmp_path / "t", "pycauset", encoding={"tensor": {"dtype": "int32"}})
    assert get_storage_attrs(tmp_path / "t")["matrix_type"] == "INTEGER"


def test_modified_matrix_is_stored_dense(tmp_path: Path) -> None:
    path = write_causal_file(tmp_path)
    chunked = open_lazily(path, chunks={}).transpose("col", "row")
    for matrix_type in (None, "CAUSAL"):  # chunks are not computed to choose a type
        is_permuted = pytest.warns(TensorFormatWarning, match="are in another order")
        hint = r"matrix_type='DENSE_FLOAT' or --option matrix_type=DENSE_FLOAT to store all"
        with is_permuted, pytest.raises(ValueError, match=hint):
            to_file(chunked, tmp_path / "t", "pycauset", matrix_type=matrix_type)
        assert not (tmp_path / "t").exists()
    data = open_lazily(path).transpose("col", "row")
    with pytest.warns(TensorFormatWarning, match="are in another order"):
        to_file(data, tmp_path / "t", "pycauset")
    assert get_storage_attrs(tmp_path / "t")["matrix_type"] == "DENSE_FLOAT"
    xr.testing.assert_identical(open_lazily(tmp_path / "t").load(), data.load().drop_attrs())


def spoil(matrix_type: str, index: Any, value: Any, order: int = 50) -> np.ndarray:
    values = SPECIAL[matrix_type](order)
    values[index] = value
    return values


WRONG = {
    "causal": ("CAUSAL", (40, 3), True, r"\(40, 3\) is True, but a strict upper triangle has 0"),
    "on the diagonal": ("CAUSAL", (7, 7), True, r"\(7, 7\) is True.*='DENSE_FLOAT' or --option"),
    "integer": ("TRIANGULAR_INTEGER", (9, 0), 5, r"\(9, 0\) is 5.*_type='INTEGER' or --option"),
    "nan": ("TRIANGULAR_FLOAT", (49, 48), np.nan, r"\(49, 48\) is nan, but a strict upper"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("chunks", [None, 50, 7])
def test_lost_values_are_named_in_error(tmp_path: Path, name: str, chunks: int | None) -> None:
    matrix_type, index, value, message = WRONG[name]
    data = make_array(spoil(matrix_type, index, value))
    path = tmp_path / "t"
    path.write_bytes(b"before")
    with pytest.raises(ValueError, match=message):
        to_file(
            data if chunks is None else data.chunk(chunks),
            path,
            "pycauset",
            matrix_type=matrix_type,
        )
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_task_that_is_computed_later_does_not_gather_chunks(tmp_path: Path) -> None:
    order, alive, most = 640, 0, 0

    def release() -> None:
        nonlocal alive
        alive -= 1

    def make(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        nonlocal alive, most
        first = block_info[None]["array-location"][0][0]
        created = np.arange(order) > np.arange(first, first + len(block))[:, np.newaxis]
        alive += 1
        most = max(most, alive)
        weakref.finalize(created, release)
        return created

    zeros = da.zeros((order, order), chunks=(16, -1), dtype=bool)
    values = zeros.map_blocks(make, dtype=bool, meta=np.empty((0, 0), bool))
    data = xr.DataArray(values, dims=("row", "col"), name="tensor")
    with dask.config.set(scheduler="synchronous"):
        to_file(data, tmp_path / "t", "pycauset", compute=False).compute()
    assert get_storage_attrs(tmp_path / "t")["matrix_type"] == "DENSE_FLOAT"
    assert 0 < most < 10


# Facts.


def test_seed_is_stored_for_the_whole_matrix(tmp_path: Path) -> None:
    path = tmp_path / "t.pycauset"
    for seed in (0, 5, 2**64 - 1, np.int64(9)):
        to_file(make_array(make_square(3)), path, seed=seed)
        assert read_metadata(path.read_bytes())["seed"] == seed
        opened = open_lazily(path).tensor
        assert (opened.attrs, opened.encoding["tensorfmt"]["seed"]) == ({}, seed)
        other = tmp_path / "other.pycauset"
        for part, expected in ((opened, seed), (opened.isel(row=slice(2), col=slice(2)), 0)):
            to_file(part, other)
            assert read_metadata(other.read_bytes())["seed"] == expected


def test_causal_set_keeps_its_type(tmp_path: Path) -> None:
    spacetime = {"type": "MinkowskiDiamond", "args": {"dimension": 2}}
    content = pf.r1(
        pf.make_metadata("CAUSAL", "BIT", 3, 3, seed=4, properties={"is_zero": False},
                    object_type="CausalSet", n=3, spacetime=spacetime),
        pf.pack_triangle(np.triu(np.ones((3, 3), bool), 1)),
    )  # fmt: skip
    data, path = open_lazily(content), tmp_path / "t"
    to_file(data, path, "pycauset")
    metadata = read_metadata(path.read_bytes())
    actual = {key: metadata[key] for key in ("object_type", "n", "spacetime", "seed")}
    assert actual == {"object_type": "CausalSet", "n": 3, "spacetime": spacetime, "seed": 4}
    assert "properties" not in metadata
    xr.testing.assert_identical(open_lazily(path).load(), data.load())
    for changed in (
        data.isel(row=slice(2), col=slice(2)),
        data.assign_coords(row=[1, 2, 3]).tensor.astype("i4"),
    ):
        to_file(changed, path, "pycauset")
        assert "object_type" not in read_metadata(path.read_bytes())
    del data.tensor.attrs["spacetime"]
    to_file(data, path, "pycauset")
    assert "spacetime" not in read_metadata(path.read_bytes())


def write_embedded(tmp_path: Path, note: Any) -> bytes:
    to_file(make_array(make_square(2), name="x", attrs={"a": 1}), tmp_path / "t", "pycauset")
    content = (tmp_path / "t").read_bytes()
    metadata = read_metadata(content)
    return pf.r1(metadata | {"xr_tensorfmt": note}, content[4096 : 4096 + 32])


def format_embedded(tensor: dict[str, Any], length: int = 2, **coordinates: list[str]) -> str:
    """Return embedded metadata that look complete."""
    values = array_to_json(np.arange(length), "labels")
    labels = {
        name: {"dims": dims, "attrs": {}, "values": values} for name, dims in coordinates.items()
    }
    return json.dumps({"version": 1, "tensors": {"tensor": tensor}, "coordinates": labels})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("note", "fault"),
    [
        ("{", "JSONDecodeError"),
        ('{"tensors": {}}', "KeyError: 'version'"),
        ('{"version": 1, "version": 1}', "the key 'version' is repeated"),
        (format_embedded({"dims": ["a"]}), "'tensor' has 2 dimensions"),
        (format_embedded({"dims": ["a", "a"]}), r"'tensor' has repeated dims"),
        (format_embedded({"dims": ["a", 1]}), "is not a list of str"),
        (format_embedded({"name": "c"}, c=["row"]), "two variables have the same name"),
        (format_embedded({}, c=["row", "col"]), "'c' has 1 dimensions"),
        (format_embedded({}, c=["row"], length=3), "a dim has several lengths"),
        ("[" * 100_000, "nested deeper than 40 levels"),
        (7, "TypeError"),
        ('{"version": 2}', "ValueError: version 2"),
        (" " * ((16 << 20) + 1), "16777217 characters, more than 16777216"),
    ],
    ids=lambda text: str(text)[:20],
)
def test_corrupt_embedded_metadata_warn(tmp_path: Path, note: Any, fault: str) -> None:
    with pytest.warns(TensorFormatWarning, match=f"are ignored .*{fault}"):
        data = open_lazily(write_embedded(tmp_path, note))
    assert data.tensor.dims == ("row", "col")
    assert data.tensor.attrs == {}


def test_requested_names_override_embedded_names(tmp_path: Path) -> None:
    data = make_array(make_square(2), name="x", dims=("a", "b"), coords={"a": [1, 2]})
    to_file(data, tmp_path / "t", "pycauset")
    actual = open_lazily(tmp_path / "t", name="C", dims=("i", "j"))
    xr.testing.assert_identical(actual, data.rename("C").rename(a="i", b="j").to_dataset())


# What is refused.


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (np.zeros(()), {}, r"shape \(\), but PyCauset requires one or two dim.*expand_dims"),
        (np.zeros((2, 3, 4)), {}, r"\(2, 3, 4\), but PyCauset requires one or two dim.* stack "),
        (np.zeros((2, 3)), {"matrix_type": "CAUSE"}, r"'CAUSE' \(did you mean 'CAUSAL'\?\) is "),
        (np.zeros((2, 3)), {"matrix_type": "VECTOR"}, "VECTOR requires one dimension; use another"),
        (np.zeros(3), {"matrix_type": "DENSE_FLOAT"}, "DENSE_FLOAT requires two dimensions; use"),
        (np.zeros((2, 3)), {"matrix_type": "CAUSAL"}, r"\(2, 3\), but CAUSAL requires a square"),
        (np.zeros((2, 2)), {"matrix_type": "CAUSAL"}, "but PyCauset's CAUSAL supports only"),
        (np.eye(2), {"matrix_type": "SYMMETRIC"}, "'SYMMETRIC' is not one of 'CAUSAL', 'TRI"),
        (np.zeros((2, 2)), {"seed": -1}, r"seed=-1 is not an integer from 0 to 2\*\*64 - 1"),
        (np.zeros((2, 2)), {"seed": "x"}, "seed='x' is not an integer"),
        (np.eye(2), {"seed": 3, "region": {}}, "existing file, but seed= is for new files"),
        (da.zeros((2**31, 2**31), chunks=2**31), {}, "is too large to address; write a part"),
    ],
)  # fmt: skip
def test_unsupported_data_raise(
    tmp_path: Path, values: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        to_file(xr.DataArray(values), tmp_path / "t", "pycauset", **options)
    assert not list(tmp_path.iterdir())


def test_lengths_that_dask_does_not_know_raise(tmp_path: Path) -> None:
    numbers = da.arange(10, chunks=3)
    unknown = xr.DataArray(numbers[numbers > 3], name="x")
    with pytest.raises(
        ValueError, match=r"'x' has chunks of unknown size; call compute_chunk_sizes\(\)"
    ):
        to_file(unknown, tmp_path / "t", "pycauset")


# Parts of files.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "matrix_type", "region"),
    [
        (lambda: make_square(20), None, {"row": slice(3, 9), "col": slice(1, 4)}),
        (lambda: make_bits(20, 70), "DENSE_FLOAT", {"row": slice(3, 9), "col": slice(8, 64)}),
        (lambda: make_bits(20, 70), "DENSE_FLOAT", {"row": slice(3, 9), "col": slice(16, 70)}),
        (lambda: make_bits(20, 520), "DENSE_FLOAT", {"row": slice(0, 20)}),
        (lambda: make_bits(70), "VECTOR", {"index": slice(64, 70)}),
        (lambda: SPECIAL["CAUSAL"](70), "CAUSAL", {"row": slice(3, 68)}),
        (lambda: SPECIAL["TRIANGULAR_INTEGER"](33), "TRIANGULAR_INTEGER", {"row": slice(2, 9)}),
        (
            lambda: SPECIAL["TRIANGULAR_FLOAT"](33),
            "TRIANGULAR_FLOAT",
            {"row": slice(2, 9), "col": slice(5, 21)},
        ),
    ],
)
def test_part_is_written_in_place(
    tmp_path: Path, make: Callable[[], np.ndarray], matrix_type: Any, region: dict[str, slice]
) -> None:
    path, values, other = tmp_path / "t", make(), make()
    before, part = make_array(values), make_array(other).isel(region)
    to_file(before, path, "pycauset", matrix_type=matrix_type)
    size = path.stat().st_size
    expected = before.copy(data=values.copy())
    expected[region] = part
    for data in (part, part.chunk(5)):
        to_file(data, path, "pycauset", region=region)
        xr.testing.assert_identical(open_lazily(path).load(), expected.to_dataset())
    assert path.stat().st_size == size
    to_file(expected, tmp_path / "whole", "pycauset", matrix_type=matrix_type)
    payload = slice(4096, -get_metadata_length(path))
    full = (tmp_path / "whole").read_bytes()
    assert path.read_bytes()[payload] == full[4096 : -get_metadata_length(tmp_path / "whole")]


def get_metadata_length(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[48:56], "little")


@pytest.mark.parametrize(
    ("matrix_type", "region", "message"),
    [
        ("CAUSAL", {"col": slice(0, 8)}, "several elements of 'col' in a byte; pass a slice"),
    ],
)
def test_parts_without_own_bytes_raise(
    tmp_path: Path, matrix_type: str, region: dict[str, slice], message: str
) -> None:
    data = make_array(SPECIAL[matrix_type](20))
    to_file(data, tmp_path / "t", "pycauset", matrix_type=matrix_type)
    with pytest.raises(ValueError, match=message):
        to_file(data.isel(region), tmp_path / "t", "pycauset", region=region)


def test_part_of_bits_begins_and_ends_with_byte(tmp_path: Path) -> None:
    data = make_array(make_bits(4, 70))
    to_file(data, tmp_path / "t", "pycauset")
    with pytest.raises(
        ValueError, match="several elements of 'col' in a byte; pass a slice that starts"
    ):
        to_file(data[:, 4:12], tmp_path / "t", "pycauset", region={"col": slice(4, 12)})


@pytest.mark.parametrize("part", [slice(5, 5), slice(8, 8), slice(3, 1), []], ids=str)
@pytest.mark.parametrize(
    "values", [make_bits(4, 70), SPECIAL["CAUSAL"](20)], ids=["bits", "causal"]
)
def test_empty_part_of_packed_rows_changes_nothing(
    tmp_path: Path, values: np.ndarray, part: slice | list[int]
) -> None:
    data = make_array(values)
    to_file(data, tmp_path / "t", "pycauset")
    before = (tmp_path / "t").read_bytes()
    to_file(data[:, part], tmp_path / "t", "pycauset", region={"col": part})
    assert (tmp_path / "t").read_bytes() == before


def test_part_of_triangle_must_be_one_too(tmp_path: Path) -> None:
    data = make_array(SPECIAL["CAUSAL"](20))
    to_file(data, tmp_path / "t", "pycauset")
    with pytest.raises(ValueError, match=r"at \(15, 0\) is True, but a strict upper triangle"):
        to_file(~data[15:], tmp_path / "t", "pycauset", region={"row": slice(15, 20)})


CACHED = {"trace": {"signature": {"payload_uuid": "u" * 32}, "value": 3.0}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            pf.r1(
                pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 3, cached=CACHED),
                np.eye(3).tobytes(),
            ),
            "t has the cached results 'trace', which region= would make stale; rewrite the whole",
        ),
        (
            pf.r1(
                pf.make_metadata(
                    "DENSE_FLOAT",
                    "FLOAT64",
                    3,
                    3,
                    cached=CACHED | {"norm": 1.0},
                    properties={"is_zero": False, "is_symmetric": True, "is_diagonal": True},
                ),
                np.eye(3).tobytes(),
            ),
            "the cached results 'norm', 'trace' and the properties 'is_diagonal', 'is_symmetric'",
        ),
        (
            pf.make_zip(
                {"rows": 3, "cols": 3, "matrix_type": "DENSE_FLOAT", "data_type": "FLOAT64"},
                np.eye(3).tobytes(),
            ),
            "t has the CRC-32 of 'data.bin', which region= would make stale; rewrite the whole",
        ),
    ],
    ids=["results", "properties", "zip"],
)
def test_part_is_not_written_if_properties_hold(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    data = open_lazily(path).load().tensor
    with pytest.raises(ValueError, match=message):
        to_file(data[:2] * 2, path, "pycauset", region={"row": slice(0, 2)})
    assert path.read_bytes() == content


def test_part_is_written_if_properties_are_false(tmp_path: Path) -> None:
    path, properties = tmp_path / "t", {"is_zero": False}
    facts = pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 3, properties=properties)
    path.write_bytes(pf.r1(facts, np.eye(3).tobytes()))
    data = open_lazily(path).load().tensor
    to_file(data[:2] * 2, path, "pycauset", region={"row": slice(0, 2)})
    np.testing.assert_array_equal(open_lazily(path).tensor, np.diag([2.0, 2.0, 1.0]))
