"""Hypothesis strategies for Datasets that MAG supports."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from hypothesis import strategies as st

from xr_tensorfmt.formats.mag import LITTLE_ENDIAN

NUMPY_DTYPES = tuple(name for name in LITTLE_ENDIAN if hasattr(np, name))
NARROW_DTYPES = tuple(name for name in LITTLE_ENDIAN if not hasattr(np, name))

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
flat_attributes = st.sampled_from(
    [
        np.arange(3),
        np.array([["a", "\N{SNOWMAN}"]]),
        np.array([1.5, np.nan]),
        np.zeros((0, 2), ">i2"),
        np.float32(0.1),
        np.bool_(True),
        np.datetime64("2001-02-03T04:05", "ns"),
        np.timedelta64(3, "h"),
        1 - 2j,
        np.nan,
        10**100,
    ]
)
attributes = st.dictionaries(names, json_values | flat_attributes, max_size=3)


def bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Draw any bits, including NaN, infinities and subnormal numbers."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def make_as(draw: Any, values: np.ndarray) -> Any:
    """Return values as an array of some memory layout, or as a dask array."""
    way = draw(st.sampled_from(["C", "F", "reversed", "padded", "big-endian", "dask", "dask.T"]))
    if way == "F":
        return np.array(values, order="F")
    if way == "reversed":
        cut = (slice(None, None, -1),) * values.ndim
        return values[cut].copy()[cut]
    if way == "padded":
        wide = np.zeros((*values.shape, 3), values.dtype)
        wide[..., 1] = values
        return wide[..., 1]
    if way == "big-endian":
        return values.astype(values.dtype.newbyteorder(">"))
    if way.startswith("dask"):
        chunks = tuple(draw(lengths_adding_up_to(length)) for length in values.shape)
        if way == "dask.T":
            return da.from_array(values.T, chunks=chunks[::-1]).T
        return da.from_array(values, chunks=chunks)
    return values


def lengths_adding_up_to(total: int) -> st.SearchStrategy[tuple[int, ...]]:
    cuts = st.lists(st.integers(0, total), max_size=3).map(sorted)
    return cuts.map(lambda item: tuple(np.diff([0, *item, total]).tolist()))


def index_labels(rng: np.random.Generator, label_type: str, length: int) -> np.ndarray:
    texts = [f"{number}\N{GREEK SMALL LETTER ALPHA}" for number in rng.integers(0, 99, length)]
    return {
        "text": np.array(texts, dtype="U8"),
        "object": np.array(texts, dtype=object),
        "bytes": np.array([text.encode() for text in texts], dtype="S8"),
        "float64": rng.normal(size=length),
        "float32": rng.normal(size=length).astype("f4"),
        "int64": rng.integers(-(2**63), 2**63 - 1, length),
        "bool": rng.random(length) < 0.5,
        "datetime64": rng.integers(0, 2**60, length).astype("M8[ns]"),
        "timedelta64": rng.integers(0, 2**30, length).astype("m8[s]"),
    }[label_type]


LABELS = (
    "text", "object", "bytes", "float64", "float32", "int64", "bool", "datetime64", "timedelta64",
)  # fmt: skip


@st.composite
def variables(draw: Any, rng: np.random.Generator, sizes: dict[str, int]) -> xr.Variable:
    dims = draw(st.permutations(list(sizes)))[: draw(st.integers(0, len(sizes)))]
    shape = tuple(sizes[dim] for dim in dims)
    name = draw(st.sampled_from(NUMPY_DTYPES + NARROW_DTYPES))
    element = LITTLE_ENDIAN[name]
    if name in NUMPY_DTYPES:
        return xr.Variable(dims, make_as(draw, bits(rng, shape, name)), draw(attributes))
    values = element.decode(bits(rng, shape, element.stored))
    return xr.Variable(dims, make_as(draw, values), draw(attributes), {"dtype": element.encoding})


@st.composite
def datasets(draw: Any) -> xr.Dataset:
    """Draw Datasets of variables with shared dimensions, coordinates and attributes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    chosen = draw(st.lists(names, min_size=11, max_size=11, unique=True))
    sizes = {dim: draw(st.integers(0, 5)) for dim in chosen[: draw(st.integers(0, 4))]}
    data = {name: draw(variables(rng, sizes)) for name in chosen[4 : 4 + draw(st.integers(1, 3))]}
    if not any(item.size for item in data.values()):
        data[chosen[7]] = xr.Variable((), np.int8(1))
    coords: dict[str, xr.Variable] = {}
    for dim, size in sizes.items():
        if draw(st.booleans()):
            labels = index_labels(rng, draw(st.sampled_from(LABELS)), size)
            coords[dim] = xr.Variable(dim, labels, draw(attributes))
    for name in chosen[8 : 8 + draw(st.integers(0, 3))]:
        if draw(st.booleans()):
            coords[name] = draw(variables(rng, sizes))
        else:
            label = index_labels(rng, draw(st.sampled_from(LABELS)), 1).reshape(())
            coords[name] = xr.Variable((), label)
    return xr.Dataset(data, coords, draw(attributes))
