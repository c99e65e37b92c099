"""Writing cc4s files, and round trips."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import cc4sfiles as cf
from tests.commands import run_failing, run_ok
from tests.opening import load, open_lazily
from tests.paths import DATA as ALL_DATA
from tests.processes import run_script
from tests.servers import S3Store
from tests.tensfiles import make_0_9
from xr_tensorfmt import TensorFormatWarning, to_file, validate

DATA = ALL_DATA / "cc4s"

fixtures_are_not_reset = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def make_vertex(**attrs: Any) -> xr.Dataset:
    values = cf.make_values((6, 4, 4), is_complex=True)
    dims = ("AuxiliaryField", "State", "State_2")
    return xr.Dataset({"CoulombVertex": (dims, values, {"unit": 0.5, **attrs})})


def make_integrals() -> xr.Dataset:
    return xr.Dataset(
        {
            "hh": (("State", "State_2"), cf.make_values((2, 2)), {"unit": 1.0}),
            "ph": (("State_3", "State"), cf.make_values((3, 2)), {"unit": 2.0, "halfGrid": 0}),
            "x": (("G",), cf.make_values((5,), is_complex=True), {"unit": 1.0}),
        },
        attrs={"title": "a set"},
    )


def read_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


class TestFiles:
    @pytest.mark.parametrize("chunks", [None, {}, {"State": 1}])
    def test_yaml_has_keys_that_cc4s_reads(self, tmp_path: Path, chunks: Any) -> None:
        dataset = make_vertex(halfGrid=1)
        to_file(
            dataset if chunks is None else dataset.chunk(chunks), tmp_path / "CoulombVertex.yaml"
        )
        assert sorted(read_files(tmp_path)) == ["CoulombVertex.elements", "CoulombVertex.yaml"]
        assert (tmp_path / "CoulombVertex.yaml").read_text() == (
            "version: 100\ntype: Tensor\nscalarType: Complex64\ndimensions:\n"
            "  - length: 6\n    type: AuxiliaryField\n  - length: 4\n    type: State\n"
            "  - length: 4\n    type: State\nelements:\n  type: IeeeBinaryFile\nunit: 0.5\n"
            "metaData:\n  halfGrid: 1\n"
        )
        elements = (tmp_path / "CoulombVertex.elements").read_bytes()
        assert elements == cf.pack_binary(dataset.CoulombVertex.values)

    def test_set_has_file_for_each_component(self, tmp_path: Path) -> None:
        to_file(make_integrals(), tmp_path / "Any.yaml")
        files = read_files(tmp_path)
        for name, variable in make_integrals().items():
            content = files.pop(f"Any.components.{name}.elements")
            assert content == cf.pack_binary(variable.values)  # complex, or more than one dimension
        assert list(files) == ["Any.yaml"]
        (yaml,) = files.values()
        assert yaml.startswith(b"type: TensorSet\ncomponents:\n  hh:\n    version: 100\n")

    @pytest.mark.parametrize(
        "name",
        [
            "vasp/CoulombVertex",
            "vasp/EigenEnergies",
            "vasp/GridVectors",
            "vasp/CoulombVertexSingularVectors",
            "cc4s_output/GroundStateDensity",
            "cc4s_output/Amplitudes1",
            "misc/scalar",
            "misc/prefixed_lih_CoulombVertex",
            "set/CoulombIntegrals",
            "blocks/Blocks",
        ],
    )
    def test_genuine_files_are_written_as_they_are(self, tmp_path: Path, name: str) -> None:
        source = DATA / f"{name}.yaml"
        target = tmp_path / Path(f"{name}.yaml").name
        to_file(open_lazily(source).drop_vars("occupied", errors="ignore"), target, "cc4s")
        # The metadata of EigenEnergies differ from its elements, so the written file has others.
        actual, expected = (
            load(path).drop_vars("occupied", errors="ignore") for path in (target, source)
        )
        xr.testing.assert_identical(actual, expected)
        (actual_elements, expected_elements) = (
            {variable.encoding["tensorfmt"]["elements"] for variable in ds.values()}
            for ds in (actual, expected)
        )
        assert actual_elements == expected_elements
        assert validate(target) == []

    def test_suffix_names_format(self, tmp_path: Path) -> None:
        to_file(make_vertex(), tmp_path / "CoulombVertex.yaml")
        xr.testing.assert_identical(load(tmp_path / "CoulombVertex.yaml"), make_vertex())


finite = st.floats(allow_nan=False, allow_infinity=False)
strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
odd_strings = st.sampled_from(
    ["&a", "x &y", "*a", "a: b", "- x", "no", "1E5", "~", "null", "#", "a #b", "'", '"', "\\", "\n",
     "a\n &b", " ", "%x", "\x85", "\u2028", "\0", "\x7f", "!!text", "{", "<<", "=", "\t", "&a *b"]
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | strings | odd_strings,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(strings | odd_strings, inner, max_size=3)
    ),
    max_leaves=5,
)
attributes = st.dictionaries(
    (strings | odd_strings).filter(lambda name: name != "unit"),
    json_values
    | st.sampled_from(
        [np.arange(3), np.float32(0.1), np.int8(3), np.bool_(True), 1 - 2j, np.nan, np.inf, 10**100]
    ),
    max_size=3,
)
file_names = strings.filter(
    lambda name: name.isprintable() and name not in ("", ".", "..") and not set(name) & set('/\\:"')
)
dim_names = st.sampled_from(["State", "State_2", "State_3", "dim_0", "dim_1_2", "A", "x_1"])


@st.composite
def datasets(draw: st.DrawFn) -> xr.Dataset:
    sizes = {
        dim: draw(st.integers(0, 4))
        for dim in draw(st.lists(dim_names | strings.filter(bool), max_size=4, unique=True))
    }
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    # Some file systems do not distinguish upper and lower case.
    names = draw(st.lists(file_names, min_size=1, max_size=3, unique_by=str.casefold))
    dataset = xr.Dataset(attrs=draw(attributes))
    for name in [name for name in names if name not in sizes] or ["CoulombVertex"]:
        dims = draw(st.permutations(list(sizes)))[: draw(st.integers(0, 4))]
        shape = [sizes[dim] for dim in dims]
        values = rng.normal(size=shape)
        if draw(st.booleans()):
            values = values + 1j * rng.normal(size=shape)
        values = da.from_array(values, chunks=2) if draw(st.booleans()) else values
        attrs = {**draw(attributes), "unit": draw(finite)}
        dataset[name] = xr.Variable(dims, values, attrs)
    for dim, size in dataset.sizes.items():
        label_type = draw(st.sampled_from(["none", "index", "Spin", "float", "negative"]))
        label = np.arange(size) % 2 - (label_type == "negative")
        if label_type == "index":
            dataset = dataset.assign_coords({dim: label})
        elif (
            label_type != "none"
            and f"{dim}_Spin" not in dataset.variables
            and f"{dim}_Spin" not in sizes
        ):
            dtype = float if label_type == "float" else int
            attrs = {"values": [[0, 1], [2, 3]]} if draw(st.booleans()) else {}
            dataset = dataset.assign_coords({f"{dim}_Spin": (dim, label.astype(dtype), attrs)})
    return dataset


class TestRoundTrips:
    @fixtures_are_not_reset
    @given(dataset=datasets())
    def test_written_dataset_round_trips(self, tmp_path: Path, dataset: Any) -> None:
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        to_file(dataset, tmp_path / "Any.yaml")
        xr.testing.assert_identical(load(tmp_path / "Any.yaml"), dataset.compute())
        assert validate(tmp_path / "Any.yaml") == []

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 10])
    @pytest.mark.parametrize("dtype", [float, complex])
    def test_every_rank(self, tmp_path: Path, shape: tuple[int, ...], dtype: type) -> None:
        dims = tuple(f"dim_{axis}" for axis in range(len(shape)))
        dataset = xr.Dataset({"a": (dims, np.ones(shape, dtype), {"unit": 1.0})})
        to_file(dataset, tmp_path / "a.yaml")
        xr.testing.assert_identical(load(tmp_path / "a.yaml"), dataset)
        assert "xr_tensorfmt" not in (tmp_path / "a.yaml").read_text()

    @pytest.mark.parametrize("name", ["q", "tensor"])
    def test_file_may_have_name_of_dimension(self, tmp_path: Path, name: str) -> None:
        dataset = xr.Dataset({name: (("a", "b"), np.eye(2), {"unit": 1.0})})
        to_file(dataset, tmp_path / "a.yaml")
        xr.testing.assert_identical(load(tmp_path / "a.yaml"), dataset)
        assert validate(tmp_path / "a.yaml") == []
        spins = dataset.assign_coords(a_Spin=("a", [0, 1]))
        to_file(spins, tmp_path / "a.yaml")
        xr.testing.assert_identical(load(tmp_path / "a.yaml"), spins)

    def test_set_may_have_name_of_dimension(self, tmp_path: Path) -> None:
        variables = {name: ("set", np.ones(2), {"unit": 1.0}) for name in "xy"}
        to_file(xr.Dataset(variables), tmp_path / "set.yaml")
        xr.testing.assert_identical(load(tmp_path / "set.yaml"), xr.Dataset(variables))

    @pytest.mark.parametrize("length", [0, 2])
    def test_coordinate_of_numbered_dimension_is_kept(self, tmp_path: Path, length: int) -> None:
        coordinate = ("State_3", np.arange(length))
        dataset = xr.Dataset({"a": ("State_3", np.zeros(length))}, {"State_3": coordinate})
        to_file(dataset, tmp_path / "a.yaml")
        xr.testing.assert_identical(load(tmp_path / "a.yaml"), dataset)

    def test_set_of_one_component_is_written_as_set(self, tmp_path: Path) -> None:
        to_file(make_integrals(), tmp_path / "a.yaml")
        to_file(open_lazily(tmp_path / "a.yaml")[["ph"]], tmp_path / "b.yaml")
        assert (tmp_path / "b.components.ph.elements").exists()
        xr.testing.assert_identical(load(tmp_path / "b.yaml"), make_integrals()[["ph"]])
        to_file(open_lazily(tmp_path / "a.yaml").ph.rename("other"), tmp_path / "other.yaml")
        assert "type: Tensor\n" in (tmp_path / "other.yaml").read_text()
        assert (tmp_path / "other.elements").exists()

    @pytest.mark.parametrize(
        ("file", "name", "is_set"),
        [
            ("Amplitudes", "ph", True),
            ("lih_CoulombIntegrals", "ph", True),
            ("Amplitudes", "Amplitudes", False),
            ("DeltaIntegralsHH", "hh", False),
            ("other", "ph", False),
        ],
    )
    def test_new_component_is_written_as_set(
        self, tmp_path: Path, file: str, name: str, is_set: bool
    ) -> None:
        path = tmp_path / f"{file}.yaml"
        data = xr.DataArray(np.ones((4, 3)), dims=("State", "State_2"), name=name)
        to_file(data, path)
        assert ("type: TensorSet\n" in path.read_text()) == is_set
        assert (tmp_path / f"{file}.components.{name}.elements").exists() == is_set
        xr.testing.assert_equal(load(path)[name], data)
        to_file(load(path) * 2, path)
        assert ("type: TensorSet\n" in path.read_text()) == is_set

    def test_names_of_calculation_are_not_those_of_components(self, tmp_path: Path) -> None:
        data = xr.DataArray(np.ones((4, 3)), dims=("State", "State_2"), name="Amplitudes.ph")
        with pytest.raises(ValueError, match="rename it to 'ph', or write the calculation with"):
            to_file(data, tmp_path / "Amplitudes.yaml")

    def test_default_unit_is_one(self, tmp_path: Path) -> None:
        to_file(xr.DataArray(np.ones(2), dims="x", name="a"), tmp_path / "a.yaml")
        actual = load(tmp_path / "a.yaml").a
        assert "unit: 1.0\n" in (tmp_path / "a.yaml").read_text()
        assert actual.attrs == {}

    def test_name_tensor_is_kept(self, tmp_path: Path) -> None:
        dataset = make_vertex().rename(CoulombVertex="tensor")
        to_file(dataset, tmp_path / "CoulombVertex.yaml")
        xr.testing.assert_identical(load(tmp_path / "CoulombVertex.yaml"), dataset)
        assert validate(tmp_path / "CoulombVertex.yaml") == []

    def test_names_that_are_not_those_of_file_are_embedded(self, tmp_path: Path) -> None:
        dataset = make_vertex().rename(CoulombVertex="v", State="p", AuxiliaryField="dim_7")
        to_file(dataset, tmp_path / "Any.yaml")
        xr.testing.assert_identical(load(tmp_path / "Any.yaml"), dataset)

    def test_strings_that_look_like_yaml_are_kept(self, tmp_path: Path) -> None:
        attrs = {"a": "x &y and *y", "b &c": "*d", "e": "no", "f": "1E5", "g": {"&h": ["*i"]}}
        dataset = make_vertex(**attrs).assign_attrs(title="&a *a")
        to_file(dataset, tmp_path / "CoulombVertex.yaml")
        xr.testing.assert_identical(load(tmp_path / "CoulombVertex.yaml"), dataset)

    def test_array_attributes_are_lists_for_other_programs(self, tmp_path: Path) -> None:
        dataset = make_vertex(Gi=np.array([0.5, 0, 1]), halfGrid=np.int64(1), z=1j)
        to_file(dataset, tmp_path / "CoulombVertex.yaml")
        actual = load(tmp_path / "CoulombVertex.yaml")
        xr.testing.assert_identical(actual, dataset)
        assert type(actual.CoulombVertex.attrs["halfGrid"]) is np.int64
        text = (tmp_path / "CoulombVertex.yaml").read_text()
        assert "  Gi:\n    - 0.5\n    - 0.0\n    - 1.0\n  halfGrid: 1\n" in text

    def test_names_that_look_like_anchors_are_quoted(self, tmp_path: Path) -> None:
        dataset = make_vertex().rename(State="p &q", State_2="p *q").rename(CoulombVertex="&v *v")
        to_file(dataset, tmp_path / "a.yaml")
        xr.testing.assert_identical(load(tmp_path / "a.yaml"), dataset)

    @pytest.mark.parametrize(
        "text",
        ["2026-11-22", "3D", "50%", "6.4.2", "1/bohr", "+1/2", "-x", ".5", "null", "~", "No", "",
         "a: b", "# a", "a b", "1", "0x1", "1e5", "\N{GREEK SMALL LETTER ALPHA}", "a\nb"],
    )  # fmt: skip
    def test_strings_that_cc4s_would_misread_are_quoted(self, tmp_path: Path, text: str) -> None:
        dataset = make_vertex(note=text, inner={text: [text]})
        to_file(dataset, tmp_path / "CoulombVertex.yaml")
        quoted = f"{json.dumps(text, ensure_ascii=False)}\n"
        yaml = (tmp_path / "CoulombVertex.yaml").read_text()
        assert f"  note: {quoted}  inner:\n    {quoted[:-1]}:\n      - {quoted}" in yaml
        assert "xr_tensorfmt" not in yaml
        xr.testing.assert_identical(load(tmp_path / "CoulombVertex.yaml"), dataset)

    @pytest.mark.parametrize("value", [None, [1, None], {"a": None}, 1j, np.nan, [np.inf], 1 << 70])
    def test_attributes_that_cc4s_cannot_parse_are_embedded(
        self, tmp_path: Path, value: Any
    ) -> None:
        dataset = make_vertex(odd=value, halfGrid=1)
        to_file(dataset, tmp_path / "CoulombVertex.yaml")
        head = (tmp_path / "CoulombVertex.yaml").read_text().partition("  xr_tensorfmt:")[0]
        assert head.endswith("metaData:\n  halfGrid: 1\n")
        actual = load(tmp_path / "CoulombVertex.yaml").CoulombVertex.attrs
        np.testing.assert_equal(actual, dataset.CoulombVertex.attrs)

    def test_names_of_variables_are_embedded(self, tmp_path: Path) -> None:
        dataset = make_vertex(halfGrid=1).assign_coords(label=("State", [0.5, 1, 2, 3]))
        dataset.CoulombVertex.encoding |= {"coordinates": "label", "grid_mapping": "label"}
        to_file(dataset, tmp_path / "CoulombVertex.yaml")
        head = (tmp_path / "CoulombVertex.yaml").read_text().partition("  xr_tensorfmt:")[0]
        assert head.endswith("metaData:\n  halfGrid: 1\n")
        actual = open_lazily(tmp_path / "CoulombVertex.yaml")
        xr.testing.assert_equal(actual.load(), dataset)
        assert actual.CoulombVertex.attrs["grid_mapping"] == "label"
        assert actual.CoulombVertex.encoding["coordinates"] == "label"

    @pytest.mark.parametrize("value", [True, False, np.True_])
    def test_booleans_are_numbers_to_cc4s(self, tmp_path: Path, value: Any) -> None:
        to_file(make_vertex(halfGrid=value), tmp_path / "CoulombVertex.yaml")
        yaml = (tmp_path / "CoulombVertex.yaml").read_text()
        assert f"metaData:\n  halfGrid: {int(value)}\n" in yaml
        actual = load(tmp_path / "CoulombVertex.yaml").CoulombVertex.attrs["halfGrid"]
        assert actual is value or (actual == value and type(actual) is type(value))

    def test_properties_of_mixed_numbers_and_bools_are_embedded(self, tmp_path: Path) -> None:
        dataset = make_vertex().assign_coords(x=("State", [0, 1, 0, 1]))
        for values in ([True, 2], [None, 1], 3, "ab", {0: 1, 1: 2}):
            labels = {f"{dim}_Spin": (dim, [0, 1, 0, 1], {"values": values})
                      for dim in ("State", "State_2")}  # fmt: skip
            labelled = dataset.assign_coords(labels)
            if isinstance(values, dict):
                with pytest.raises(ValueError, match="Spin"):
                    to_file(labelled, tmp_path / "CoulombVertex.yaml")
                continue
            to_file(labelled, tmp_path / "CoulombVertex.yaml")
            assert not (tmp_path / "State.yaml").exists()
            xr.testing.assert_identical(load(tmp_path / "CoulombVertex.yaml"), labelled)


class TestTypes:
    TYPES = "  - length: 6\n    type: AuxiliaryField\n" + "  - length: 4\n    type: State\n" * 2

    @pytest.mark.parametrize("by", ["rename", "dims", "isel", "chunk"])
    def test_renamed_dimensions_keep_their_types(self, tmp_path: Path, by: str) -> None:
        path, target = tmp_path / "CoulombVertex.yaml", tmp_path / "b" / "CoulombVertex.yaml"
        (tmp_path / "State.yaml").write_text(cf.format_properties("State", {"Spin": [0, 1, 0, 1]}))
        target.parent.mkdir()
        to_file(make_vertex(), path, "cc4s")
        names = dict(zip(("AuxiliaryField", "State", "State_2"), "Fqr", strict=True))
        dataset = (
            open_lazily(path, dims=tuple("Fqr"))
            if by == "dims"
            else open_lazily(path).rename(names)
        )
        if by == "isel":
            dataset = dataset.isel(q=slice(None), r=slice(None), F=slice(None))
        dataset = dataset.chunk() if by == "chunk" else dataset
        to_file(dataset, target, "cc4s")
        assert self.TYPES in target.read_text()
        spins = load(target).State_Spin
        assert spins.dims == ("q",)
        assert load(target).State_2_Spin.dims == ("r",)
        xr.testing.assert_identical(load(target), dataset.compute())
        renamed = load(target, dims=("x", "r", "q"))
        assert (renamed.State_Spin.dims, renamed.State_2_Spin.dims) == (("r",), ("q",))

    def test_types_of_other_programs_are_written_back(self, tmp_path: Path) -> None:
        types = ["Field", "Orbital", "Orbital"]
        path = cf.save(tmp_path, "CoulombVertex", cf.make_values((3, 2, 2)), types)
        dataset = load(path).rename(Orbital="p")
        to_file(dataset, path, "cc4s")
        assert path.read_text().count("type: Orbital\n") == 2
        xr.testing.assert_identical(load(path), dataset)

    @pytest.mark.parametrize(
        ("name", "dims", "fix"),
        [
            ("CoulombVertex", ("F", "q", "r"), r"'AuxiliaryField', 'State', 'State_2'"),
            ("lih_CoulombVertex", ("State", "State_2", "AuxiliaryField"), "transpose"),
            ("EigenEnergies", ("i",), r"to \('State',\)"),
            ("Amplitudes", ("a", "b", "i", "j"), "'State_3', 'State_4'"),
        ],
    )
    def test_unknown_types_of_known_objects_raise(
        self, tmp_path: Path, name: str, dims: tuple[str, ...], fix: str
    ) -> None:
        data = xr.DataArray(np.ones((2,) * len(dims)), dims=dims, name="v")
        with pytest.raises(ValueError, match=rf"cc4s expects the types .* for .*{fix}"):
            to_file(data, tmp_path / f"{name}.yaml")
        assert not read_files(tmp_path)
        to_file(data, tmp_path / "Mine.yaml")
        xr.testing.assert_equal(load(tmp_path / "Mine.yaml").v, data)

    def test_vertex_that_was_renamed_and_transposed_raises(self, tmp_path: Path) -> None:
        to_file(make_vertex(), tmp_path / "CoulombVertex.yaml")
        dataset = open_lazily(tmp_path / "CoulombVertex.yaml").transpose("State", ...)
        with pytest.raises(ValueError, match="transpose or rename"):
            to_file(dataset.rename(State="q"), tmp_path / "b_CoulombVertex.yaml")


class TestEnergies:
    @pytest.mark.parametrize("chunks", [None, {}])
    @pytest.mark.parametrize("form", [list, np.array])
    def test_selection_has_its_own_energies(self, tmp_path: Path, chunks: Any, form: Any) -> None:
        values = np.array([-2.0, -1.0, 1.0, 3.0, 4.0])
        attrs = {"unit": 1.0, "fermiEnergy": 0.0, "energies": form(values)}
        dataset = xr.Dataset({"EigenEnergies": ("State", values, attrs)}).isel(State=slice(1, 4))
        to_file(dataset if chunks is None else dataset.chunk(), tmp_path / "EigenEnergies.yaml")
        actual = load(tmp_path / "EigenEnergies.yaml").EigenEnergies
        assert actual.occupied.values.tolist() == [True, False, False]
        yaml = (tmp_path / "EigenEnergies.yaml").read_text()
        assert "  energies:\n    - -1.0\n    - 1.0\n    - 3.0\n" in yaml
        assert "xr_tensorfmt" not in yaml
        assert validate(tmp_path / "EigenEnergies.yaml") == []

    @pytest.mark.parametrize("chunks", [None, {}])
    def test_changed_values_change_energies(self, tmp_path: Path, chunks: Any) -> None:
        values = np.array([-2.0, -1.0, 1.0])
        attrs = {"unit": 1.0, "fermiEnergy": 0.0, "energies": values.tolist()}
        path = tmp_path / "EigenEnergies.yaml"
        to_file(xr.Dataset({"EigenEnergies": ("State", values, attrs)}), path, "cc4s")
        with xr.set_options(keep_attrs=True):
            shifted = open_lazily(path, chunks=chunks) + 0.25
        shifted.tensorfmt.to_file(tmp_path / "b_EigenEnergies.yaml")
        yaml = (tmp_path / "b_EigenEnergies.yaml").read_text()
        assert "  energies:\n    - -1.75\n    - -0.75\n    - 1.25\n" in yaml
        # Reversing keeps the length and the set of values.
        to_file(open_lazily(path, chunks=chunks).isel(State=slice(None, None, -1)), path)
        assert "  energies:\n    - 1.0\n    - -1.0\n    - -2.0\n" in path.read_text()
        assert load(path).occupied.values.tolist() == [False, True, True]

    def test_warning_if_number_of_occupied_states_changes(self, tmp_path: Path) -> None:
        path = tmp_path / "EigenEnergies.yaml"
        attrs = {"unit": 1.0, "fermiEnergy": 0.0}
        energies = xr.DataArray([-2.0, -0.5, 1.0], dims="State", name="EigenEnergies", attrs=attrs)
        to_file(energies, path)
        with xr.set_options(keep_attrs=True):
            shifted = open_lazily(path) + 1.0
        message = "2 states are occupied by the coordinate 'occupied', but 1 energies.*fermiEnergy"
        with pytest.warns(TensorFormatWarning, match=message):
            to_file(shifted, path)
        assert load(path).occupied.values.tolist() == [True, False, False]
        assert "xr_tensorfmt" not in path.read_text()

    def test_occupations_of_user_are_kept(self, tmp_path: Path) -> None:
        energies = xr.DataArray([-2.0, 1.0], dims="State", name="EigenEnergies")
        energies.attrs = {"unit": 1.0, "fermiEnergy": 0.0}
        numbers = energies.assign_coords(occupied=("State", [2.0, 0.0]))
        to_file(numbers, tmp_path / "EigenEnergies.yaml")
        xr.testing.assert_identical(load(tmp_path / "EigenEnergies.yaml"), numbers.to_dataset())

    def test_attribute_energies_of_another_tensor_is_kept(self, tmp_path: Path) -> None:
        spectrum = xr.DataArray([1.0, 2.0], dims="x", name="a", attrs={"energies": [5.0, 6.0]})
        to_file(spectrum, tmp_path / "a.yaml")
        assert load(tmp_path / "a.yaml").a.attrs == {"energies": [5.0, 6.0]}


class TestUnits:
    def test_lost_unit_is_not_written_over_file(self, tmp_path: Path) -> None:
        path = tmp_path / "CoulombVertex.yaml"
        to_file(make_vertex(), path)
        before = read_files(tmp_path)
        with xr.set_options(keep_attrs=False):
            doubled = open_lazily(path).CoulombVertex * 2
        message = "'CoulombVertex' has no attribute 'unit', which means 1.0, .* has the unit 0.5; "
        with pytest.raises(ValueError, match=message):
            to_file(doubled, path)
        assert read_files(tmp_path) == before
        to_file(doubled.assign_attrs(unit=1.0), path)
        xr.testing.assert_equal(load(path).CoulombVertex, doubled)

    @pytest.mark.parametrize("compute", [True, False])
    def test_lost_unit_is_found_before_values_are_computed(
        self, tmp_path: Path, compute: bool
    ) -> None:
        path = tmp_path / "CoulombVertex.yaml"
        to_file(make_vertex(), path)

        def fail(block: np.ndarray) -> np.ndarray:
            raise ArithmeticError("computed")

        computed = make_vertex().CoulombVertex.drop_attrs().chunk()
        lazy = computed.copy(data=computed.data.map_blocks(fail, dtype=complex, meta=np.array(1j)))
        with pytest.raises(ValueError, match=r"has the unit 0\.5"):
            to_file(lazy, path, compute=compute)


@pytest.mark.parametrize("name", ["State.yaml", "AuxiliaryField.yaml"])
def test_properties_of_dimensions_are_not_replaced(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cc4s looks up the properties of the dimension type"):
        to_file(make_vertex(), tmp_path / name)
    properties = cf.format_properties(name.removesuffix(".yaml"), {"Spin": [0, 1]})
    (tmp_path / name).write_text(properties)
    before = read_files(tmp_path)
    with pytest.raises(ValueError, match="has the properties of dimensions"):
        to_file(xr.DataArray([1.0], name="a"), tmp_path / name)
    assert read_files(tmp_path) == before


def test_more_than_10_dimensions_are_refused(tmp_path: Path) -> None:
    values = xr.DataArray(np.zeros((1,) * 11), name="a")
    with pytest.raises(ValueError, match="has 11 dimensions, but cc4s exchanges the dimensions"):
        to_file(values, tmp_path / "a.yaml")


class TestText:
    EXTREMES = np.array([0.0, -0.0, 1 / 3, -1e-300, 5e-324, 1.7976931348623157e308, np.pi, np.inf])

    def write(self, data: Any, path: Path, **options: Any) -> tuple[Any, str]:
        to_file(data, path, **options)
        (variable,) = load(path).data_vars.values()
        return variable, variable.encoding["tensorfmt"]["elements"]

    @pytest.mark.parametrize("chunks", [None, {}, {"State": 3}])
    def test_energies_are_text_with_17_digits(self, tmp_path: Path, chunks: Any) -> None:
        energies = xr.DataArray(self.EXTREMES, dims="State", name="EigenEnergies")
        energies.attrs["fermiEnergy"] = 0.0
        data = energies if chunks is None else energies.chunk(chunks)
        with pytest.warns(TensorFormatWarning, match="energies of 'EigenEnergies' are not finite"):
            actual, elements = self.write(data, tmp_path / "EigenEnergies.yaml")
        assert elements == cf.TEXT
        assert actual.values.tobytes() == self.EXTREMES.tobytes()
        lines = (tmp_path / "EigenEnergies.elements").read_text().splitlines()
        assert [float(line) for line in lines] == self.EXTREMES.tolist()
        assert lines[2] == "  3.3333333333333331e-01"

    def test_text_stays_text(self, tmp_path: Path) -> None:
        values = cf.make_values((3, 4), is_complex=True)
        path = cf.save(tmp_path, "a", values, ["A", "B"], elements=cf.TEXT)
        actual, elements = self.write(open_lazily(path, chunks={}), tmp_path / "b.yaml")
        assert elements == cf.TEXT
        assert actual.values.tobytes() == values.tobytes()
        first = (tmp_path / "b.elements").read_text().split()[0]
        assert (
            complex(first.replace(",", "+").replace("+-", "-").replace(")", "j)")) == values[0, 0]
        )

    @pytest.mark.parametrize("shape", [(3,), (2, 3)])
    def test_option_chooses(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        data = xr.DataArray(np.ones(shape), dims=["x", "y"][: len(shape)], name="a")
        for elements, expected in {"text": cf.TEXT, "binary": cf.BINARY}.items():
            actual, written = self.write(data, tmp_path / "a.yaml", elements=elements)
            assert written == expected
            np.testing.assert_array_equal(actual, data)
        with pytest.raises(ValueError, match="elements='ascii' is not one of 'text', 'binary'"):
            to_file(data, tmp_path / "a.yaml", elements="ascii")


class TestNote:
    WORDS = ("halfGrid", "length", "fermiEnergy", "energies", "scalarType", "unit", "version")

    @pytest.mark.parametrize(
        "attrs",
        [
            {"halfGrid": np.int64(1), "odd": None},
            {"halfGrid": 1, "wavelength": 3, "note": "bond length", "length": 2, "version": "6.4"},
            {"halfGrid": True, "nested": {"halfGrid": 1, "unit": [{"length": "version"}]}},
        ],
    )
    @pytest.mark.parametrize("unit", [{}, {"unit": 0.5}, {"unit": np.float32(0.5)}])
    def test_words_of_cc4s_are_only_keys(self, tmp_path: Path, attrs: Any, unit: Any) -> None:
        path = tmp_path / "CoulombVertex.yaml"
        vertex = make_vertex().CoulombVertex.assign_coords(length=("State", [1.5] * 4))
        vertex.attrs = {**attrs, **unit}
        to_file(vertex, path)
        xr.testing.assert_identical(load(path).CoulombVertex, vertex)
        lines = path.read_text().splitlines()
        for word in self.WORDS:
            count = {"length": 3, "fermiEnergy": 0, "energies": 0}.get(word, 1)
            assert sum(word in line for line in lines) == count, word

    def test_note_holds_only_what_metadata_cannot(self, tmp_path: Path) -> None:
        path = tmp_path / "CoulombVertex.yaml"
        vertex = make_vertex().CoulombVertex
        vertex.attrs = {"halfGrid": 1, "Gi": [1.0, 2.0], "odd": None}
        to_file(vertex, path)
        (line,) = [line for line in path.read_text().splitlines() if "xr_tensorfmt" in line]
        assert "Grid" not in line
        assert "Gi" not in line
        xr.testing.assert_identical(load(path).CoulombVertex, vertex)
        # Another program changes the unit and an attribute.
        path.write_text(path.read_text().replace("unit: 1.0", "unit: 2.0").replace("d: 1", "d: 0"))
        assert load(path).CoulombVertex.attrs == {**vertex.attrs, "halfGrid": 0, "unit": 2.0}


class TestTypesOfAll:
    @pytest.mark.parametrize(
        ("name", "dims", "types"),
        [
            ("a", ("dim_0", "State"), ["dim_0", "State"]),
            ("a", ("State", "dim_7", "dim_2"), ["State", "dim_7", "dim_2"]),
            ("a", ("dim_0", "dim_1"), [None, None]),
            ("a", ("dim_0", "dim_0_2", "dim_1_3"), [None] * 3),
            ("CoulombVertex", ("dim_0", "State", "State_2"), ["AuxiliaryField", "State", "State"]),
        ],
    )
    def test_all_dimensions_have_types_if_one_has(
        self, tmp_path: Path, name: str, dims: tuple[str, ...], types: list[str | None]
    ) -> None:
        data = xr.DataArray(np.ones((2,) * len(dims)), dims=dims, name=name, attrs={"unit": 1.0})
        to_file(data, tmp_path / f"{name}.yaml")
        actual = load(tmp_path / f"{name}.yaml")
        xr.testing.assert_identical(actual[name], data)
        assert list(actual[name].encoding["tensorfmt"]["types"]) == types

    def test_computed_components_without_types_have_none(self, tmp_path: Path) -> None:
        components = {}
        for name, shape in {"ph": (4, 3), "pphh": (4, 4, 3, 3)}.items():
            components[name] = cf.make_values(shape)
            file = tmp_path / f"Amplitudes.components.{name}.elements"
            file.write_bytes(cf.pack_binary(components[name]))
        text = "".join(
            f"  {name}:\n{cf.format_yaml(values.shape, indent='    ')}"
            for name, values in components.items()
        )
        (tmp_path / "Amplitudes.yaml").write_text(f"components:\n{text}type: TensorSet\n")
        ds = load(tmp_path / "Amplitudes.yaml")
        assert ds.pphh.dims == ("dim_0", "dim_1_2", "dim_2", "dim_3")
        to_file(ds * 2, tmp_path / "Computed.yaml")
        assert (tmp_path / "Computed.yaml").read_text().count("type: ") == 5  # none of a dimension
        xr.testing.assert_identical(load(tmp_path / "Computed.yaml"), ds * 2)
        for source, target in (("Amplitudes.yaml", "a.nc"), ("a.nc", "Back.yaml")):
            run_ok("convert", str(tmp_path / source), str(tmp_path / target))
        xr.testing.assert_identical(load(tmp_path / "Back.yaml"), ds)

    def test_types_of_one_component_reach_the_others(self, tmp_path: Path) -> None:
        ds = xr.Dataset(
            {
                "p": (("dim_1", "dim_2"), np.ones((2, 2))),
                "q": (("dim_0", "dim_1"), np.ones((3, 2))),
                "r": (("State", "dim_0"), np.ones((4, 3))),
            }
        )
        to_file(ds, tmp_path / "a.yaml")
        assert (tmp_path / "a.yaml").read_text().count("type: dim_") == 5
        xr.testing.assert_equal(load(tmp_path / "a.yaml"), ds)


class TestSharedElements:
    """Files of elements with the same name."""

    @pytest.mark.parametrize("protocol", ["", "memory://"])
    @pytest.mark.parametrize("is_set_first", [True, False])
    def test_of_a_set_and_a_tensor_are_not_replaced(
        self, tmp_path: Path, memory: MemoryFileSystem, is_set_first: bool, protocol: str
    ) -> None:
        first = xr.Dataset({name: (f"{name}_x", np.ones(3)) for name in ("ph", "hh")})
        second = xr.DataArray(np.zeros(3), dims="x", name="w")
        names = ["amps.yaml", "amps.components.ph.yaml"]
        data: list[Any] = [first, second]
        if not is_set_first:
            names.reverse()
            data.reverse()
        paths = [f"{protocol}{tmp_path}/{name}" for name in names]
        to_file(data[0], paths[0])
        before = load(paths[0])
        with pytest.raises(FileExistsError, match=rf"{names[1]} was not .*{names[0]} is another"):
            to_file(data[1], paths[1])
        xr.testing.assert_identical(load(paths[0]), before)

    def test_of_names_that_differ_by_case_are_not_replaced(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"end it with \.yaml"):
            to_file(xr.DataArray(np.ones(3), dims="x", name="w"), tmp_path / "w.YAML", "cc4s")


class TestOrphans:
    amplitudes = xr.Dataset({"ph": (("State", "State_2"), np.ones((3, 2)))})

    @pytest.mark.parametrize("compute", [True, False])
    def test_elements_that_no_yaml_describes_any_longer_are_removed(
        self, tmp_path: Path, compute: bool
    ) -> None:
        path = tmp_path / "Amplitudes.yaml"
        others = {"Amplitudes2.elements", "Amplitudes.components.other.elements"}
        for name in others:
            (tmp_path / name).touch()
        amplitudes = self.amplitudes.assign(hh=(("State_2", "State_3"), np.ones((2, 2))))
        to_file(amplitudes, path, "cc4s")
        assert len(read_files(tmp_path)) == 5
        written = to_file(amplitudes.ph.rename("Amplitudes"), path, "cc4s", compute=compute)
        if written is not None:
            assert len(read_files(tmp_path)) == 5
            written.compute()
        assert set(read_files(tmp_path)) == {"Amplitudes.yaml", "Amplitudes.elements", *others}
        np.testing.assert_array_equal(load(path).Amplitudes, amplitudes.ph)
        to_file(amplitudes, path, "cc4s")
        assert "Amplitudes.elements" not in read_files(tmp_path)
        to_file(open_lazily(path)[["hh"]], path, "cc4s")
        assert "Amplitudes.components.ph.elements" not in read_files(tmp_path)
        np.testing.assert_array_equal(load(path).hh, amplitudes.hh)

    @pytest.mark.parametrize("compute", [True, False])
    def test_orphaned_elements_are_removed_from_store(
        self, memory: MemoryFileSystem, compute: bool
    ) -> None:
        url = "memory://orphans/Amplitudes.yaml"
        amplitudes = self.amplitudes.assign(hh=(("State_2", "State_3"), np.ones((2, 2))))
        to_file(amplitudes, url, "cc4s")
        written = to_file(amplitudes.ph.rename("Amplitudes"), url, "cc4s", compute=compute)
        if written is not None:
            assert len(memory.ls("/orphans", detail=False)) == 3
            written.compute()
        names = {os.path.basename(path) for path in memory.ls("/orphans", detail=False)}
        assert names == {"Amplitudes.yaml", "Amplitudes.elements"}
        np.testing.assert_array_equal(load(url).Amplitudes, amplitudes.ph)

    def test_task_that_removes_elements_has_no_values(self, tmp_path: Path) -> None:
        data = xr.DataArray(np.ones(1 << 17), dims="x", name="a")
        delayed: Any = to_file(data, tmp_path / "a.yaml", compute=False)
        assert len(pickle.dumps(dict(delayed.dask)[delayed.key])) < 5000
        assert len(pickle.dumps(dict(delayed.dask))) < 1.1 * data.nbytes

    def test_orphaned_objects_that_cannot_be_removed_are_listed(self, s3: S3Store) -> None:
        s3.put("keep", b"")
        url = "s3://bucket/orphans/Amplitudes.yaml"
        to_file(
            self.amplitudes.assign(hh=(("State_2", "State_3"), np.ones((2, 2)))),
            url,
            "cc4s",
            storage_options=s3.options,
        )
        tensor = self.amplitudes.rename(ph="Amplitudes")
        s3.refused = lambda environ: environ["REQUEST_METHOD"] == "DELETE"
        try:
            with pytest.warns(TensorFormatWarning) as caught:
                to_file(tensor, url, "cc4s", storage_options=s3.options)
        finally:
            s3.refused = lambda environ: False
        (message,) = (str(warning.message) for warning in caught)
        names = [f"Amplitudes.components.{name}.elements" for name in ("ph", "hh")]
        assert message.startswith("orphaned files are not removed (")
        assert message.endswith(f"; remove {', '.join(f's3://bucket/orphans/{x}' for x in names)}")
        xr.testing.assert_identical(load(url, storage_options=s3.options), tensor)

    def test_elements_are_kept_if_writing_fails(self, tmp_path: Path) -> None:
        path = tmp_path / "Amplitudes.yaml"
        to_file(self.amplitudes, path, "cc4s")
        before = read_files(tmp_path)

        def fail(block: np.ndarray) -> np.ndarray:
            raise ArithmeticError("always")

        values = da.ones(5, chunks=1).map_blocks(fail, dtype=float)
        with pytest.raises(ArithmeticError):
            to_file(xr.DataArray(values, dims="State", name="Amplitudes"), path, "cc4s")
        assert read_files(tmp_path) == before

    def test_component_cannot_name_file_in_another_directory(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "Amplitudes.yaml"
        path.parent.mkdir()
        (tmp_path / "Amplitudes.components.x").mkdir()
        (tmp_path / "x.elements").touch()
        path.write_text('type: TensorSet\ncomponents:\n  "x/../../x": {}\n')
        (path.parent / "Amplitudes.components.x").mkdir()
        to_file(self.amplitudes, path, "cc4s")
        assert (tmp_path / "x.elements").exists()


class TestProperties:
    def labelled(self, **attrs: Any) -> xr.Dataset:
        spin = np.array([0, 1, 0, 1])
        return make_vertex().assign_coords(
            State_Spin=("State", spin, attrs), State_2_Spin=("State_2", spin, attrs)
        )

    @pytest.mark.parametrize(
        "change",
        [
            lambda ds: ds.drop_vars("State_2_Spin"),
            lambda ds: ds.assign_coords(State_2_Spin=1 - ds.State_2_Spin),
            lambda ds: ds.assign_coords(
                State_Spin=ds.State_Spin - 1, State_2_Spin=ds.State_2_Spin - 1
            ),
            lambda ds: ds.assign_coords(
                State_Spin=ds.State_Spin + 0.5, State_2_Spin=ds.State_2_Spin + 0.5
            ),
            lambda ds: ds.assign_coords(State_Spin=ds.State_Spin.assign_attrs(values=["up"])),
            lambda ds: ds.assign_coords(State_Spin=ds.State_Spin.assign_attrs(note="x")),
            lambda ds: ds.assign_coords(State=[1, 2, 3, 4], time=3),
            lambda ds: ds,
        ],
    )
    def test_coordinates_are_embedded(self, tmp_path: Path, change: Any) -> None:
        dataset = change(self.labelled())
        to_file(dataset, tmp_path / "CoulombVertex.yaml")
        assert "xr_tensorfmt" in (tmp_path / "CoulombVertex.yaml").read_text()
        xr.testing.assert_identical(load(tmp_path / "CoulombVertex.yaml"), dataset)


class TestRefusals:
    @pytest.mark.parametrize(
        ("dataset", "message"),
        [
            (
                make_vertex(unit="eV"),
                "'unit' of 'CoulombVertex' is 'eV'.*make it a number, or rename",
            ),
            (make_vertex(unit=np.nan), "'unit' of 'CoulombVertex' is nan"),
            (make_vertex(unit=True), "'unit' of 'CoulombVertex' is True"),
            (xr.Dataset(), "there are 0 variables to write, expected 1 to 1024"),
            (make_vertex().assign({"a/b": 1.0}), "'a/b' cannot be a part of the name of a file"),
            (make_vertex().assign({"": 1.0}), "'' cannot be a part of the name of a file"),
            (xr.Dataset({f"v{n}": 1.0 for n in range(1025)}), "there are 1025 variables to write"),
            (make_vertex(f=open), "contains a builtin"),
            (xr.Dataset({"a": ("x", np.arange(3))}), "int64"),
            (xr.Dataset({"a": ("x", np.ones(3, "f4"))}), "float32.*encoding="),
            (xr.Dataset({"a": ("x", ["a", "b"])}), "str32"),
            (xr.Dataset({"a": (list(map(str, range(32))), np.ones((1,) * 32))}), "at most 31 can"),
        ],
    )
    def test_unsupported_data_raise(
        self, tmp_path: Path, dataset: xr.Dataset, message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            to_file(dataset, tmp_path / "a.yaml")
        assert not read_files(tmp_path)

    @pytest.mark.parametrize("name", ["a.yml", "a", ".yaml", "a.elements"])
    def test_files_of_other_names(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ValueError, match=r"end it with \.yaml"):
            to_file(make_vertex(), tmp_path / name, "cc4s")
        assert not read_files(tmp_path)

    @pytest.mark.parametrize("values", [np.arange(3), np.ones(3, "f4"), np.ones(3, "c8")])
    def test_other_dtypes_are_converted_on_request(
        self, tmp_path: Path, values: np.ndarray
    ) -> None:
        dtype = "complex128" if values.dtype.kind == "c" else "float64"
        dataset = xr.Dataset({"a": ("x", values)})
        to_file(dataset, tmp_path / "a.yaml", encoding={"a": {"dtype": dtype}})
        actual = load(tmp_path / "a.yaml").a
        assert actual.dtype == dtype
        np.testing.assert_array_equal(actual, values)

    def test_names_that_differ_only_by_case(self, tmp_path: Path) -> None:
        ds = xr.Dataset({"ph": ("x", np.ones(2)), "Ph": ("x", np.zeros(2))})
        with pytest.raises(
            ValueError, match=r"a\.yaml: 'ph' .* differs .* only by case.*rename it"
        ):
            to_file(ds, tmp_path / "a.yaml")
        assert not any(tmp_path.iterdir())


class TestFilesThatExist:
    @pytest.mark.parametrize("name", ["a.elements", "a.yaml"])
    def test_mode_x_checks_all_files(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"mine")
        with pytest.raises(FileExistsError, match=f"it exists already; .*{name}"):
            to_file(make_vertex(), tmp_path / "a.yaml", mode="x")
        assert read_files(tmp_path) == {name: b"mine"}

    def test_longer_elements_are_truncated(self, tmp_path: Path) -> None:
        (tmp_path / "CoulombVertex.elements").write_bytes(bytes(10_000))
        to_file(make_vertex(), tmp_path / "CoulombVertex.yaml")
        assert (tmp_path / "CoulombVertex.elements").stat().st_size == 6 * 4 * 4 * 16
        assert validate(tmp_path / "CoulombVertex.yaml") == []

    @pytest.mark.parametrize("chunks", [None, {}])
    @pytest.mark.parametrize("dataset", [make_vertex(), make_integrals()], ids=["tensor", "set"])
    def test_files_that_dataset_is_read_from(
        self, tmp_path: Path, chunks: Any, dataset: xr.Dataset
    ) -> None:
        path = tmp_path / "CoulombVertex.yaml"
        to_file(dataset, path, "cc4s")
        with xr.set_options(keep_attrs=True):
            to_file(open_lazily(path, chunks=chunks) * 2, path, "cc4s")
            xr.testing.assert_identical(load(path), dataset * 2)
        turned = open_lazily(path, chunks=chunks).isel(State=slice(None, None, -1))
        expected = turned.compute()
        to_file(turned, path, "cc4s")
        xr.testing.assert_identical(load(path), expected)

    @pytest.mark.parametrize("dataset", [make_vertex(), make_integrals()], ids=["tensor", "set"])
    def test_failed_write_leaves_files_unchanged(self, tmp_path: Path, dataset: xr.Dataset) -> None:
        dataset = dataset.assign_coords(State_Spin=("State", np.arange(dataset.sizes["State"])))
        to_file(dataset, tmp_path / "a.yaml")
        before = read_files(tmp_path)

        def fail(block: np.ndarray, block_info: Any = None) -> np.ndarray:
            if block_info[0]["chunk-location"][-1] > 0:
                raise ArithmeticError("the second")
            return block

        (*_, last) = dataset.data_vars
        values = da.from_array(dataset[last].values, chunks=1).map_blocks(fail, dtype=complex)
        broken = dataset.assign({last: (dataset[last].dims, values, dataset[last].attrs)})
        broken = (broken * 3).assign_coords(State_Spin=dataset.State_Spin + 5)
        with pytest.raises(ArithmeticError) as caught:
            to_file(broken, tmp_path / "a.yaml")
        assert "the target is unchanged" in caught.value.__notes__[0]
        assert read_files(tmp_path) == before

    def test_directory_instead_of_elements(self, tmp_path: Path) -> None:
        (tmp_path / "a.elements").mkdir()
        with pytest.raises(OSError, match=r"not a regular file.*a\.elements"):
            to_file(make_vertex(), tmp_path / "a.yaml")
        assert [path.name for path in tmp_path.iterdir()] == ["a.elements"]


class TestLater:
    def test_delayed_write_writes_on_compute(self, tmp_path: Path) -> None:
        task = to_file(make_integrals().chunk(), tmp_path / "a.yaml", compute=False)
        assert not read_files(tmp_path)
        task.compute()
        xr.testing.assert_identical(load(tmp_path / "a.yaml"), make_integrals())
        assert len(read_files(tmp_path)) == 4

    @pytest.mark.cluster
    def test_workers_of_cluster_write_elements(self, tmp_path: Path) -> None:
        script = """
import dask.array as da
import numpy as np
import xarray as xr
from distributed import Client, LocalCluster
from xr_tensorfmt import to_file

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=True, dashboard_address=None,
                      memory_limit="1GiB", silence_logs=50) as cluster, Client(cluster) as client:
        values = np.arange(40.0 * 30).reshape(40, 30)
        chunks = da.from_array(values, chunks=(10, 10))
        ds = xr.Dataset({"a": (("x", "y"), chunks), "b": (("x",), chunks[:, 0] * 1j)})
        to_file(ds, "now.yaml")
        client.compute(to_file(ds, "later.yaml", compute=False)).result()
        to_file(ds[["a"]][{"x": slice(10, 20)}] * -1, "later.yaml", region={"x": slice(10, 20)})
        now, later = (xr.open_dataset(name).load() for name in ("now.yaml", "later.yaml"))
        later.a[10:20] *= -1
        print(now.identical(later), bool((now.a == values).all()))
"""
        assert run_script(script, directory=tmp_path).split() == ["True", "True"]
        names = {path.name for path in tmp_path.iterdir()} - {"script.py"}
        assert len(names) == 6


class TestRegions:
    def test_part_of_one_component_is_written_in_place(self, tmp_path: Path) -> None:
        path = tmp_path / "a.yaml"
        to_file(make_integrals(), path, "cc4s")
        before = read_files(tmp_path)
        part = xr.Dataset({"ph": (("State_3", "State"), [[7.0, 8.0]], {"unit": 2.0})})
        to_file(part, path, "cc4s", region={"State_3": slice(1, 2)})
        actual = load(path)
        np.testing.assert_array_equal(actual.ph[1], [7, 8])
        np.testing.assert_array_equal(actual.ph[::2], make_integrals().ph[::2])
        changed = {name for name, item in read_files(tmp_path).items() if item != before[name]}
        assert changed == {"a.components.ph.elements"}

    def test_chunks_are_written_by_several_tasks(self, tmp_path: Path) -> None:
        """A task may change the values, as the elements are a file without a header."""
        values = np.arange(1200.0).reshape(40, 30)
        dataset = xr.Dataset({"a": (("x", "y"), da.from_array(values, chunks=(10, 10)))})
        to_file(dataset, tmp_path / "a.yaml")
        part, region = dataset[{"x": slice(10, 20)}] * -1, {"x": slice(10, 20)}
        task = to_file(part, tmp_path / "a.yaml", region=region, compute=False)
        task.compute(scheduler="synchronous")
        np.testing.assert_array_equal(load(tmp_path / "a.yaml").a[10:20], -values[10:20])

    def test_values_that_were_loaded_do_not_change(
        self, tmp_path: Path, always_mapped: None
    ) -> None:
        dataset = xr.Dataset({"a": (("x", "y"), cf.make_values((64, 64)), {"unit": 1.0})})
        to_file(dataset, tmp_path / "a.yaml")
        loaded = load(tmp_path / "a.yaml")
        to_file(dataset * 0, tmp_path / "a.yaml", region={})
        xr.testing.assert_identical(loaded, dataset)
        assert not load(tmp_path / "a.yaml").a.any()

    def test_lazy_values_of_written_elements_are_loaded(self, tmp_path: Path) -> None:
        to_file(make_vertex(), tmp_path / "CoulombVertex.yaml")
        lazy = open_lazily(tmp_path / "CoulombVertex.yaml")
        to_file(lazy.isel(State=slice(None, None, -1)), tmp_path / "CoulombVertex.yaml", region={})
        actual = load(tmp_path / "CoulombVertex.yaml").CoulombVertex
        np.testing.assert_array_equal(actual, make_vertex().CoulombVertex[:, ::-1])

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("vasp/EigenEnergies", "has a list of the energies of 'EigenEnergies', .*make stale"),
            ("vasp/GridVectors", r"cannot be written in part.*write the whole file"),
            ("blocks/Blocks", r"cannot be written in part.*write the whole file"),
        ],
    )
    def test_some_files_are_written_whole_only(
        self, tmp_path: Path, name: str, message: str
    ) -> None:
        folder = shutil.copytree((DATA / name).parent, tmp_path / "x")
        path = folder / f"{Path(name).name}.yaml"
        before = read_files(folder)
        dataset = load(path).drop_vars(list(load(path).coords))
        with pytest.raises(ValueError, match=message):
            to_file(dataset, path, "cc4s", region={})
        assert read_files(folder) == before

    def test_values_in_another_unit_raise(self, tmp_path: Path) -> None:
        path = tmp_path / "CoulombVertex.yaml"
        to_file(make_vertex(), path, "cc4s")
        stored = load(path).CoulombVertex
        converted = xr.open_dataarray(path, engine="tensorfmt", apply_unit=True).load()
        with pytest.raises(ValueError, match=r"has unit=0\.5 .* data need 1\.0"):
            to_file(converted, path, "cc4s", region={})
        to_file(stored, path, "cc4s", region={})
        with pytest.raises(ValueError, match=r"has unit=0\.5 .* data lack it"):
            to_file(stored.drop_attrs(), path, "cc4s", region={})
        xr.testing.assert_identical(load(path).CoulombVertex, stored)


class TestStores:
    def test_write_to_s3(self, s3: S3Store) -> None:
        s3.put("w/x", b"")
        options = {"storage_options": s3.options}
        for dataset in (
            make_vertex().assign_coords(State_Spin=("State", [0, 1, 1, 1])),
            make_integrals(),
        ):
            for chunks in ({}, None):
                data = dataset if chunks is None else dataset.chunk(chunks)
                to_file(data, "s3://bucket/w/CoulombVertex.yaml", **options)
                actual = load("s3://bucket/w/CoulombVertex.yaml", **options)
                xr.testing.assert_identical(actual, dataset)

    def test_mode_x_checks_all_objects(self, memory: MemoryFileSystem) -> None:
        memory.pipe_file("/b/a.elements", b"mine")
        with pytest.raises(FileExistsError, match=r"it exists already; .*a\.elements"):
            to_file(make_vertex(), "memory://b/a.yaml", mode="x")
        assert memory.find("/b") == ["/b/a.elements"]
        assert memory.cat_file("/b/a.elements") == b"mine"

    def test_failed_write_leaves_objects_unchanged(self, memory: MemoryFileSystem) -> None:
        to_file(make_integrals(), "memory://b/a.yaml")
        before = {name: memory.cat_file(name) for name in memory.find("/b")}

        def fail(block: np.ndarray) -> np.ndarray:
            raise ArithmeticError("always")

        values = da.ones(5, chunks=1, dtype=complex).map_blocks(fail, dtype=complex)
        with pytest.raises(ArithmeticError):
            to_file((make_integrals() * 3).assign(x=("G", values)), "memory://b/a.yaml")
        assert {name: memory.cat_file(name) for name in memory.find("/b")} == before


@pytest.mark.usefixtures("working_directory")
class TestCommands:
    def test_tens_becomes_yaml_and_back(self) -> None:
        values = cf.make_values((4, 3, 2))
        Path("v.tens").write_bytes(make_0_9(values))
        run_ok("convert", "v.tens", "Any.yaml")
        assert Path("Any.elements").read_bytes() == cf.pack_binary(values)
        run_ok("convert", "Any.yaml", "w.tens")
        actual = load("w.tens")
        (variable,) = actual.data_vars.values()
        np.testing.assert_array_equal(variable.values, values)
        xr.testing.assert_identical(actual.drop_attrs(), load("Any.yaml").drop_attrs())

    def test_info_describes_each_component(self) -> None:
        told = json.loads(run_ok("info", "--json", str(DATA / "set" / "CoulombIntegrals.yaml")))
        assert "pphh" in json.dumps(told)
        output = run_ok("info", str(DATA / "vasp" / "CoulombVertex.yaml"))
        for word in ("cc4s", "AuxiliaryField", "State_2", "complex128", "halfGrid", "unit"):
            assert word in output

    def test_validate_names_findings(self) -> None:
        shutil.copytree(DATA, "d")
        assert "24 more bytes" in run_ok("validate", "d/misc/longer.yaml")
        result = run_failing("validate", "d/bad/missing_elements.yaml")
        assert "d/bad/missing_elements.elements: no such file; it has the elements of" in result
        assert result.endswith(", so fetch it too\n")


@pytest.mark.parametrize(
    ("name", "severity", "message"),
    [
        ("misc/longer", "warning", "24 more bytes"),
        ("bad/short", "error", "40 bytes, expected 48"),
        ("bad/text_short", "error", "3 values, expected 6"),
        ("bad/text_word", "error", "a line of the elements"),
        ("bad/negative", "error", "-3"),
        ("bad/version", "error", "101"),
        ("bad/alias_bomb", "error", "an alias"),
    ],
)
def test_validation_finds_faults(name: str, severity: str, message: str) -> None:
    (finding,) = validate(DATA / f"{name}.yaml", format="cc4s")
    assert finding.severity == severity
    assert message in finding.message or message in str(finding)
