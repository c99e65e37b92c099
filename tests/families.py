"""Example files of every family and container, large enough for several chunks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from io import BytesIO

import numpy as np
from safetensors.numpy import save

from tests import magfiles as mf
from tests import pycausetfiles as pf
from tests import tensfiles as tf
from tests import vespafiles as vf

SHAPE = (96, 40, 64)
"""1.9 MiB of float64: more than the head that opening fetches."""


@cache
def make_values() -> np.ndarray:
    values = np.random.default_rng(0).random(SHAPE)
    values.flags.writeable = False
    return values


def make_tens_pairs() -> bytes:
    rng = np.random.default_rng(0)
    total = int(np.prod(SHAPE))
    indices = np.sort(rng.choice(total, 100_000, replace=False))
    return tf.make_index_value(SHAPE, indices.tolist(), rng.random(indices.size))


def make_mag_puts() -> dict[str, mf.Put]:
    values = make_values().astype("f4")
    return {
        "w.a": mf.put(values),
        "w.b": mf.put(values[::-1].copy()),
        "n": mf.put(np.arange(5, dtype="i4")),
    }


def make_npy_fortran() -> bytes:
    file = BytesIO()
    np.save(file, np.asfortranarray(make_values().astype(">f4")))
    return file.getvalue()


def make_npz() -> bytes:
    file = BytesIO()
    np.savez(file, a=make_values(), b=np.asfortranarray(make_values()[0]), c=np.arange(5))
    return file.getvalue()


_MAKERS: dict[str, Callable[[], bytes]] = {
    "tens-0.9": lambda: tf.make_0_9(make_values()),
    "tens-1.0": lambda: tf.make_1_0(make_values()),
    "tens-big-endian": lambda: tf.make_0_9((make_values() * 1000).astype(">i4")),
    "tens-pairs": make_tens_pairs,
    "mag-archive": lambda: mf.make_archive(make_mag_puts(), {"epoch": 3}),
    "mag-snapshot-200": lambda: mf.make_snapshot(make_mag_puts(), version=200),
    "mag-snapshot-300": lambda: mf.make_document(make_mag_puts(), {"epoch": 3}),
    "mag-stream": lambda: mf.make_stream(make_mag_puts()),
    "pycauset-2-dense": lambda: pf.v2(
        "DENSE", "FLOAT64", SHAPE[0], SHAPE[1] * SHAPE[2], make_values().tobytes()
    ),
    "pycauset-dense": lambda: pf.r1(
        pf.make_metadata("DENSE_FLOAT", "FLOAT64", SHAPE[0], SHAPE[1] * SHAPE[2]),
        make_values().tobytes(),
    ),
    "pycauset-bits": lambda: pf.r1(
        pf.make_metadata("DENSE_FLOAT", "BIT", 960, 2560),
        pf.pack_bits(make_values().reshape(96, 2560).repeat(10, axis=0) < 0.5, 8),
    ),
    "pycauset-triangle": lambda: pf.r1(
        pf.make_metadata("TRIANGULAR_FLOAT", "FLOAT64", 480, 480),
        pf.pack_triangle(np.triu(make_values().ravel()[: 480 * 480].reshape(480, 480), 1)),
    ),
    "npy-fortran": make_npy_fortran,
    "npz-several": make_npz,
    "safetensors-model.safetensors": lambda: save(
        {"w.a": make_values(), "n": np.arange(5)}, {"format": "np"}
    ),
    "vespa-indexed.tbf": lambda: vf.make_tensor(
        "double", [], {"x": SHAPE[0], "y": SHAPE[1] * SHAPE[2]}, [], make_values().reshape(1, -1)
    ),
    "vespa-uniform.tbf": lambda: vf.make_tensor(
        "double",
        ["a", "b"],
        {"x": SHAPE[2]},
        [(f"{i:03}", f"{j:03}") for i in range(SHAPE[0]) for j in range(SHAPE[1])],
        make_values().reshape(-1, SHAPE[2]),
    ),
    "vespa-irregular.tbf": lambda: vf.make_tensor(
        "float",
        ["a"],
        {"x": 512},
        [(str(i),) for i in range(480)],
        make_values().reshape(480, 512),
    ),
}

FILES = {name: cache(make) for name, make in _MAKERS.items()}
"""By name of the container."""
