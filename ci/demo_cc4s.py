"""cc4s: open files as VASP writes them, convert an old vertex, and compute energies from it.

The vertex is the one of `demo_tens`: electrons in a one-dimensional box.
"""

import time
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from demo_output import progress, say
from demo_tens import BOX, HARTREE, OCCUPIED, STATES, write_vertex

import xr_tensorfmt

FILES = Path(__file__).resolve().parents[1] / "tests" / "data" / "cc4s" / "vasp"
DIMS = ("AuxiliaryField", "State", "State_2")
WINDOW = 16


def show_files() -> None:
    """Open energies that are stored as text in another unit."""
    say('xr.open_dataarray("EigenEnergies.yaml", ..., apply_unit=True): energies in hartree')
    energies = xr.open_dataarray(FILES / "EigenEnergies.yaml", engine="tensorfmt", apply_unit=True)
    print(f"{energies.values}, Fermi energy {energies.fermiEnergy:.4f}")


def convert(folder: Path) -> Path:
    """Write a vertex as cc4s did until 2020, and convert it to the current format."""
    old, path = folder / "CoulombVertex.bin", folder / "CoulombVertex.yaml"
    write_vertex(old)
    say("convert a vertex of 256 MiB from TENS 0.9 to cc4s, chunk by chunk")
    vertex = xr.open_dataset(
        old, engine="tensorfmt", name="CoulombVertex", dims=DIMS, chunks={}
    ).CoulombVertex
    start = time.perf_counter()
    xr_tensorfmt.to_file(vertex.assign_attrs(unit=1.0, halfGrid=1), path, "cc4s")
    lines = len(path.read_text().splitlines())
    print(f"written in {time.perf_counter() - start:.1f} s; {path.name} has {lines} lines")
    return path


def compute_pair_energies(path: Path) -> xr.DataArray:
    """Compute the second-order energies of pairs of occupied states (i, j) in eV."""
    energies = xr.DataArray((np.pi / BOX * np.arange(1, STATES + 1)) ** 2 / 2, dims="state")
    vertex = xr.open_dataset(
        path, engine="tensorfmt", dims=("F", "p", "r"), chunks={}
    ).CoulombVertex
    occupied = slice(OCCUPIED - WINDOW, OCCUPIED)
    virtual = slice(OCCUPIED, OCCUPIED + 2 * WINDOW)
    pairs = vertex.isel(p=occupied, r=virtual).rename(p="i", r="a")
    integrals = xr.dot(
        pairs.conj(), pairs.rename(i="j", a="b"), dim="F", optimize=True
    ).real.transpose("i", "j", "a", "b")

    say("integrals V[i, j, a, b] of the states around the gap; explain() lists the reads:")
    print(str(xr_tensorfmt.explain(integrals)).splitlines()[0])
    say("compute the integrals, write them as a cc4s tensor, open and validate it")
    names = dict(zip("ijab", ("State", "State_2", "State_3", "State_4"), strict=True))
    target = path.parent / "CoulombIntegrals.yaml"
    with progress("integrals"):
        xr_tensorfmt.to_file(integrals.rename(names).rename("CoulombIntegrals"), target, "cc4s")
    ds = xr.open_dataset(target, engine="tensorfmt", dims=tuple("ijab"))
    print(f"{dict(ds.CoulombIntegrals.sizes)}, findings: {xr_tensorfmt.validate(target)}")

    v = ds.CoulombIntegrals.load()
    e_i, e_a = energies[occupied].rename(state="i"), energies[virtual].rename(state="a")
    gap = e_i + e_i.rename(i="j") - e_a - e_a.rename(a="b")
    return (v * (2 * v - v.rename(a="b", b="a")) / gap).sum(("a", "b")) * HARTREE


def draw(energies: xr.DataArray, picture: Path) -> None:
    """Draw the pair energies, which are largest near the highest occupied state."""
    figure, axes = plt.subplots(figsize=(6.2, 5), layout="constrained")
    states = np.arange(OCCUPIED - WINDOW, OCCUPIED) + 1
    norm = mpl.colors.LogNorm()
    mesh = axes.pcolormesh(states, states, -energies, norm=norm, cmap="magma", rasterized=True)
    axes.set(xlabel="occupied state $j$", ylabel="occupied state $i$", aspect="equal")
    axes.set_title("second-order energies by pair of occupied states", fontsize=11)
    figure.colorbar(mesh, ax=axes, label="$-E_{ij}$ in eV")
    figure.savefig(picture, dpi=150)


def main(folder: Path, picture: Path) -> None:
    """Run this part. Files are written to `folder`."""
    show_files()
    energies = compute_pair_energies(convert(folder))
    print(f"second-order energy of these states: {float(energies.sum()):.3f} eV")
    draw(energies, picture)
