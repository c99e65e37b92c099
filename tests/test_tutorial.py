"""The small files of the package, and the script that makes them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xr_tensorfmt
from tests.paths import ROOT
from xr_tensorfmt import tutorial

FORMATS = {
    "LiH": "cc4s",
    "causal_set": "pycauset",
    "circle": "safetensors",
    "snapshot": "mag",
    "cities": "vespa",
    "integrals": "tens",
    "model": "safetensors",
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_opens_and_is_valid(name: str) -> None:
    ds = tutorial.open_dataset(name, chunks={})
    assert {str(v.encoding["tensorfmt"]["format"]) for v in ds.values()} == {FORMATS[name]}
    assert ds.chunks
    assert xr_tensorfmt.validate(tutorial.get_path(name)) == []


def test_the_module_needs_no_import_of_its_own() -> None:
    assert xr_tensorfmt.tutorial is tutorial


def test_an_unknown_name_has_a_hint() -> None:
    with pytest.raises(ValueError, match=r"'lih' \(did you mean 'LiH'\?\) is not one of 'LiH', '"):
        tutorial.open_dataset("lih")


def test_the_molecule_is_a_calculation_of_cc4s() -> None:
    ds = xr_tensorfmt.cc4s.open_calculation(tutorial.get_path("LiH").parent)
    assert ds.occupied.values.tolist() == [True] * 2 + [False] * 8
    vertex = ds.CoulombVertex.values
    np.testing.assert_allclose(vertex, vertex.transpose(0, 2, 1), atol=1e-9)


def test_the_integrals_give_the_second_order_energy_of_the_molecule() -> None:
    v = tutorial.open_dataset("integrals").tensor.values
    calculation = xr_tensorfmt.cc4s.open_calculation(tutorial.get_path("LiH").parent)
    occupied, virtual = np.split(calculation.EigenEnergies.values, [2])
    gap = np.subtract.outer(np.add.outer(occupied, occupied), np.add.outer(virtual, virtual))
    energy = (v * (2 * v - v.transpose(1, 0, 2, 3)) / gap.transpose(2, 3, 0, 1)).sum()
    np.testing.assert_allclose(energy, -0.025519, atol=1e-6)


def test_the_network_recognises_points_inside_a_circle() -> None:
    ds = tutorial.open_dataset("circle")
    points = np.array([[0, 0], [0.3, -0.3], [0.9, 0.1], [-0.7, 0.7]])
    activity = np.tanh(points @ ds["hidden.weight"].values.T + ds["hidden.bias"].values)
    inside = activity @ ds["out.weight"].values + ds["out.bias"].values > 0
    assert inside.tolist() == [True, True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("causal_set", "write_causal_set"),
        ("circle", "write_network"),
        ("snapshot", "write_snapshot"),
        ("cities", "write_cities"),
        ("integrals", "write_integrals"),
        ("model", "write_sharded_model"),
    ],
)
def test_the_script_makes_the_same_values(tmp_path: Path, name: str, write: str) -> None:
    if name == "snapshot":
        pytest.importorskip("magnetron")
    functions: dict[str, Any] = runpy.run_path(str(ROOT / "ci" / "tutorial_files.py"))
    path = tmp_path / tutorial.get_path(name).name
    functions[write](path)
    made = xr.open_dataset(path, engine="tensorfmt")
    xr.testing.assert_allclose(made, tutorial.open_dataset(name), rtol=1e-3)
