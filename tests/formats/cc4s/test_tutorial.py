"""The formulas of the cc4s tutorial, compared with sums over points in real space."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from benchmark.tutorial import get_functions

from xr_tensorfmt import to_file

OCCUPIED, STATES, POINTS = 2, 5, 16
MOMENTA = 2 * np.pi * np.arange(-3, 4) / POINTS


def make_orbitals(*, is_complex: bool) -> np.ndarray:
    """Return orthonormal functions on the points of a ring."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=(POINTS, STATES)) + 1j * is_complex * rng.normal(size=(POINTS, STATES))
    return np.linalg.qr(values)[0].T


def make_vertex(psi: np.ndarray, *, half_grid: int) -> xr.DataArray:
    """Return the vertex for all momenta, or for one momentum of each opposite pair."""
    momenta = MOMENTA[MOMENTA > 0] if half_grid else MOMENTA
    waves = np.exp(1j * np.outer(momenta, np.arange(POINTS)))
    strengths = (1 + half_grid) / (1 + momenta**2)
    values = np.einsum("F,Fx,px,rx->Fpr", np.sqrt(strengths), waves, psi.conj(), psi)
    if half_grid:  # the momentum 0, which has no opposite
        values = np.concatenate([np.einsum("px,rx->pr", psi.conj(), psi)[None], values])
    dims = ("AuxiliaryField", "State", "State_2")
    return xr.DataArray(values, dims=dims, name="CoulombVertex", attrs={"halfGrid": half_grid})


def compute_energy(psi: np.ndarray, energies: np.ndarray) -> float:
    distance = np.subtract.outer(np.arange(POINTS), np.arange(POINTS))
    terms = np.exp(1j * np.multiply.outer(distance, MOMENTA)) / (1 + MOMENTA**2)
    interaction = terms.sum(axis=-1).real
    conj = psi.conj()
    v = np.einsum("px,qy,xy,rx,sy->pqrs", conj, conj, interaction, psi, psi, optimize=True)
    o, u = slice(OCCUPIED), slice(OCCUPIED, None)
    hhpp, pphh = v[o, o, u, u], v[u, u, o, o]
    e, f = energies[o], energies[u]
    gap = e[:, None, None, None] + e[:, None, None] - f[:, None] - f
    direct = 2 * np.einsum("ijab,abij,ijab->", hhpp, pphh, 1 / gap)
    energy = direct - np.einsum("ijab,baij,ijab->", hhpp, pphh, 1 / gap)
    assert abs(energy.imag) < 1e-12
    return float(energy.real)


@pytest.mark.parametrize(("is_complex", "half_grid"), [(False, 0), (False, 1), (True, 0)])
@pytest.mark.parametrize("unit", [1.0, 0.25])
def test_second_order_energy(tmp_path: Path, is_complex: bool, half_grid: int, unit: float) -> None:
    psi, energies = make_orbitals(is_complex=is_complex), np.array([-3.0, -2.5, 0.5, 1.25, 2.0])
    vertex = make_vertex(psi, half_grid=half_grid)
    to_file((vertex / unit).assign_attrs(vertex.attrs, unit=unit), tmp_path / "CoulombVertex.yaml")
    opened = xr.open_dataarray(
        tmp_path / "CoulombVertex.yaml", dims=("F", "q", "r"), apply_unit=True, chunks={}
    )
    page = get_functions()
    pphh = page["particle_hole_integrals"](opened, OCCUPIED)
    pairs = page["pair_energies"](pphh, xr.DataArray(energies, dims="State"))
    assert pairs.dtype == np.float64
    np.testing.assert_allclose(float(pairs.sum()), compute_energy(psi, energies), rtol=1e-12)


def test_integrals_of_a_vertex_in_another_unit_have_its_square(tmp_path: Path) -> None:
    psi, unit = make_orbitals(is_complex=True), 0.25
    vertex = make_vertex(psi, half_grid=0)
    to_file((vertex / unit).assign_attrs(vertex.attrs, unit=unit), tmp_path / "CoulombVertex.yaml")
    written, atomic = (
        get_functions()["particle_hole_integrals"](
            xr.open_dataarray(
                tmp_path / "CoulombVertex.yaml", dims=("F", "q", "r"), apply_unit=apply_unit
            ),
            OCCUPIED,
        )
        for apply_unit in (False, True)
    )
    names = {"a": "State", "b": "State_2", "i": "State_3", "j": "State_4"}
    tensors = xr.Dataset({"pphh": written, "hhpp": written.conj()}).rename(names)
    to_file(tensors, tmp_path / "CoulombIntegrals.yaml")
    again = xr.open_dataset(tmp_path / "CoulombIntegrals.yaml", apply_unit=True)
    assert again.pphh.attrs["applied_unit"] == unit**2
    np.testing.assert_allclose(again.pphh.values, atomic.values, rtol=1e-12)
