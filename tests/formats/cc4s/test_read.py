"""Reading cc4s files."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
from itertools import product
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests import cc4sfiles as cf
from tests import tensfiles as tf
from tests.lazyarrays import INDEXERS
from tests.opening import load, open_lazily
from tests.paths import DATA as ALL_DATA
from tests.processes import run_script
from tests.recording import RecordingSource
from tests.servers import HttpStore, MemoryStore, S3Store
from xr_tensorfmt import SourceChangedError, TensorFormatError, TensorFormatWarning, validate
from xr_tensorfmt.core.gathered import scale_values
from xr_tensorfmt.core.layout import read
from xr_tensorfmt.core.selection import Selection
from xr_tensorfmt.formats.cc4s import layouts as text
from xr_tensorfmt.formats.cc4s import read as reading
from xr_tensorfmt.formats.cc4s.header import get_object_types
from xr_tensorfmt.formats.recognition import is_recognised

DATA = ALL_DATA / "cc4s"
MANIFEST: dict[str, Any] = json.loads((DATA / "manifest.json").read_text())
GOOD = {
    name: facts for name, facts in MANIFEST.items() if facts["expect"] is None and "shape" in facts
}

fixtures_are_not_reset = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


class TestGenuineFiles:
    @pytest.mark.parametrize("name", GOOD)
    @pytest.mark.filterwarnings("ignore:.*more bytes:xr_tensorfmt.TensorFormatWarning")
    def test_values_shapes_and_units(self, name: str) -> None:
        facts = GOOD[name]
        (variable,) = load(DATA / name).data_vars.values()
        expected = cf.make_values(facts["shape"], is_complex=facts["complex"])
        # Their texts have 15 digits.
        digits = 1e-14 if (DATA / name).with_suffix(".elements").read_bytes().isascii() else 0
        np.testing.assert_allclose(variable.values, expected, rtol=digits, strict=True)
        assert variable.attrs["unit"] == facts["unit"]
        assert isinstance(variable.attrs["unit"], float)

    def test_bad_files_raise_on_read(self) -> None:
        bad = [name for name, facts in MANIFEST.items() if facts["expect"] == "error"]
        assert len(bad) == 9
        for name in bad:
            with pytest.raises((ValueError, FileNotFoundError)) as caught:
                load(DATA / name)
            assert Path(name).stem in str(caught.value)

    def test_vertex_has_dims_coordinates_and_metadata(self) -> None:
        vertex = load(DATA / "vasp" / "CoulombVertex.yaml").CoulombVertex
        assert vertex.dims == ("AuxiliaryField", "State", "State_2")
        assert vertex.attrs == {"halfGrid": 1, "unit": 0.1917011272153577}
        assert set(vertex.coords) == {
            f"{dim}_{name}" for dim in vertex.dims for name in ("Spin", "CrystalMomentum")
        }
        momentum = vertex.State_2_CrystalMomentum
        assert momentum.dims == ("State_2",)
        np.testing.assert_array_equal(momentum.values, np.array([0, 1, 0, 1]), strict=True)
        assert momentum.attrs == {"values": [[0, 0, 0], [1, 0, 0]]}
        assert vertex.State_Spin.attrs == {}
        assert not vertex.indexes

    def test_metadata_are_unchanged(self) -> None:
        energies = load(DATA / "vasp" / "EigenEnergies.yaml").EigenEnergies
        assert energies.attrs == {
            "fermiEnergy": 0.102110932168019,
            "unit": 0.03674932217563878,
        }
        # cc4s counts the energies of the metadata, which differ from the elements of this file.
        np.testing.assert_array_equal(energies.occupied, [True, True, False, False])
        grid = load(DATA / "vasp" / "GridVectors.yaml").GridVectors
        assert grid.attrs["Gj"] == [0.0, 1.5e5, 0.0]

    def test_set_has_variable_for_each_component(self) -> None:
        dataset = load(DATA / "set" / "CoulombIntegrals.yaml")
        components = MANIFEST["set/CoulombIntegrals.yaml"]["components"]
        assert list(dataset.data_vars) == list(components)
        assert dataset.hh.dims == ("State", "State_2")
        assert dataset.ph.dims == ("State_3", "State")
        assert dataset.pphh.dims == ("State_3", "State_4", "State", "State_2")
        for name, shape in components.items():
            np.testing.assert_array_equal(dataset[name].values, cf.make_values(shape))

    def test_set_of_cc4s_has_no_version_of_its_own(self) -> None:
        path = DATA / "set_cc4s" / "CoulombIntegrals.yaml"
        assert path.read_text().startswith("type: TensorSet\n")
        dataset = xr.open_dataset(path).load()  # guessed
        xr.testing.assert_identical(dataset, load(DATA / "set" / "CoulombIntegrals.yaml"))

    @pytest.mark.parametrize("sparse", ["auto", "dense"])
    def test_blocks_are_filled(self, sparse: str) -> None:
        blocks = load(DATA / "blocks" / "Blocks.yaml", sparse=sparse).Blocks
        np.testing.assert_array_equal(blocks.values, MANIFEST["blocks/Blocks.yaml"]["full"])

    def test_bytes_of_older_run_warn(self) -> None:
        with pytest.warns(TensorFormatWarning, match="24 more bytes"):
            load(DATA / "misc" / "longer.yaml")


class TestNames:
    @pytest.mark.parametrize(
        ("stem", "name"),
        [
            ("CoulombVertex", "CoulombVertex"),
            ("lih_bulk08_CoulombVertex", "CoulombVertex"),
            ("lih_Vertex", "lih_Vertex"),
            ("CoulombVertex_old", "CoulombVertex_old"),
            ("a.b", "a.b"),
            ("\N{GREEK CAPITAL LETTER GAMMA}", "\N{GREEK CAPITAL LETTER GAMMA}"),
        ],
    )
    def test_variable_has_name_of_object_or_of_file(
        self, tmp_path: Path, stem: str, name: str
    ) -> None:
        path = cf.save(tmp_path, stem, cf.make_values((2,)))
        assert list(open_lazily(path)) == [name]
        assert list(open_lazily(path, name="v")) == ["v"]

    def test_dims_are_types_or_positions(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "a", cf.make_values((2, 3, 2)), ["State", None, "State"])
        assert open_lazily(path).a.dims == ("State", "dim_1", "State_2")
        assert open_lazily(path, dims=("a0", "i", "j")).a.dims == ("a0", "i", "j")

    def test_dims_never_share_name_within_tensor(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "a", cf.make_values((2,) * 4), ["S", "S_2", "S", "S"])
        assert len(set(open_lazily(path).a.dims)) == 4

    def test_renamed_dims_keep_their_properties(self, tmp_path: Path) -> None:
        (tmp_path / "State.yaml").write_text(cf.format_properties("State", {"Spin": [0, 1]}))
        path = cf.save(tmp_path, "a", cf.make_values((2, 2)), ["State", "State"])
        spin = open_lazily(path, dims=("i", "j")).a.coords
        assert {name: item.dims for name, item in spin.items()} == {
            "State_Spin": ("i",),
            "State_2_Spin": ("j",),
        }

    def test_components_share_dims_of_same_length(self, tmp_path: Path) -> None:
        path = cf.save_set(
            tmp_path,
            "Amplitudes",
            {
                "ph": (cf.make_values((3, 2)), ["State", "State"]),
                "pphh": (cf.make_values((3, 3, 2, 2)), ["State"] * 4),
                "x": (cf.make_values((3,), is_complex=True), ["State"]),
            },
        )
        dataset = load(path)
        assert dataset.ph.dims == ("State", "State_2")
        assert dataset.pphh.dims == ("State", "State_3", "State_2", "State_4")
        assert dataset.x.dims == ("State",)
        np.testing.assert_array_equal(dataset.x.values, cf.make_values((3,), is_complex=True))

    def test_dims_of_component_can_be_named(self) -> None:
        path = DATA / "set" / "CoulombIntegrals.yaml"
        assert open_lazily(path, dims={"hh": ("i", "j")}).hh.dims == ("i", "j")

    def test_keys_of_map_of_dimensions_are_numbers(self, tmp_path: Path) -> None:
        lengths = (2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3)
        values = cf.make_values(lengths)
        (tmp_path / "a.yaml").write_text(cf.format_sorted_yaml(lengths))
        (tmp_path / "a.elements").write_bytes(cf.pack_binary(values))
        assert "1:\n    length: 1\n  10:\n    length: 3\n  2:" in (tmp_path / "a.yaml").read_text()
        np.testing.assert_array_equal(load(tmp_path / "a.yaml").a.values, values)

    @pytest.mark.parametrize("suffix", [".elements", ".components.hh.elements"])
    def test_elements_open_as_their_yaml(self, suffix: str) -> None:
        folder = DATA / ("vasp" if suffix == ".elements" else "set")
        stem = "CoulombVertex" if suffix == ".elements" else "CoulombIntegrals"
        by_elements = load(folder / f"{stem}{suffix}")
        xr.testing.assert_identical(by_elements, load(folder / f"{stem}.yaml"))


class TestYaml:
    @pytest.mark.parametrize(
        ("written", "unit"), [("1E-05", 1e-5), ("1.5E05", 1.5e5), ("2", 2.0), ("-.5", -0.5)]
    )
    def test_units_are_floats_in_every_notation(
        self, tmp_path: Path, written: str, unit: float
    ) -> None:
        actual = open_lazily(cf.save(tmp_path, "a", cf.make_values((2,)), unit=written)).a.attrs[
            "unit"
        ]
        assert (type(actual), actual) == (float, unit)

    def test_tag_of_cc4s_marks_str(self, tmp_path: Path) -> None:
        path = cf.save(
            tmp_path, "a", cf.make_values((2,)), ["!!text State"], elements="!!text TextFile"
        )
        (tmp_path / "a.elements").write_bytes(cf.format_text(cf.make_values((2,))))
        path.write_text(path.read_text() + "metaData:\n  x: !!text 12\n  y: [!!text a]\n")
        dataset = load(path, format="cc4s")
        assert dataset.a.dims == ("State",)
        assert dataset.a.attrs == {"x": "12", "y": ["a"], "unit": 1.0}

    @pytest.mark.parametrize(
        "change",
        [
            lambda content: content.replace("\n", "\r\n"),
            lambda content: "\ufeff" + content,
            lambda content: "# by hand\n---\n" + content + "...\n",
            lambda content: content.replace("unit: 1", "unit: 1 # a &b"),
            lambda content: content + "metaData:\n",
            lambda content: content + "somethingElse: {a: [1, 2]}\n",
            lambda content: content.replace("type: Tensor\n", "type: 'Tensor'\n"),
        ],
    )
    def test_equivalent_yaml_is_read_alike(self, tmp_path: Path, change: Any) -> None:
        path = cf.save(tmp_path, "a", cf.make_values((2, 3)), ["F", "G"])
        expected = load(path)
        path.write_bytes(change(path.read_text()).encode())
        xr.testing.assert_identical(load(path), expected)

    def test_unit_in_metadata_is_omitted_with_warning(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "a", cf.make_values((2,)), unit=2, more="metaData:\n  unit: eV\n")
        with pytest.warns(TensorFormatWarning, match=r"metaData\.unit.*rename it"):
            assert open_lazily(path).a.attrs == {"unit": 2.0}

    def test_metadata_that_is_no_valid_python_name_is_kept(self, tmp_path: Path) -> None:
        more = "metaData:\n  1: {2: 3}\n  a b: [null, true, .inf, {x: []}]\n"
        path = cf.save(tmp_path, "a", cf.make_values((2,)), more=more)
        expected = {"1": {"2": 3}, "a b": [None, True, np.inf, {"x": []}], "unit": 1.0}
        assert open_lazily(path).a.attrs == expected

    def test_empty_tensors_and_scalars(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "a", np.zeros((3, 0, 2)), ["A", "B", "C"])
        assert load(path).a.shape == (3, 0, 2)
        path = cf.save(tmp_path, "t", np.zeros((3, 0)), elements=cf.TEXT)
        assert load(path).t.shape == (3, 0)
        path = cf.save(tmp_path, "s", np.array(2 - 3j), elements=cf.TEXT)
        assert load(path).s.item() == 2 - 3j


class TestRecognition:
    @pytest.mark.parametrize("name", [*GOOD, "set/CoulombIntegrals.yaml", "blocks/Blocks.yaml"])
    @pytest.mark.filterwarnings("ignore:.*more bytes:xr_tensorfmt.TensorFormatWarning")
    def test_xarray_finds_engine(self, name: str) -> None:
        xr.testing.assert_identical(xr.open_dataset(DATA / name).load(), load(DATA / name))
        xr.testing.assert_identical(load(DATA / name, format="cc4s"), load(DATA / name))

    def test_elements_are_recognised_by_their_yaml(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "a", cf.make_values((2,)))
        assert list(xr.open_dataset(tmp_path / "a.elements")) == ["a"]
        path.unlink()
        with pytest.raises(ValueError, match="did not find a match"):
            xr.open_dataset(tmp_path / "a.elements")

    def test_comments_after_keys_are_ignored(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "a", cf.make_values((2,)))
        path.write_text(path.read_text().replace("version: 100", "version: 100  # since 2021"))
        assert list(xr.open_dataset(path)) == ["a"]

    @pytest.mark.slow
    def test_keys_at_end_of_long_file_are_found(self, tmp_path: Path) -> None:
        lines = cf.format_sorted_yaml((2,)).splitlines(keepends=True)
        offset = lines.index("metaData:\n") + 1
        lines.insert(offset, "  weights: [" + "0.25, " * 100_000 + "1]\n")
        (tmp_path / "a.yaml").write_text("".join(lines))
        (tmp_path / "a.elements").write_bytes(bytes(16))
        assert len(xr.open_dataset(tmp_path / "a.yaml").a.attrs["weights"]) == 100_001

    @pytest.mark.parametrize(
        "content",
        [
            b"version: 100\ntype: Tensor\n",
            b"version: 1\ntype: Tensor\nscalarType: Real64\n",
            b"- version: 100\n- type: Tensor\n- scalarType: Real64\n",
            b"a:\n  version: 100\n  type: Tensor\n  scalarType: Real64\n",
            b"version: 100\ntype: Tensors\nscalarType: Real64\n",
            cf.format_properties("State", {"Spin": [0]}).encode(),
            b"",
            b"\xff\xfe\0",
        ],
    )
    def test_yaml_of_other_programs_is_not_claimed(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "other.yaml").write_bytes(content)
        with pytest.raises(ValueError, match="did not find a match"):
            xr.open_dataset(tmp_path / "other.yaml")

    def test_little_of_large_file_of_another_program_is_read(self) -> None:
        source = RecordingSource(b"a: 1\n" * 1_000_000)
        source.name = "other.yaml"
        assert not is_recognised(source)
        assert source.fetched <= 160 << 10

    def test_files_of_other_names_need_format(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "a", cf.make_values((2,)))
        path = path.rename(tmp_path / "a.yml")
        (tmp_path / "a.elements").rename(tmp_path / "a.yml.elements")
        assert load(path, format="cc4s")["a.yml"].shape == (2,)


def test_files_that_are_replaced_while_they_are_opened_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cf.save(tmp_path, "a", cf.make_values((2,)), unit=0.5)

    def replace_files(*arguments: Any) -> Any:
        monkeypatch.undo()
        (tmp_path / "new").mkdir()
        cf.save(tmp_path / "new", "a", cf.make_values((2,)) * 2, unit=0.25)
        for suffix in ("elements", "yaml"):
            (tmp_path / "new" / f"a.{suffix}").replace(tmp_path / f"a.{suffix}")
        return open_sibling(*arguments)

    open_sibling = reading.open_sibling
    monkeypatch.setattr(reading, "open_sibling", replace_files)
    with pytest.raises(SourceChangedError, match=r"a\.yaml: .*open it again"):
        open_lazily(path)


@pytest.mark.parametrize(
    ("name", "rank", "types"),
    [
        ("CoulombVertex", 3, ("AuxiliaryField", "State", "State")),
        ("CoulombVertex", 2, None),
        ("Amplitudes", 4, ("State",) * 4),
        ("Mine", 1, None),
    ],
)
def test_types_of_objects(name: str, rank: int, types: tuple[str, ...] | None) -> None:
    assert get_object_types(name, rank) == types


class TestOnlyBlock:
    CONDITION = cf.format_condition([([("CrystalMomentum", 1), ("CrystalMomentum", 2)], [(0, 0)])])

    @pytest.mark.parametrize("elements", [cf.BINARY, cf.TEXT])
    def test_whole_tensor_needs_no_properties(self, tmp_path: Path, elements: str) -> None:
        types = ["AuxiliaryField", "State", "State"]
        values = cf.make_values((3, 2, 2))
        path = cf.save(
            tmp_path, "CoulombVertex", values, types, more=self.CONDITION, elements=elements
        )
        np.testing.assert_array_equal(load(path).CoulombVertex, values)
        assert validate(path) == []

    @pytest.mark.parametrize("elements", [cf.BINARY, cf.TEXT])
    def test_part_of_tensor_needs_properties(self, tmp_path: Path, elements: str) -> None:
        types = ["AuxiliaryField", "State", "State"]
        values = cf.make_values((3, 1, 2))
        path = cf.save(
            tmp_path, "CoulombVertex", values, types, more=self.CONDITION, elements=elements
        )
        path.write_text(path.read_text().replace("length:      1", "length:      2"))
        with pytest.raises(ValueError, match=r"property 'Crystal|6 values, expected 12"):
            load(path)


class TestMetadata:
    def energies(self, directory: Path, keys: list[int], length: int) -> Path:
        """Energies as cc4s writes them: a mapping, sorted by the digits of the keys."""
        lines = "".join(f"    {key}: {0.5 * key - 3}\n" for key in sorted(keys, key=str))
        more = f"metaData:\n  fermiEnergy: -1.25\n  energies:\n{lines}"
        values = 0.5 * np.arange(length) - 3
        return cf.save(directory, "EigenEnergies", values, ["State"], unit=0.5, more=more)

    def test_states_below_fermi_energy_are_occupied(self, tmp_path: Path) -> None:
        actual = load(self.energies(tmp_path, [*range(12)], 12)).EigenEnergies
        assert actual.attrs == {"fermiEnergy": -1.25, "unit": 0.5}
        assert actual.occupied.values.tolist() == [True] * 4 + [False] * 8
        part = open_lazily(tmp_path / "EigenEnergies.yaml").isel(State=slice(2, None))
        assert part.occupied.values.tolist() == [True] * 2 + [False] * 8

    def test_energies_of_another_length_are_finding(self, tmp_path: Path) -> None:
        path = self.energies(tmp_path, [*range(12)], 11)
        (finding,) = validate(path)
        assert (finding.field, finding.severity) == ("metaData.energies", "warning")
        assert finding.message.startswith("12 energies for 11 elements")

    def test_nested_energies_are_finding(self, tmp_path: Path) -> None:
        more = "metaData: {fermiEnergy: 1.0, energies: [[0, 1], [0, 1], [0, 1]]}\n"
        (finding,) = validate(cf.save(tmp_path, "EigenEnergies", np.arange(3.0), more=more))
        assert (finding.field, finding.severity) == ("metaData.energies", "warning")

    def test_energies_that_differ_from_elements_are_finding(self, tmp_path: Path) -> None:
        path = self.energies(tmp_path, [*range(12)], 12)
        assert validate(path) == []
        values = 0.5 * np.arange(12) - 3
        values[0] *= 1 + 1e-9  # as rounded in text
        (tmp_path / "EigenEnergies.elements").write_bytes(cf.pack_binary(values))
        assert validate(path) == []
        values[[4, 7]] += 0.25
        (tmp_path / "EigenEnergies.elements").write_bytes(cf.pack_binary(values))
        (finding,) = validate(path)
        assert (finding.field, finding.severity) == ("metaData.energies", "warning")
        assert "2 of 12 differ" in finding.message
        assert "number 4: -1.0, expected -0.75" in finding.message

    def test_properties_of_another_length_are_left_out_with_a_warning(self, tmp_path: Path) -> None:
        path = self.energies(tmp_path, [*range(12)], 12)
        (tmp_path / "State.yaml").write_text(cf.format_properties("State", {"Spin": [0, 1, 0]}))
        message = (
            r"State\.yaml: propertyIndices\.Spin: 3 integers, expected 12, the length of State"
        )
        with pytest.warns(TensorFormatWarning, match=message):
            ds = xr.load_dataset(path, engine="tensorfmt")
        assert "State_Spin" not in ds.coords

    def test_slices_of_energies_open_without_warning(self, tmp_path: Path) -> None:
        components = {"h": (np.arange(2.0), ["State"]), "p": (np.arange(3.0), ["State"])}
        path = cf.save_set(tmp_path, "SlicedEigenEnergies", components)
        more = "    metaData:\n      fermiEnergy: 1.5\n      energies: [0, 1, 2, 3, 4]\n"
        path.write_text(path.read_text().replace("    unit: 1\n", f"    unit: 1\n{more}"))
        assert load(path).h.attrs == {"fermiEnergy": 1.5, "unit": 1.0}
        assert validate(path) == []

    def test_other_mappings_are_kept(self, tmp_path: Path) -> None:
        actual = load(self.energies(tmp_path, [1, 2, 10], 3)).EigenEnergies
        assert actual.attrs["energies"] == {"1": -2.5, "2": -2.0, "10": 2.0}

    def test_metadata_in_unit_of_tensor_are_converted_too(self, tmp_path: Path) -> None:
        path = self.energies(tmp_path, [*range(12)], 12)
        plain, actual = load(path).EigenEnergies, load(path, apply_unit=True).EigenEnergies
        assert actual.attrs["unit"] == 1
        assert actual.values.tolist() == (plain.values / 2).tolist()
        assert (actual < actual.fermiEnergy).sum() == (plain < plain.fermiEnergy).sum() == 4
        np.testing.assert_array_equal(actual.occupied, plain.occupied)
        more = "metaData: {Gi: [1, 0, 2], Gj: [0, 3, 0], Gk: [0, 0, 4], kMesh: [2, 2, 2]}\n"
        path = cf.save(tmp_path, "GridVectors", np.eye(3), unit=0.25, more=more)
        actual = load(path, apply_unit=True).GridVectors
        assert [actual.attrs[name] for name in ("Gi", "Gj", "Gk")] == [
            [0.25, 0, 0.5], [0, 0.75, 0], [0, 0, 1]
        ]  # fmt: skip
        assert actual.attrs["kMesh"] == [2, 2, 2]

    def test_metadata_of_vertex_are_not_converted(self, tmp_path: Path) -> None:
        more = "metaData: {fermiEnergy: 3.0, energies: [1.0, 4.0], Gi: [1, 0, 0]}\n"
        types = ["AuxiliaryField", "State", "State"]
        path = cf.save(tmp_path, "CoulombVertex", np.ones((3, 2, 2)), types, unit=0.5, more=more)
        actual = load(path, apply_unit=True).CoulombVertex
        assert actual.attrs == {
            "fermiEnergy": 3.0, "energies": [1.0, 4.0], "Gi": [1, 0, 0], "unit": 1.0,
            "applied_unit": 0.5
        }  # fmt: skip
        more = "metaData: {fermiEnergy: 3.0}\n"
        path = cf.save(tmp_path, "Potential", np.ones(3), ["Momentum"], unit=0.5, more=more)
        assert load(path, apply_unit=True).Potential.fermiEnergy == 3

    def test_embedded_attributes_are_converted_too(self, tmp_path: Path) -> None:
        attrs = {
            "unit": 0.5,
            "fermiEnergy": np.float64(2),
            "z": 1j,
        }
        dataset = xr.Dataset({"EigenEnergies": ("State", [1.0, 3.0], attrs)})
        dataset.tensorfmt.to_file(tmp_path / "EigenEnergies.yaml")
        actual = load(tmp_path / "EigenEnergies.yaml", apply_unit=True).EigenEnergies
        assert actual.attrs["unit"] == 1
        assert actual.attrs["fermiEnergy"] == 1
        assert type(actual.attrs["fermiEnergy"]) is np.float64
        np.testing.assert_array_equal(actual, [0.5, 1.5])


class TestProperties:
    def save(self, directory: Path, content: str) -> Path:
        (directory / "State.yaml").write_text(content)
        return cf.save(directory, "a", cf.make_values((3, 2)), ["State", "State"])

    def test_properties_label_dimensions_of_equal_length(self, tmp_path: Path) -> None:
        path = self.save(tmp_path, cf.format_properties("State", {"Spin": [0, 1, 0]}))
        actual = load(path)
        assert set(actual.coords) == {"State_Spin"}
        np.testing.assert_array_equal(actual.State_Spin, [0, 1, 0])

    def test_slices_with_fewer_states_than_calculation_are_no_fault(self, tmp_path: Path) -> None:
        path = self.save(tmp_path, cf.format_properties("State", {"Spin": [0, 1, 0, 1]}))
        assert not load(path).coords
        assert validate(path) == []

    @pytest.mark.parametrize(("word", "dim"), [("1", "1"), ("true", "true"), ("1.5", "1.5")])
    def test_types_without_quotes_are_strings(self, tmp_path: Path, word: str, dim: str) -> None:
        (tmp_path / f"{dim}.yaml").write_text(cf.format_properties(word, {"Spin": [0, 1]}))
        path = cf.save(tmp_path, "a", cf.make_values((2, 2)), [word, word])
        assert load(path).a.dims == (dim, f"{dim}_2")
        np.testing.assert_array_equal(load(path)[f"{dim}_Spin"], [0, 1])

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (cf.format_properties("State", {"Spin": [0, 5, 0]}, {"Spin": "[0, 1]"}), "from 0 to 5"),
            (
                cf.format_properties("State", {"Spin": [0, -1, 0]}, {"Spin": "[0, 1]"}),
                "from -1 to 0",
            ),
            ("version: 100\n", "propertyIndices: no such key"),
            ("version: 99\ndimensionType: State\n", "version: 99, expected 100"),
            ("version: 100\npropertyIndices: {Spin: [x]}\n", "Spin: 'x', expected integers"),
            ("version: 100\npropertyIndices: {Spin: [0.5]}\n", "Spin: 0.5, expected integers"),
            (
                "version: 100\npropertyIndices: {Spin: [[1, 2], 3]}\n",
                r"Spin: \[1, 2\], expected integers",
            ),
            ("version: 100\npropertyIndices: {}\n", "dimensionType: no such key"),
            ("a: &x [1]\nb: *x\n", "an alias, expected"),
            ("]", "the YAML"),
            ("\udcff", "UTF-8"),
            ("", "the file: None, expected a mapping"),
        ],
    )
    def test_mismatched_properties_warn(self, tmp_path: Path, content: str, message: str) -> None:
        path = self.save(tmp_path, "")
        (tmp_path / "State.yaml").write_bytes(content.encode(errors="surrogateescape"))
        with pytest.warns(TensorFormatWarning, match=message) as caught:
            dataset = load(path)
        assert "State.yaml" in str(caught[0].message)
        assert not dataset.coords
        np.testing.assert_array_equal(dataset.a.values, cf.make_values((3, 2)))
        assert [finding.severity for finding in validate(path)] == ["warning"]

    def test_directory_with_name_of_properties_is_ignored(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "a", cf.make_values((3,)), ["State"])
        (tmp_path / "State.yaml").mkdir()
        assert not load(path).coords

    def test_type_with_path_of_another_directory_is_not_followed(self, tmp_path: Path) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        (tmp_path / "State.yaml").write_text("]")
        path = cf.save(inner, "a", cf.make_values((3,)), ["../State"])
        assert load(path).a.dims == ("../State",)

    def test_tensor_may_be_named_as_type(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "State", cf.make_values((3,)), ["State"])
        with pytest.raises(ValueError, match="has the name of one of its dimensions"):
            open_lazily(path)


@st.composite
def block_tensors(draw: st.DrawFn) -> tuple[np.ndarray, list[str], dict, cf.Conditions]:
    """Draw a tensor of different blocks, which may be empty."""
    kinds = ["A", "B", "C"]
    lengths = {dimension_type: draw(st.integers(0, 5)) for dimension_type in kinds}
    types = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))
    labels = {
        dimension_type: {
            name: draw(st.lists(st.integers(0, 2), min_size=length, max_size=length))
            for name in ("P", "Q")
        }
        for dimension_type, length in lengths.items()
    }
    pairs = [(name, dimension) for name in ("P", "Q") for dimension in range(len(types))]
    chosen = draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))
    cut = draw(st.integers(0, len(chosen)))
    conditions = []
    for part in filter(None, (chosen[:cut], chosen[cut:])):
        tuples = st.tuples(*[st.integers(0, 3)] * len(part))
        conditions.append((part, draw(st.lists(tuples, max_size=5, unique=True))))
    shape = [lengths[dimension_type] for dimension_type in types]
    return cf.make_values(shape, is_complex=draw(st.booleans())), types, labels, conditions


class TestBlocks:
    @pytest.mark.parametrize("elements", [cf.BINARY, cf.TEXT])
    @fixtures_are_not_reset
    @given(tensor=block_tensors())
    def test_blocks_match_reference_reader(
        self, tmp_path: Path, elements: str, tensor: Any
    ) -> None:
        path, filled = cf.save_blocks(tmp_path, *tensor, elements=elements)
        actual = load(path)
        np.testing.assert_array_equal(actual.Blocks.values, filled, strict=True)

    @pytest.mark.parametrize("indexers", INDEXERS)
    @fixtures_are_not_reset
    @given(tensor=block_tensors(), data=st.data())
    def test_keys_of_every_kind(
        self, tmp_path: Path, indexers: str, tensor: Any, data: st.DataObject
    ) -> None:
        path, _ = cf.save_blocks(tmp_path, *tensor)
        lazy, eager = open_lazily(path).Blocks, load(path).Blocks
        assume(min(lazy.shape) > 0)
        key = data.draw(INDEXERS[indexers](sizes=dict(lazy.sizes)))
        xr.testing.assert_identical(lazy.isel(key).load(), eager.isel(key))

    @pytest.mark.slow
    def test_many_blocks_of_momentum_conservation(self, tmp_path: Path) -> None:
        points, states = 8, 40
        momentum = [state % points for state in range(states)]
        tuples = [
            (p, q, r, (p + q - r) % points)
            for p in range(points)
            for q in range(points)
            for r in range(points)
        ]
        shape = (states, 8, 16, 8)
        labels = {f"S{length}": {"k": momentum[:length]} for length in sorted(set(shape))}
        types = [f"S{length}" for length in shape]
        pairs = [("k", dimension) for dimension in range(4)]
        full = cf.make_values(shape)
        k = np.array(momentum)
        expected = (
            k[:, None, None, None] + k[None, :8, None, None] - k[None, None, :16, None] - k[:8]
        ) % points == 0
        stored = [
            full[np.ix_(*(np.flatnonzero(k[:n] == i) for n, i in zip(shape, values, strict=True)))]
            for values in tuples
        ]
        for dimension_type, indices in labels.items():
            (tmp_path / f"{dimension_type}.yaml").write_text(
                cf.format_properties(dimension_type, indices)
            )
        content = b"".join(map(cf.pack_binary, stored))
        (tmp_path / "V.elements").write_bytes(content)
        more = cf.format_condition([(pairs, tuples)])
        (tmp_path / "V.yaml").write_text(cf.format_yaml(shape, types, more=more))
        lazy = open_lazily(tmp_path / "V.yaml", chunks={}, chunk_bytes=32768).V
        np.testing.assert_array_equal(lazy.values, np.where(expected, full, 0))
        part = lazy.isel(S8=3, S40=slice(30, 3, -4))
        np.testing.assert_array_equal(part, np.where(expected, full, 0)[30:3:-4, 3])

    def test_dask_names_distinguish_blocks(self, tmp_path: Path) -> None:
        names = set()
        for indices in ([0, 1], [1, 0]):
            tensor = (cf.make_values((2,)), ["A"], {"A": {"P": indices}}, [([("P", 0)], [(0,)])])
            path, _ = cf.save_blocks(tmp_path, *tensor)
            names.add(open_lazily(path, chunks={}).Blocks.data.name)
        assert len(names) == 2


SHAPES = st.lists(st.integers(2, 7), max_size=3)


class TestText:
    @pytest.fixture(autouse=True)
    def _small_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Use pieces so short that values cross their bounds."""
        monkeypatch.setattr("xr_tensorfmt.core.gathered.PIECE_BYTES", 40)

    @pytest.mark.parametrize("indexers", INDEXERS)
    @fixtures_are_not_reset
    @given(shape=SHAPES, is_complex=st.booleans(), data=st.data())
    def test_keys_of_every_kind(
        self, tmp_path: Path, indexers: str, shape: list[int], is_complex: bool, data: Any
    ) -> None:
        values = cf.make_values(shape, is_complex=is_complex)
        path = cf.save(tmp_path, "a", values, elements=cf.TEXT)
        lazy = open_lazily(path).a
        key = data.draw(INDEXERS[indexers](sizes=dict(lazy.sizes))) if shape else {}
        eager = xr.DataArray(values, dims=lazy.dims)
        np.testing.assert_array_equal(lazy.isel(key).values, eager.isel(key).values, strict=True)

    @pytest.mark.parametrize("is_complex", [False, True])
    @pytest.mark.parametrize(
        "form", ["{}\n", "   {}   \n", "\t{}\r\n", "\n\n{}\n", "{} ", "{}" + " " * 200 + "\n"]
    )
    def test_blanks_are_ignored(self, tmp_path: Path, is_complex: bool, form: str) -> None:
        values = cf.make_values((4, 5), is_complex=is_complex)
        path = cf.save(tmp_path, "a", values, elements=cf.TEXT)
        for ending in ("", "\n \n"):
            content = cf.format_text(values, form=form).strip() + ending.encode()
            (tmp_path / "a.elements").write_bytes(content)
            np.testing.assert_array_equal(load(path).a.values, values)
            np.testing.assert_array_equal(open_lazily(path).a.values[3, 2:], values[3, 2:])

    def test_complex_values_may_have_blanks_inside(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "a", np.zeros(2, complex), elements=cf.TEXT)
        (tmp_path / "a.elements").write_bytes(b" ( 1.5 , -2 )\n(-0.0,1E-300)")
        np.testing.assert_array_equal(load(path).a, [1.5 - 2j, complex(-0.0, 1e-300)])

    def test_exponents_of_three_digits_infinity_and_nan(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "a", np.zeros(6), elements=cf.TEXT)
        words = ["1.0E-300", "-2.5e+107", "inf", "-inf", "nan", "+4.9406564584124654E-324"]
        (tmp_path / "a.elements").write_text("\n".join(words))
        np.testing.assert_array_equal(load(path).a, list(map(float, words)))

    @given(st.lists(st.floats(), min_size=1), st.booleans())
    @fixtures_are_not_reset
    def test_every_float_is_exact(self, tmp_path: Path, numbers: list, is_complex: bool) -> None:
        values = np.array(numbers, dtype=complex if is_complex else float)
        path = cf.save(tmp_path, "a", values, elements=cf.TEXT)
        np.testing.assert_array_equal(load(path).a.values, values, strict=True)

    def test_text_is_parsed_once(self) -> None:
        values = cf.make_values((50,))
        content = cf.format_text(values)
        layout = text.Text((50,), np.dtype(float), size=len(content))
        source = RecordingSource(content)
        read(layout, source, Selection((50,), (range(1),)))
        source.requests.clear()
        actual = read(layout, source, Selection((50,), (range(20, 30),)))
        np.testing.assert_array_equal(actual, values[20:30])
        assert not source.requests
        assert len(pickle.dumps(layout)) < 500


class TestUnits:
    @pytest.mark.parametrize("elements", [cf.BINARY, cf.TEXT])
    @pytest.mark.parametrize("chunks", [None, {}, {"B": -1}])
    def test_values_are_multiplied_when_they_are_read(
        self, tmp_path: Path, elements: str, chunks: Any
    ) -> None:
        values = cf.make_values((3, 4), is_complex=True)
        path = cf.save(tmp_path, "a", values, ["A", "B"], elements=elements, unit=0.25)
        lazy = open_lazily(path, apply_unit=True, chunks=chunks).a
        assert lazy.attrs == {"unit": 1.0, "applied_unit": 0.25}
        assert (lazy.chunks is None) == (chunks is None)
        np.testing.assert_array_equal(lazy.isel(A=1).values, values[1] * 0.25)
        np.testing.assert_array_equal(
            lazy.isel(A=[2, 0], B=slice(None, None, -1)), values[[2, 0], ::-1] * 0.25
        )
        np.testing.assert_array_equal(lazy.values, values * 0.25, strict=True)
        np.testing.assert_array_equal(open_lazily(path, chunks=chunks).a, values)
        assert (tmp_path / "a.elements").stat().st_size > 0

    def test_units_of_blocks_and_sets(self, tmp_path: Path) -> None:
        for name in ("set", "blocks"):
            shutil.copytree(DATA / name, tmp_path / name)
            for path in (tmp_path / name).glob("[CB]*.yaml"):
                path.write_text(path.read_text().replace("unit: 1", "unit: 2"))
                doubled, plain = load(path, apply_unit=True), load(path)
                for variable in plain:
                    np.testing.assert_array_equal(doubled[variable], plain[variable] * 2)

    @pytest.mark.parametrize("key", [(), (slice(None, None, -2),), (1, 2, 3)])
    @pytest.mark.parametrize("is_complex", [False, True])
    def test_values_of_each_order_are_multiplied_in_place(self, is_complex: bool, key: Any) -> None:
        values = cf.make_values((4, 5, 6), is_complex=is_complex)
        for array in (values.copy(order="C"), values.copy(order="F")):
            array.flags.writeable = key == ()
            actual = scale_values(array[key], values.dtype, 0.75, is_conjugated=False)
            assert np.shares_memory(actual, array) == (key == ())
            np.testing.assert_array_equal(actual, (values * 0.75)[key])

    def test_applying_unit_does_not_change_file(self, tmp_path: Path, always_mapped: None) -> None:
        values = cf.make_values((512, 16))
        path = cf.save(tmp_path, "a", values, unit=3)
        open_lazily(path, apply_unit=True).a.load()
        assert (tmp_path / "a.elements").read_bytes() == cf.pack_binary(values)

    def test_names_in_dask_differ(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "a", cf.make_values((3,)), unit=3)
        plain, multiplied = (
            open_lazily(path, apply_unit=item, chunks={}).a for item in (False, True)
        )
        assert plain.data.name != multiplied.data.name


class TestChunks:
    def test_one_chunk_is_one_range_of_whole_pages(self, tmp_path: Path) -> None:
        values = cf.make_values((16, 30, 100), is_complex=True)
        path = cf.save(tmp_path, "a", values, ["F", "S", "S"])
        lazy = open_lazily(path, chunks={}, chunk_bytes=100_000).a
        explained = lazy.tensorfmt.explain()
        ranges = [request[1:] for read in explained.reads for request in read.request_ranges]
        assert len(explained.reads) == len(ranges) == 13
        assert explained.amplification == 1
        assert all(start % 4096 == 0 for start, _ in ranges)
        assert sum(stop - start for start, stop in ranges) == values.nbytes
        np.testing.assert_array_equal(lazy.values, values)

    def test_explain_names_file_of_elements(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "a", cf.make_values((3,)))
        explained = open_lazily(path).a.tensorfmt.explain()
        ((name, start, stop),) = explained.reads[0].request_ranges
        assert (Path(name).name, start, stop) == ("a.elements", 0, 24)

    @pytest.mark.parametrize("name", ["vasp/CoulombVertex", "blocks/Blocks", "vasp/EigenEnergies"])
    @pytest.mark.parametrize("chunks", [None, {}])
    def test_pickled_datasets_are_read_in_another_process(self, name: str, chunks: Any) -> None:
        lazy = open_lazily(DATA / f"{name}.yaml", chunks=chunks)
        again = pickle.loads(pickle.dumps(lazy))
        xr.testing.assert_identical(again.load(), lazy.load())

    def test_elements_that_change_after_opening_are_detected(self, tmp_path: Path) -> None:
        path = cf.save(tmp_path, "a", cf.make_values((3,)))
        lazy = open_lazily(path)
        (tmp_path / "a.elements").write_bytes(bytes(48))
        with pytest.raises(ValueError, match=r"a\.elements.*open it again"):
            lazy.load()

    @pytest.mark.cluster
    @pytest.mark.nightly
    def test_workers_of_cluster_read_elements(self, tmp_path: Path) -> None:
        cf.save(tmp_path, "a", cf.make_values((64, 64, 8)), ["A", "B", "C"], unit=2)
        script = """
from distributed import Client, LocalCluster
import xarray as xr

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=True, dashboard_address=None,
                      memory_limit="1GiB", silence_logs=50) as cluster, Client(cluster):
        lazy = xr.open_dataset("a.yaml", chunks={}, chunk_bytes=65536, apply_unit=True).a
        print(len(lazy.chunks[2]), repr(float(lazy.sum())))
"""
        count, total = run_script(script, directory=tmp_path).split()
        assert int(count) == 4
        np.testing.assert_allclose(float(total), cf.make_values((64, 64, 8)).sum() * 2)


def put_all(store: HttpStore | S3Store | MemoryStore, folder: Path, prefix: str) -> dict[str, str]:
    return {
        path.name: store.put(f"{prefix}{path.name}", path.read_bytes()) for path in folder.iterdir()
    }


@pytest.mark.store
class TestStores:
    @pytest.fixture(params=["http", "s3", "memory"])
    def store(self, request: pytest.FixtureRequest) -> Any:
        if request.param == "memory":
            with MemoryStore().running() as memory:
                yield memory
        else:
            yield request.getfixturevalue(request.param)

    @pytest.mark.parametrize(
        "name",
        ["vasp/CoulombVertex", "vasp/EigenEnergies", "set/CoulombIntegrals", "blocks/Blocks"],
    )
    def test_values_equal_local_files(self, store: Any, name: str) -> None:
        folder, stem = name.split("/")
        urls = put_all(store, DATA / folder, f"{folder}/")
        expected = load(DATA / f"{name}.yaml")
        suffixes = [".yaml"] if folder == "set" else [".yaml", ".elements"]
        for suffix, chunks in product(suffixes, (None, {})):
            options = {"storage_options": store.options or None, "chunks": chunks}
            xr.testing.assert_identical(load(urls[f"{stem}{suffix}"], **options), expected)

    def test_opening_asks_once_for_each_file(self, store: Any) -> None:
        urls = put_all(store, DATA / "vasp", "once/")
        options = {"storage_options": store.options or None}
        open_lazily(
            urls["CoulombVertex.yaml"], **options
        )  # s3fs requests the region of the bucket once
        store.log.clear()
        open_lazily(urls["CoulombVertex.yaml"], **options)
        assert len(store.log.gets) == 4
        assert store.log.heads == 5  # the YAML file again, which may have been replaced
        assert all(start == 0 for start, _ in store.log.gets)

    def test_sibling_files_are_opened_concurrently(self, http: HttpStore) -> None:
        urls = put_all(http, DATA / "vasp", "")
        barrier = Barrier(3, timeout=10)

        def together(handler: Any, content: bytes, start: int, stop: int) -> bool:
            if handler.name != "CoulombVertex.yaml":
                barrier.wait()
            return False

        http.trouble = together
        dataset = open_lazily(urls["CoulombVertex.yaml"])
        assert len(dataset.coords) == 6
        assert not barrier.broken

    def test_missing_properties_are_no_error(self, store: Any) -> None:
        for suffix in ("yaml", "elements"):
            content = (DATA / "vasp" / f"CoulombVertex.{suffix}").read_bytes()
            url = store.put(f"alone/CoulombVertex.{suffix}", content)
        url = url.replace(".elements", ".yaml")
        assert not open_lazily(url, storage_options=store.options or None).coords

    def test_missing_elements_are_named(self, store: Any) -> None:
        url = store.put("b/a.yaml", cf.format_yaml((3,), ["A"]).encode())
        with pytest.raises(FileNotFoundError, match=r"the elements of .*a\.yaml.*fetch it too"):
            open_lazily(url, storage_options=store.options or None)

    def test_blocks_are_read_by_few_requests(self, http: HttpStore) -> None:
        urls = put_all(http, DATA / "blocks", "")
        lazy = open_lazily(urls["Blocks.yaml"]).Blocks
        http.log.clear()
        lazy[1].load()
        assert len(http.log.gets) == 1


@pytest.mark.parametrize("error", [TimeoutError, PermissionError])
def test_properties_that_cannot_be_read_raise(tmp_path: Path, monkeypatch, error) -> None:
    path = cf.save(tmp_path, "EigenEnergies", np.arange(3.0), ["State"])
    open_sibling = reading.open_sibling

    def fail(source, file, reason):
        if file == "State.yaml":
            raise error("no answer")
        return open_sibling(source, file, reason)

    monkeypatch.setattr(reading, "open_sibling", fail)
    with pytest.raises(error, match="no answer"):
        open_lazily(path)


def test_file_in_memory_has_no_siblings() -> None:
    content = cf.format_yaml((3,)).encode()
    with pytest.raises(ValueError, match="has no directory with its sibling files"):
        open_lazily(content, format="cc4s")


def test_file_object_of_another_format_may_have_the_suffix_of_elements() -> None:
    class Named(io.BytesIO):
        name = "a.elements"

    content = io.BytesIO()
    np.save(content, np.arange(3.0))
    assert open_lazily(Named(content.getvalue())).tensor.values.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="has no directory with its sibling files"):
        open_lazily(Named(np.arange(3.0).tobytes()))


def test_large_vertex_opens_without_its_memory(tmp_path: Path) -> None:
    path = cf.save(tmp_path, "CoulombVertex", np.zeros(0), ["F"])
    lengths = (4000, 1000, 1000)
    path.write_text(
        cf.format_yaml(lengths, ["AuxiliaryField", "State", "State"], scalar="Complex64")
    )
    with (tmp_path / "CoulombVertex.elements").open("r+b") as file:
        file.truncate(16 * 4000 * 1000 * 1000)
    vertex = open_lazily(path, chunks={}).CoulombVertex
    assert vertex.nbytes == 64_000_000_000
    assert not vertex[:5, -1, -1].values.any()


class TestRecordsOfFortran:
    @pytest.mark.parametrize("width", [4, 8])
    @pytest.mark.parametrize("count", [1, 3])
    @pytest.mark.parametrize("order", ["little", "big"])
    @pytest.mark.parametrize("is_complex", [False, True])
    def test_records_are_refused(
        self, tmp_path: Path, width: int, count: int, order: Any, is_complex: bool
    ) -> None:
        values = cf.make_values((4, count), is_complex=is_complex)
        path = cf.save(tmp_path, "Vertex", values)
        columns = np.split(np.frombuffer(cf.pack_binary(values), np.uint8), count)
        size = columns[0].size.to_bytes(width, order)
        content = b"".join(size + column.tobytes() + size for column in columns)
        path.with_suffix(".elements").write_bytes(content)
        with pytest.raises(TensorFormatError, match=r"a record of Fortran.*access='stream'"):
            load(path)
        (finding,) = validate(path)
        assert "a record of Fortran" in finding.message

    @pytest.mark.parametrize("first", [0.0, 1.0, 4e-323])
    def test_longer_files_are_no_records(self, tmp_path: Path, first: float) -> None:
        path = cf.save(tmp_path, "a", np.array([first, 2.0, 3.0]))
        with path.with_suffix(".elements").open("ab") as file:
            file.write(bytes(16))
        with pytest.warns(TensorFormatWarning, match="16 more bytes"):
            assert load(path).a.values.tolist() == [first, 2.0, 3.0]

    def test_values_that_repeat_are_no_records(self, tmp_path: Path) -> None:
        # The bytes of -2.0 are 192 as an integer of the other byte order.
        values = np.full(24, -2.0)
        path = cf.save(tmp_path, "a", values)
        path.with_suffix(".elements").write_bytes(values.tobytes() + values[:3].tobytes())
        with pytest.warns(TensorFormatWarning, match="24 more bytes"):
            assert load(path).a.equals(xr.DataArray(values, dims="dim_0"))


@pytest.mark.parametrize("count", [1, 24])
@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (tf.make_0_9, r"a header of another format \(b'TENS.*convert it"),
        (lambda values: b"\x93NUMPY\1\0" + bytes(120) + values.tobytes(), "a header.*NUMPY"),
        (lambda values: gzip.compress(values.tobytes() * 9, 0), "a header of another.*decompress"),
        (cf.format_text, r"text \(b' \(0\.75.*TextFile in the YAML"),
    ],
)
def test_elements_of_other_formats_are_refused(
    tmp_path: Path, count: int, pack: Any, message: str
) -> None:
    path = cf.save(tmp_path, "a", cf.make_values((24,), is_complex=True))
    path.with_suffix(".elements").write_bytes(pack(cf.make_values((count,), is_complex=True)))
    with pytest.raises(TensorFormatError, match=rf"a\.elements: the elements at byte 0: {message}"):
        load(path)


def test_name_of_elements_with_another_case_is_suggested(tmp_path: Path) -> None:
    path = cf.save(tmp_path, "Vertex", np.ones(3))
    elements = path.with_suffix(".elements")
    elements.rename(tmp_path / "vertex.elements")
    if not elements.exists():
        with pytest.raises(FileNotFoundError, match=r"did you mean 'vertex\.elements'"):
            load(path)
    (tmp_path / "vertex.elements").rename(tmp_path / "Vertices.elements")
    with pytest.raises(FileNotFoundError, match="so fetch it too: "):
        load(path)


@pytest.mark.parametrize(
    ("more", "function"),
    [
        ("scalarType: complex64\nbinary: 1\n", "fromfile"),
        ("scalarType: real64\n", "loadtxt"),
        ("scalarType: Real64\nelements: {type: TextFile}\n", "loadtxt"),
        ("scalarType: Complex64\nelements: {type: TextFile}\n", "fromregex"),
    ],
)
def test_other_versions_get_advice_that_fits_their_elements(
    tmp_path: Path, more: str, function: str
) -> None:
    path = tmp_path / "CoulombVertex.yaml"
    path.write_text(f"version: v1.0\ndata: CoulombVertex.dat\n{more}")
    with pytest.raises(TensorFormatError, match=f"numpy.{function},"):
        load(path)


def test_other_yaml_is_no_tensor(tmp_path: Path) -> None:
    path = tmp_path / "environment.yaml"
    path.write_text("dependencies: [numpy]\n")
    with pytest.raises(TensorFormatError, match="describes no tensor; open the YAML file of a"):
        load(path)


def test_integrals_of_other_programs_are_named(tmp_path: Path) -> None:
    path = tmp_path / "FCIDUMP"
    path.write_text(" &FCI NORB=  2,NELEC= 2,MS2=0,\n  ORBSYM=1,1,\n &END\n 0.5 1 1 1 1\n")
    with pytest.raises(TensorFormatError, match=r"FCIDUMP.*pyscf\.tools\.fcidump"):
        load(path)
