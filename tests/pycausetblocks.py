"""Build BLOCK matrices of PyCauset with the files of their blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests import pycausetfiles as pf


def make_metadata(
    matrix_type: str, data_type: str, rows: int, cols: int, uuid: str
) -> dict[str, Any]:
    """Return the metadata of a container with a UUID."""
    return pf.make_metadata(matrix_type, data_type, rows, cols) | {"payload_uuid": uuid}


def make_manifest(
    rows: list[int], cols: list[int], children: list[list[str]], uuid: str
) -> dict[str, Any]:
    """Return the metadata of a BLOCK matrix of children, by their UUIDs."""
    grid = [
        [{"path": f"{name}.pycauset", "payload_uuid": name} for name in row] for row in children
    ]
    partitions = {"version": 1, "row_partitions": rows, "col_partitions": cols, "children": grid}
    return make_metadata("BLOCK", "MIXED", rows[-1], cols[-1], uuid) | {
        "block_manifest": partitions
    }


def block_matrix(directory: Path) -> tuple[Path, np.ndarray]:
    """Write a BLOCK matrix of a dense, a causal and a nested BLOCK matrix."""
    rng = np.random.default_rng(7)
    dense, causal = rng.random((2, 3)), np.triu(rng.random((3, 3)) < 0.5, 1)
    children = directory / "m.pycauset.blocks"
    inner = children / "c.pycauset.blocks"
    inner.mkdir(parents=True)
    (children / "a.pycauset").write_bytes(
        pf.r1(make_metadata("DENSE_FLOAT", "FLOAT64", 2, 3, "a"), dense.tobytes())
    )
    (children / "b.pycauset").write_bytes(
        pf.r1(make_metadata("CAUSAL", "BIT", 3, 3, "b"), pf.pack_triangle(causal))
    )
    integers = np.arange(5, dtype="i2").reshape(5, 1)
    for name, part in (("x", integers[:1]), ("y", integers[1:])):
        content = pf.r1(make_metadata("INTEGER", "INT16", *part.shape, name), part.tobytes())
        (inner / f"{name}.pycauset").write_bytes(content)
    (children / "c.pycauset").write_bytes(
        pf.r1(make_manifest([0, 1, 5], [0, 1], [["x"], ["y"]], "c"))
    )
    values = np.hstack([np.vstack([dense, causal]), integers])
    # The nested block spans both block rows of the outer matrix.
    rows = np.vstack([dense, causal.astype("f8")])
    (children / "a.pycauset").write_bytes(
        pf.r1(make_metadata("DENSE_FLOAT", "FLOAT64", 5, 3, "a"), rows.tobytes())
    )
    path = directory / "m.pycauset"
    path.write_bytes(pf.r1(make_manifest([0, 5], [0, 3, 4], [["a", "c"]], "m")))
    return path, values


def write_two_blocks(directory: Path, *blocks: tuple[str, str, np.ndarray]) -> Path:
    """Write a BLOCK matrix of one row of two blocks."""
    children = directory / "two.pycauset.blocks"
    children.mkdir(exist_ok=True)
    for name, (matrix_type, data_type, values) in zip("ab", blocks, strict=True):
        content = pf.r1(
            make_metadata(matrix_type, data_type, *values.shape, name), values.tobytes()
        )
        (children / f"{name}.pycauset").write_bytes(content)
    path = directory / "two.pycauset"
    path.write_bytes(pf.r1(make_manifest([0, 1], [0, 1, 2], [["a", "b"]], "m")))
    return path
