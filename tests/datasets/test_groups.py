"""Groups and trees of files whose keys have separators."""

from __future__ import annotations

import json
import random
import re
import warnings
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from tests import magfiles as mf
from tests import tensfiles as tf
from tests.magfiles import put
from xr_tensorfmt import TensorFormatBackend, TensorFormatWarning, to_file
from xr_tensorfmt.datasets.groups import MAX_GROUP_LEVELS, quote, unquote
from xr_tensorfmt.formats import keyed

KEYS = ["embed.weight", "layers.0.attn.q", "layers.0.norm", "layers.1.norm", "scale"]


def make_tensors(keys: list[str]) -> dict[str, mf.Put]:
    """Build a tensor per key. Tensor `i` is a vector of `i + 1` values `i`."""
    return {key: put(np.full(i + 1, i, np.int32)) for i, key in enumerate(keys)}


def make_content(keys: list[str]) -> memoryview:
    return memoryview(mf.make_document(make_tensors(keys), {"model": "tiny"}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "model.mag"
    file.write_bytes(make_content(KEYS))
    return file


def open_tree(keys: list[str], **options) -> xr.DataTree:
    return xr.open_datatree(make_content(keys), engine="tensorfmt", **options)


names = st.lists(st.text(st.sampled_from("ab./%"), max_size=5), min_size=1, max_size=4, unique=True)


class TestTrees:
    def test_keys_become_groups_and_variables(self, path: Path) -> None:
        tree = xr.open_datatree(path, engine="tensorfmt")
        assert list(tree.groups) == [
            "/", "/embed", "/layers", "/layers/0", "/layers/1", "/layers/0/attn",
        ]  # fmt: skip
        assert list(tree.data_vars) == ["scale"]
        assert tree["layers/0/attn/q"].values.tolist() == [1, 1]
        assert tree["layers/0/norm"].dims == ("norm_dim_0",)

    def test_metadata_are_attributes_of_root(self, path: Path) -> None:
        tree = xr.open_datatree(path, engine="tensorfmt")
        assert tree.attrs == {"model": "tiny"}
        assert not any(node.attrs for node in tree.subtree if node is not tree)
        assert tree.encoding["tensorfmt"]["version"] == 300

    def test_tree_is_lazy_and_computes_with_dask(self, path: Path) -> None:
        tree = xr.open_datatree(path, engine="tensorfmt", chunks={})
        assert tree["layers/0/norm"].chunks == ((3,),)
        assert int((tree["layers/0/norm"].sum() + tree["layers/1/norm"].sum()).compute()) == 18
        tree.close()

    def test_same_named_variables_of_different_lengths_share_no_dim(self) -> None:
        tree = open_tree(["w", "a.w", "a.b.w"])
        assert [tree[path].size for path in ("w", "a/w", "a/b/w")] == [1, 2, 3]
        assert [tree[path].dims for path in ("w", "a/w", "a/b/w")] == [
            ("w_dim_0",), ("w_dim_0_",), ("w_dim_0__",),
        ]  # fmt: skip

    def test_similar_groups_can_be_combined(self) -> None:
        first, second = np.ones((2, 3)), np.full((2, 3), 5.0)
        tensors = {"l.0.w": put(np.float32(first)), "l.1.w": put(np.float32(second))}
        tree = xr.open_datatree(memoryview(mf.make_document(tensors)), engine="tensorfmt")
        difference = tree["l/1"].ds - tree["l/0"].ds
        assert (difference.w.values == 4).all()
        assert difference.w.shape == (2, 3)

    def test_named_dims_are_kept(self) -> None:
        tree = open_tree(["a.w", "a.b.w"], dims={"a.w": ("n",), "a.b.w": ("m",)})
        assert tree["a/w"].dims == ("n",)
        assert tree["a/b/w"].dims == ("m",)

    def test_key_that_is_also_a_group_gets_percent_sign(self) -> None:
        tree = open_tree(["a.b", "a.b.c"])
        assert tree["a/b%"].size == 1
        assert tree["a/b/c"].size == 2

    def test_empty_parts_are_percent_signs(self) -> None:
        tree = open_tree(["", "a..b", ".c", "d."])
        actual = {path: tree[path].size for path in ("%", "a/%/b", "%/c", "d/%") if path != "%"}
        assert actual == {"a/%/b": 2, "%/c": 3, "d/%": 4}
        assert tree["%%"].size == 1  # a key, and the prefix of another key

    def test_slashes_and_percent_signs_are_quoted(self) -> None:
        tree = open_tree(["a/b.c/d", "100%.e"])
        assert tree["a%2Fb"].ds["c%2Fd"].size == 1
        assert tree["100%25/e"].size == 2

    def test_other_separator(self) -> None:
        tree = open_tree(["a/b.c", "./..", "d"], separator="/")
        assert tree["a"].ds["b.c"].size == 1
        assert tree["%2E"].ds["%2E%2E"].size == 2
        assert open_tree(["a::b"], separator="::")["a/b"].size == 1

    def test_group_can_be_the_root(self, path: Path) -> None:
        tree = xr.open_datatree(path, engine="tensorfmt", group="layers")
        assert list(tree.groups) == ["/", "/0", "/1", "/0/attn"]
        assert tree.attrs == {}

    def test_variables_can_be_dropped_by_their_names_in_groups(self, path: Path) -> None:
        tree = xr.open_datatree(path, engine="tensorfmt", drop_variables="norm")
        assert list(tree["layers/0"].data_vars) == []
        assert tree["layers/0/attn/q"].size == 2

    @given(
        st.lists(st.text(st.sampled_from("ab./%2EF"), max_size=7), unique=True, max_size=6),
        st.sampled_from([".", "/", "a"]),
    )
    def test_no_key_is_lost(self, keys: list[str], separator: str) -> None:
        tree = open_tree(keys, separator=separator)
        actual = {
            variable.encoding["tensorfmt"]["key"]: variable.size
            for node in tree.subtree
            for variable in node.data_vars.values()
        }
        assert actual == {key: position + 1 for position, key in enumerate(keys)}

    @given(names, names, st.randoms(use_true_random=True))
    def test_no_key_or_coordinate_is_lost(
        self, keys: list[str], coords: list[str], random: random.Random
    ) -> None:
        """Coordinates are indexes of their own dimension, or along another one."""
        dims = [*filter(None, coords), "x"]
        taken = set(keys)
        variables = {key: (random.choice(dims), np.full(2, i, "f4")) for i, key in enumerate(keys)}
        coordinates = {
            name: (random.choice([name, *dims]) or "x", np.full(2, 10 + i, "f4"))
            for i, name in enumerate(coords)
            if name not in taken
        }
        used = {dim for dim, _ in (*variables.values(), *coordinates.values())}
        assume(not used & taken)
        ds = xr.Dataset(variables, coordinates)
        with TemporaryDirectory() as directory:
            to_file(ds, f"{directory}/a.mag")
            tree = xr.open_datatree(f"{directory}/a.mag", engine="tensorfmt").load()
            actual = {
                variable.encoding["tensorfmt"]["key"]: variable.values[0]
                for node in tree.subtree
                for variable in node.to_dataset(inherit=False).variables.values()
            }
            assert actual == {name: variable.values[0] for name, variable in ds.variables.items()}
            with suppress(ValueError):  # some trees cannot be written
                to_file(tree, f"{directory}/b.mag")
                again = xr.open_datatree(f"{directory}/b.mag", engine="tensorfmt")
                assert again.load().identical(tree)

    @pytest.mark.parametrize(
        ("coordinate", "expected"),
        [("token", "token%"), ("a%", "a%25"), ("a/b", "a%2Fb")],
    )
    def test_coordinate_named_like_a_group_opens(
        self, tmp_path: Path, coordinate: str, expected: str
    ) -> None:
        values = np.ones((2, 3), "f4")
        ds = xr.Dataset({"token.count": ((coordinate, "y"), values)}, coords={coordinate: [1, 2]})
        to_file(ds, tmp_path / "a.mag")
        tree = xr.open_datatree(tmp_path / "a.mag", engine="tensorfmt")
        assert list(tree.coords) == [expected]
        assert tree["token"]["count"].dims == (expected, "y")
        to_file(tree, tmp_path / "b.mag")
        xr.testing.assert_identical(xr.open_datatree(tmp_path / "b.mag", engine="tensorfmt"), tree)

    @given(st.text(max_size=6) | st.text(st.sampled_from(".%/2EF5"), max_size=6))
    def test_quoting_of_parts_is_reversible(self, part: str) -> None:
        assert unquote(quote(part)) == part
        assert quote(part) not in ("", ".", "..")
        assert "/" not in quote(part)

    def test_too_many_levels_raise(self) -> None:
        with pytest.raises(ValueError, match=f"more than {MAX_GROUP_LEVELS} parts between '.'"):
            open_tree([".".join("x" * 70)])

    def test_file_without_groups_is_root(self, tmp_path: Path) -> None:
        file = tmp_path / "CoulombVertex.bin"
        file.write_bytes(tf.make_0_9(np.zeros((2, 3))))
        tree = xr.open_datatree(file, engine="tensorfmt")
        assert list(tree.groups) == ["/"]
        assert tree["tensor"].dims == ("a", "b")

    def test_engine_is_found_for_trees(self, path: Path) -> None:
        assert TensorFormatBackend.supports_groups
        assert xr.open_datatree(path)["layers/0/norm"].size == 3

    def test_unknown_keyword_raises(self, path: Path) -> None:
        with pytest.raises(TypeError, match="separators"):
            xr.open_datatree(path, engine="tensorfmt", separators="/")


LAYERS = {
    f"layers.{number}.{name}": put(np.zeros(shape, np.float32))
    for number in range(2)
    for name, shape in {"fc.weight": (4 + number, 3), "fc.bias": 4 + number, "ln": 3}.items()
}
DIMS = {"*.weight": ("out", "in"), "*.bias": ("out",), "layers.1.ln": ("norm",), "*": ("n",)}


class TestPatternsOfDims:
    def content(self) -> memoryview:
        return memoryview(mf.make_document(LAYERS))

    def test_patterns_allow_other_lengths_per_group(self) -> None:
        tree = xr.open_datatree(self.content(), engine="tensorfmt", dims=DIMS)
        assert dict(tree["layers/0/fc"].to_dataset(inherit=False).sizes) == {"out": 4, "in": 3}
        assert dict(tree["layers/1/fc"].to_dataset(inherit=False).sizes) == {"out": 5, "in": 3}
        assert tree["layers/1"].ln.dims == ("norm",)  # a name has priority over patterns
        assert tree["layers/0"].ln.dims == ("n",)

    def test_patterns_apply_within_group(self) -> None:
        dims = {"*.weight": ("out", "in"), "ln": ("m",)}
        ds = xr.open_dataset(self.content(), group="layers.1", dims=dims)
        assert (ds["fc.weight"].dims, ds.ln.dims) == (("out", "in"), ("m",))

    def test_pattern_needs_as_many_names_as_dimensions(self) -> None:
        dims = {"fc.*": ("out",)}
        ds = xr.open_dataset(self.content(), group="layers.0", dims=dims)
        assert ds["fc.bias"].dims == ("out",)
        assert ds["fc.weight"].dims == ("fc.weight_dim_0", "fc.weight_dim_1")
        with pytest.raises(ValueError, match=r"names \d dimensions of 'fc\.\*', but"):
            xr.open_dataset(self.content(), dims={"fc.*": ("a", "b", "c")})

    def test_patterns_replace_embedded_names(self, tmp_path: Path) -> None:
        ds = xr.Dataset({"a.w": (("x", "y"), np.zeros((2, 3), "f4")), "a.b": ("x", np.ones(2))})
        ds.astype("f4").tensorfmt.to_file(tmp_path / "a.mag")
        opened = xr.open_dataset(tmp_path / "a.mag", dims={"*.w": ("out", "in")})
        assert (opened["a.w"].dims, opened["a.b"].dims) == (("out", "in"), ("out",))


class TestBranches:
    @pytest.mark.parametrize("group", ["layers.0", "/layers/0", "/layers/0/"])
    def test_branch_is_dataset_under_rest_of_names(self, path, group) -> None:
        dataset = xr.open_dataset(path, engine="tensorfmt", group=group)
        assert list(dataset) == ["attn.q", "norm"]
        assert dataset["norm"].values.tolist() == [2, 2, 2]
        assert dataset.attrs == {}

    @pytest.mark.parametrize("group", [None, "", "/", "//"])
    def test_root_is_whole_file(self, path, group) -> None:
        dataset = xr.open_dataset(path, engine="tensorfmt", group=group)
        assert list(dataset) == KEYS
        assert dataset.attrs == {"model": "tiny"}

    def test_paths_of_tree_name_its_branches(self) -> None:
        keys = ["a/b.c.d", "..e"]
        for group, names in {
            "/a%2Fb": ["c.d"],
            "a/b": ["c.d"],
            "/%": [".e"],
            "/%/%": ["e"],
        }.items():
            dataset = xr.open_dataset(make_content(keys), engine="tensorfmt", group=group)
            assert list(dataset) == names

    def test_unknown_group_error_lists_groups(self, path: Path) -> None:
        with pytest.raises(
            ValueError,
            match=r"did you mean .* begins with 'layers\.7\.'; the groups are '",
        ):
            xr.open_dataset(path, engine="tensorfmt", group="layers.7")
        with pytest.raises(ValueError, match="; the groups are 'embed', 'layers', "):
            xr.open_dataset(path, engine="tensorfmt", group="head")
        with pytest.raises(ValueError, match="; it has no groups"):
            xr.open_dataset(make_content([]), engine="tensorfmt", group="layer")

    def test_dims_are_named_after_rest_of_names_too(self) -> None:
        keys = ["l.0.w", "l.0.w_dim_0", "l.1.w"]
        first, second = (
            xr.open_dataset(make_content(keys), engine="tensorfmt", group=group)
            for group in ("l.0", "l.1")
        )
        assert first["w"].dims == ("w_dim_0_",)
        assert second["w"].dims == ("w_dim_0",)

    def test_dims_name_variables_of_branch(self, path: Path) -> None:
        dims = {"attn.q": ("n",)}
        dataset = xr.open_dataset(path, engine="tensorfmt", group="layers.0", dims=dims)
        assert dataset["attn.q"].dims == ("n",)
        with pytest.raises(
            ValueError, match=r"names \d dimensions of 'layers\.0\.layers\.0\.attn\.q'"
        ):
            xr.open_dataset(
                path, engine="tensorfmt", group="layers.0", dims={"layers.0.attn.q": ("n",)}
            )

    def test_dimension_with_name_of_variable_gets_underscore(self) -> None:
        options: Any = {"engine": "tensorfmt", "dims": {"x.y": ("z",)}}
        tree = xr.open_datatree(make_content(["x.y", "x.z"]), **options)
        assert tree["x/y"].dims == ("z_",)
        options["dims"] = {"y": ("z",)}
        ds = xr.open_dataset(make_content(["x.y", "x.z"]), group="x", **options)
        assert (ds.y.dims, ds.z.dims) == (("z_",), ("z_dim_0",))

    @pytest.mark.parametrize("options", [{"group": 0}, {"separator": ""}, {"separator": None}])
    def test_group_must_be_str(self, path: Path, options) -> None:
        with pytest.raises(TypeError, match=r"must be a (non-empty )?str such as"):
            xr.open_dataset(path, engine="tensorfmt", **options)


class TestGroupsAsADict:
    def test_groups_equal_those_of_tree(self, path: Path) -> None:
        groups = xr.open_groups(path, engine="tensorfmt")
        assert list(groups) == [
            "/",
            "/embed",
            "/layers",
            "/layers/0",
            "/layers/0/attn",
            "/layers/1",
        ]
        assert groups["/"].attrs == {"model": "tiny"}
        assert groups["/layers/1"]["norm"].values.tolist() == [3] * 4

    def test_same_named_variables_are_not_confused_by_dask(self, tmp_path: Path) -> None:
        """With the default names of xarray, dask would mix them up."""
        path = tmp_path / "model.mag"
        first, second = np.arange(3), np.arange(10, 13)
        path.write_bytes(mf.make_document({"g1.x": put(first), "g2.x": put(second)}))
        dims = {"g1.x": ("n",), "g2.x": ("n",)}
        groups = xr.open_groups(path, engine="tensorfmt", chunks={}, dims=dims)
        total = groups["/g1"].x + groups["/g2"].x
        assert total.values.tolist() == [10, 12, 14]
        assert type(groups["/g1"].x.variable) is xr.Variable

    def test_coordinates_are_not_confused_by_dask(self, tmp_path: Path) -> None:
        values = {f"{name}.w": ("x", np.full(3, i, "f4")) for i, name in enumerate("ab")}
        coords = {f"{name}.c": ("x", np.full(3, i, "f4")) for i, name in enumerate("ab")}
        to_file(xr.Dataset(values, coords), tmp_path / "model.mag")
        groups = xr.open_groups(tmp_path / "model.mag", engine="tensorfmt", chunks={})
        difference = groups["/b"].c.variable - groups["/a"].c.variable
        assert difference.values.tolist() == [1] * 3

    def test_variables_with_attributes_are_not_confused_by_dask(self, tmp_path: Path) -> None:
        """xarray decodes variables with attributes, which makes new variables."""
        values = {f"{name}.w": ("x", np.full(3, name == "b", "f4"), {"u": 1}) for name in "ab"}
        to_file(xr.Dataset(values), tmp_path / "model.mag")
        groups = xr.open_groups(tmp_path / "model.mag", engine="tensorfmt", chunks={})
        assert (groups["/b"].w - groups["/a"].w).values.tolist() == [1] * 3

    def test_same_named_variables_of_two_files_are_not_confused_by_dask(
        self, tmp_path: Path
    ) -> None:
        """Open two files with the same layout."""
        for shard, value in ((1, 1), (2, 10)):
            content = save({f"g{shard}.x": np.full(3, value)})
            (tmp_path / f"{shard}.safetensors").write_bytes(content)
        index = tmp_path / "model.safetensors.index.json"
        files = {f"g{shard}.x": f"{shard}.safetensors" for shard in (1, 2)}
        index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
        groups = xr.open_groups(index, engine="tensorfmt", chunks={})
        total = groups["/g1"].x.variable.data + groups["/g2"].x.variable.data
        assert total.compute().tolist() == [11] * 3

    def test_groups_without_chunks_are_lazy(self, path: Path) -> None:
        dataset = xr.open_groups(path, engine="tensorfmt")["/layers/1"]
        assert not dataset["norm"].variable._in_memory
        assert dataset.chunk({})["norm"].sum().compute() == 12
        assert (dataset["norm"] + 1).values.tolist() == [4] * 4


def test_dims_of_groups_may_have_different_lengths(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    shapes = {"l.0.weight": (4, 3), "l.1.weight": (5, 4)}
    ds = xr.Dataset(
        {name: ((f"{name}_o", f"{name}_i"), np.ones(shapes[name], "f4")) for name in shapes}
    )
    ds.tensorfmt.to_file(path)
    dims = {"*.weight": ("out", "in")}
    tree = xr.open_datatree(path, engine="tensorfmt", dims=dims)
    assert [dict(tree[f"l/{i}"].sizes) for i in (0, 1)] == [
        {"out": 4, "in": 3},
        {"out": 5, "in": 4},
    ]
    with pytest.raises(
        ValueError, match=r"conflicting sizes .* 'out': [^{]*; choose other name.*one with group="
    ):
        xr.open_dataset(path, engine="tensorfmt", dims=dims)


@pytest.mark.parametrize("suffix", ["safetensors", "mag", "yaml"])
def test_groups_have_no_coordinates_of_parents(tmp_path: Path, suffix: str) -> None:
    values = np.arange(3.0 if suffix == "yaml" else 3, dtype="f8" if suffix == "yaml" else "f4")
    tree = xr.DataTree.from_dict(
        {
            "/": xr.Dataset({"r": ("q", values)}, {"q": [1, 2, 3]}),
            "/a": xr.Dataset({"v": ("x", values)}, {"crs": ((), 0.0)}),
            "/a/b": xr.Dataset({"z": ("m", values), "u": ("q", values)}),
        }
    )
    to_file(tree, tmp_path / f"t.{suffix}")
    groups = xr.open_groups(tmp_path / f"t.{suffix}", engine="tensorfmt")
    opened = xr.open_datatree(tmp_path / f"t.{suffix}", engine="tensorfmt")
    xr.testing.assert_identical(xr.DataTree.from_dict(groups), opened)
    assert not groups["/a/b"].coords


@pytest.mark.parametrize("chunks", [None, {}])
def test_variables_of_groups_and_stores_are_variables(tmp_path: Path, chunks: Any) -> None:
    ds = xr.Dataset({"v": ("x", np.arange(4, dtype="f4"))}, {"x": [1.0, 2, 3, 4]})
    to_file(ds, tmp_path / "a.mag")
    store = fsspec.filesystem("memory")
    store.pipe_file("/a.mag", (tmp_path / "a.mag").read_bytes())
    for opened in (
        xr.open_groups(tmp_path / "a.mag", engine="tensorfmt", chunks=chunks)["/"],
        xr.open_dataset("memory://a.mag", engine="tensorfmt", chunks=chunks),
        xr.open_dataset("/a.mag", engine="tensorfmt", fs=store, chunks=chunks),
    ):
        for name, variable in ds.variables.items():
            assert type(opened[name].variable) is type(variable)
        for loaded in (opened.compute(), opened.isel(x=slice(None)).load(), opened.load()):
            for name, variable in ds.variables.items():
                xr.testing.assert_identical(loaded[name].variable, variable)
                assert type(loaded[name].variable) is type(variable)


def test_variables_without_cache_and_chunks_become_variables(tmp_path: Path) -> None:
    to_file(xr.Dataset({"v": ("x", np.arange(4, dtype="f4"))}), tmp_path / "a.mag")
    opened = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt", cache=False)
    selected, total, copied = opened.v[1:], opened.v.sum(), opened.copy(deep=True).v
    for array in (selected, total, copied.load(), copied.copy(), opened.compute().v):
        assert type(array.variable) is xr.Variable
    assert opened.load().v.copy().variable.identical(xr.Variable("x", np.arange(4, dtype="f4")))
    assert type(opened.v.variable) is xr.Variable


@pytest.mark.parametrize("suffix", ["safetensors", "mag", "npz"])
@pytest.mark.parametrize("group", ["layers.0", "layers.0.attn", "/layers/0", "nested/name"])
def test_only_tensors_of_group_are_built(
    tmp_path: Path, suffix: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [*KEYS, "nested/name.w", "layers.0.norm_dim_0"]
    tensors = {key: np.full(i + 1, i, np.int32) for i, key in enumerate(keys)}
    path = tmp_path / f"m.{suffix}"
    if suffix == "safetensors":
        path.write_bytes(save(tensors))
    elif suffix == "npz":
        np.savez(path, **tensors)
    else:
        path.write_bytes(mf.make_document({key: put(value) for key, value in tensors.items()}))
    whole = xr.open_dataset(path, engine="tensorfmt")
    built: list[str] = []
    build = keyed.build_tensor
    monkeypatch.setattr(keyed, "build_tensor", lambda k, *rest: built.append(k) or build(k, *rest))
    ds = xr.open_dataset(path, engine="tensorfmt", group=group)
    prefix = f"{group}." if "nested" in group else f"{group.strip('/').replace('/', '.')}."
    # Dims that tensors of the parent groups have keep their names in the group.
    parents = ("", "layers.") if prefix.startswith("layers.0.") else ("",)
    parents += ("layers.0.",) if prefix == "layers.0.attn." else ()
    direct = {"scale", "layers.0.norm", "layers.0.norm_dim_0"}
    in_parents = {name for name in direct if "".join(name.rpartition(".")[:2]) in parents}
    in_group = [name for name in whole if name.startswith(prefix)]
    assert built == [name for name in whole if name in {*in_group, *in_parents}]
    assert [*ds] == [name.removeprefix(prefix) for name in in_group]
    for name, variable in ds.items():
        assert (variable.values == whole[f"{prefix}{name}"].values).all()
        assert variable.sizes.mapping.keys().isdisjoint(ds.keys())
    with pytest.raises(ValueError, match=r"group='layers\.2'.* the groups are .*'layers.0'"):
        xr.open_dataset(path, engine="tensorfmt", group="layers.2")


@pytest.mark.parametrize("suffix", ["safetensors", "mag"])
def test_group_with_metadata_inherits_coordinates(tmp_path: Path, suffix: str) -> None:
    labels = np.arange(3, dtype="f4")
    ds = xr.Dataset(
        {"a.v": ("x", labels), "a.b.w": ("x", labels, {"units": "m"}), "tensor": ("z", labels)},
        {"x": labels, "m": ("x", ["p", "q", "r"])},
    )
    to_file(ds, tmp_path / f"t.{suffix}")
    group = xr.open_dataset(tmp_path / f"t.{suffix}", engine="tensorfmt", group="a.b")
    xr.testing.assert_identical(group, ds[["a.b.w"]].rename({"a.b.w": "w"}).drop_vars("m"))
    to_file(ds.drop_vars(["x", "m"]), tmp_path / f"u.{suffix}")
    group = xr.open_dataset(tmp_path / f"u.{suffix}", engine="tensorfmt", group="a.b")
    assert (group.w.dims, group.w.attrs) == (("x",), {"units": "m"})
    # Metadata of a variable with the default name are not those of the only one in a group.
    several = xr.Dataset({"g.v": ("g.v_dim_0", labels[:2]), "tensor": ("z", labels)})
    to_file(several, tmp_path / f"v.{suffix}")
    group = xr.open_dataset(tmp_path / f"v.{suffix}", engine="tensorfmt", group="g")
    assert group.v.dims == ("v_dim_0",)


@pytest.mark.parametrize("suffix", ["safetensors", "mag"])
def test_group_has_coordinates_of_its_tree(tmp_path: Path, suffix: str) -> None:
    """Groups inherit indexes, but no other coordinates."""
    labels = np.arange(3, dtype="f4")
    root = xr.Dataset(
        {"r": ("y", labels)}, {"x": labels, "y": labels, "crs": 1.0, "m": ("x", labels)}
    )
    child = xr.Dataset({"v": ("x", labels)}, {"k": ("x", labels), "scale": 2.0})
    grandchild = xr.Dataset({"w": ("y", labels)})
    tree = xr.DataTree.from_dict({"/": root, "/a": child, "/a/b": grandchild})
    to_file(tree, tmp_path / f"t.{suffix}")
    options: Any = {"filename_or_obj": tmp_path / f"t.{suffix}", "engine": "tensorfmt"}
    for group in ("a/b", "a.b"):
        opened = xr.open_dataset(**options, group=group)
        xr.testing.assert_identical(opened, tree["a/b"].to_dataset())
        opened = xr.open_datatree(**options, group=group).to_dataset()
        xr.testing.assert_identical(opened, tree["a/b"].to_dataset())
    xr.testing.assert_identical(
        xr.open_datatree(**options, group="a").to_dataset(), tree["a"].to_dataset()
    )


class TestWarningsOfOmittedTensors:
    @staticmethod
    def make(keys: list[str], unsupported: list[str]) -> memoryview:
        entries = {
            key: {
                "dtype": "F4" if key in unsupported else "U8",
                "shape": [1],
                "data_offsets": [i, i + 1],
            }
            for i, key in enumerate(keys)
        }
        header = json.dumps(entries).encode()
        header += b" " * (-len(header) % 8)
        return memoryview(len(header).to_bytes(8, "little") + header + bytes(len(keys)))

    @pytest.mark.parametrize(
        ("options", "warned"),
        [
            ({}, "'a.scale'.* 1 more .b.scale"),
            ({"group": "a"}, "'a.scale'(?!.*other)"),
            ({"group": "c"}, None),
            ({"group": "a", "drop_variables": "scale"}, None),
            ({"group": "/a", "drop_variables": ["scale"]}, None),
            ({"group": "a", "drop_variables": "a.scale"}, "'a.scale'(?!.*other)"),
            ({"drop_variables": ["a.scale", "b.scale"]}, None),
            ({"drop_variables": ["a.scale"]}, "'b.scale'(?!.*other)"),
            ({"drop_variables": ["scale"]}, "'a.scale'.* 1 more"),
        ],
    )
    def test_only_tensors_that_would_be_shown(self, options: Any, warned: str | None) -> None:
        content = self.make(["a.w", "a.scale", "b.w", "b.scale", "c.w"], ["a.scale", "b.scale"])
        kwargs: Any = {"engine": "tensorfmt", "format": "safetensors", **options}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            xr.open_dataset(content, **kwargs)
        assert len(caught) == (warned is not None)
        if warned is not None:
            assert re.search(warned, str(caught[0].message))

    def test_names_in_trees_are_those_of_groups(self) -> None:
        content = self.make(["a.w", "a.scale", "b.scale"], ["a.scale", "b.scale"])
        kwargs: Any = {"engine": "tensorfmt", "format": "safetensors"}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            xr.open_datatree(content, drop_variables="scale", **kwargs)
        with pytest.warns(TensorFormatWarning, match=r"'a\.scale'.* 1 more"):
            xr.open_datatree(content, drop_variables="w", **kwargs)


names_with_prefixes = st.lists(
    st.lists(st.sampled_from("abxy"), min_size=1, max_size=3).map(".".join),
    min_size=1,
    max_size=5,
    unique=True,
)


class TestDimsOfGroups:
    """Different dims of a file stay different in its groups, and keep their labels."""

    @staticmethod
    def open_all(ds: xr.Dataset, path: Path) -> dict[str, tuple[dict[str, xr.Variable], Any]]:
        """Return names in the file, and the Dataset with inherited indexes, by group."""
        to_file(ds, path)
        tree = xr.open_datatree(path, engine="tensorfmt")
        groups = {"": xr.open_dataset(path, engine="tensorfmt")}
        for node in tree.subtree:
            if node is not tree:
                groups[node.path] = xr.open_dataset(path, engine="tensorfmt", group=node.path)
        for name, node in xr.open_groups(path, engine="tensorfmt").items():
            assert node.identical(tree[name].to_dataset(inherit=False))
        return {f"tree {node.path}": node.to_dataset() for node in tree.subtree} | groups

    @staticmethod
    def check_dims(group: xr.Dataset, ds: xr.Dataset) -> None:
        names: dict[str, str] = {}
        for variable in group.data_vars.values():
            stored = ds[variable.encoding["tensorfmt"]["key"]]
            assert variable.shape == stored.shape
            for dim, file_dim in zip(variable.dims, stored.dims, strict=True):
                assert names.setdefault(str(dim), str(file_dim)) == file_dim
                assert (dim in group.coords) == (file_dim in ds.coords)
                if dim in group.coords:
                    assert (group[dim].values == ds[file_dim].values).all()
        assert len({*names.values()}) == len(names)

    @pytest.mark.parametrize("keys", [["g.v", "g.w"], ["g.w", "g.v"]])
    def test_name_without_prefix_is_kept(self, tmp_path: Path, keys: list[str]) -> None:
        variables = {"g.v": ("g.y", np.zeros(2, "f4")), "g.w": ("y", np.zeros(3, "f4"))}
        ds = xr.Dataset({key: variables[key] for key in keys}, {"g.y": [1, 2], "y": [7, 8, 9]})
        for name, group in self.open_all(ds, tmp_path / "a.mag").items():
            if name:
                dims = (group["w"].dims, group["v"].dims) if name.endswith("/g") else ()
                assert dims in ((), (("y",), ("y%",)))
        group = xr.open_dataset(tmp_path / "a.mag", engine="tensorfmt", group="g")
        assert (group["y%"].values.tolist(), group.y.values.tolist()) == ([1, 2], [7, 8, 9])
        to_file(ds.drop_vars(["y", "g.y"]), tmp_path / "b.safetensors")
        group = xr.open_dataset(tmp_path / "b.safetensors", engine="tensorfmt", group="g")
        assert dict(group.sizes) == {"y": 3, "y_": 2}

    def test_labels_of_another_group_are_kept(self, tmp_path: Path) -> None:
        ds = xr.Dataset({"a.v": ("a.y", np.zeros(2, "f4")), "b.w": ("a.y", np.zeros(2, "f4"))})
        ds = ds.assign_coords({"a.y": [5, 6]})
        for name, group in self.open_all(ds, tmp_path / "a.mag").items():
            if name.endswith(("/a", "/b")):
                (variable,) = group.data_vars.values()
                assert variable[variable.dims[0]].values.tolist() == [5, 6]

    @settings(max_examples=40)
    @given(names_with_prefixes, names_with_prefixes, st.integers(0, 5), st.data())
    def test_distinct_dims_stay_distinct(
        self, keys: list[str], dims: list[str], count: int, data: st.DataObject
    ) -> None:
        def strip(dim: Any) -> str:
            return str(dim).rstrip("%_")

        dims = [dim for dim in dims if dim not in keys]
        assume(dims)
        sizes = {dim: i + 2 for i, dim in enumerate(dims)}
        some = st.lists(st.sampled_from(dims), max_size=3, unique=True)
        variables = {}
        for i, key in enumerate(keys):
            own = data.draw(some)
            variables[key] = (own, np.full([sizes[dim] for dim in own], i, "f4"))
        used = {dim for own, _ in variables.values() for dim in own}
        coords = {dim: np.arange(sizes[dim]) + 10 * sizes[dim] for dim in dims[:count]}
        coords = {dim: labels for dim, labels in coords.items() if dim in used}
        ds = xr.Dataset(variables, coords)
        shuffled = ds[data.draw(st.permutations([*ds.data_vars]))]
        with TemporaryDirectory() as directory:
            first, second = (
                self.open_all(x, Path(directory, f"{i}.mag")) for i, x in enumerate((ds, shuffled))
            )
            for name, group in first.items():
                assert group.identical(second[name])  # in any order
                self.check_dims(group, ds)
            for name in first.keys() - {""}:
                if name.startswith("/"):
                    for key, variable in first[f"tree {name}"].data_vars.items():
                        # Only trees mark indexes with names of groups and other variables.
                        flat = first[name][str(key).rstrip("%")]
                        assert [*map(strip, variable.dims)] == [*map(strip, flat.dims)]
            tree = xr.open_datatree(Path(directory, "0.mag"), engine="tensorfmt").load()
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Duplicate dimension names")
                    to_file(tree, Path(directory, "2.mag"))
            except ValueError as error:  # such as "a.b.x" in "/a", and "x" in "/a/b"
                assert "would open as" in str(error)  # noqa: PT017
                return
            again = xr.open_datatree(Path(directory, "2.mag"), engine="tensorfmt").load()
            assert again.identical(tree)


@pytest.mark.parametrize("key", ["w", "*"])
def test_dims_apply_to_groups_whose_names_look_like_patterns(tmp_path: Path, key: str) -> None:
    to_file(xr.Dataset({"c[0].w": (("x", "y"), np.ones((2, 3)))}), tmp_path / "a.safetensors")
    options = {"group": "c[0]", "dims": {key: ["p", "q"]}}
    ds = xr.open_dataset(tmp_path / "a.safetensors", engine="tensorfmt", **options)
    assert ds.w.dims == ("p", "q")
