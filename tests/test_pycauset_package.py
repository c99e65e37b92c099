"""What the released package writes opens equal. It runs in a process of its own, as it is noisy."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from xr_tensorfmt import popcount

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pycauset") is None, reason="pycauset is not installed"
)

WRITE = """
import numpy as np
import pycauset as pc

rng = np.random.default_rng(0)
square = rng.random((9, 9))
MATRICES = {
    "causal": pc.causal_matrix(np.triu(rng.random((70, 70)) < 0.5, 1)),
    "bits": pc.matrix(rng.random((4, 67)) < 0.5),
    "float64": pc.matrix(rng.random((3, 5))),
    "float32": pc.matrix(rng.random((3, 5)).astype("f4")),
    "float16": pc.matrix(rng.random((3, 5)).astype("f2")),
    "int8": pc.matrix(rng.integers(-9, 9, (3, 5)).astype("i1")),
    "int16": pc.matrix(rng.integers(-9, 9, (3, 5)).astype("i2")),
    "int32": pc.matrix(rng.integers(-9, 9, (3, 5)).astype("i4")),
    "uint64": pc.matrix(rng.integers(0, 9, (3, 5)).astype("u8")),
    "complex64": pc.matrix((rng.random((2, 3)) - 1j).astype("c8")),
    "complex128": pc.matrix(rng.random((2, 3)) - 1j),
    "symmetric": pc.symmetric(square + square.T),
    "antisymmetric": pc.antisymmetric(square - square.T),
    "diagonal": pc.diagonal(np.arange(1.0, 8.0)),
    "identity": pc.identity([3, 5]),
    "vector": pc.vector(rng.random(6)),
    "bit vector": pc.vector(rng.random(131) < 0.5),
}
MATRICES["paths"] = pc.matmul(MATRICES["causal"], MATRICES["causal"])
MATRICES["inverted bits"] = ~MATRICES["bits"]
for name, matrix in MATRICES.items():
    pc.save(matrix, f"{name}.pycauset")
    np.save(f"{name}.npy", pc.to_numpy(matrix))
causet = pc.CausalSet(n=40, seed=3)
causet.save("causet.pycauset")
np.save("causet.npy", pc.to_numpy(causet.C))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("pycauset")
    run = subprocess.run(
        [sys.executable, "-c", WRITE], cwd=where, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return where


def test_saved_matrices_open_equal(folder: Path) -> None:
    files = sorted(folder.glob("[a-z]*.pycauset"))
    assert len(files) == 20
    for path in files:
        expected = np.load(path.with_suffix(".npy"))
        array = xr.open_dataset(path, engine="tensorfmt").tensor
        np.testing.assert_array_equal(array.values, expected, err_msg=path.name, strict=True)


def test_a_saved_causal_set_says_what_it_is_and_can_be_counted(folder: Path) -> None:
    array = xr.open_dataset(folder / "causet.pycauset", engine="tensorfmt").tensor
    assert (array.attrs["object_type"], array.attrs["n"], array.attrs["seed"]) == (
        "CausalSet",
        40,
        3,
    )
    expected = np.load(folder / "causet.npy").sum(1)
    np.testing.assert_array_equal(popcount(array, "col"), expected)
