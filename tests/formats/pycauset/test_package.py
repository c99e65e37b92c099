"""Files of the released package open with equal values, and it loads written files.

The package runs in another process, because it prints messages.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr

from tests.processes import run_python
from xr_tensorfmt import to_file, validate
from xr_tensorfmt.pycauset import popcount

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
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("pycauset")
    run_python("-c", WRITE, cwd=where)
    return where


def test_saved_matrices_open_equal(directory: Path) -> None:
    files = sorted(directory.glob("[a-z]*.pycauset"))
    assert len(files) == 20
    for path in files:
        expected = np.load(path.with_suffix(".npy"))
        array = xr.open_dataset(path, engine="tensorfmt").tensor
        np.testing.assert_array_equal(array.values, expected, err_msg=path.name, strict=True)


def test_saved_causal_set_has_attributes_and_counts(directory: Path) -> None:
    array = xr.open_dataset(directory / "causet.pycauset", engine="tensorfmt").tensor
    assert tuple(map(array.encoding["tensorfmt"].get, ("object_type", "n", "seed"))) == (
        "CausalSet",
        40,
        3,
    )
    expected = np.load(directory / "causet.npy").sum(1)
    np.testing.assert_array_equal(popcount(array, "col"), expected)


WRITE_TRIANGLES = """
import pycauset as pc

for order in (1, 2, 3, 4, 5, 8, 15, 16, 17):
    for diagonal in (False, True):
        for code, kind in ("f8", pc.TriangularFloatMatrix), ("i4", pc.TriangularIntegerMatrix):
            matrix, number = kind(order, diagonal), 0
            for row in range(order):
                for column in range(row + (not diagonal), order):
                    number += 1
                    matrix[row, column] = number
            pc.save(matrix, f"{code} {order} {diagonal}.pycauset")
"""


@pytest.fixture(scope="module")
def triangles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("triangles")
    run_python("-c", WRITE_TRIANGLES, cwd=where)
    return where


def test_saved_triangles_with_and_without_diagonal_open_equal(triangles: Path) -> None:
    files = sorted(triangles.glob("[fi]*.pycauset"))
    assert len(files) == 36
    for path in files:
        code, order, diagonal = path.stem.split()
        expected = np.zeros((int(order), int(order)), code)
        stored = np.triu_indices(int(order), diagonal == "False")
        expected[stored] = np.arange(1, stored[0].size + 1)
        array = xr.open_dataset(path, engine="tensorfmt").tensor
        if code == "f8" and order != "1":
            assert array.tensorfmt.explain().needed_bytes == 8 * stored[0].size
        np.testing.assert_array_equal(array.values, expected, err_msg=path.name, strict=True)
        assert not validate(path)


def test_triangle_with_diagonal_is_written_in_part_and_whole(
    triangles: Path, tmp_path: Path
) -> None:
    path = tmp_path / "t.pycauset"
    shutil.copy(triangles / "f8 5 True.pycauset", path)
    before = xr.open_dataset(path, engine="tensorfmt").load().tensor
    part = before[2:4] * 10
    to_file(part, path, "pycauset", region={"row": slice(2, 4)})
    after = xr.open_dataset(path, engine="tensorfmt").tensor
    np.testing.assert_array_equal(after, np.concatenate([before[:2], part, before[4:]]))
    with pytest.raises(ValueError, match=r"at \(1, 0\) is 1.0, but an upper triangle has 0"):
        to_file(before * 0 + 1, path, "pycauset", region={})
    to_file(after, tmp_path / "whole.pycauset")
    full = xr.open_dataset(tmp_path / "whole.pycauset", engine="tensorfmt").tensor
    assert full.encoding["tensorfmt"]["matrix_type"] == "DENSE_FLOAT"
    np.testing.assert_array_equal(full, after)


LOAD = """
import sys
from pathlib import Path

import numpy as np
import pycauset as pc

for path in sorted(Path().glob("[!.]*.pycauset")):
    matrix = pc.load(path)
    kind = type(matrix).__name__
    if kind == "UnitVector":  # which to_numpy does not know
        values = np.array([matrix[i] for i in range(matrix.size())])
    else:
        values = pc.to_numpy(matrix.C if kind == "CausalSet" else matrix)
    np.save(path.with_suffix(".loaded.npy"), values)
    facts = (matrix.n, matrix._seed) if kind == "CausalSet" else ()
    path.with_suffix(".kind").write_text(" ".join(map(str, (kind, *facts))))
"""


def load_all(where: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Load all files in a directory with PyCauset."""
    run_python("-c", LOAD, cwd=where)
    return {
        path.stem: (path.with_suffix(".kind").read_text(), np.load(path.with_suffix(".loaded.npy")))
        for path in where.glob("[!.]*.pycauset")
    }


CLASSES = {
    "i1": "Int8", "i2": "Int16", "i4": "Integer", "i8": "Int64",
    "u1": "UInt8", "u2": "UInt16", "u4": "UInt32", "u8": "UInt64",
    "f2": "Float16", "f4": "Float32", "f8": "Float",
    "c8": "ComplexFloat32", "c16": "ComplexFloat64",
}  # fmt: skip


@pytest.mark.slow
def test_written_files_load_with_every_dtype_and_type(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    written: dict[str, tuple[np.ndarray, str]] = {}

    def add(name: str, values: np.ndarray, expected_type: str, **options: Any) -> None:
        for form, data in (("memory", values), ("dask", da.from_array(values, chunks=40))):
            array = xr.DataArray(data, name="x", attrs={"units": "é", "seed": 2**64 - 1})
            stem = f"{name} {form}"
            to_file(array, tmp_path / f"{stem}.pycauset", **options)
            written[stem] = (values, expected_type)

    for code, word in CLASSES.items():
        for shape, end in (((3, 5), "Matrix"), ((7,), "Vector")):
            values = (rng.random(shape) * 100).astype(code)
            add(f"{code} {end}", values * (1 - 2j) if "c" in code else values, word + end)
    add("vector of bits", rng.random(131) < 0.5, "BitVector")
    for order in (0, 1, 2, 3, 64, 70):
        square = rng.random((order, order))
        flags, upper = square < 0.5, np.triu(square, 1)
        for values, matrix_type, expected_type in (
            (flags, "DENSE_FLOAT", "DenseBitMatrix"),
            (np.triu(flags, 1), "CAUSAL", "TriangularBitMatrix"),
            (upper, "TRIANGULAR_FLOAT", "TriangularFloatMatrix"),
            ((upper * 100).astype("i4"), "TRIANGULAR_INTEGER", "TriangularIntegerMatrix"),
        ):
            add(f"{matrix_type} {order}", values, expected_type, matrix_type=matrix_type)
    add("wide bits", rng.random((4, 513)) < 0.5, "DenseBitMatrix")
    actual = load_all(tmp_path)
    assert actual.keys() == written.keys()
    for name, (expected, expected_type) in written.items():
        assert actual[name][0] == expected_type, name
        np.testing.assert_array_equal(actual[name][1], expected, err_msg=name, strict=True)


@pytest.mark.slow
def test_saved_files_can_be_rewritten_and_loaded(directory: Path, tmp_path: Path) -> None:
    files = sorted(directory.glob("[a-z]*.pycauset"))
    before = load_all(directory)
    for path in files:
        data = xr.open_dataset(path, engine="tensorfmt", chunks={})
        to_file(data, tmp_path / path.name, "pycauset")
        again = xr.open_dataset(tmp_path / path.name, engine="tensorfmt")
        xr.testing.assert_identical(again.load(), data.load())
    after = load_all(tmp_path)
    assert after["causet"][0] == "CausalSet 40 3"
    dense = "SymmetricMatrix", "AntiSymmetricMatrix", "DiagonalMatrix", "IdentityMatrix"
    for path in files:
        old_type = before[path.stem][0]
        assert after[path.stem][0] == ("FloatMatrix" if old_type in dense else old_type)
        np.testing.assert_array_equal(after[path.stem][1], before[path.stem][1], strict=True)


KEEP = """
import pycauset as pc

matrix = pc.load("t.pycauset")
matrix.invert(save=True)
"""


def test_package_keeps_embedded_metadata(tmp_path: Path) -> None:
    data = xr.DataArray(np.eye(3) * 2 + 1, dims=("a", "b"), name="x", attrs={"units": "m"})
    to_file(data, tmp_path / "t.pycauset")
    run_python("-c", KEEP, cwd=tmp_path)
    actual = xr.open_dataarray(tmp_path / "t.pycauset").load()
    xr.testing.assert_identical(actual.to_dataset(), data.to_dataset())
    assert actual.encoding["tensorfmt"]["generation"] == 2


TRACE = """
import sys
import numpy as np
import pycauset as pc

if sys.argv[1] == "save":
    matrix = pc.matrix(np.diag([1.0, 2.0, 39.0]))
    matrix.trace()
    pc.save(matrix, "t.pycauset")
else:
    np.save("trace.npy", pc.load("t.pycauset").trace())
"""


def test_cached_results_never_become_stale(tmp_path: Path) -> None:
    run_python("-c", TRACE, "save", cwd=tmp_path)
    path = tmp_path / "t.pycauset"
    data = xr.open_dataset(path, engine="tensorfmt").load().tensor
    data[0, 0] = 359
    with pytest.raises(ValueError, match="has the cached results 'trace', which region="):
        to_file(data[:1], path, "pycauset", region={"row": slice(0, 1)})
    to_file(data, path, "pycauset")
    run_python("-c", TRACE, "load", cwd=tmp_path)
    assert np.load(tmp_path / "trace.npy") == 400


SAVED = """
import numpy as np
import pycauset as pc

values = np.load("values.npy")
pc.save(pc.vector(values) if values.ndim == 1 else pc.matrix(values), "by_the_package.pycauset")
"""


@pytest.mark.parametrize(
    "values",
    [np.arange(9.0).reshape(3, 3), np.arange(4, dtype="i4"), np.ones((2, 3), bool)],
    ids=["matrix", "vector", "bits"],
)
def test_files_have_same_metadata_as_package(values: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "values.npy", values)
    run_python("-c", SAVED, cwd=tmp_path)
    dims = ("index",) if values.ndim == 1 else ("row", "col")
    to_file(xr.DataArray(values, dims=dims), tmp_path / "by_us.pycauset")
    theirs, ours = (
        xr.open_dataset(tmp_path / f"by_{name}.pycauset", engine="tensorfmt").load()
        for name in ("the_package", "us")
    )
    xr.testing.assert_identical(ours, theirs)
    changing = {"payload_uuid", "slot", "generation", "offset"}
    infos = (ds.tensor.encoding["tensorfmt"] for ds in (theirs, ours))
    their_info, our_info = (
        {key: value for key, value in info.items() if key not in changing} for info in infos
    )
    assert our_info == their_info
