"""TENS: open files, compute integrals from a Coulomb vertex of 256 MiB, and draw them.

The electrons are in a one-dimensional box. Their interaction ``A exp(-kappa |x|)`` imitates the
Coulomb interaction. The vertex has a closed form, so it is written in seconds.
"""

import struct
import time
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from demo_output import progress, say

BOX, STATES, FIELDS, OCCUPIED = 30.0, 128, 1024, 32
STRENGTH, KAPPA = 1.071295, 1 / 2.385345
HARTREE = 27.211386


def build_header(
    shape: tuple[int, ...], *, numbers: int = 1, version: int = 0x9000, flags: int = 0
) -> bytes:
    """Return the header of a TENS file of double precision numbers."""
    fixed = struct.pack("<4sI4s5I", b"TENS", version, b"IEEE", 8, numbers, len(shape), flags, 0)
    names = range(ord("a"), ord("a") + len(shape))
    return fixed + b"".join(map(struct.pack, ["<IBxxx"] * len(shape), shape, names))


def write_small_files(folder: Path) -> tuple[Path, Path]:
    """Write a dense complex tensor as cc4s does, and a sparse tensor."""
    dense, pairs = folder / "dense.bin", folder / "pairs.tens"
    i = np.arange(24)
    values = (i + 1) * 0.5 - 1j * np.cos(i) * (i + 1)
    dense.write_bytes(build_header((4, 2, 3), numbers=2) + values.astype("<c16").tobytes())
    stored = struct.pack("<QQdQdQd", 3, 5, 3.0, 0, 1.0, 11, 7.5)
    pairs.write_bytes(build_header((3, 4), version=0x10000, flags=1) + stored)
    return dense, pairs


def compute_momenta() -> np.ndarray:
    """Return the positive momenta of the auxiliary fields. The densities are real."""
    return (np.arange(FIELDS) + 0.5) * (2.1 * STATES * np.pi / BOX / FIELDS)


def write_vertex(path: Path) -> None:
    """Write the Coulomb vertex, one slab for each r. F varies fastest."""
    k = compute_momenta()[:, np.newaxis]
    waves = np.arange(2 * STATES + 1) * np.pi / BOX

    def plane_wave(wave: np.ndarray) -> np.ndarray:
        return BOX * np.exp(0.5j * wave * BOX) * np.sinc(wave * BOX / (2 * np.pi))

    interaction = 2 * STRENGTH * KAPPA / (KAPPA**2 + k**2)
    # Fourier transforms of cos(m pi x / BOX); a product of two states is a difference of two.
    cosines = (plane_wave(waves - k) + plane_wave(-waves - k)) / 2
    cosines *= np.sqrt(interaction * (k[1] - k[0]) / np.pi) / BOX
    q = np.arange(STATES)
    with path.open("wb") as file:
        file.write(build_header((FIELDS, STATES, STATES), numbers=2))
        for r in range(STATES):
            slab = cosines[:, abs(q - r)] - cosines[:, q + r + 2]
            file.write(slab.astype("<c16").tobytes(order="F"))


def draw(vertex: xr.DataArray, exchange: xr.DataArray, picture: Path) -> None:
    """Draw the exchange integrals, and the convergence of some of them with F."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11.5, 4.6), layout="constrained", width_ratios=(1, 1.15)
    )
    mesh = left.pcolormesh(
        exchange.r + 1,
        exchange.q + 1,
        exchange.transpose("q", "r") * HARTREE,
        norm=mpl.colors.LogNorm(vmin=1e-3),
        cmap="magma",
        rasterized=True,
    )
    for line in (left.axhline, left.axvline):
        line(OCCUPIED + 0.5, color="white", lw=0.8, ls="--")
    left.text(OCCUPIED + 3, 5, "highest occupied", color="white", fontsize=8, va="center")
    left.set(xlabel="state $r$", ylabel="state $q$", aspect="equal")
    left.set_title(r"exchange integrals $K_{qr}=\Sigma_F\,|\Gamma_F^{qr}|^2$", fontsize=11)
    figure.colorbar(mesh, ax=left, label="$K_{qr}$ in eV", extend="min")

    homo = OCCUPIED - 1
    steps = [0, 4, 16, 64]
    colours = mpl.colormaps["viridis"](np.linspace(0.05, 0.85, len(steps)))
    columns = (abs(vertex.isel(q=homo, r=[homo + step for step in steps])) ** 2).compute()
    beyond = columns[::-1].cumsum("F")[::-1] / columns.sum("F")
    for step, column, colour in zip(steps, beyond.transpose("r", "F"), colours, strict=True):
        label = "$r=q$" if step == 0 else f"$r=q+{step}$"
        right.plot(columns.k, column, color=colour, lw=1.6, label=label)
    right.set(yscale="log", xlim=(0, float(columns.k[-1])), ylim=(1e-8, 2))
    right.set(xlabel="largest momentum kept in $F$, in 1/bohr", ylabel="missing part of $K_{qr}$")
    right.set_title(f"truncation error in $F$, $q={OCCUPIED}$", fontsize=11)
    right.grid(color="0.92")
    right.legend(frameon=False, loc="upper right")
    right.spines[["top", "right"]].set_visible(False)

    figure.savefig(picture, dpi=150)


def show_files(folder: Path) -> None:
    """Open a dense file, a sparse file, and a truncated file."""
    dense, pairs = write_small_files(folder)

    say(f'xr.open_dataset("{dense.name}", engine="tensorfmt"): a file as cc4s writes it')
    print(xr.open_dataset(dense, engine="tensorfmt"))

    say(f'xr.open_dataset("{pairs.name}", ...).tensor.values: a sparse file')
    print(xr.open_dataset(pairs, engine="tensorfmt").tensor.values)

    say("the first file without its last 8 bytes: the error says what is wrong, and where")
    damaged = folder / "damaged.bin"
    damaged.write_bytes(dense.read_bytes()[:-8])
    try:
        xr.open_dataset(damaged, engine="tensorfmt")
    except ValueError as error:
        print(f"{type(error).__name__}: {error}")


def show_vertex(path: Path) -> tuple[xr.DataArray, xr.DataArray]:
    """Compute integrals from a large vertex. Return the vertex and the exchange integrals."""
    say('a Coulomb vertex of 256 MiB: name="vertex", dims=("F", "q", "r"), chunks={}')
    start = time.perf_counter()
    ds = xr.open_dataset(path, engine="tensorfmt", name="vertex", dims=("F", "q", "r"), chunks={})
    print(f"{ds}\nopened in {1e3 * (time.perf_counter() - start):.0f} ms")
    vertex = ds.vertex.assign_coords(k=("F", compute_momenta()))

    say("exchange integrals K of all pairs (q, r), summed over F by dask")
    with progress("exchange"):
        exchange = (abs(vertex) ** 2).sum("F").compute()

    say("direct integrals J of the states around the gap, which read 2 of the 256 MiB")
    lazy = xr.open_dataset(path, engine="tensorfmt", dims=("F", "q", "r"))
    states = xr.DataArray(np.arange(STATES), dims="state")
    diagonal = lazy.tensor.isel(q=states, r=states).load()
    direct = abs(xr.dot(diagonal.conj(), diagonal.rename(state="other"), dim="F"))
    homo, lumo = OCCUPIED - 1, OCCUPIED
    for title, value in {
        "J(h, h)": direct[homo, homo],
        "J(h, l)": direct[homo, lumo],
        "K(h, l)": exchange[homo, lumo],
    }.items():
        print(f"{title} = {float(value) * HARTREE:6.3f} eV")
    return vertex, exchange


def main(folder: Path, picture: Path) -> None:
    """Run this part. Files are written to `folder`."""
    show_files(folder)
    path = folder / "CoulombVertex.bin"
    write_vertex(path)
    draw(*show_vertex(path), picture)
