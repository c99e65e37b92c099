"""Example files of every family and container, large enough for several chunks."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import numpy as np
from safetensors.numpy import save

from tests import magfiles as mf
from tests import pycausetfiles as pf
from tests import tensfiles as tf
from tests import vespafiles as vf

SHAPE = (96, 40, 64)
"""1.9 MiB of float64: more than the head that opening fetches."""


def numbers() -> np.ndarray:
    return np.random.default_rng(0).random(SHAPE)


def tens_pairs() -> bytes:
    rng = np.random.default_rng(0)
    total = int(np.prod(SHAPE))
    indices = np.sort(rng.choice(total, 100_000, replace=False))
    return tf.index_value(SHAPE, indices.tolist(), rng.random(indices.size))


def mag_puts() -> dict[str, mf.Put]:
    values = numbers().astype("f4")
    return {
        "w.a": mf.put(values),
        "w.b": mf.put(values[::-1].copy()),
        "n": mf.put(np.arange(5, dtype="i4")),
    }


def npy_fortran() -> bytes:
    file = BytesIO()
    np.save(file, np.asfortranarray(numbers().astype(">f4")))
    return file.getvalue()


def npz() -> bytes:
    file = BytesIO()
    np.savez(file, a=numbers(), b=np.asfortranarray(numbers()[0]), c=np.arange(5))
    return file.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "tens-0.9": lambda: tf.version_0_9(numbers()),
    "tens-1.0": lambda: tf.version_1_0(numbers()),
    "tens-big-endian": lambda: tf.version_0_9((numbers() * 1000).astype(">i4")),
    "tens-pairs": tens_pairs,
    "mag-archive": lambda: mf.archive(mag_puts(), {"epoch": 3}),
    "mag-snapshot-200": lambda: mf.snapshot(mag_puts(), version=200),
    "mag-snapshot-300": lambda: mf.document(mag_puts(), {"epoch": 3}),
    "mag-stream": lambda: mf.stream(mag_puts()),
    "pycauset-2-dense": lambda: pf.v2(
        "DENSE", "FLOAT64", SHAPE[0], SHAPE[1] * SHAPE[2], numbers().tobytes()
    ),
    "pycauset-dense": lambda: pf.r1(
        pf.metadata("DENSE_FLOAT", "FLOAT64", SHAPE[0], SHAPE[1] * SHAPE[2]), numbers().tobytes()
    ),
    "pycauset-bits": lambda: pf.r1(
        pf.metadata("DENSE_FLOAT", "BIT", 960, 2560),
        pf.dense_bits(numbers().reshape(96, 2560).repeat(10, axis=0) < 0.5, 8),
    ),
    "pycauset-triangle": lambda: pf.r1(
        pf.metadata("TRIANGULAR_FLOAT", "FLOAT64", 480, 480),
        pf.triangle(np.triu(numbers().ravel()[: 480 * 480].reshape(480, 480), 1)),
    ),
    "npy-fortran": npy_fortran,
    "npz-several": npz,
    "safetensors-model.safetensors": lambda: save(
        {"w.a": numbers(), "n": np.arange(5)}, {"format": "np"}
    ),
    "vespa-indexed.tbf": lambda: vf.tensor(
        "double", [], {"x": SHAPE[0], "y": SHAPE[1] * SHAPE[2]}, [], numbers().reshape(1, -1)
    ),
    "vespa-uniform.tbf": lambda: vf.tensor(
        "double",
        ["a", "b"],
        {"x": SHAPE[2]},
        [(f"{i:03}", f"{j:03}") for i in range(SHAPE[0]) for j in range(SHAPE[1])],
        numbers().reshape(-1, SHAPE[2]),
    ),
    "vespa-irregular.tbf": lambda: vf.tensor(
        "float",
        ["a"],
        {"x": 512},
        [(str(i),) for i in range(480)],
        numbers().reshape(480, 512),
    ),
}
"""By name of the container."""
