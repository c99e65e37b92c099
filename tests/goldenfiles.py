"""Files of every format and generation as our own code makes them; `tests.golden` keeps them.

Most are made byte by byte by the generators of the tests, some by the writers of the package, and
a few by numpy and safetensors.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import xarray as xr
from safetensors.numpy import save

from tests import cc4sfiles as cf
from tests import magfiles as mf
from tests import pycausetfiles as pf
from tests import tensfiles as tf
from tests import vespafiles as vf
from tests.pycausetblocks import block_matrix
from xr_tensorfmt import to_file

Make = Callable[[Path], Path]
"""Makes a file, with those beside it, in a directory, and gives its path."""

REALS = np.array([[1.5, -0.0, np.inf, 2.0**-1074], [np.nan, -2.25, 1e30, 7.0], [0.1, 3, 4, 5]])
COMPLEX = REALS[:, :3].astype("c8").astype("c16") + 1j * np.arange(9).reshape(3, 3)
INTEGERS = np.arange(-6, 6, dtype="i4").reshape(2, 3, 2)


def content(name: str, make: Callable[[], bytes]) -> Make:
    """Return a writer of a file with some content."""

    def write(directory: Path) -> Path:
        (directory / name).write_bytes(make())
        return directory / name

    return write


def make_written(name: str, make: Callable[[], xr.Dataset], **options: Any) -> Make:
    """Return a writer of a Dataset."""

    def call(directory: Path) -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            to_file(make(), directory / name, **options)
        return directory / name

    return call


def make_labelled() -> xr.Dataset:
    """Return a variable with labels and attributes."""
    attrs = {"unit": "eV", "nested": {"a": [1, 2.5, None]}, "number": np.float32(0.1)}
    coords = {"x": [1.0, 2.5, 4.0], "y": list("abcd"), "when": ("x", np.arange(3) * 10**9)}
    return xr.Dataset({"tensor": (("x", "y"), REALS, attrs)}, coords, {"title": "\N{SNOWMAN}"})


def make_several() -> xr.Dataset:
    """Return variables that share a dimension."""
    narrow = xr.Variable("k", np.arange(4, dtype="f4"), {}, {"dtype": "bfloat16"})
    data = {"w.a": (("k", "m"), INTEGERS.reshape(4, 3)), "w.b": narrow, "n": ((), np.int8(3))}
    return xr.Dataset(data, {"k": [4, 3, 2, 1]}, {"epoch": 3, "loss": 0.25})


TENS: Mapping[str, Make] = {
    "0.9-float64": content("a.bin", lambda: tf.make_0_9(REALS)),
    "0.9-complex128": content("a.bin", lambda: tf.make_0_9(COMPLEX)),
    "0.9-complex-of-16-bytes": content("a.bin", lambda: tf.make_0_9(COMPLEX, size=16)),
    "0.9-scalar": content("a.bin", lambda: tf.make_0_9(np.array(2.5))),
    "0.9-big-endian": content("a.tens", lambda: tf.make_0_9(INTEGERS.astype(">i4"))),
    "0.9-garbage": content("a.bin", lambda: tf.make_0_9(REALS, tails=b"\x7f\x55\x56")),
    "0.9-lengths-of-1": content("a.bin", lambda: tf.make_0_9(INTEGERS[:1, :, :1].astype("f4"))),
    "0.9-components": content(
        "a.tens", lambda: tf.pack_header((3,), numbers=4) + tf.pack_values(REALS.T.copy(order="F"))
    ),
    "1.0-float32": content("a.tens", lambda: tf.make_1_0(REALS.astype("f4"))),
    "1.0-uint16": content("a.tens", lambda: tf.make_1_0(np.arange(6, dtype=">u2"))),
    "1.0-symmetry": content(
        "a.tens",
        lambda: tf.make_1_0(
            np.eye(3), tf.pack_symmetry("x", "ba"), tf.pack_chunk(b"MYCHUNK1", b"a")
        ),
    ),
    "1.0-pairs": content("a.tens", lambda: tf.make_index_value((3, 4), [0, 5, 7, 11], REALS[1])),
    "1.0-pairs-packed": content(
        "a.tens",
        lambda: tf.make_index_value(
            (3, 3), [3, 6, 7], np.array([1.0, 2, 3]), tf.pack_symmetry("-x", "ba", packed=True)
        ),
    ),
    "1.0-pairs-complex": content(
        "a.tens", lambda: tf.make_index_value((5,), [1, 4], np.array([1j, 2.5 - 1j]))
    ),
    "1.0-embedded": make_written("a.tens", make_labelled),
}  # fmt: skip


def make_puts() -> dict[str, mf.Put]:
    return {
        "w.a": mf.put(REALS.astype("f4")),
        "flags": mf.put([True, False, True]),
        "n": mf.put(np.arange(5, dtype="i4")),
    }


def make_narrow_puts() -> dict[str, mf.Put]:
    def narrow(values: Any, dtype: Any) -> mf.Put:
        array = np.asarray(values, "f4").astype(dtype)
        return mf.Put(array.dtype.name, array.shape, array.tobytes())

    return {
        "b": narrow([1.5, -2, np.inf], ml_dtypes.bfloat16),
        "e": narrow([[0.5], [448]], ml_dtypes.float8_e4m3fn),
        "s": mf.put(np.uint64(2**63)),
    }


METADATA = {"epoch": 3, "loss": 0.25}
NESTED = {"epoch": 3, "config": {"rope": {"theta": 1e6}, "tied": True}, "classes": ["a", None]}

MAG: Mapping[str, Make] = {
    "archive-1": content("a.mag", lambda: mf.make_archive(make_puts(), METADATA)),
    "archive-1-relative": content(
        "a.mag",
        lambda: mf.make_archive(make_puts(), METADATA, offsets="relative", lengths="padded"),
    ),
    "archive-1-padded": content("a.mag", lambda: mf.make_archive(make_puts(), lengths="padded")),
    "archive-1-published": content(
        "a.mag", lambda: mf.make_archive(make_puts(), METADATA, records="literal", lengths="bytes")
    ),
    "archive-100-of-4-dtypes": content("a.mag", lambda: mf.make_archive(make_puts(), version=100)),
    "archive-100-of-11-dtypes": content(
        "a.mag", lambda: mf.make_archive(make_puts(), METADATA, version=100, ids=mf.ELEVEN)
    ),
    "stream": content("a.mag", lambda: mf.make_stream(make_puts())),
    "snapshot-100": content("a.mag", lambda: mf.make_snapshot(make_puts(), order=(2, 0, 1))),
    "snapshot-200": content(
        "a.mag", lambda: mf.make_snapshot(make_puts() | make_narrow_puts(), version=200)
    ),
    "snapshot-300": content("a.mag", lambda: mf.make_document(make_narrow_puts(), NESTED)),
    "snapshot-300-big-endian": content(
        "a.mag",
        lambda: mf.make_document(
            {"w": mf.Put("float32", (2,), b"\x3f\x80\0\0\x40\0\0\0")},
            big_endian=True,
        ),
    ),
    "snapshot-300-embedded": make_written("a.mag", make_several),
}

UPPER = np.triu(np.arange(1.0, 37).reshape(6, 6), 1)
BITS = np.random.default_rng(0).random((5, 70)) < 0.5

CAUSAL_SET = {
    "object_type": "CausalSet",
    "n": 9,
    "spacetime": {"type": "MinkowskiDiamond", "args": {"dimension": 2}},
    "properties": {"is_upper": True, "trace": 0.0},
    "cached": {
        "sum": {
            "value": [3.0, 0.0],
            "signature": {"payload_uuid": "u" * 32, "view_signature": "t=0;c=0;sr=1;si=0"},
        }
    },
}


def make_r1_updated() -> bytes:
    first = pf.r1(pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 4), REALS.tobytes())
    return pf.make_updated(first, pf.make_metadata("DENSE_FLOAT", "FLOAT64", 3, 4, scalar=2.0))


PYCAUSET: Mapping[str, Make] = {
    "v1-causal": content(
        "a.pycauset",
        lambda: pf.v2("CAUSAL", "BIT", 9, 9, pf.pack_triangle(np.eye(9, k=2) > 0), version=1),
    ),
    "v1-integers": content(
        "a.pycauset",
        lambda: pf.v2(
            "INTEGER", "INT32", 6, 6, pf.pack_triangle(UPPER.astype("i4"), multiple=4), version=1
        ),
    ),
    "v2-documented": content(
        "a.pycauset", lambda: pf.v2("DENSE", "FLOAT64", 3, 4, REALS.tobytes(), documented=True)
    ),
    "v2-dense": content(
        "a.pycauset",
        lambda: pf.v2("DENSE", "FLOAT64", 3, 4, REALS.tobytes(), transposed=1, scalar=2.0),
    ),
    "v2-bits": content(
        "a.pycauset", lambda: pf.v2("DENSE", "BIT", 5, 70, pf.pack_bits(BITS, 8, dirty=True))
    ),
    "zip": content(
        "a.pycauset",
        lambda: pf.make_zip(
            {
                "rows": 6, "cols": 6, "matrix_type": "TRIANGULAR_FLOAT", "data_type": "FLOAT64",
                "scalar": 2.0, "seed": 5, "is_transposed": True,
            },
            pf.pack_triangle(UPPER),
        ),
    ),
    "r1-causal-set": content(
        "a.pycauset",
        lambda: pf.r1(
            pf.make_metadata("CAUSAL", "BIT", 9, 9, seed=4, **CAUSAL_SET),
            pf.pack_triangle(np.eye(9, k=2) > 0),
        ),
    ),
    "r1-updated": content("a.pycauset", make_r1_updated),
    "r1-bits": content(
        "a.pycauset",
        lambda: pf.r1(pf.make_metadata("DENSE_FLOAT", "BIT", 5, 70), pf.pack_bits(BITS, 64)),
    ),
    "r1-view": content(
        "a.pycauset",
        lambda: pf.r1(
            pf.make_metadata(
                "DENSE_FLOAT", "COMPLEX_FLOAT64", 3, 2, transposed=True, conjugated=True,
                scalar={"real": 0.5, "imag": 1.0},
            ),
            COMPLEX[:2].tobytes(),
        ),
    ),
    "r1-identity": content(
        "a.pycauset", lambda: pf.r1(pf.make_metadata("IDENTITY", "FLOAT64", 3, 5))
    ),
    "r1-blocks": lambda directory: block_matrix(directory)[0],
    "r1-embedded": make_written(
        "a.pycauset",
        lambda: make_labelled().drop_vars(["when"]).rename(x="row", y="col"),
    ),
}  # fmt: skip


def make_vespa(cells: str, mapped: list[str], indexed: dict[str, int], labels: Any = ()) -> bytes:
    shape = (len(labels) if mapped else 1, *indexed.values())
    return vf.make_tensor(cells, mapped, indexed, labels, vf.make_values(cells, shape))


VESPA: Mapping[str, Make] = {
    "scalar": content("a.tbf", lambda: make_vespa("double", [], {})),
    "indexed": content("a.tbf", lambda: make_vespa("bfloat16", [], {"x": 3, "y": 2})),
    "mapped": content("a.tbf", lambda: make_vespa("float", ["x"], {}, [("a",), ("\N{SNOWMAN}",)])),
    "mixed": content("a.tbf", lambda: make_vespa("int8", ["x"], {"y": 3}, [("a",), ("b" * 130,)])),
    "two-mapped": content(
        "a.tbf",
        lambda: make_vespa("double", ["a", "b"], {"x": 2}, [("1", "2"), ("1", "3"), ("", "2")]),
    ),
    "outer-product": content(
        "a.tbf",
        lambda: make_vespa("float", ["a", "b"], {}, [(i, j) for i in "pq" for j in "rst"]),
    ),
    "many-blocks": content(
        "a.tbf", lambda: make_vespa("float", ["x"], {}, [(str(i * i),) for i in range(2500)])
    ),
    "dense-without-cell-type": content(
        "a.tbf",
        lambda: vf.pack_header(None, None, {"x": 2}) + vf.pack_cells(REALS[0, :2], "double"),
    ),
    "sparse-without-cell-type": content(
        "a.tbf",
        lambda: (
            vf.pack_header(None, ["x"], None, 1)
            + vf.pack_string("a")
            + vf.pack_cells(REALS[0, 0], "double")
        ),
    ),
    "written": make_written(
        "a.tbf",
        lambda: xr.Dataset({"tensor": (("k", "x"), REALS.astype("f4"))}, {"k": list("abc")}),
    ),
}


def npy(values: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(values), **options)
    return file.getvalue()


def make_zip(*members: tuple[str, bytes]) -> bytes:
    return pf.pack_archive(*(pf.pack_entry(name, raw) for name, raw in members))


NPY: Mapping[str, Make] = {
    "row-major": content("a.npy", lambda: npy(REALS)),
    "column-major": content("a.npy", lambda: npy(np.asfortranarray(INTEGERS.astype(">i4")))),
    "version-2": content("a.npy", lambda: npy(COMPLEX.astype("c8"), version=(2, 0))),
    "version-3": content("a.npy", lambda: npy(np.array([True, False]), version=(3, 0))),
    "datetime": content("a.npy", lambda: npy(np.array(["2001-02-03", "NaT"], "M8[ns]"))),
    "strings": content("a.npy", lambda: npy(np.array(["a", "\N{SNOWMAN}bc"]))),
    "scalar": content("a.npy", lambda: npy(np.float16(0.1))),
    "written": make_written(
        "a.npy", lambda: xr.Dataset({"tensor": (("dim_0", "dim_1"), REALS)})
    ),
}  # fmt: skip

NPZ: Mapping[str, Make] = {
    "several": content(
        "a.npz",
        lambda: make_zip(
            ("a.npy", npy(REALS)),
            ("b.npy", npy(np.asfortranarray(INTEGERS))),
            ("c.npy", npy(np.uint8(3))),
        ),
    )
}


def write_safetensors_index(directory: Path) -> Path:
    """Write two files and their index."""
    parts = {"one.safetensors": {"w.a": REALS}, "two.safetensors": {"w.b": np.arange(3)}}
    for name, tensors in parts.items():
        (directory / name).write_bytes(save(tensors, {"format": "np"}))
    weights = {key: name for name, tensors in parts.items() for key in tensors}
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 120}, "weight_map": weights}))
    return path


SAFETENSORS: Mapping[str, Make] = {
    "several": content(
        "a.safetensors",
        lambda: save({"w.a": REALS, "n": np.arange(5), "f": np.array(True)}, {"format": "np"}),
    ),
    "narrow": content(
        "a.safetensors",
        lambda: save({"b": np.array([1.5, -2], ml_dtypes.bfloat16)}),
    ),
    "index": write_safetensors_index,
    "embedded": make_written("a.safetensors", make_several),
}


def write_cc4s_tensor(directory: Path) -> Path:
    types = ["AuxiliaryField", "State", "State"]
    (directory / "State.yaml").write_text(
        cf.format_properties("State", {"Spin": [0, 1]}, {"Spin": "[0.5, -0.5]"})
    )
    more = "metaData:\n  halfGrid: 0\n"
    values = cf.make_values((3, 2, 2), is_complex=True)
    return cf.save(directory, "CoulombVertex", values, types, unit=0.25, more=more)


def write_cc4s_text(directory: Path) -> Path:
    return cf.save(directory, "EigenEnergies", cf.make_values((4,)), ["State"], elements=cf.TEXT)


def write_cc4s_map(directory: Path) -> Path:
    (directory / "Amplitudes.elements").write_bytes(cf.pack_binary(cf.make_values((2, 3))))
    path = directory / "Amplitudes.yaml"
    path.write_text(cf.format_sorted_yaml((2, 3)))
    return path


def write_cc4s_set(directory: Path) -> Path:
    components = {
        "ph": (cf.make_values((2, 3)), ["Particle", "Hole"]),
        "pp": (cf.make_values((2, 2)), ["Particle", "Particle"]),
    }
    return cf.save_set(directory, "CoulombIntegrals", components)


def write_cc4s_blocks(directory: Path) -> Path:
    spins = {"State": {"Spin": [0, 0, 1]}}
    conditions = [([("Spin", 0), ("Spin", 1)], [(0, 0), (1, 1)])]
    return cf.save_blocks(directory, cf.make_values((3, 3)), ["State"] * 2, spins, conditions)[0]


CC4S: Mapping[str, Make] = {
    "tensor": write_cc4s_tensor,
    "text": write_cc4s_text,
    "dimensions-as-a-map": write_cc4s_map,
    "set": write_cc4s_set,
    "blocks": write_cc4s_blocks,
    "written": make_written(
        "Vertex.yaml",
        lambda: xr.Dataset({"Vertex": (("State", "F"), COMPLEX, {"unit": 0.5})}),
    ),
}

GENERATED: Mapping[str, Make] = {
    f"{family}/{name}": make
    for family, files in {
        "tens": TENS,
        "cc4s": CC4S,
        "mag": MAG,
        "pycauset": PYCAUSET,
        "vespa": VESPA,
        "npy": NPY,
        "npz": NPZ,
        "safetensors": SAFETENSORS,
    }.items()
    for name, make in files.items()
}
"""By format and name."""
