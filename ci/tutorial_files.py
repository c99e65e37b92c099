"""Write the files of `xr_tensorfmt.tutorial`, which are in the repository."""

from __future__ import annotations

from math import erf
from pathlib import Path

import numpy as np
import xarray as xr

import xr_tensorfmt
from xr_tensorfmt import cc4s

ROOT = Path(__file__).resolve().parents[1]
FILES = ROOT / "xr_tensorfmt" / "tutorial_files"

CITIES = {
    "Accra": (5.6, -0.2),
    "Auckland": (-36.8, 174.8),
    "Bangkok": (13.8, 100.5),
    "Berlin": (52.5, 13.4),
    "Bogotá": (4.7, -74.1),
    "Boston": (42.4, -71.1),
    "Buenos Aires": (-34.6, -58.4),
    "Cairo": (30.0, 31.2),
    "Cape Town": (-33.9, 18.4),
    "Delhi": (28.6, 77.2),
    "Helsinki": (60.2, 24.9),
    "Istanbul": (41.0, 29.0),
    "Jakarta": (-6.2, 106.8),
    "Lagos": (6.5, 3.4),
    "Lima": (-12.0, -77.0),
    "Lisbon": (38.7, -9.1),
    "London": (51.5, -0.1),
    "Mexico City": (19.4, -99.1),
    "Nairobi": (-1.3, 36.8),
    "New York": (40.7, -74.0),
    "Paris": (48.9, 2.4),
    "San Francisco": (37.8, -122.4),
    "Seoul": (37.6, 127.0),
    "Sydney": (-33.9, 151.2),
    "Tokyo": (35.7, 139.7),
    "Vienna": (48.2, 16.4),
}
"""Latitude and longitude in degrees, rounded."""


def boys(x: np.ndarray) -> np.ndarray:
    """Return the Boys function of order 0."""
    root = np.sqrt(np.maximum(x, 1e-14))
    return np.sqrt(np.pi) / 2 * np.vectorize(erf)(root) / root


def compute_molecule() -> tuple[np.ndarray, np.ndarray]:
    """Return the energies of the states of lithium hydride, and its Coulomb integrals (pr|qs).

    Hartree-Fock in a basis of ten Gaussian functions, in atomic units.
    """
    exponents = np.array([120.0, 25.0, 6.0, 1.6, 0.4, 0.08, 6.0, 1.2, 0.3, 0.08])
    positions = np.array([0.0] * 6 + [3.015] * 4)  # of Li and H, in bohr
    # Products of two Gaussians are Gaussians, with these exponents, centers and factors.
    p = np.add.outer(exponents, exponents)
    reduced = np.multiply.outer(exponents, exponents) / p
    squared = np.subtract.outer(positions, positions) ** 2
    center = np.add.outer(exponents * positions, exponents * positions) / p
    norms = (2 * exponents / np.pi) ** 0.75
    factor = np.multiply.outer(norms, norms) * np.exp(-reduced * squared)
    overlap = factor * (np.pi / p) ** 1.5
    core = reduced * (3 - 2 * reduced * squared) * overlap  # kinetic energy
    for charge, position in [(3, 0.0), (1, 3.015)]:
        core -= charge * factor * 2 * np.pi / p * boys(p * (center - position) ** 2)
    total = np.add.outer(p, p)
    repulsion = 2 * np.pi**2.5 / (np.multiply.outer(p, p) * np.sqrt(total))
    repulsion *= boys(np.multiply.outer(p, p) / total * np.subtract.outer(center, center) ** 2)
    repulsion *= np.multiply.outer(factor, factor)
    values, vectors = np.linalg.eigh(overlap)
    orthogonal = vectors / np.sqrt(values)
    density = np.zeros_like(overlap)
    for _ in range(60):
        coulomb = np.einsum("abcd,cd->ab", repulsion, density)
        exchange = np.einsum("acbd,cd->ab", repulsion, density)
        energies, rotated = np.linalg.eigh(
            orthogonal.T @ (core + 2 * coulomb - exchange) @ orthogonal
        )
        orbitals = orthogonal @ rotated
        density = orbitals[:, :2] @ orbitals[:, :2].T  # two orbitals are occupied
    integrals = np.einsum("abcd,ap,br,cq,ds->prqs", repulsion, *[orbitals] * 4, optimize=True)
    return energies, integrals


def write_molecule(directory: Path) -> None:
    """Write the calculation of lithium hydride for cc4s: a Coulomb vertex and energies."""
    energies, integrals = compute_molecule()
    strengths, pairs = np.linalg.eigh(integrals.reshape(100, 100))
    important = strengths > 1e-9
    vertex = (pairs[:, important] * np.sqrt(strengths[important])).T.reshape(-1, 10, 10)
    molecule = xr.Dataset(
        {
            "CoulombVertex": (("AuxiliaryField", "State", "State_2"), vertex, {"halfGrid": 0}),
            "EigenEnergies": ("State", energies, {"fermiEnergy": 0.0}),
        }
    )
    for tensor in molecule.values():
        tensor.attrs["unit"] = 1.0
    cc4s.to_calculation(molecule, directory)


def write_integrals(path: Path) -> None:
    """Write integrals of lithium hydride, two particles and two holes, as sisi4s names them.

    This package writes them, because no program with a suitable licence writes TENS.
    """
    _, integrals = compute_molecule()  # (pr|qs) is <pq|rs>
    chosen = integrals.transpose(0, 2, 1, 3)[2:, 2:, :2, :2]
    xr_tensorfmt.to_file(xr.DataArray(chosen, dims=("a", "b", "i", "j")), path, drop=["dims"])


def write_snapshot(path: Path) -> None:
    """Write the weights of the network with magnetron 0.2.2."""
    from magnetron import dtype, snapshot  # noqa: PLC0415

    with snapshot.SnapshotWriter(path, {"task": "points inside a circle"}) as writer:
        weights = xr.open_dataset(FILES / "circle.safetensors", engine="tensorfmt").load()
        for name, weight in weights.items():
            writer.declare(name, weight.shape, dtype.float32)
        for name, weight in weights.items():
            writer.write(name, weight.values.tobytes())


def write_causal_set(path: Path) -> None:
    """Write the order of 64 random events in a causal diamond, sorted by time."""
    random = np.random.default_rng(3)
    light = np.sort(random.random((64, 2)))[np.argsort(random.random(64))]
    light = light[np.argsort(light.sum(axis=1))]
    order = (light[:, np.newaxis] < light).all(axis=2)
    time = light.sum(axis=1) / np.sqrt(2)
    place = (light[:, 1] - light[:, 0]) / np.sqrt(2)
    causal = xr.DataArray(
        order,
        dims=("event", "later"),
        coords={"time": ("event", time), "place": ("event", place)},
        name="precedes",
    )
    xr_tensorfmt.to_file(causal, path, "pycauset")


def write_sharded_model(directory: Path) -> None:
    """Write random weights of bfloat16, with the names of a language model, in two files."""
    shapes = {"self_attn.q_proj": (8, 8), "mlp.up_proj": (32, 8), "mlp.down_proj": (8, 32)}
    sizes = {"model.embed_tokens.weight": (100, 8)}
    for layer in range(4):
        for name, shape in shapes.items():
            sizes[f"model.layers.{layer}.{name}.weight"] = shape
    random = np.random.default_rng(0)
    weights = {
        key: ((f"{key}_dim_0", f"{key}_dim_1"), random.normal(0, 0.1, shape))
        for key, shape in sizes.items()
    }
    directory.mkdir(exist_ok=True)
    xr_tensorfmt.to_file(
        xr.Dataset(weights),
        directory / "model.safetensors.index.json",
        encoding={"dtype": "bfloat16"},
        max_shard_bytes=3500,
    )


def write_network(path: Path) -> None:
    """Train a network on points inside and outside of a circle, and write its weights."""
    random = np.random.default_rng(0)
    points = random.uniform(-1, 1, (400, 2))
    labels = (np.hypot(*points.T) < 0.7).astype(float)
    hidden, out = random.normal(0, 1, (2, 12)), random.normal(0, 1, 12)
    shift, offset = np.zeros(12), 0.0
    for _ in range(4000):
        activity = np.tanh(points @ hidden + shift)
        error = (1 / (1 + np.exp(-(activity @ out + offset))) - labels) / len(labels)
        back = np.outer(error, out) * (1 - activity**2)
        out, offset = out - 2 * activity.T @ error, offset - 2 * error.sum()
        hidden, shift = hidden - 2 * points.T @ back, shift - 2 * back.sum(axis=0)
    weights = {
        "hidden.weight": (("hidden.out", "hidden.in"), hidden.T),
        "hidden.bias": (("hidden.out",), shift),
        "out.weight": (("hidden.out",), out),
        "out.bias": ((), offset),
    }
    ds = xr.Dataset(weights, attrs={"format": "pt", "task": "points inside a circle"})
    xr_tensorfmt.to_file(ds.astype("float32"), path, "safetensors")


def write_cities(path: Path) -> None:
    """Write the positions of cities on the unit sphere."""
    latitude, longitude = np.radians(list(CITIES.values())).T
    vectors = np.stack(
        [
            np.cos(latitude) * np.cos(longitude),
            np.cos(latitude) * np.sin(longitude),
            np.sin(latitude),
        ],
        axis=1,
    )
    tensor = xr.DataArray(
        vectors.astype("float32"),
        dims=("city", "x"),
        coords={"city": np.array(list(CITIES), dtype=object)},
        name="tensor",
    )
    xr_tensorfmt.to_file(tensor, path, "vespa")


if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    write_molecule(FILES / "LiH")
    write_integrals(FILES / "PPHHCoulombIntegrals.bin")
    write_causal_set(FILES / "causal_set.pycauset")
    write_network(FILES / "circle.safetensors")
    write_snapshot(FILES / "snapshot.mag")
    write_sharded_model(FILES / "model")
    write_cities(FILES / "cities.tbf")
