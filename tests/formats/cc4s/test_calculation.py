"""A directory of cc4s files as one Dataset: states selected in all tensors, and MP2 by einsum."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import yaml
from benchmark.tutorial import get_functions

from tests import cc4sfiles as cf
from tests.commands import run
from tests.paths import DATA
from xr_tensorfmt import TensorFormatWarning, validate
from xr_tensorfmt.cc4s import open_calculation, to_calculation

FIELDS = 6
ENERGIES = np.array([-20.0, -3.0, -2.5, 0.5, 1.25, 2.0, 4.0])
FERMI, STATES, OCCUPIED = -1.0, 7, 3
UNIT = 0.25
SPIN = [0, 1, 0, 1, 0, 1, 1]
PROPERTIES = {"State_Spin": "State", "State_2_Spin": "State_2"}


def select(ds: xr.Dataset, states: Any) -> xr.Dataset:
    """Select states along both dimensions of the vertex."""
    return ds.isel(State=states, State_2=states)


def drop_numbers(ds: xr.Dataset) -> xr.Dataset:
    """Drop the numbers of states, which begin at 0 in each calculation."""
    return ds.drop_vars(["state", "state_2"])


def count(ds: xr.Dataset) -> tuple[int, int]:
    """Return the numbers of occupied and virtual states."""
    return int(ds.occupied.sum()), int((~ds.occupied).sum())


def make_vertex(*, is_complex: bool) -> np.ndarray:
    """Return a Hermitian matrix of states for each auxiliary field."""
    rng = np.random.default_rng(3)
    shape = (FIELDS, STATES, STATES)
    values = rng.normal(size=shape) + 1j * is_complex * rng.normal(size=shape)
    hermitian = values + values.conj().transpose(0, 2, 1)
    return hermitian if is_complex else hermitian.real


def write_calculation(
    directory: Path, *, is_complex: bool, prefix: str = "", types: bool = True
) -> np.ndarray:
    """Write the files of a calculation without the package, and return the vertex."""
    directory.mkdir(exist_ok=True)
    values = make_vertex(is_complex=is_complex)
    scalar = "Complex64" if is_complex else "Real64"
    head = directory / f"{prefix}CoulombVertex.yaml"
    names = ("AuxiliaryField", "State", "State") if types else None
    more = "metaData:\n  halfGrid: 0\n"
    head.write_text(cf.format_yaml(values.shape, names, scalar=scalar, unit=UNIT, more=more))
    head.with_suffix(".elements").write_bytes(cf.pack_binary(values / UNIT))
    energies = "".join(f"  - {energy}\n" for energy in ENERGIES / UNIT**2)
    more = f"metaData:\n  fermiEnergy: {FERMI / UNIT**2}\n  energies:\n{energies}"
    head = directory / f"{prefix}EigenEnergies.yaml"
    state = ("State",) if types else None
    head.write_text(cf.format_yaml(ENERGIES.shape, state, unit=UNIT**2, more=more))
    head.with_suffix(".elements").write_bytes(cf.pack_binary(ENERGIES / UNIT**2))
    if types:
        (directory / "State.yaml").write_text(cf.format_properties("State", {"Spin": SPIN}))
    return values


def write_amplitudes(directory: Path) -> dict[str, np.ndarray]:
    """Write a TensorSet as cc4s does: without types and without a version of the set."""
    virtual = STATES - OCCUPIED
    shapes = {"ph": (virtual, OCCUPIED), "pphh": (virtual, virtual, OCCUPIED, OCCUPIED)}
    text = "components:\n"
    tensors = {}
    for name, shape in shapes.items():
        tensors[name] = cf.make_values(shape)
        text += f"  {name}:\n" + cf.format_yaml(shape, indent="    ")
        file = directory / f"Amplitudes.components.{name}.elements"
        file.write_bytes(cf.pack_binary(tensors[name]))
    (directory / "Amplitudes.yaml").write_text(text + "type: TensorSet\n")
    return tensors


def compute_energy(vertex: np.ndarray, energies: np.ndarray, occupied: int) -> float:
    """Compute the second-order energy of a vertex with numpy."""
    integrals = np.einsum("Frp,Fqs->pqrs", vertex.conj(), vertex)
    return compute_energy_of_integrals(integrals, energies, occupied)


def compute_energy_of_integrals(v: np.ndarray, energies: np.ndarray, occupied: int) -> float:
    """Compute the second-order energy from all integrals V[p, q, r, s]."""
    o, u = slice(occupied), slice(occupied, None)
    gap = np.add.outer(energies[o], energies[o])[:, :, None, None] - np.add.outer(
        energies[u], energies[u]
    )
    hhpp, pphh = v[o, o, u, u], v[u, u, o, o]
    energy = 2 * np.einsum("ijab,abij,ijab", hhpp, pphh, 1 / gap)
    energy -= np.einsum("ijab,baij,ijab", hhpp, pphh, 1 / gap)
    assert abs(energy.imag) < 1e-10
    return float(energy.real)


second_order_energy = get_functions()["second_order_energy"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("states", "occupied", "total", "is_complex"),
    [
        (slice(None), 3, 7, True),
        (slice(1, None), 2, 6, False),  # frozen core
        (slice(None, -2), 3, 5, True),  # virtual truncation
        (slice(1, -2), 2, 4, False),
        ([0, 2, 3, 6], 2, 4, True),
        (ENERGIES > -10, 2, 6, False),
    ],
)
def test_energy_of_selected_states_equals_einsum(
    tmp_path: Path, states: slice | list[int], occupied: int, total: int, is_complex: bool
) -> None:
    values = write_calculation(tmp_path / "all", is_complex=is_complex)
    ds = open_calculation(tmp_path / "all", apply_unit=True)
    assert count(ds) == (3, 4)
    np.testing.assert_allclose(
        second_order_energy(ds), compute_energy(values, ENERGIES, 3), rtol=1e-12
    )
    part = select(open_calculation(tmp_path / "all"), states)
    to_calculation(part, tmp_path / "part")
    xr.testing.assert_identical(
        drop_numbers(open_calculation(tmp_path / "part")), drop_numbers(part)
    )
    again = open_calculation(tmp_path / "part", apply_unit=True)
    xr.testing.assert_identical(drop_numbers(again), drop_numbers(select(ds, states)))
    assert count(again) == (occupied, total - occupied)
    selected = values[:, states][:, :, states]
    expected = compute_energy(selected, ENERGIES[states], occupied)
    np.testing.assert_allclose(second_order_energy(again), expected, rtol=1e-12)
    stored = np.fromfile(tmp_path / "part" / "CoulombVertex.elements", selected.dtype)
    np.testing.assert_array_equal(stored * UNIT, selected.ravel(order="F"))
    listed = (tmp_path / "part" / "EigenEnergies.yaml").read_text().partition("energies:\n")[2]
    assert [float(line[6:]) for line in listed.splitlines()] == list(ENERGIES[states] / UNIT**2)
    for name in ("CoulombVertex", "EigenEnergies"):
        assert validate(tmp_path / "part" / f"{name}.yaml") == []


@pytest.mark.slow
def test_energy_of_vertex_on_half_grid(tmp_path: Path) -> None:
    values = write_calculation(tmp_path / "all", is_complex=True)
    ds = open_calculation(tmp_path / "all")
    ds.CoulombVertex.attrs["halfGrid"] = 1
    to_calculation(select(ds, slice(1, None)), tmp_path / "part")
    part = values[:, 1:, 1:]
    integrals = np.einsum("Frp,Fqs->pqrs", part.conj(), part).real
    expected = compute_energy_of_integrals(integrals, ENERGIES[1:], 2)
    energy = second_order_energy(open_calculation(tmp_path / "part", apply_unit=True))
    np.testing.assert_allclose(energy, expected, rtol=1e-12)


@pytest.mark.parametrize("chunks", [None, {}])
def test_energy_of_vertex_without_half_grid(tmp_path: Path, chunks: Any) -> None:
    values = write_calculation(tmp_path, is_complex=True)
    ds = open_calculation(tmp_path, chunks=chunks, chunk_bytes="1KiB", apply_unit=True)
    del ds.CoulombVertex.attrs["halfGrid"]
    expected = compute_energy(values, ENERGIES, OCCUPIED)
    np.testing.assert_allclose(second_order_energy(ds), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="sort states by energy"):
        second_order_energy(select(ds, [*range(1, STATES), 0]))


def test_metadata_and_properties_are_kept(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=True)
    ds = open_calculation(tmp_path / "all")
    assert ds.CoulombVertex.attrs == {"halfGrid": 0, "unit": UNIT}
    to_calculation(select(ds, slice(2, None)), tmp_path / "part")
    files = {path.name for path in (tmp_path / "part").iterdir()}
    assert files == {path.name for path in (tmp_path / "all").iterdir()}
    assert not any("xr_tensorfmt" in p.read_text() for p in (tmp_path / "part").glob("*.yaml"))
    text = (tmp_path / "part" / "State.yaml").read_text()
    assert text.startswith("version: 100\ndimensionType: State\nproperties:\n  Spin:\n")
    assert yaml.safe_load(text)["propertyIndices"] == {"Spin": SPIN[2:]}
    # As cc4s, which does not read the embedded metadata.
    path = cf.save(tmp_path / "part", "Other", np.ones(len(SPIN) - 2), ["State"])
    other = xr.open_dataset(path, engine="tensorfmt")
    assert other.State_Spin.values.tolist() == SPIN[2:]
    part = xr.open_dataset(tmp_path / "part" / "CoulombVertex.yaml", engine="tensorfmt")
    assert part.CoulombVertex.attrs == {"halfGrid": 0, "unit": UNIT}
    assert part.CoulombVertex.encoding["tensorfmt"]["types"] == ("AuxiliaryField", "State", "State")
    for name in ("State_Spin", "State_2_Spin"):
        assert part[name].values.tolist() == SPIN[2:]
        assert open_calculation(tmp_path / "part")[name].values.tolist() == SPIN[2:]


@pytest.mark.parametrize(
    ("change", "properties"),
    [
        (lambda ds: ds, {"Spin": [0, 1]}),
        (lambda ds: ds.assign_coords(State_2_Spin=1 - ds.State_2_Spin), None),
        (lambda ds: ds.drop_vars("State_2_Spin"), None),
        (lambda ds: ds.assign_coords(State_Spin=ds.State_Spin + 0.5), None),
        (lambda ds: ds.drop_vars(["State_Spin", "State_2_Spin"]), None),
        (
            lambda ds: ds.assign_coords(
                {
                    name: ds[name].assign_attrs(values=np.array([[0.5, 0], [1, 2]]))
                    for name in ("State_Spin", "State_2_Spin")
                }
            ),
            {"Spin": [[0.5, 0.0], [1.0, 2.0]]},
        ),
    ],
)
def test_equal_properties_of_all_states_are_written(
    tmp_path: Path, change: Any, properties: Any
) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    ds = change(open_calculation(tmp_path / "all"))
    is_seen = properties is not None or "State_Spin" not in ds.coords
    with nullcontext() if is_seen else pytest.warns(TensorFormatWarning, match="does not see"):
        to_calculation(ds, tmp_path / "new")
    path = tmp_path / "new" / "State.yaml"
    assert path.exists() == (properties is not None)
    if properties is not None:
        assert yaml.safe_load(path.read_text())["properties"] == properties
    again = open_calculation(tmp_path / "new")
    assert set(again.coords) == set(ds.coords)
    for name in ("State_Spin", "State_2_Spin"):
        if name in ds.coords:
            np.testing.assert_array_equal(again[name], ds[name])
    assert validate(tmp_path / "new") == []


def test_states_in_another_order_are_named(tmp_path: Path) -> None:
    write_calculation(tmp_path, is_complex=False)
    path = tmp_path / "CoulombVertex.yaml"
    vertex = xr.load_dataset(path, engine="tensorfmt").CoulombVertex
    order = [1, 0, *range(2, STATES)]
    vertex.isel(State=order, State_2=order).tensorfmt.to_file(path)
    with pytest.raises(ValueError, match="'State_Spin', so its files have states in different"):
        open_calculation(tmp_path)


@pytest.mark.parametrize(
    ("types", "attrs"), [(False, {}), (True, {"note": "x"}), (True, {"values": ["up", "down"]})]
)
def test_properties_and_their_attributes_survive(tmp_path: Path, types: bool, attrs: Any) -> None:
    write_calculation(tmp_path / "all", is_complex=False, types=types)
    ds = open_calculation(tmp_path / "all")
    spins = {name: (dim, SPIN, attrs) for name, dim in PROPERTIES.items()}
    ds = ds.drop_vars([*PROPERTIES], errors="ignore").assign_coords(spins)
    to_calculation(ds, tmp_path / "new")
    assert (tmp_path / "new" / "State.yaml").exists()
    again = open_calculation(tmp_path / "new")
    for name in PROPERTIES:
        xr.testing.assert_identical(again[name].variable, ds[name].variable)
    xr.testing.assert_identical(again.drop_vars([*PROPERTIES]), ds.drop_vars([*PROPERTIES]))


def test_values_stay_lazy(tmp_path: Path) -> None:
    values = write_calculation(tmp_path / "all", is_complex=True)
    ds = open_calculation(tmp_path / "all", chunks={}, chunk_bytes="1KiB")
    assert len(ds.CoulombVertex.chunks[2]) > 1
    part = select(ds, slice(1, -1))
    assert isinstance(part.CoulombVertex.data, da.Array)
    to_calculation(part, tmp_path / "part")
    stored = np.fromfile(tmp_path / "part" / "CoulombVertex.elements", complex)
    np.testing.assert_array_equal(stored, values[:, 1:-1, 1:-1].ravel(order="F") / UNIT)


def test_files_with_prefix_and_without_types(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False, prefix="lih_", types=False)
    ds = open_calculation(tmp_path / "all")
    assert ds.CoulombVertex.dims == ("AuxiliaryField", "State", "State_2")
    assert ds.EigenEnergies.dims == ("State",)
    part = select(ds, slice(1, None))
    to_calculation(part, tmp_path / "part")
    again = open_calculation(tmp_path / "part")
    xr.testing.assert_identical(drop_numbers(again), drop_numbers(part))
    assert count(again) == (2, 4)


@pytest.mark.slow
def test_slices_have_separate_dimensions_and_are_not_selected(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    amplitudes = write_amplitudes(tmp_path / "all")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = open_calculation(tmp_path / "all")
    assert ds.CoulombVertex.dims == ("AuxiliaryField", "State", "State_2")
    dims = {*ds["Amplitudes.ph"].dims, *ds["Amplitudes.pphh"].dims}
    assert dims == {"State_3", "State_4", "State_5", "State_6"}
    to_calculation(ds, tmp_path / "copy")
    copy = open_calculation(tmp_path / "copy")
    xr.testing.assert_identical(copy, ds)
    written = (tmp_path / "copy" / "Amplitudes.yaml").read_text()
    assert "xr_tensorfmt" not in written
    assert "State" not in written  # no types, as in the file that was opened
    for name, values in amplitudes.items():
        np.testing.assert_array_equal(copy[f"Amplitudes.{name}"], values)
    part = select(ds, slice(1, None))
    message = r"Amplitudes\.ph.*other states along 'State_4' .*drop_vars\('Amplitudes\.ph'\)"
    with pytest.raises(ValueError, match=message):
        to_calculation(part, tmp_path / "part")
    assert not (tmp_path / "part").exists()
    to_calculation(part.drop_vars(["Amplitudes.ph", "Amplitudes.pphh"]), tmp_path / "part")
    assert count(open_calculation(tmp_path / "part")) == (2, 4)


STATE_DIMS, PARTICLES, HOLES = (
    ["State", "State_2"],
    ["State_3", "State_5"],
    ["State_4", "State_6"],
)


def select_alike(states: Any = slice(None), particles: Any = None, holes: Any = None) -> Any:
    """Return indices by dimension of all states, particles and holes."""
    pairs = ((STATE_DIMS, states), (PARTICLES, particles), (HOLES, holes))
    return {dim: indices for dims, indices in pairs for dim in dims if indices is not None}


SELECTIONS = {
    "nothing": {},
    "frozen core": select_alike(slice(1, None), holes=slice(1, None)),
    "fewer particles": select_alike(slice(None, -1), particles=slice(None, -1)),
    "other order": select_alike([1, 0, 2, 3, 6, 5, 4], [0, 3, 2, 1], [1, 0, 2]),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_slices_of_the_same_states_are_written(tmp_path: Path, name: str) -> None:
    write_calculation(tmp_path / "all", is_complex=True)
    amplitudes = write_amplitudes(tmp_path / "all")
    states = np.arange(STATES)
    numbers = {"State_3": states[OCCUPIED:], "State_4": states[:OCCUPIED]}
    ds = open_calculation(tmp_path / "all")
    assert ds.encoding["tensorfmt"]["dims"]["CoulombVertex"] == ds.CoulombVertex.dims
    for dim, expected in (numbers | {"State": states}).items():
        np.testing.assert_array_equal(ds[dim.lower()], expected)
    to_calculation(ds.isel(SELECTIONS[name]), tmp_path / "part")
    assert "state" not in "".join(p.read_text() for p in (tmp_path / "part").glob("*.yaml"))
    again = open_calculation(tmp_path / "part")
    particles, holes = (SELECTIONS[name].get(dim, slice(None)) for dim in ("State_3", "State_4"))
    expected = amplitudes["ph"][particles][:, holes]
    np.testing.assert_array_equal(again["Amplitudes.ph"], expected)
    # The selected Dataset is unchanged.
    assert ds.CoulombVertex.encoding["tensorfmt"]["dims"] == ds.CoulombVertex.dims


@pytest.mark.parametrize("types", [True, False])
@pytest.mark.parametrize("name", ["DeltaIntegralsHH", "DeltaIntegralsPPHH", "Mp2PairEnergies"])
def test_objects_of_holes_and_particles_are_selected_as_the_states(
    tmp_path: Path, name: str, types: bool
) -> None:
    write_calculation(tmp_path / "all", is_complex=True)
    particles = STATES - OCCUPIED
    shape = (*((particles, particles) if "PP" in name else ()), OCCUPIED, OCCUPIED)
    values = cf.make_values(shape)
    of_states = ("State",) * len(shape) if types else None
    cf.save(tmp_path / "all", name, values, of_states, unit=UNIT**2)
    ds = open_calculation(tmp_path / "all")
    holes = ds[name].dims[-2:]
    np.testing.assert_array_equal(ds[holes[1].lower()], np.arange(OCCUPIED))
    frozen = ds.isel(dict.fromkeys((*STATE_DIMS, *holes), slice(1, None)))
    to_calculation(frozen, tmp_path / "part")
    again = open_calculation(tmp_path / "part")
    np.testing.assert_array_equal(again[name], values[..., 1:, 1:])
    for wrong in (ds.isel({dim: [1, 0, 2] for dim in holes}), ds.isel({holes[0]: slice(1, None)})):
        with pytest.raises(ValueError, match=f"'{name}' has other states along"):
            to_calculation(wrong, tmp_path / "wrong")
        assert not (tmp_path / "wrong").exists()


def test_calculation_does_not_replace_a_tensor(tmp_path: Path) -> None:
    write_calculation(tmp_path, is_complex=True)
    before = (tmp_path / "CoulombVertex.yaml").read_bytes()
    with pytest.raises(ValueError, match=r"'CoulombVertex' is one of several .*to_calculation"):
        open_calculation(tmp_path).tensorfmt.to_file(tmp_path / "CoulombVertex.yaml", mode="w")
    assert (tmp_path / "CoulombVertex.yaml").read_bytes() == before


@pytest.mark.parametrize("keeps_energies", [True, False])
@pytest.mark.parametrize(
    "indices",
    [
        select_alike([1, 0, *range(2, STATES)]),
        select_alike(slice(1, None)),
        SELECTIONS["frozen core"] | {"State_6": slice(None, -1)},
        SELECTIONS["fewer particles"] | {"State_3": slice(1, None)},
        {"State_3": [1, 0, 2, 3]},
        {"State_4": slice(1, None)},
    ],
)
def test_slices_of_other_states_are_refused(
    tmp_path: Path, indices: Any, keeps_energies: bool
) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    write_amplitudes(tmp_path / "all")
    ds = open_calculation(tmp_path / "all").isel(indices)
    if not keeps_energies:
        ds = ds.drop_vars("EigenEnergies")
    message = r"'Amplitudes.pp?hh?' has other states along 'State_\d' than .*drop_vars\('Ampli"
    with pytest.raises(ValueError, match=message):
        to_calculation(ds, tmp_path / "part")
    assert not (tmp_path / "part").exists()


def test_slices_whose_states_are_not_known_are_only_written_with_all_states(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    values = np.ones((2, 5))  # of a calculation with another core
    for name, types in (("Amplitudes", None), ("Other", ["State", "State"])):
        cf.save(tmp_path / "all", name, values, types)
    ds = open_calculation(tmp_path / "all")
    assert {"state_3", "state_4"}.isdisjoint(ds.coords)
    to_calculation(ds, tmp_path / "copy")
    xr.testing.assert_identical(open_calculation(tmp_path / "copy"), ds)
    for name in ("Amplitudes", "Other"):
        part = select(ds[[name, "CoulombVertex", "EigenEnergies"]], [1, 0, *range(2, STATES)])
        with pytest.raises(ValueError, match=f"'{name}' may have other states along"):
            to_calculation(part, tmp_path / "part")


def test_holes_and_particles_of_equal_number_have_separate_dimensions(tmp_path: Path) -> None:
    values = np.arange(4.0).reshape(2, 2)
    more = "metaData:\n  fermiEnergy: 1.5\n  energies: [0.0, 1.0, 2.0, 3.0]\n"
    cf.save(tmp_path, "EigenEnergies", np.arange(4.0), ["State"], more=more)
    components = {name: (values, ["State", "State"]) for name in ("ph", "hp", "hh", "pp")}
    cf.save_set(tmp_path, "CoulombIntegrals", components)
    ds = open_calculation(tmp_path)
    for name in components:
        dims = ds[f"CoulombIntegrals.{name}"].dims
        for letter, dim in zip(name, dims, strict=True):
            assert ds[dim.lower()].values.tolist() == ([0, 1] if letter == "h" else [2, 3])


def test_particles_without_energies_have_no_numbers(tmp_path: Path) -> None:
    write_amplitudes(tmp_path)
    ds = open_calculation(tmp_path)
    assert not ds.coords
    to_calculation(ds, tmp_path / "copy")
    xr.testing.assert_identical(open_calculation(tmp_path / "copy"), ds)


def test_unchanged_sets_are_written_without_a_warning(tmp_path: Path) -> None:
    write_calculation(tmp_path, is_complex=False)
    holes, particles = OCCUPIED, STATES - OCCUPIED
    shapes = {"hh": (holes,) * 2, "ph": (particles, holes), "hp": (holes, particles)}
    components = {
        name: (cf.make_values(shape), ["State", "State"]) for name, shape in shapes.items()
    }
    cf.save_set(tmp_path, "Integrals", components)
    to_calculation(open_calculation(tmp_path), tmp_path / "copy")
    for name, (values, _) in components.items():
        copied = open_calculation(tmp_path / "copy")[f"Integrals.{name}"]
        np.testing.assert_array_equal(copied, values)


@pytest.mark.parametrize(
    "exchange",
    [
        lambda ds: ds.transpose("AuxiliaryField", "State_2", "State"),
        lambda ds: ds.assign(CoulombVertex=ds.CoulombVertex.transpose(..., "State")),
        lambda ds: ds.assign(CoulombVertex=(ds.CoulombVertex * 1).transpose(..., "State")),
        lambda ds: ds.rename(State="q", State_2="r").transpose("AuxiliaryField", "r", "q"),
        lambda ds: ds.rename(State_2="r").transpose("AuxiliaryField", "r", "State"),
        lambda ds: ds.isel(State=[0], State_2=[0]).transpose(..., "State"),
    ],
)
def test_exchanged_dimensions_are_reported(tmp_path: Path, exchange: Any) -> None:
    write_calculation(tmp_path / "all", is_complex=True)
    ds = exchange(open_calculation(tmp_path / "all"))
    ds.CoulombVertex.attrs["unit"] = UNIT
    message = r"of 'CoulombVertex' are in another order .*transpose\('AuxiliaryField', 'State', 'St"
    with pytest.warns(TensorFormatWarning, match=message) as caught:
        to_calculation(ds, tmp_path / "new")
    assert len(caught) == 1


@pytest.mark.parametrize(
    "names",
    [{"State": "q"}, {"State": "q", "State_2": "r"}, {"State": "State_2", "State_2": "State"}],
)
def test_renamed_dimensions_are_written_as_before(tmp_path: Path, names: dict[str, str]) -> None:
    write_calculation(tmp_path / "all", is_complex=True)
    write_amplitudes(tmp_path / "all")
    ds = open_calculation(tmp_path / "all")
    to_calculation(ds.rename(names), tmp_path / "new")
    xr.testing.assert_identical(open_calculation(tmp_path / "new"), ds)


@pytest.mark.parametrize("has_encoding", [True, False])
def test_holes_and_particles_are_not_exchanged(tmp_path: Path, has_encoding: bool) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    write_amplitudes(tmp_path / "all")
    ds = open_calculation(tmp_path / "all")
    if not has_encoding:
        ds = ds.map(lambda variable: variable * 1.0, keep_attrs=True)
    for name in ("Amplitudes.ph", "Amplitudes.pphh"):
        exchanged = ds.assign({name: ds[name].transpose()})
        with pytest.raises(ValueError, match=f"'{name}' has other .*, transpose '{name}', or call"):
            to_calculation(exchanged, tmp_path / "new")
    to_calculation(ds, tmp_path / "new")


def test_calculation_without_energies_may_have_no_holes(tmp_path: Path) -> None:
    dims = ("AuxiliaryField", "State", "State_2")
    vertex = xr.DataArray(np.ones((2, 2, 2), complex), dims=dims, name="CoulombVertex")
    amplitudes = {"ph": (("State", "State_2"), np.ones((0, 2)))}
    amplitudes["hh"] = (("State_2", "State_3"), np.ones((2, 2)))
    (tmp_path / "all").mkdir()
    vertex.tensorfmt.to_file(tmp_path / "all" / "CoulombVertex.yaml")
    xr.Dataset(amplitudes).tensorfmt.to_file(tmp_path / "all" / "Amplitudes.yaml")
    ds = open_calculation(tmp_path / "all")
    assert ds["Amplitudes.ph"].shape == (0, 2)


def test_occupied_states_without_energies_are_reported(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    ds = open_calculation(tmp_path / "all").drop_vars("EigenEnergies")
    with pytest.warns(TensorFormatWarning, match="'occupied' is not written, because .*EigenEner"):
        to_calculation(ds, tmp_path / "new")
    to_calculation(ds.drop_vars("occupied"), tmp_path / "again")


def test_repeated_states_are_reported(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    part = select(open_calculation(tmp_path / "all"), [0, 0, 1, 4])
    with pytest.warns(TensorFormatWarning, match="states are repeated, .*select each state once"):
        to_calculation(part, tmp_path / "part")
    with pytest.warns(TensorFormatWarning, match="states are repeated"):
        part.CoulombVertex.tensorfmt.to_file(tmp_path / "CoulombVertex.yaml")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_energies_that_are_not_finite_are_reported(tmp_path: Path, value: float) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    ds = open_calculation(tmp_path / "all")
    ds["EigenEnergies"] = ds.EigenEnergies.where(ds.EigenEnergies < 40, value)
    message = "'EigenEnergies' are not finite, so the list .* is left out; select the other states"
    with pytest.warns(TensorFormatWarning, match=message):
        to_calculation(ds, tmp_path / "new")


def test_sole_component_is_written_as_a_set(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    ds = open_calculation(tmp_path / "all")
    dims = ("State_3", "State_4")
    ds["CoulombIntegrals.ph"] = dims, np.ones((4, 3)), {"unit": UNIT**2}
    to_calculation(ds, tmp_path / "new")
    assert open_calculation(tmp_path / "new")["CoulombIntegrals.ph"].shape == (4, 3)


def test_properties_of_as_many_states_as_holes_are_written(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    write_amplitudes(tmp_path / "all")
    holes = slice(OCCUPIED)
    ds = open_calculation(tmp_path / "all").isel(
        State=holes, State_2=holes, State_3=slice(0), State_5=slice(0)
    )
    to_calculation(ds, tmp_path / "part")
    text = (tmp_path / "part" / "State.yaml").read_text()
    assert yaml.safe_load(text)["propertyIndices"] == {"Spin": SPIN[:OCCUPIED]}


@pytest.mark.parametrize("value", [[1], 1, ["up"], "up"])
def test_only_value_of_a_property_may_be_a_scalar(tmp_path: Path, value: Any) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    ds = open_calculation(tmp_path / "all")
    for name, dim in PROPERTIES.items():
        ds = ds.assign_coords({name: (dim, [0] * STATES, {"values": value})})
    to_calculation(ds, tmp_path / "new")
    properties = yaml.safe_load((tmp_path / "new" / "State.yaml").read_text())["properties"]
    assert properties == {"Spin": value if isinstance(value, list) else [value]}


def test_occupied_states_must_be_the_first(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    part = select(open_calculation(tmp_path / "all"), [0, 4, 1])
    with pytest.warns(TensorFormatWarning, match="the 2 occupied states are not the first of the"):
        to_calculation(part, tmp_path / "part")


def test_no_states_can_be_selected(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    part = select(open_calculation(tmp_path / "all"), [])
    assert part.CoulombVertex.shape == (FIELDS, 0, 0)
    to_calculation(part, tmp_path / "part")
    assert count(open_calculation(tmp_path / "part")) == (0, 0)


def write_two(directory: Path, vertex_unit: float, energies_unit: float) -> None:
    """Write a vertex and energies."""
    directory.mkdir()
    types = ["AuxiliaryField", "State", "State"]
    cf.save(directory, "CoulombVertex", cf.make_values((2, 3, 3)), types, unit=vertex_unit)
    more = "metaData:\n  fermiEnergy: 0.5\n  energies: [0.0, 1.0, 2.0]\n"
    cf.save(directory, "EigenEnergies", np.arange(3.0), ["State"], unit=energies_unit, more=more)


SQRT_EV, EV = 0.1917011272153577, 0.03674932217563878


@pytest.mark.parametrize(("vertex", "energies"), [(1.0, EV), (SQRT_EV, 1.0), (EV, EV)])
def test_mixed_units_are_reported(tmp_path: Path, vertex: float, energies: float) -> None:
    write_two(tmp_path / "a", vertex, energies)
    both = f"CoulombVertex has the unit {vertex},.*EigenEnergies has the unit {energies},"
    swapped = f"EigenEnergies has the unit {energies},.*CoulombVertex has the unit {vertex},"
    with pytest.warns(TensorFormatWarning, match=f"{swapped}|{both}"):
        ds = open_calculation(tmp_path / "a")
    with pytest.raises(ValueError, match=f"{swapped}|{both}"):
        to_calculation(ds, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    (finding,) = validate(tmp_path / "a")
    assert re.match(both, finding.message)
    assert (finding.path, finding.field) == (str(tmp_path / "a/CoulombVertex.yaml"), "unit")
    assert validate(tmp_path / "a/CoulombVertex.yaml") == [finding]
    (tmp_path / "a/EigenEnergies.yaml").unlink()
    assert validate(tmp_path / "a/CoulombVertex.yaml") == []


def test_integrals_are_compared_with_the_vertex_of_the_same_prefix(tmp_path: Path) -> None:
    cf.save(tmp_path, "a_CoulombVertex", cf.make_values((2, 3, 3)), unit=SQRT_EV)
    for prefix, unit in (("a", EV), ("a", 1.0), ("b", 1.0)):
        path = cf.save(tmp_path, f"{prefix}_CoulombIntegrals", cf.make_values((3,) * 4), unit=unit)
        fields = [finding.field for finding in validate(path)]
        assert fields == (["unit"] if (prefix, unit) == ("a", 1.0) else [])


@pytest.mark.parametrize("vertex", [("State", "State", "AuxiliaryField"), (None, "Sate", "State")])
def test_types_of_dimensions_of_an_object_are_checked(
    tmp_path: Path, vertex: tuple[str | None, ...]
) -> None:
    for name, types in (("CoulombVertex", vertex), ("CoulombIntegrals", ("State", None, "Field"))):
        path = cf.save(tmp_path, name, cf.make_values((2, 3, 3)), types)
        (finding,) = validate(path)
        assert (finding.severity, finding.field) == ("warning", "dimensions")
        assert f"the types {types}, but cc4s expects the types (" in finding.message


@pytest.mark.parametrize("name", ["CoulombVertex", "a_EigenEnergies", "GridVectors"])
def test_number_of_dimensions_of_an_object_is_checked(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.yaml"
    rank = {"CoulombVertex": 3, "a_EigenEnergies": 1, "GridVectors": 2}[name]
    message = rf"4 dimensions, but {name.removeprefix('a_')} of cc4s has {rank} \("
    data = xr.DataArray(np.ones((3,) * 4), dims=[f"dim_{axis}" for axis in range(4)], name=name)
    other = tmp_path / "other.yaml"
    data.tensorfmt.to_file(other, drop=["name"])
    before = [file.read_bytes() for file in sorted(tmp_path.iterdir())]
    with pytest.raises(ValueError, match=rf"{message}.*isel.geometry=0., or rename the file"):
        data.tensorfmt.to_file(path, drop=["name"])
    assert [file.read_bytes() for file in sorted(tmp_path.iterdir())] == before
    for suffix in (".yaml", ".elements"):
        other.with_suffix(suffix).rename(path.with_suffix(suffix))
    finding, *others = validate(path)
    assert (finding.severity, finding.field) == ("warning", "dimensions")
    assert [x.field for x in others] == ["metaData.fermiEnergy"] * ("Energies" in name)
    assert re.match(message, finding.message)


@pytest.mark.parametrize(("vertex", "energies"), [(1.0, 1.0), (SQRT_EV, EV), (0.19170, 0.036749)])
def test_units_of_one_system_are_accepted(tmp_path: Path, vertex: float, energies: float) -> None:
    write_two(tmp_path / "a", vertex, energies)
    to_calculation(open_calculation(tmp_path / "a"), tmp_path / "b")
    for directory in ("a", "b"):
        for name in ("CoulombVertex", "EigenEnergies"):
            assert validate(tmp_path / directory / f"{name}.yaml") == []


def test_values_with_applied_units_are_not_written(tmp_path: Path) -> None:
    write_two(tmp_path / "a", SQRT_EV, EV)
    cf.save(tmp_path / "a", "CoulombPotential", np.ones(4), ["Momentum"], unit=0.2479966649373453)
    applied = open_calculation(tmp_path / "a", apply_unit=True)
    plain = open_calculation(tmp_path / "a")
    message = r"'CoulombPotential' has the unit 1.0, but 0.247.*without apply_unit=True"
    mixtures = [
        applied[["CoulombPotential"]],
        plain.assign(CoulombPotential=applied.CoulombPotential),
    ]
    for ds in mixtures:
        with pytest.raises(ValueError, match=message):
            to_calculation(ds, tmp_path / "b")
    lost = plain.assign(CoulombPotential=plain.CoulombPotential.drop_attrs())
    message = r"'CoulombPotential' has no attribute 'unit',.* 1.0, but 0.247.*without apply_unit="
    with pytest.raises(ValueError, match=message):
        to_calculation(lost, tmp_path / "b")
    with pytest.raises(ValueError, match="open it without apply_unit=True"):
        to_calculation(applied, tmp_path / "b")
    to_calculation(plain, tmp_path / "b")
    for name in ("CoulombPotential", "CoulombVertex"):
        stored = [(tmp_path / folder / f"{name}.elements").read_bytes() for folder in "ab"]
        assert stored[0] == stored[1]


def test_different_numbers_of_states_are_refused(tmp_path: Path) -> None:
    write_two(tmp_path / "a", 1.0, 1.0)
    more = "metaData:\n  fermiEnergy: 0.0\n"
    cf.save(tmp_path / "a", "EigenEnergies", np.arange(201.0), ["State"], more=more)
    message = "CoulombVertex and EigenEnergies have different numbers of states; fetch both"
    with pytest.raises(ValueError, match=message):
        open_calculation(tmp_path / "a")


def test_invalid_arguments_raise(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    ds = open_calculation(tmp_path / "all")
    with pytest.raises(FileExistsError, match="not empty"):
        to_calculation(ds, tmp_path / "all")
    with pytest.raises(ValueError, match=r"CoulombVertex.*other states along 'State_2'"):
        to_calculation(ds.isel(State_2=slice(1, None)), tmp_path / "part")
    transposed = ds.assign(CoulombVertex=ds.CoulombVertex.transpose("State", ...))
    with pytest.raises(ValueError, match="transpose"):
        to_calculation(transposed, tmp_path / "part")
    write_calculation(tmp_path / "all", is_complex=False, prefix="other_")
    with pytest.raises(ValueError, match="CoulombVertex is also in another"):
        open_calculation(tmp_path / "all")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "State.yaml").write_text(cf.format_properties("State", {"Spin": SPIN}))
    for file, content in (("State.yaml", ""), ("cc4s.in.yaml", "- name: Read\n"), ("a.mag", "")):
        message = "no tensors of cc4s, expected files such as CoulombVertex.yaml and CoulombVertex"
        with pytest.raises(FileNotFoundError, match=message):
            open_calculation(tmp_path / "empty")
        (tmp_path / "empty" / file).write_text(content)
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        open_calculation(tmp_path / "missing")
    with pytest.raises(NotADirectoryError, match="Not a directory"):
        open_calculation(tmp_path / "empty" / "State.yaml")


@pytest.mark.parametrize("data", [None, np.ones(3), xr.DataArray(1.0), xr.Variable((), 1.0)])
def test_other_objects_are_not_written(tmp_path: Path, data: Any) -> None:
    message = f"must be a Dataset, not a {type(data).__name__}; call da.to_dataset"
    with pytest.raises(TypeError, match=message):
        to_calculation(data, tmp_path / "a")


@pytest.mark.parametrize("options", [{"dims": ("F", "q", "r")}, {"name": "a"}])
def test_names_of_single_files_are_refused(tmp_path: Path, options: Any) -> None:
    write_calculation(tmp_path, is_complex=False)
    with pytest.raises(TypeError, match=r"no keyword (dims|name), .*call ds\.rename"):
        open_calculation(tmp_path, **options)


def test_calculations_are_local(working_directory: Path) -> None:
    write_calculation(working_directory / "a", is_complex=False)
    for call in (open_calculation, partial(to_calculation, open_calculation("a"))):
        with pytest.raises(ValueError, match="only be in local directories"):
            call("memory://bucket/a?key=secret")
    assert [path.name for path in working_directory.iterdir()] == ["a"]
    with pytest.raises(IsADirectoryError, match=r"; pass the path .*cc4s.open_calculation"):
        xr.open_dataset("a", engine="tensorfmt")


def test_elements_without_yaml_are_not_left_out(tmp_path: Path) -> None:
    write_calculation(tmp_path, is_complex=False)
    (tmp_path / "CoulombVertex.yaml").unlink()
    with pytest.raises(FileNotFoundError, match=r"describes .*fetch it.*CoulombVertex\.yaml"):
        open_calculation(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such file; it describes the elements in"):
        xr.open_dataset(tmp_path / "CoulombVertex.elements", engine="tensorfmt")


def test_tensor_without_elements_is_not_left_out(tmp_path: Path) -> None:
    write_calculation(tmp_path, is_complex=False)
    (tmp_path / "CoulombVertex.elements").unlink()
    with pytest.raises(FileNotFoundError):
        open_calculation(tmp_path)


def test_commands_ignore_yaml_files_of_a_calculation_without_tensors(tmp_path: Path) -> None:
    write_calculation(tmp_path, is_complex=True)
    (tmp_path / "notes.yaml").write_text("author: me\n")
    assert validate(tmp_path) == []
    for command in ("validate", "info"):
        result = run(command, str(tmp_path))
        assert result.exit_code == 0
        assert "CoulombVertex" in result.output
        assert "State.yaml:" not in result.output


def test_elements_of_components_belong_to_one_file(tmp_path: Path) -> None:
    write_amplitudes(tmp_path)
    names = {path.name for path in tmp_path.glob("*.yaml")}
    document = json.loads(run("info", "--json", str(tmp_path)).stdout)
    assert {Path(file["path"]).name for file in document} == names


def test_yaml_that_cannot_be_read_hides_no_tensor(tmp_path: Path) -> None:
    write_amplitudes(tmp_path)
    (tmp_path / "notes.yaml").mkdir()
    (tmp_path / "Amplitudes.other.elements").write_bytes(b"")
    result = run("validate", str(tmp_path))
    assert "Amplitudes.yaml: ok" in result.output
    assert "notes.yaml" in result.output
    assert "Amplitudes.other.elements" in result.output


def test_directory_without_tensors_is_not_valid(tmp_path: Path) -> None:
    (tmp_path / "notes.yaml").write_text("author: me\n")
    with pytest.raises(IsADirectoryError, match="a directory without tensor files"):
        validate(tmp_path)


def test_attributes_of_dataset_round_trip(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    ds = open_calculation(tmp_path / "all").assign_attrs(title="LiH")
    to_calculation(ds, tmp_path / "part")
    assert open_calculation(tmp_path / "part").attrs == {"title": "LiH"}
    assert "occupied" not in (tmp_path / "part" / "CoulombVertex.yaml").read_text()


def test_files_of_vasp(tmp_path: Path) -> None:
    ds = open_calculation(DATA / "cc4s" / "vasp")
    names = {"CoulombVertex", "CoulombVertexSingularVectors", "EigenEnergies", "GridVectors"}
    assert set(ds.data_vars) == names
    assert count(ds) == (2, 2)
    part = select(ds, slice(1, None))
    # The energies in the metadata of this file differ from its elements.
    with pytest.warns(TensorFormatWarning, match="1 states are occupied.*but 0 energies"):
        to_calculation(part, tmp_path / "part")
    again = open_calculation(tmp_path / "part")
    again, part = (drop_numbers(ds).drop_vars("occupied") for ds in (again, part))
    xr.testing.assert_equal(again, part)
    elements = {
        name: variable.encoding["tensorfmt"]["elements"] for name, variable in again.items()
    }
    assert elements == {
        "CoulombVertex": cf.BINARY,
        "CoulombVertexSingularVectors": cf.BINARY,
        "EigenEnergies": cf.TEXT,
        "GridVectors": cf.TEXT,
    }


def test_calculation_without_energies(tmp_path: Path) -> None:
    write_calculation(tmp_path, is_complex=False)
    for suffix in (".yaml", ".elements"):
        (tmp_path / f"EigenEnergies{suffix}").unlink()
    ds = open_calculation(tmp_path)
    assert "occupied" not in ds.coords
    assert select(ds, slice(1, None)).CoulombVertex.shape == (FIELDS, 6, 6)


def test_encoding_selects_dtypes_of_a_calculation(tmp_path: Path) -> None:
    single = xr.Dataset(
        {
            "CoulombVertex": (("AuxiliaryField", "State", "State_2"), np.ones((2, 3, 3), "c8")),
            "Energies": (("State",), np.ones(3, "f4")),
        }
    )
    with pytest.raises(ValueError, match="choose a dtype with encoding="):
        to_calculation(single, tmp_path / "refused")
    encoding = {"CoulombVertex": {"dtype": "complex128"}, "Energies": {"dtype": "float64"}}
    to_calculation(single, tmp_path / "a", encoding=encoding)
    actual = open_calculation(tmp_path / "a")
    assert (actual.CoulombVertex.dtype, actual["Energies"].dtype) == (complex, float)


def test_directory_is_validated_as_on_the_command_line(tmp_path: Path) -> None:
    write_two(tmp_path / "a", 1.0, EV)
    (tmp_path / "a" / "CoulombVertex.elements").write_bytes(b"")
    (finding,) = validate(tmp_path / "a")
    assert finding.field == "the elements"
    assert run("validate", str(tmp_path / "a")).exit_code == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(IsADirectoryError, match="a directory without tensor files"):
        validate(tmp_path / "empty")
    result = run("validate", str(tmp_path))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.endswith(f"such as {tmp_path}/a or {tmp_path}/*\n")


def test_values_with_an_applied_unit_are_written_only_on_request(tmp_path: Path) -> None:
    unit = 0.2479966649373453
    path = cf.save(tmp_path, "CoulombPotential", np.ones(4), ["Momentum"], unit=unit)
    applied = xr.open_dataarray(path, engine="tensorfmt", apply_unit=True)
    target = tmp_path / "new" / "CoulombPotential.yaml"
    target.parent.mkdir()
    for data in (applied, applied.load(), applied.isel(Momentum=slice(2)), applied.drop_attrs()):
        with pytest.raises(ValueError, match=rf"unit 1\.0, but {unit} .*without apply_unit=True"):
            data.tensorfmt.to_file(target)
    assert not list(target.parent.iterdir())
    with pytest.raises(ValueError, match="delete the attribute 'applied_unit'"):
        applied.drop_encoding().tensorfmt.to_file(target)
    del applied.attrs["applied_unit"]
    applied.drop_encoding().tensorfmt.to_file(target)
    written = xr.open_dataarray(target, engine="tensorfmt")
    assert (written.unit, written.values.tolist()) == (1.0, [unit] * 4)


@pytest.mark.slow
def test_calculation_of_vasp_is_written_with_the_values_and_units_of_its_files(
    tmp_path: Path,
) -> None:
    """VASP declares a potential in eV A^3, but its numbers are in eV, and cc4s relies on that."""
    source = tmp_path / "vasp"
    shutil.copytree(DATA / "cc4s" / "vasp", source)
    # The list has rounded energies of another file.
    path = source / "EigenEnergies.yaml"
    energies = np.loadtxt(path.with_suffix(".elements"))
    head = path.read_text().partition("  energies:")[0]
    path.write_text(head + "  energies:\n" + "".join(f"  - {energy}\n" for energy in energies))
    potential = np.array([0.1, 1 / 3, 7e-17, 1e300, 5e-324])
    types, unit = ["Momentum"], 0.2479966649373453
    cf.save(source, "CoulombPotential", potential, types, unit=unit, elements=cf.TEXT)
    ds = open_calculation(source)
    to_calculation(ds, tmp_path / "copy")
    for head in source.glob("*.elements"):
        name = head.name.removesuffix(".elements")
        before, after = (
            xr.open_dataarray(tmp_path / folder / f"{name}.yaml", engine="tensorfmt")
            for folder in ("vasp", "copy")
        )
        assert after.values.tobytes() == before.values.tobytes()
        assert after.attrs == before.attrs
        elements = [(tmp_path / folder / head.name).read_bytes() for folder in ("vasp", "copy")]
        if before.encoding["tensorfmt"]["elements"] == cf.BINARY:
            assert elements[0] == elements[1]
        elif before.dtype.kind == "f":
            texts = [np.array(text.split(), dtype=float) for text in elements]
            assert texts[0].tobytes() == texts[1].tobytes()
    assert (ds.CoulombPotential.unit, ds.CoulombPotential.values.tolist()) == (
        unit,
        potential.tolist(),
    )


def through_zarr(ds: xr.Dataset) -> xr.Dataset:
    ds.to_zarr("through.zarr", consolidated=False)
    return xr.open_zarr("through.zarr", consolidated=False)


def through_netcdf(ds: xr.Dataset) -> xr.Dataset:
    ds.to_netcdf("through.nc", engine="h5netcdf")
    return xr.open_dataset("through.nc", engine="h5netcdf")


WAYS = {
    "directly": lambda ds: ds,
    "zarr": through_zarr,
    "netCDF": through_netcdf,
    "map": lambda ds: ds.map(lambda variable: variable.astype(variable.dtype), keep_attrs=True),
    "drop_encoding": lambda ds: ds.drop_encoding(),
    "chunks": lambda ds: ds.chunk(),
    "load": lambda ds: ds.load(),
    "a copy of the file": lambda ds: ds.copy(deep=True),
    "reset_coords": lambda ds: ds.reset_coords(),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "select_differently",
    [
        lambda ds: ds.sortby("EigenEnergies", ascending=False),
        lambda ds: ds.isel(State=slice(1, None), State_2=slice(None, -1)),
        lambda ds: ds.isel(State_2=slice(None, None, -1)),
        lambda ds: ds.isel(State=[0, 2, 1, *range(3, STATES)]),
    ],
)
def test_other_states_along_an_axis_are_refused(
    working_directory: Path, way: str, select_differently: Any
) -> None:
    write_calculation(working_directory / "all", is_complex=False)
    ds = WAYS[way](select_differently(open_calculation("all")))
    line = r"ds\.isel\(State=states, State_2=states\)"
    with pytest.raises(ValueError, match=rf"other states along 'State_2'.*{line}"):
        to_calculation(ds, "part")
    if way not in ("netCDF", "reset_coords"):  # attributes of files, and no coordinates
        with pytest.raises(ValueError, match=rf"other states along 'State_2'.*{line}"):
            ds.CoulombVertex.tensorfmt.to_file("CoulombVertex.yaml")
    assert not Path("part", "CoulombVertex.yaml").exists()
    assert not Path("CoulombVertex.yaml").exists()


@pytest.mark.slow
def test_line_of_the_warning_sorts_all_states(working_directory: Path) -> None:
    write_calculation(working_directory / "all", is_complex=False)
    states = select(open_calculation("all"), [4, 0, 6, 1, 5, 2, 3])
    message = "not the first of the 7 states.*sort slices alike"
    with pytest.warns(TensorFormatWarning, match=message) as caught:
        to_calculation(states, "mixed")
    lines = str(caught[0].message).partition("sort all dimensions of states: ")[2]
    names: dict[str, Any] = {"ds": open_calculation("mixed")}
    exec(lines, names)
    to_calculation(names["ds"], "sorted")
    for name in ("all", "mixed"):
        expected = open_calculation(name, apply_unit=True)
        order = expected.EigenEnergies.argsort().values
        xr.testing.assert_equal(
            drop_numbers(open_calculation("sorted", apply_unit=True)),
            drop_numbers(select(expected, order)),
        )


def test_labels_of_states_select_them_also_with_chunks(tmp_path: Path) -> None:
    write_calculation(tmp_path, is_complex=False)
    ds = open_calculation(tmp_path, chunks={})
    assert ds.isel(State=ds.occupied).sizes["State"] == OCCUPIED
    assert ds.CoulombVertex[:, ds.occupied, ~ds.occupied.values].shape == (FIELDS, 3, 4)
    assert sorted(spin for spin, _ in ds.groupby("State_Spin")) == [0, 1]
    assert all(coordinate.chunks is None for coordinate in ds.coords.values())


def test_numbers_of_states_may_be_dimensions(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    ds = open_calculation(tmp_path / "all")
    labelled = ds.swap_dims(State="state", State_2="state_2").sel(state=[1, 2, 3])
    to_calculation(labelled.sel(state_2=[1, 2, 3]), tmp_path / "a")
    expected = drop_numbers(select(ds, [1, 2, 3]))
    xr.testing.assert_identical(drop_numbers(open_calculation(tmp_path / "a")), expected)
    with pytest.raises(ValueError, match="has other states along 'State_2'"):
        to_calculation(labelled.sel(state_2=[1, 2, 4]), tmp_path / "b")
    indexed = ds.set_xindex("state").set_xindex("state_2")
    assert second_order_energy(indexed) == second_order_energy(ds)


def test_coordinates_of_states_are_no_tensors(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    ds = open_calculation(tmp_path / "all")
    to_calculation(ds, tmp_path / "a")
    to_calculation(ds.reset_coords(["state", "state_2", "occupied"]), tmp_path / "b")
    xr.testing.assert_identical(open_calculation(tmp_path / "b"), open_calculation(tmp_path / "a"))


@pytest.mark.slow
def test_numbers_of_states_are_not_written(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    ds = open_calculation(tmp_path / "all", chunks={})
    assert {name: ds[name].dims for name in ("state", "state_2")} == {
        "state": ("State",),
        "state_2": ("State_2",),
    }
    to_calculation(select(ds, [1, 2, 4]), tmp_path / "part")
    assert "state" not in "".join(p.read_text() for p in (tmp_path / "part").glob("*.yaml"))
    assert open_calculation(tmp_path / "part").state_2.values.tolist() == [0, 1, 2]
    # A coordinate of the user is kept.
    named = ds.drop_vars("state").assign_coords(state=("State", np.arange(7)[::-1].copy()))
    with pytest.raises(ValueError, match="other states"):
        to_calculation(named, tmp_path / "named")
    named = named.assign_coords(state_2=("State_2", named.state.values))
    to_calculation(named, tmp_path / "named")
    assert open_calculation(tmp_path / "named").state.values.tolist() == [6, 5, 4, 3, 2, 1, 0]


def test_integrals_of_occupied_and_virtual_states_are_written(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    vertex = open_calculation(tmp_path / "all").CoulombVertex
    low, high = slice(OCCUPIED), slice(OCCUPIED, None)
    part = vertex.isel(State=low, State_2=high)
    part.tensorfmt.to_file(tmp_path / "HolesAndParticles.yaml")
    exchange = (abs(vertex) ** 2).sum("AuxiliaryField").rename("Exchange")
    exchange.tensorfmt.to_file(tmp_path / "Exchange.yaml")
    with pytest.raises(ValueError, match="other states"):
        exchange.isel(State=[1, 0, 2]).tensorfmt.to_file(tmp_path / "Mixed.yaml")


@pytest.mark.parametrize("way", WAYS)
def test_applied_units_are_refused_after(working_directory: Path, way: str) -> None:
    unit = 0.2479966649373453
    cf.save(working_directory, "CoulombPotential", np.ones(4), ["Momentum"], unit=unit)
    with xr.open_dataset("CoulombPotential.yaml", engine="tensorfmt", apply_unit=True) as applied:
        ds = WAYS[way](applied)
    assert ds.CoulombPotential.attrs["applied_unit"] == unit
    for write in (to_calculation, lambda ds, name: ds.tensorfmt.to_file(f"{name}.yaml")):
        with pytest.raises(ValueError, match=f"unit 1.0, but {unit}.*without apply_unit=True"):
            write(ds, "new")
    ds.tensorfmt.to_file("a.tens")
    with pytest.raises(ValueError, match="without apply_unit=True"):
        xr.open_dataset("a.tens", engine="tensorfmt").tensorfmt.to_file("b.yaml")
    assert not Path("b.yaml").exists()


def test_single_state_is_refused(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    ds = open_calculation(tmp_path / "all")
    for part in (ds.isel(State=0, State_2=0), ds.isel(State_2=0), ds.isel(State=0)):
        with pytest.raises(ValueError, match=r"dimensions, but .* select states by a list"):
            to_calculation(part, tmp_path / "part")
    assert not (tmp_path / "part").exists()


def test_single_state_of_amplitudes_is_refused(tmp_path: Path) -> None:
    write_amplitudes(tmp_path)
    message = (
        r"dimensions, but Amplitudes\.ph of cc4s has 2 \(State, State\); select states by a list"
    )
    ds = open_calculation(tmp_path)
    (tmp_path / "part").mkdir()
    for dim in ds["Amplitudes.ph"].dims:
        with pytest.raises(ValueError, match=message):
            to_calculation(ds.isel({dim: 0}), tmp_path / "part")
    amplitudes = xr.open_dataset(tmp_path / "Amplitudes.yaml", engine="tensorfmt")
    for part in (amplitudes, amplitudes[["ph"]]):
        with pytest.raises(ValueError, match=message):
            part.isel({part.ph.dims[0]: 0}).tensorfmt.to_file(tmp_path / "part/Amplitudes.yaml")
    assert not [*(tmp_path / "part").iterdir()]
    amplitudes.isel({amplitudes.ph.dims[0]: [0]}).tensorfmt.to_file(
        tmp_path / "part/Amplitudes.yaml"
    )


PARTS = {
    "State.yaml": cf.format_properties("State", {"Spin": SPIN}),
    "cc4s.in.yaml": "- name: Read\n  in:\n    fileName: CoulombVertex.yaml\n",
    "cc4s.out.yaml": "version: heads/master\nbuildDate: x\nsteps:\n  - name: Read\n",
}


@pytest.mark.parametrize("name", PARTS)
def test_other_files_of_a_calculation_are_skipped(tmp_path: Path, name: str) -> None:
    write_calculation(tmp_path, is_complex=False)
    path = tmp_path / name
    path.write_text(PARTS[name])
    assert validate(path) == []
    result = run("validate", "--strict", *map(str, tmp_path.glob("*.yaml")))
    assert result.exit_code == 0, result.output
    assert f"{name}: skipped, " in result.output
    assert "CoulombVertex.yaml: ok" in result.output
    assert run("validate", "--strict", str(tmp_path)).exit_code == 0
    with pytest.raises(ValueError, match=r"type: (log|input|properties) of") as caught:
        xr.open_dataset(path, engine="tensorfmt")
    assert "numpy" not in str(caught.value)
    assert set(open_calculation(tmp_path).data_vars) == {"CoulombVertex", "EigenEnergies"}


def test_other_yaml_is_not_valid(tmp_path: Path) -> None:
    path = tmp_path / "notes.yaml"
    path.write_text("author: me\n")
    assert validate(path) != []
    assert run("validate", str(path)).exit_code == 1


@pytest.mark.parametrize("prefix", [".", "._"])
def test_hidden_files_are_ignored(tmp_path: Path, prefix: str) -> None:
    write_calculation(tmp_path, is_complex=False)
    for path in list(tmp_path.iterdir()):
        path.with_name(f"{prefix}{path.name}").write_bytes(b"\0\5\x16\7" * 100)
    assert set(open_calculation(tmp_path).data_vars) == {"CoulombVertex", "EigenEnergies"}
    assert validate(tmp_path) == []
    result = run("validate", str(tmp_path))
    assert result.exit_code == 0
    assert "2 files" in result.output


def test_old_copy_without_elements_is_left_out(tmp_path: Path) -> None:
    write_calculation(tmp_path, is_complex=False)
    shutil.copy(tmp_path / "CoulombVertex.yaml", tmp_path / "CoulombVertex-old.yaml")
    with pytest.warns(TensorFormatWarning, match="CoulombVertex-old.yaml is left out, because"):
        ds = open_calculation(tmp_path)
    assert set(ds.data_vars) == {"CoulombVertex", "EigenEnergies"}
    with pytest.raises(NotADirectoryError, match="pass its directory"):
        open_calculation(tmp_path / "CoulombVertex.yaml")


@pytest.mark.parametrize("file", ["old_CoulombVertex.yaml", "CoulombVertex-old.elements"])
def test_incomplete_copy_of_an_object_is_left_out(tmp_path: Path, file: str) -> None:
    values = write_calculation(tmp_path, is_complex=False)
    shutil.copy(tmp_path / f"CoulombVertex{Path(file).suffix}", tmp_path / file)
    with pytest.warns(TensorFormatWarning, match=f"{file} is left out, because it is incomplete"):
        ds = open_calculation(tmp_path, apply_unit=True)
    np.testing.assert_allclose(ds.CoulombVertex.values, values)
    (tmp_path / "CoulombVertex.yaml").unlink()
    (tmp_path / "CoulombVertex.elements").unlink()
    if file.endswith(".yaml"):
        with pytest.raises(FileNotFoundError, match=r"old_CoulombVertex\.elements"):
            open_calculation(tmp_path)


def test_home_and_similar_names_of_directories(
    working_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(working_directory))
    monkeypatch.setenv("USERPROFILE", str(working_directory))  # of Windows
    write_calculation(working_directory / "lih", is_complex=False)
    to_calculation(open_calculation("~/lih"), "~/copy")
    assert sorted(path.name for path in working_directory.iterdir()) == ["copy", "lih"]
    xr.testing.assert_identical(open_calculation("copy"), open_calculation("lih"))
    with pytest.raises(FileNotFoundError, match="did you mean 'lih'"):
        open_calculation("LiH2")


def test_states_of_files_opened_one_by_one_cannot_be_compared(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    names = ("CoulombVertex", "EigenEnergies")
    files = [tmp_path / "all" / f"{name}.yaml" for name in names]
    opened = [xr.open_dataset(path, engine="tensorfmt") for path in files]
    ds = xr.merge(opened, compat="equals", join="exact")
    with pytest.warns(TensorFormatWarning, match="no numbers of states.*open_calculation"):
        to_calculation(ds.sortby("EigenEnergies"), tmp_path / "part")
    made = ds.map(lambda variable: variable + 0).drop_encoding()
    to_calculation(made, tmp_path / "made")


@pytest.mark.parametrize("size", [2, (1, 3, 3), "auto"])
def test_chunks_are_those_of_the_dims_of_the_dataset(tmp_path: Path, size: Any) -> None:
    write_calculation(tmp_path, is_complex=True)
    write_amplitudes(tmp_path)
    plain = open_calculation(tmp_path)
    dim = plain["Amplitudes.ph"].dims[1] if size == 2 else "State"
    ds = open_calculation(tmp_path, chunks={dim: size}, chunk_bytes="1KiB")
    assert all(tensor.chunks is not None for tensor in ds.data_vars.values())
    expected = {2: (2, 1), "auto": (STATES,)}.get(size, size)
    assert ds[["CoulombVertex", "Amplitudes.ph"]].chunks[dim] == expected
    assert len(ds.CoulombVertex.chunks[2]) > 1  # the chunks of other dimensions are preferred
    assert all(coordinate.chunks is None for coordinate in ds.coords.values())
    xr.testing.assert_identical(ds.compute(), plain.compute())
    with pytest.raises(ValueError, match="'Stat'"):
        open_calculation(tmp_path, chunks={"Stat": 2})


@pytest.mark.parametrize("change", [lambda tensor: tensor, lambda tensor: tensor * 1])
def test_names_decide_which_tensors_are_components(tmp_path: Path, change: Any) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    write_amplitudes(tmp_path / "all")
    cf.save(tmp_path / "all", "Single", np.ones((4, 3)))
    ds = open_calculation(tmp_path / "all")
    ds["DeltaIntegralsPPHH"] = change(ds["Amplitudes.pphh"])
    ds["Amplitudes.hp"] = change(ds["Single"])
    to_calculation(ds.drop_vars("Single"), tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").glob("[AD]*.elements")} == {
        *(f"Amplitudes.components.{name}.elements" for name in ("ph", "pphh", "hp")),
        "DeltaIntegralsPPHH.elements",
    }
    assert set(open_calculation(tmp_path / "new").data_vars) == set(ds.data_vars) - {"Single"}


def make_calculation(energies: Any, **attrs: Any) -> xr.Dataset:
    """Return a calculation that was not opened from files."""
    dims, values = ("AuxiliaryField", "State", "State_2"), np.ones((2, 4, 4), complex)
    return xr.Dataset(
        {
            "CoulombVertex": (dims, values, {"unit": 1.0}),
            "EigenEnergies": ("State", energies, {"unit": 1.0, **attrs}),
        }
    )


def test_computed_states_must_be_sorted(tmp_path: Path) -> None:
    ds = make_calculation([0.5, -1.0, 1.0, 2.0], fermiEnergy=0.0)
    with pytest.warns(TensorFormatWarning, match="the 1 occupied states are not the first of the"):
        to_calculation(ds, tmp_path / "mixed")
    order = ds.EigenEnergies.values.argsort()
    to_calculation(ds.isel(State=order, State_2=order), tmp_path / "sorted")


@pytest.mark.parametrize("fermi", [None, "0.3", "abc", [0.3]])
def test_fermi_energies_that_are_no_numbers_are_reported(tmp_path: Path, fermi: Any) -> None:
    ds = make_calculation([-1.0, 0.5, 1.0, 2.0], fermiEnergy=fermi)
    if fermi is None:
        del ds.EigenEnergies.attrs["fermiEnergy"]
    message = f"fermiEnergy of EigenEnergies is {re.escape(repr(fermi))}, but cc4s and 'occ"
    with pytest.warns(TensorFormatWarning, match=message):
        to_calculation(ds, tmp_path / "new")
    with pytest.warns(TensorFormatWarning, match=message):
        ds.EigenEnergies.tensorfmt.to_file(tmp_path / "EigenEnergies.yaml")
    (finding,) = validate(tmp_path / "EigenEnergies.yaml")
    assert finding.field == "metaData.fermiEnergy"
    assert re.search(message, finding.actual)
    with pytest.warns(TensorFormatWarning, match=message):
        open_calculation(tmp_path / "new")


@pytest.mark.parametrize("name", ["EigenEnergies", "CoulombVertex"])
def test_units_as_text_are_reported(tmp_path: Path, name: str) -> None:
    ds = make_calculation([-1.0, 0.5, 1.0, 2.0], fermiEnergy=0.0)
    data, path = ds[name].assign_attrs(units="eV"), tmp_path / f"{name}.yaml"
    data.tensorfmt.to_file(path)
    del data.attrs["unit"]
    with pytest.warns(TensorFormatWarning, match=r"'eV', but no number as 'unit'; .*0\.0367493"):
        data.tensorfmt.to_file(path, mode="w")
    data.assign_attrs(units="hartree").tensorfmt.to_file(path, mode="w")


@pytest.mark.parametrize("between", [[], ["calculation.nc"], ["calculation.zarr"]])
def test_commands_convert_calculations(working_directory: Path, between: list[str]) -> None:
    write_calculation(working_directory / "a", is_complex=True)
    write_amplitudes(working_directory / "a")
    options = ["--to", "cc4s"] if between else []
    names = ["a", *between, "b"]
    for source, target in pairwise(names):
        result = run("convert", source, target, *(options if target == "b" else []))
        assert (result.exit_code, result.stderr) == (0, "")
    assert run("diff", "a", "b").exit_code == 0
    assert sorted(path.name for path in Path("a").iterdir()) == sorted(os.listdir("b"))
    for more, message in (((), "not empty"), (("--overwrite",), "--overwrite.* only for files")):
        result = run("convert", "a", "b", *more)
        assert result.exit_code == 1
        assert re.search(message, result.stderr)


def test_calculation_is_no_set_of_components(tmp_path: Path) -> None:
    ds = make_calculation([-1.0, 0.5, 1.0, 2.0], fermiEnergy=0.0)
    with pytest.raises(ValueError, match=r"is one of several variables; .*to_calculation"):
        ds.tensorfmt.to_file(tmp_path / "all.yaml")
    with pytest.raises(ValueError, match="no tensors to write"):
        to_calculation(ds[[]], tmp_path / "empty")
    with pytest.raises(ValueError, match=r"'hh' is a component of a .* 'CoulombIntegrals\.hh'"):
        to_calculation(ds.assign(hh=ds.EigenEnergies), tmp_path / "empty")
    assert not any(tmp_path.iterdir())


def test_dtypes_are_checked_before_a_file_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"encoding=\{'EigenEnergies': \{'dtype'"):
        to_calculation(make_calculation([-1, 1, 2, 3], fermiEnergy=0), tmp_path / "new")
    ds = make_calculation([-1.0, 1.0, 2.0, 3.0], fermiEnergy=0.0)
    ds = ds.assign_coords(occupied=("State", [True, False, False, False]))
    ds["Amplitudes.ph"] = ("State_3", "State_4"), np.ones((3, 1), "c8"), {"unit": 1.0}
    with pytest.raises(ValueError, match=r"encoding=\{'Amplitudes.ph': \{'dtype'"):
        to_calculation(ds, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    types = {"Amplitudes.ph": {"dtype": "complex128"}}
    to_calculation(ds, tmp_path / "new", encoding=types)
    assert open_calculation(tmp_path / "new")["Amplitudes.ph"].dtype == "complex128"


def test_lost_unit_is_named(tmp_path: Path) -> None:
    write_calculation(tmp_path / "all", is_complex=False)
    ds = open_calculation(tmp_path / "all")
    ds["CoulombVertex"] = ds.CoulombVertex.drop_attrs()
    message = r"no attribute 'unit',.* unit 1\.0, but 0\.25 in the file.*set the attribute to 0\.25"
    with pytest.raises(ValueError, match=message):
        to_calculation(ds, tmp_path / "new")
    ds.CoulombVertex.attrs["unit"] = 0.25
    to_calculation(ds, tmp_path / "new")


def test_coordinates_that_opening_adds_are_named_at_once(tmp_path: Path) -> None:
    write_calculation(tmp_path, is_complex=False)
    ds = open_calculation(tmp_path)
    part = ds.CoulombVertex.isel(State_2=[2]) * 0
    path, region = tmp_path / "CoulombVertex.yaml", {"State_2": slice(2, 3)}
    names = ["occupied", "state", "state_2"]
    listed = r"drop_vars\(\['occupied', 'state', 'state_2'\]\)"
    with pytest.raises(ValueError, match=rf"'occupied' is True, .*'state_2' is 2, .*{listed}"):
        part.tensorfmt.to_file(path, region=region)
    part.drop_vars(names).tensorfmt.to_file(path, region=region)
    again = open_calculation(tmp_path).CoulombVertex
    assert not again[:, :, 2].any()
    assert again[:, :, 3].all()


def test_dims_of_new_integrals_are_suggested_by_length(tmp_path: Path) -> None:
    ds = make_calculation([-1.0, 1.0, 2.0, 3.0], fermiEnergy=0.0)
    ds["CoulombIntegrals.pphh"] = ("a", "b", "i", "j"), np.ones((3, 3, 1, 1)), {"unit": 1.0}
    message = r"to \('State_3', 'State_4', 'State_5', 'State_6'\) .--dims. or other numbers"
    with pytest.raises(ValueError, match=message):
        to_calculation(ds, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    names = {"a": "State_3", "b": "State_4", "i": "State_5", "j": "State_6"}
    to_calculation(ds.rename(names), tmp_path / "new")
    assert open_calculation(tmp_path / "new").state_5.values.tolist() == [0]


def test_occupied_states_of_new_calculation_follow_from_fermi_energy(tmp_path: Path) -> None:
    ds = make_calculation([-1.0, 1.0, 2.0, 3.0], fermiEnergy=0.0)
    ds["Amplitudes.ph"] = ("State_3", "State_4"), np.ones((3, 1)), {"unit": 1.0}
    to_calculation(ds, tmp_path / "new")
    assert open_calculation(tmp_path / "new").state_3.values.tolist() == [1, 2, 3]
    del ds.EigenEnergies.attrs["fermiEnergy"]
    with pytest.raises(ValueError, match=r"find the occupied ones, set ds\.Eigen.*fermi"):
        to_calculation(ds, tmp_path / "other")


def test_damaged_properties_are_reported_once(tmp_path: Path) -> None:
    write_calculation(tmp_path, is_complex=False)
    (tmp_path / "State.yaml").write_text(cf.format_properties("State", {"Spin": SPIN[1:]}))
    with pytest.warns(TensorFormatWarning) as caught:
        open_calculation(tmp_path)
    (warning,) = caught
    assert "Spin: 6 integers, expected 7, the length of State" in str(warning.message)
    assert warning.filename == __file__
