"""Writing trees, and round trips."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from tests import magfiles as mf
from tests.magfiles import put
from xr_tensorfmt import to_file
from xr_tensorfmt.core.elements import get_stored_name


def round_trip(tree: xr.DataTree, path: Path, **options) -> xr.DataTree:
    """Write a tree, and open it again."""
    tree.tensorfmt.to_file(path, **options)
    return xr.open_datatree(path, engine="tensorfmt", **options).load()


def make_model() -> xr.DataTree:
    """Return layers with dimensions of the same names and different lengths."""
    token = xr.Dataset(
        {"embed": (("token", "in"), np.ones((5, 4), "f4"), {"units": "1"})},
        {"token": list("abcde"), "rank": ("token", np.arange(5)), "step": 7},
        {"model": "tiny", "config": {"layers": 2}},
    )
    layers = {
        f"/layers/{number}": xr.Dataset(
            {
                "weight": (("in", "out"), np.full((4, size), number, "f4")),
                "bias": ("out", np.arange(size, dtype="f4")),
                "total": ((), np.int32(number)),
            },
            {"out": np.arange(size) * 2, "scale": ("out", np.ones(size, "f4"), {"long": "x"})},
        )
        for number, size in enumerate((3, 6))
    }
    return xr.DataTree.from_dict({"/": token, **layers})


def test_tree_opens_as_it_was_written(tmp_path: Path) -> None:
    xr.testing.assert_identical(round_trip(make_model(), tmp_path / "a.mag"), make_model())


def test_tree_in_chunks_can_be_written_over_file_that_it_is_from(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    to_file(make_model(), path)
    with xr.open_datatree(path, engine="tensorfmt", chunks={}) as tree:
        (tree * 2).tensorfmt.to_file(path)
    np.testing.assert_array_equal(
        xr.open_dataset(path, engine="tensorfmt")["layers.1.weight"], np.full((4, 6), 2)
    )


def test_file_without_tree_opens_by_keys(tmp_path: Path) -> None:
    make_model().tensorfmt.to_file(tmp_path / "a.mag")
    flat = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt")
    assert list(flat) == [
        "embed",
        *(f"layers.{n}.{key}" for n in (0, 1) for key in ("weight", "bias", "total")),
    ]
    assert flat["layers.1.weight"].dims == ("in", "layers.1.out")
    assert flat["layers.1.bias"].coords["layers.1.out"].values.tolist() == [0, 2, 4, 6, 8, 10]
    branch = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt", group="layers.1").load()
    expected = make_model()["layers/1"].to_dataset()
    xr.testing.assert_identical(branch, expected)


@pytest.mark.parametrize("separator", [".", "/", "::"])
def test_other_separator(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "a.mag"
    tree = round_trip(make_model(), path, separator=separator)
    xr.testing.assert_identical(tree, make_model())
    keys = list(xr.open_dataset(path, engine="tensorfmt"))
    assert f"layers{separator}0{separator}weight" in keys


def test_trees_of_other_programs_need_no_metadata_of_this_package(tmp_path: Path) -> None:
    keys = ["embed.weight", "layers.0.q", "a..b", "x/y.z", "100%.c", "a", "", "layers.0.norm"]
    tensors = {key: put(np.full(i + 1, i, np.int32)) for i, key in enumerate(keys)}
    (tmp_path / "a.mag").write_bytes(mf.make_document(tensors, {"model": "tiny"}))
    with xr.open_datatree(tmp_path / "a.mag", engine="tensorfmt") as tree:
        tree.tensorfmt.to_file(tmp_path / "b.mag")
    first, second = (
        xr.open_dataset(tmp_path / name, engine="tensorfmt") for name in ("a.mag", "b.mag")
    )
    assert set(first) == set(second)
    xr.testing.assert_identical(first.load(), second.load()[list(first)])
    assert b'"xr_tensorfmt"' not in (tmp_path / "b.mag").read_bytes()


def test_default_dims_of_parent_group_round_trip(tmp_path: Path) -> None:
    keys = ["w", "a.w", "a.b.w", "a.b"]
    tensors = {key: put(np.full(i + 1, i, np.int32)) for i, key in enumerate(keys)}
    content = memoryview(mf.make_document(tensors))
    tree = xr.open_datatree(content, engine="tensorfmt").load()
    assert tree["a/b/w"].dims == ("w_dim_0__",)
    xr.testing.assert_identical(round_trip(tree, tmp_path / "b.mag"), tree)


@given(
    st.lists(st.text(st.sampled_from("ab./%2EF_"), max_size=7), unique=True, max_size=6),
    st.sampled_from([".", "/", "a"]),
)
def test_trees_with_any_keys_round_trip(tmp_path_factory, keys: list[str], separator: str) -> None:
    tensors = {key: put(np.full(i + 1, i, np.int32)) for i, key in enumerate(["z", *keys])}
    content = memoryview(mf.make_document(tensors))
    tree = xr.open_datatree(content, engine="tensorfmt", separator=separator).load()
    path = tmp_path_factory.mktemp("tree") / "a.mag"
    xr.testing.assert_identical(round_trip(tree, path, separator=separator), tree)
    assert set(xr.open_dataset(path, engine="tensorfmt")) == {"z", *keys}


def test_encoding_names_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    to_file(make_model(), path, encoding={"layers.0.weight": {"dtype": "bfloat16"}})
    tree = xr.open_datatree(path, engine="tensorfmt")
    assert get_stored_name(tree["layers/0/weight"].encoding["dtype"]) == "bfloat16"
    assert tree["layers/1/weight"].encoding["dtype"] == np.float32


def test_encoding_of_groups_is_that_of_xarray(tmp_path: Path) -> None:
    half = {"dtype": "float16"}
    encoding = {"/": {"embed": half}, "/layers/0": {"weight": half}, "layers.1.bias": half}
    to_file(make_model(), tmp_path / "a.mag", encoding=encoding)
    tree = xr.open_datatree(tmp_path / "a.mag", engine="tensorfmt")
    dtypes = {path: tree[path].dtype for path in ("embed", "layers/0/weight", "layers/1/bias")}
    assert dtypes == dict.fromkeys(dtypes, np.float16)
    assert tree["layers/1/weight"].dtype == make_model()["layers/1/weight"].dtype
    to_file(make_model()["layers"], tmp_path / "b.mag", encoding={"/0": {"weight": half}})
    assert xr.open_datatree(tmp_path / "b.mag")["0/weight"].dtype == np.float16


@pytest.mark.parametrize("name", ["/layers/2", "/layers/0/weight"])
def test_encoding_of_other_groups_raises(tmp_path: Path, name: str) -> None:
    encoding = {name: {"weight": {"dtype": "float16"}}}
    with pytest.raises(ValueError, match=rf"'{name}'.*the variables .*'layers\.0\.weight'"):
        to_file(make_model(), tmp_path / "a.mag", encoding=encoding)


def test_functions_of_formats_accept_trees(tmp_path: Path) -> None:
    to_file(make_model(), tmp_path / "a.mag")
    xr.testing.assert_identical(
        xr.open_datatree(tmp_path / "a.mag", engine="tensorfmt").load(), make_model()
    )


def test_branch_of_tree_keeps_coordinates_that_it_inherits(tmp_path: Path) -> None:
    branch = make_model()["layers/0"]
    tree = round_trip(branch, tmp_path / "a.mag")
    assert tree["weight"].dims == ("in", "out")
    np.testing.assert_array_equal(tree["bias"].coords["out"], [0, 2, 4])


def test_tree_of_one_tensor_is_written_to_formats_that_hold_one(tmp_path: Path) -> None:
    tree = xr.DataTree(xr.Dataset({"tensor": (("x", "y"), np.eye(3))}))
    xr.testing.assert_identical(round_trip(tree, tmp_path / "a.tens"), tree)
    with pytest.raises(ValueError, match="a TENS file holds one variable, but the Dataset has 7"):
        to_file(make_model(), tmp_path / "b.tens")


ONES = xr.Dataset({"w": ("n", np.ones(3, "f4"))})
NOT_WRITTEN = {
    "a dot in a group": (
        {"/v1.0": ONES},
        r"a.mag: '/v1.0/w' with dims \('n',\) would open as '/v1/0/w' .* 'v1.0.w'; rename it, or",
    ),
    "a percent sign": ({"/100%": ONES}, "would open as '/100%25/w'"),
    "the same key": (
        {"/": ONES.rename(w="a.w"), "/a": ONES},
        r"'/a.w' with dims \('n',\) would open as '/a/w' .*, because its key is 'a.w'; rename",
    ),
    "an empty group": (
        {"/": ONES, "/b": xr.Dataset()},
        "the group '/b' is empty, which no format supports",
    ),
    "attributes of a group": (
        {"/a": ONES.assign_attrs(k=1)},
        r"the group '/a' has attributes, .* or pass drop=\['attrs'\] or .* to leave them out",
    ),
}


@pytest.mark.parametrize("case", NOT_WRITTEN)
def test_trees_that_would_open_differently_raise(tmp_path: Path, case: str) -> None:
    groups, words = NOT_WRITTEN[case]
    with pytest.raises(ValueError, match=words):
        to_file(xr.DataTree.from_dict(groups), tmp_path / "a.mag")
    assert not list(tmp_path.iterdir())


def test_names_may_contain_dots_with_another_separator(tmp_path: Path) -> None:
    tree = xr.DataTree.from_dict({"/v1.0": ONES})
    xr.testing.assert_identical(round_trip(tree, tmp_path / "a.mag", separator="/"), tree)


def test_attributes_of_groups_can_be_dropped(tmp_path: Path) -> None:
    to_file(
        xr.DataTree.from_dict({"/a": ONES.assign_attrs(k=1)}), tmp_path / "a.mag", drop=["attrs"]
    )
    assert not xr.open_datatree(tmp_path / "a.mag", engine="tensorfmt")["a"].attrs


def test_empty_separator_raises(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="separator='' must be a non-empty str"):
        to_file(make_model(), tmp_path / "a.mag", separator="")


def test_dataset_method_has_no_separator(tmp_path: Path) -> None:
    for write in (ONES.tensorfmt.to_file, partial(to_file, ONES)):
        with pytest.raises(ValueError, match="separator='/' is only for a DataTree; omit it"):
            write(tmp_path / "a.mag", separator="/")


def test_unknown_group_in_encoding(tmp_path: Path) -> None:
    encoding = {"/layers/9": {"weight": {"dtype": "float16"}}}
    with pytest.raises(ValueError, match="encoding= or --dtype names '/layers/9'"):
        make_model().tensorfmt.to_file(tmp_path / "a.mag", encoding=encoding)


def test_invalid_encoding_and_no_parts_to_drop(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="encoding= must have the form"):
        make_model().tensorfmt.to_file(tmp_path / "a.mag", encoding="bfloat16")
    tree = make_model()
    tree["layers/0"].attrs["title"] = "first"
    with pytest.raises(ValueError, match="'/layers/0' has attributes"):
        tree.tensorfmt.to_file(tmp_path / "a.mag", drop=None)
