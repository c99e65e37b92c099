"""Metadata embedded as JSON: round trips, and invalid input."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stnp

from tests import magfiles as mf
from tests import pycausetfiles as pf
from tests.strategies import index_labels, json_values, names
from xr_tensorfmt import TensorFormatWarning, to_file
from xr_tensorfmt.core.elements import Plain
from xr_tensorfmt.core.embedded_metadata import (
    DTYPE_TAG,
    MAX_LEVELS,
    EmbeddedMetadata,
    EmbeddedVariable,
    apply_embedded_metadata,
    array_from_json,
    array_to_json,
    from_json,
    to_json,
)
from xr_tensorfmt.core.file_format import Container, OpenOptions, Tensor
from xr_tensorfmt.core.layout import Dense

arrays = stnp.arrays(
    st.one_of(
        stnp.scalar_dtypes(),
        stnp.unicode_string_dtypes(max_len=5),
        stnp.byte_string_dtypes(max_len=5),
    ),
    stnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
values = st.recursive(
    json_values
    | arrays
    | arrays.filter(lambda item: item.size).map(lambda item: item.flat[0])
    | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


def round_trip(value: Any) -> Any:
    return json.loads(json.dumps(value, ensure_ascii=False).encode())


def assert_alike(actual: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key, value in expected.items():
            assert_alike(actual[key], value)
    elif isinstance(expected, list):
        assert len(actual) == len(expected)
        for item, value in zip(actual, expected, strict=True):
            assert_alike(item, value)
    else:
        actual, expected = np.asarray(actual), np.asarray(expected)
        # numpy gives a single string its own length.
        if expected.ndim or expected.dtype.kind not in "SU":
            assert actual.dtype == expected.dtype.newbyteorder("=")
        np.testing.assert_array_equal(actual, expected)


def has_half_a_pair(value: Any) -> bool:
    """Return whether a string has a lone surrogate, which UTF-8 cannot encode."""
    if isinstance(value, dict | list):
        within = [*value, *value.values()] if isinstance(value, dict) else value
        return any(has_half_a_pair(value) for value in within)
    strings = [item for item in np.ravel(value).tolist() if isinstance(item, str)]
    return any("\ud800" <= character <= "\udfff" for string in strings for character in string)


@given(value=values)
def test_json_values_round_trip(value: Any) -> None:
    assume(not has_half_a_pair(value))
    assert_alike(from_json(round_trip(to_json(value, "it"))), value)


@given(before=st.text(max_size=3), half=st.characters(categories=["Cs"]))
def test_lone_surrogates_raise_at_any_level(before: str, half: str) -> None:
    string = before + half
    scalar = np.array(string)[()]
    for value in (string, [string], {string: 1}, {"a": string}, np.array([string]), scalar):
        with pytest.raises(TypeError, match="UTF-8 cannot encode"):
            to_json(value, "it")


@pytest.mark.parametrize("kind", ["text", "object", "bytes", "datetime64", "timedelta64", "bool"])
@pytest.mark.parametrize("shape", [(4,), (), (0,), (2, 0), (2, 2)])
def test_labels_round_trip_with_their_dtype(kind: str, shape: tuple[int, ...]) -> None:
    labels = index_labels(np.random.default_rng(0), kind, 4)
    array = np.resize(labels, shape) if 0 not in shape else labels[:0].reshape(shape)
    actual = array_from_json(round_trip(array_to_json(array, "it")))
    assert actual.dtype == array.dtype
    np.testing.assert_array_equal(actual, array)
    actual[...] = actual.copy()  # a copy


@pytest.mark.parametrize("options", [{}, {"na_object": np.nan}, {"coerce": False}])
def test_strings_of_any_length_round_trip(options: dict[str, Any]) -> None:
    array = np.array(["a", "bcd"], dtype=np.dtypes.StringDType(**options))
    actual = array_from_json(round_trip(array_to_json(array, "it")))
    assert actual.dtype == np.dtypes.StringDType()
    np.testing.assert_array_equal(actual, array)


def test_strings_are_stored_compactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xr_tensorfmt.core.embedded_metadata._MAX_STRING_BYTES", 1 << 20)
    wide = np.array(["a", "bc"] * 100, dtype="U5000")
    actual = array_from_json(array_to_json(wide, "it"))
    assert actual.dtype == object
    np.testing.assert_array_equal(actual, wide)
    uneven = np.array(["a" * 1000, *"b" * 1000])
    actual = array_from_json(array_to_json(uneven, "it"))
    assert actual.dtype == object
    np.testing.assert_array_equal(actual, uneven)


def nest(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
REFUSED = [
    (
        {1, 2},
        "it contains a set, which JSON does not support; convert it to a str, a number, an array",
    ),
    ([b"bytes"], "it contains a bytes"),
    ({DTYPE_TAG: 1}, f"without the key '{DTYPE_TAG}'"),
    (object(), "it contains a object"),
    ({"a": {1: 2}}, "it has the key 1, expected a str; use '1'"),
    ("\ud800", r"it contains .*, which UTF-8 cannot encode"),
    ({"\ud800": 1}, "which UTF-8 cannot encode"),
    (np.array([1, "a"], dtype=object), "it has dtype object, which JSON does not support"),
    (np.zeros(2, "i4,i4"), "which JSON does not support; convert it to numbers or strings"),
    (nest(MAX_LEVELS + 1), "nested deeper than 32 levels"),
    (CYCLE, "nested deeper than 32 levels"),
]


@pytest.mark.parametrize(("value", "match"), REFUSED, ids=range(len(REFUSED)))
def test_unsupported_json_values_raise(value: Any, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        to_json(value, "it")
    dataset = xr.Dataset({"w": ("x", np.ones(3, "f4"))}, attrs={"bad": value, "good": 1})
    with pytest.raises(
        ValueError, match=r"bad.*, or pass drop=\['attrs'\] or --drop attrs to leave it out"
    ):
        to_file(dataset, "/nowhere/a.mag")


def test_deepest_nesting_round_trips() -> None:
    assert from_json(round_trip(to_json(nest(MAX_LEVELS), "it"))) == nest(MAX_LEVELS)


@pytest.mark.parametrize("suffix", ["mag", "tens"])
def test_largest_integer_round_trips(suffix: str, tmp_path: Path) -> None:
    path, dataset = tmp_path / f"a.{suffix}", xr.Dataset({"w": ("x", np.ones(3, "f4"))})
    dataset.assign_attrs(n=10**4300 - 1).tensorfmt.to_file(path)
    assert xr.open_dataset(path).n == 10**4300 - 1
    with pytest.raises(ValueError, match="the limit"):
        dataset.assign_attrs(n=10**4300).tensorfmt.to_file(path)


def pack(text: str = "AAAA", **facts: Any) -> dict[str, Any]:
    return {"dtype": "|u1", "shape": [3], "base64": text, **facts}


HOSTILE = [
    pack(dtype="<U1000000000"), pack(dtype="i4,i4"), pack(dtype="|O"), pack(dtype=3),
    pack(dtype={"names": ["a"], "formats": ["u1"]}), pack(dtype="|S0"), pack(dtype="(1"),
    pack(dtype="<M8[25s/3]"), pack(dtype="<M8[0s]"), pack(dtype="|u3"), pack(dtype="|V3"),
    pack(shape=[-3]), pack(shape=[-1, -3]), pack(shape=[3.0]), pack(shape=[True, 3]),
    pack(shape=3), pack(shape="3"), pack(shape=[1] * 64 + [3]), pack(shape=[0, 2**80]),
    pack(shape=[2**62 + 3]), pack(shape=None), pack("AAA"), pack("\xff"), pack(3),
    {"dtype": "|u1", "shape": [3]}, {}, [], None, 3, "text",
    {"dtype": "<U2", "shape": [3], "strings": ["", ""]},
    {"dtype": "<U2", "shape": [2**61, 0], "strings": []},
    {"dtype": "<f8", "shape": [1], "strings": ["1"]},
    {"dtype": "|O", "shape": [1], "strings": [1]},
    {"dtype": "|O", "shape": [1], "strings": 1},
    {"dtype": "T", "shape": [1], "strings": {"a": 1}},
]  # fmt: skip


@pytest.mark.parametrize("info", HOSTILE, ids=range(len(HOSTILE)))
def test_invalid_arrays_raise(info: Any) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        array_from_json(info)


@given(info=st.dictionaries(st.sampled_from(["dtype", "shape", "base64", "strings"]), json_values))
def test_array_from_any_json_returns_or_raises(info: Any) -> None:
    with contextlib.suppress(TypeError, ValueError, KeyError):
        assert array_from_json(info).nbytes < 10_000


def make_container(**embedded: Any) -> Container:
    element = Plain(np.dtype("<f4"))
    tensors = (
        Tensor("a", ("a_dim_0", "a_dim_1"), Dense((2, 3), element, 0), {"fact": 1}),
        Tensor("x", ("x_dim_0",), Dense((2,), element, 24)),
    )
    return Container(tensors, attrs={"epoch": 1}, embedded={"version": 1, **embedded})


def apply(dims: Any = None, **embedded: Any) -> Container:
    return apply_embedded_metadata("a.mag", make_container(**embedded), OpenOptions(dims=dims))


GOOD: dict[str, Any] = {
    "version": 1,
    "tensors": {
        "a": {"name": "b", "dims": ["x", "y"], "attrs": {"unit": "m"}},
        "x": {"dims": ["x"], "attrs": {}},
    },
    "stored_coordinates": ["x"],
    "coordinates": {
        "y": {
            "dims": ["y"],
            "attrs": {},
            "values": {"dtype": "<U1", "shape": [3], "strings": ["p", "q", "r"]},
        },
    },
    "attrs": {"title": "it"},
}


def test_embedded_metadata_are_read_as_they_are_written() -> None:
    embedded = EmbeddedMetadata.from_dict(GOOD)
    assert EmbeddedMetadata.from_dict(round_trip(embedded.to_dict())) == embedded
    assert embedded.tensors["a"] == EmbeddedVariable("b", ("x", "y"), {"unit": "m"})


def test_empty_embedded_metadata_have_no_members() -> None:
    assert EmbeddedMetadata().to_dict() == {"version": 1}
    # Empty members have the same meaning as missing ones.
    written = {"version": 1, "tensors": {}, "coordinates": {}, "attrs": {}}
    assert EmbeddedMetadata.from_dict(written) == EmbeddedMetadata()


def test_names_dims_attributes_and_labels_are_applied() -> None:
    actual = apply(**GOOD)
    assert actual.findings == ()
    assert [(tensor.name, tensor.dims, tensor.attrs) for tensor in actual.tensors] == [
        ("b", ("x", "y"), {"unit": "m"})
    ]
    assert [(coordinate.name, coordinate.dims) for coordinate in actual.coordinates] == [
        ("x", ("x",)),
        ("y", ("y",)),
    ]
    assert actual.attrs == {"title": "it", "epoch": 1}


def test_name_of_user_overrides_embedded_name() -> None:
    actual = apply_embedded_metadata("a.mag", make_container(**GOOD), OpenOptions(name="mine"))
    assert [tensor.name for tensor in actual.tensors] == ["a"]


@pytest.mark.parametrize(
    "dims", [{"b": ("lon", "lat")}, ("lon", "lat")], ids=["by variable", "of the only one"]
)
def test_dims_of_user_override_embedded_dims(dims: Any) -> None:
    actual = apply(dims, **GOOD)
    assert actual.tensors[0].dims == ("lon", "lat")
    named = [(coordinate.name, coordinate.dims) for coordinate in actual.coordinates]
    assert named == [("lon", ("lon",)), ("lat", ("lat",))]


def test_shared_dimension_is_renamed_everywhere() -> None:
    shared = {"tensors": {"a": {"dims": ["x", "y"]}, "x": {"dims": ["x"], "name": "other"}}}
    actual = apply({"a": ("lon", "y")}, **shared)
    assert [tensor.dims for tensor in actual.tensors] == [("lon", "y"), ("lon",)]


def test_mismatched_dims_of_user_raise() -> None:
    with pytest.raises(ValueError, match="pass 2 different names"):
        apply({"b": ("lon",)}, **GOOD)
    with pytest.raises(ValueError, match="transpose to reorder"):
        apply({"b": ("y", "x")}, **GOOD)
    with pytest.raises(ValueError, match=r"does not fit: two variables have the same name"):
        apply(
            {"b": ("b2", "x")},
            **GOOD | {"coordinates": GOOD["coordinates"] | {"b2": get_labels(2)}},
        )


def get_labels(length: int, dim: str = "x") -> dict[str, Any]:
    return {"dims": [dim], "attrs": {}, "values": array_to_json(np.zeros(length), "it")}


def test_lone_surrogate_is_not_a_name() -> None:
    actual = apply(**GOOD | {"tensors": {"a": {"dims": ["\ud800", "y"]}}})
    assert actual.embedded is None
    (finding,) = actual.findings
    assert (finding.field, finding.severity) == ("the embedded metadata", "warning")
    assert "are ignored" in finding.message


BAD = {
    "no mapping": 3,
    "a later version": GOOD | {"version": 2},
    "no version": {"tensors": {}},
    "a list for tensors": GOOD | {"tensors": []},
    "too few dims": GOOD | {"tensors": {"a": {"dims": ["x"]}}},
    "one dim twice": GOOD | {"tensors": {"a": {"dims": ["x", "x"]}}},
    "dims of one str": GOOD | {"tensors": {"a": {"dims": "xy"}}},
    "dims that are not str": GOOD | {"tensors": {"a": {"dims": [1, 2]}}},
    "a dim of two lengths": GOOD | {"tensors": {"a": {"dims": ["y", "x"]}}},
    "one name twice": GOOD | {"tensors": {"a": {"name": "x"}}},
    "a name that is not a str": GOOD | {"tensors": {"a": {"name": 3}}},
    "a label that is none": GOOD | {"stored_coordinates": []},
    "stored that is no list": GOOD | {"stored_coordinates": [[]]},
    "labels of another length": GOOD | {"coordinates": {"y": get_labels(2, "y")}},
    "labels without dims": GOOD | {"coordinates": {"y": {"values": pack(), "attrs": {}}}},
    "labels of other dims": GOOD | {"coordinates": {"y": get_labels(3) | {"dims": []}}},
    "null for dims": GOOD | {"tensors": {"a": {"dims": None}}},
    "an unknown key": GOOD | {"colour": 1},
    "an unknown key of a variable": GOOD | {"tensors": {"a": {"colour": 1}}},
    "attributes that are none": GOOD | {"attrs": 3},
    "a wrong array": GOOD | {"attrs": {"a": {DTYPE_TAG: {}}}},
}


@pytest.mark.parametrize("case", BAD)
def test_embedded_metadata_that_do_not_fit_are_not_used(case: str) -> None:
    puts = {"a": mf.put(np.ones((2, 3), "f4")), "x": mf.put(np.ones(2, "f4"))}
    raw = mf.make_document(puts, {"epoch": 1, "xr_tensorfmt": BAD[case]})
    with pytest.warns(TensorFormatWarning, match="do not fit the file and are ignored") as caught:
        dataset = xr.open_dataset(raw, engine="tensorfmt")
    assert len(str(caught[0].message)) < 600
    assert list(dataset) == ["a", "x"]
    assert dataset.a.dims == ("a_dim_0", "a_dim_1")
    assert dataset.attrs == {"epoch": 1}


def find_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all values within a value."""
    paths = [path]
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        paths += [
            inner_path for key, inner in pairs for inner_path in find_paths(inner, (*path, key))
        ]
    return paths


PLACES = find_paths(GOOD)
TEXTS = st.sampled_from(["a", "x", "y", "b", "", "a_dim_0", "<U1", "|u1", "AAAA"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | TEXTS | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), anything), min_size=1, max_size=3))
def test_invalid_embedded_metadata_never_prevent_opening(changes) -> None:
    embedded: Any = copy.deepcopy(GOOD)
    for path, value in changes:
        try:
            inner = embedded
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
        except (LookupError, TypeError):
            embedded = embedded if path else value
    puts = {"a": mf.put(np.ones((2, 3), "f4")), "x": mf.put(np.ones(2, "f4"))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TensorFormatWarning)
        content = mf.make_document(puts, {"xr_tensorfmt": embedded})
        dataset = xr.open_dataset(content, engine="tensorfmt")
    assert len(dataset.load().variables) >= 1


SCALARS = {
    kind: np.ones((), kind)[()] / (3 if np.dtype(kind).kind in "fc" else 1)
    for kind in ["?", "i1", "u2", "i4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", "m8[s]"]
}
SCALARS = {kind: value.astype(kind) for kind, value in SCALARS.items()}
SCALARS |= {"nan": np.float32("nan"), "-0.0": np.float16(-0.0), "date": np.datetime64("2020-01-02")}


def assert_same_attrs(actual: Any, expected: Any) -> None:
    added = [] if "matrix_type" not in actual else ["seed", *pf.STORAGE_ATTRS]
    assert [name for name in actual if name not in added] == list(expected)
    for name, value in expected.items():
        assert type(actual[name]) is type(value), name
        if isinstance(value, np.ndarray | np.generic):
            assert actual[name].dtype == value.dtype, name
            if value.dtype.char in "gG":  # with undefined padding
                np.testing.assert_array_equal(actual[name], value)
            else:
                assert actual[name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize("suffix", ["mag", "tens", "pycauset"])
def test_numbers_of_numpy_keep_their_dtype(tmp_path, suffix: str) -> None:
    attrs = SCALARS | {kind + "s": np.stack([item] * 2) for kind, item in SCALARS.items()}
    attrs |= {"plain": 3, "fraction": 0.5, "flag": True, "text": "a"}
    array = xr.DataArray(
        np.arange(6, dtype="i4").reshape(2, 3),
        dims=("x", "y"),
        coords={"level": ("y", ["p", "q", "r"], attrs)},
        name="w",
        attrs=attrs,
    )
    dataset = array.to_dataset().assign_attrs(attrs)
    path = tmp_path / f"a.{suffix}"
    to_file(dataset, path)
    actual = xr.open_dataset(path, engine="tensorfmt")
    for attributes in (actual.w.attrs, actual.level.attrs):
        assert_same_attrs(attributes, attrs)
    if suffix == "mag":  # its document has the numbers without dtypes
        plain = {n: v.item() if v.dtype.kind in "biuf" else v for n, v in SCALARS.items()}
        attrs |= plain | {"g": attrs["g"]}
    assert_same_attrs(actual.attrs, attrs)


def encode_as() -> xr.Dataset:
    packed = {"scale_factor": 0.5, "add_offset": 1.0, "_FillValue": np.int16(-9), "units": "K"}
    days = {"units": "days since 2000-01-01", "calendar": "proleptic_gregorian"}
    values = np.array([[1, -9, 3], [4, 5, 6]], "i2")
    coords = {"x": ("x", np.array([0, 31], "i4"), days), "y": ("y", [0.5, 1, 2], {"units": "m"})}
    return xr.Dataset({"w": (("x", "y"), values, packed)}, coords)


@pytest.mark.parametrize("suffix", ["mag", "tens", "pycauset", "safetensors"])
def test_attributes_of_cf_decode_values_as_in_other_engines(tmp_path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    to_file(encode_as(), path, drop=["attrs"] if suffix == "pycauset" else [])
    encode_as().to_netcdf(tmp_path / "a.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "a.nc", engine="scipy") as expected:
        actual = xr.open_dataset(path, engine="tensorfmt")
        for name in encode_as().variables:
            assert actual[name].dtype == expected[name].dtype
            np.testing.assert_array_equal(actual[name], expected[name])
    assert actual.w.encoding["scale_factor"] == 0.5
    raw = xr.open_dataset(path, engine="tensorfmt", decode_cf=False)
    xr.testing.assert_equal(raw, encode_as())
    assert raw.w.attrs.items() >= encode_as().w.attrs.items()


@pytest.mark.parametrize("suffix", ["tens", "safetensors"])
def test_decoded_values_are_written_as_they_are(tmp_path, suffix: str) -> None:
    decoded = xr.decode_cf(encode_as())
    to_file(decoded, tmp_path / f"a.{suffix}")
    again = xr.open_dataset(tmp_path / f"a.{suffix}", engine="tensorfmt")
    xr.testing.assert_identical(again, decoded)
    to_file(again, tmp_path / f"b.{suffix}")
    xr.testing.assert_identical(
        xr.open_dataset(tmp_path / f"b.{suffix}", engine="tensorfmt"), decoded
    )


def read_usr_metadata(path) -> dict[str, Any]:
    """Return the metadata of a snapshot, as other programs see them."""
    raw = path.read_bytes()
    return json.loads(raw[44 : 44 + int.from_bytes(raw[20:28], "little")])["usr_metadata"]


def test_other_programs_find_plain_numbers_in_metadata(tmp_path) -> None:
    attrs = {"epoch": np.int32(3), "rate": np.float32(0.5), "best": [np.float64(1), {"a": True}]}
    weights = ("x", np.ones(2, "f4"))
    to_file(xr.Dataset({"w": weights}, attrs=attrs), tmp_path / "a.mag")
    metadata = read_usr_metadata(tmp_path / "a.mag")
    plain = {"epoch": 3, "rate": 0.5, "best": [1.0, {"a": True}]}
    embedded = metadata.pop("xr_tensorfmt")
    assert metadata == plain
    actual = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt").attrs
    assert actual == plain
    assert [type(item) for item in (actual["epoch"], actual["best"][0])] == [int, float]
    # Another program has changed, removed and added an attribute.
    changed = {"epoch": 4, "best": [1.0, {"a": True}], "new": 1, "xr_tensorfmt": embedded}
    raw = mf.make_document({"w": mf.put(np.ones(2, "f4"))}, changed)
    del changed["xr_tensorfmt"]
    assert xr.open_dataset(raw, engine="tensorfmt").attrs == changed


def test_plain_numbers_need_no_embedded_metadata(tmp_path) -> None:
    attrs = {"epoch": 3, "rate": 0.5, "names": ["a"]}
    dims = [f"w_dim_{axis}" for axis in range(2)]
    to_file(xr.Dataset({"w": (dims, np.ones((2, 2), "f4"))}, attrs=attrs), tmp_path / "a.mag")
    assert read_usr_metadata(tmp_path / "a.mag") == attrs


def write_file(dataset: xr.Dataset, tmp_path) -> str:
    to_file(dataset, tmp_path / "a.mag")
    return str(tmp_path / "a.mag")


def make_layers() -> xr.Dataset:
    weights = (("out", "in"), np.ones((3, 2), "f4"))
    return xr.Dataset(
        {"l.0.w": weights, "l.1.w": weights, "b": ("out", np.ones(3, "f4"))},
        {"out": list("pqr"), "in": ("in", np.arange(2, dtype="i4")), "step": 7},
        {"title": "net"},
    )


def test_branches_keep_dims_and_their_coordinates(tmp_path) -> None:
    path = write_file(make_layers(), tmp_path)
    branch = xr.open_dataset(path, engine="tensorfmt", group="l.0")
    expected = make_layers()[["l.0.w"]].rename({"l.0.w": "w"}).drop_attrs()
    # As in a tree, only coordinates with an index are inherited.
    xr.testing.assert_identical(branch.load(), expected.drop_vars("step"))


def test_trees_keep_dims_and_coordinates(tmp_path) -> None:
    path = write_file(make_layers(), tmp_path)
    with xr.open_datatree(path, engine="tensorfmt") as tree:
        assert tree.attrs == {"title": "net"}
        assert tree["l/0/w"].dims == ("out", "in")
        np.testing.assert_array_equal(tree["l/1/w"].coords["out"], list("pqr"))
    groups = xr.open_groups(path, engine="tensorfmt")
    assert set(groups["/"].coords) == {"in", "out", "step"}
    assert not groups["/l/0"].coords  # as with the netCDF engine
    assert xr.DataTree.from_dict(groups).identical(xr.open_datatree(path, engine="tensorfmt"))


@pytest.mark.parametrize("name", ["in", "out", "l.0.w"])
def test_variables_and_coordinates_can_be_left_out(tmp_path, name: str) -> None:
    path = write_file(make_layers(), tmp_path)
    actual = xr.open_dataset(path, engine="tensorfmt", drop_variables=name)
    xr.testing.assert_identical(actual.load(), make_layers().drop_vars(name))


def test_dims_of_user_rename_coordinates(tmp_path) -> None:
    path = write_file(make_layers(), tmp_path)
    actual = xr.open_dataset(path, engine="tensorfmt", dims={"b": ("row",)})
    xr.testing.assert_identical(actual.load(), make_layers().rename(out="row"))


def test_large_coordinates_are_not_embedded(tmp_path) -> None:
    large = xr.Dataset({"w": ("x", np.ones(3, "i1"))}, {"y": ("y", np.zeros((16 << 17) + 1))})
    with pytest.raises(ValueError, match=r"the coordinate 'y' of 2097153 labels is too"):
        write_file(large, tmp_path)
    to_file(large, tmp_path / "a.mag", drop=["coords"])
    assert "y" not in xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt").coords


def test_dtypes_of_pandas_are_not_embedded(tmp_path) -> None:
    import pandas as pd  # noqa: PLC0415

    labels = xr.Variable("x", pd.Categorical(["a", "b", "a"]))
    dataset = xr.Dataset({"w": ("x", np.ones(3, "i1"))}, {"kind": labels})
    with pytest.raises(ValueError, match=r"'kind' has the pandas dtype category, .*astype"):
        write_file(dataset, tmp_path)


def test_embedded_metadata_have_limit(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xr_tensorfmt.core.embedded_metadata.MAX_EMBEDDED_BYTES", 100)
    dataset = xr.Dataset({"w": ("x", np.ones(3, "i1"), {"long": "a" * 100})})
    with pytest.raises(
        ValueError, match=r"attributes and coordinates take .* bytes, and MAG allows"
    ):
        write_file(dataset, tmp_path)


def test_bytes_open_like_a_file(tmp_path) -> None:
    path = write_file(make_layers(), tmp_path)
    with open(path, "rb") as stream:
        content = stream.read()
    xr.testing.assert_identical(
        xr.open_dataset(io.BytesIO(content), engine="tensorfmt").load(), make_layers()
    )
