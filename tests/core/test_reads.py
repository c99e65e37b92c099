"""Plans of reads: the requests they show are made, and values keep only their own memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr

from tests import families
from tests import vespafiles as vf
from tests.recording import RecordingSource
from tests.servers import MemoryStore
from xr_tensorfmt.core import source as source_module
from xr_tensorfmt.sources import local
from xr_tensorfmt.writing.region import find_values


def _make_deflated() -> bytes:
    file = BytesIO()
    np.savez_compressed(file, a=families.make_values())
    return file.getvalue()


FILES = families.FILES | {"npz-deflated": _make_deflated}
KEPT = ["tens-pairs", "npz-deflated"]
# By default, each file is read in each way that its layout allows. Others are for one of each kind.
KINDS = ["tens-0.9", "tens-pairs", "mag-archive", "pycauset-bits", "npz-deflated"]


def make_pairs(defaults: list[str], others: list[str]) -> list[tuple[str, str]]:
    """Return each file with the default ways of reading, and each kind with the others."""
    return [*product(FILES, defaults), *product(KINDS, others)]


def _every(step: int) -> Callable[[xr.Variable], Any]:
    return lambda variable: variable[(..., slice(None, None, step))]


def _select_points(variable: xr.Variable) -> xr.Variable:
    rng = np.random.default_rng(0)
    points = {dim: ("p", rng.integers(0, n, 50)) for dim, n in variable.sizes.items()}
    return variable.isel({dim: xr.Variable(*point) for dim, point in points.items()})


KEYS: dict[str, Callable[[xr.Variable], xr.Variable]] = {
    "all": lambda v: v,
    "half": lambda v: v[: v.shape[0] // 2],
    "most": lambda v: v[5:-5],
    "column": lambda v: v[..., 3],
    "columns": lambda v: v[..., 3:7],
    "bits": lambda v: v[..., 7 : v.shape[-1] // 2],
    "step": _every(4),
    "long step": _every(50),
    "rows": lambda v: v[::7],
    "backwards": lambda v: v[::-3, ..., ::-1],
    "list": lambda v: v[..., [1, 5, 6, 20]],
    "lists": lambda v: v[[5, 0, 5], ..., [9, 2]],
    "points": _select_points,
    "row": lambda v: v[2],
}


def open_variables(name: str, file: Any, **options: Any) -> list[xr.Variable]:
    """Open the variables of a file with enough elements for every key."""
    if name == "tens-pairs":
        options["sparse"] = "dense"
    ds = xr.open_dataset(file, engine="tensorfmt", format=name.partition("-")[0], **options)
    variables = [variable.variable for variable in ds.data_vars.values()]
    return [variable for variable in variables if min(variable.shape) > 30 and variable.ndim > 1]


CHUNK_KEYS = ["all", "half", "most", "column", "rows"]


def count_kept_bytes(values: Any) -> int:
    """Return the size of the memory that an array keeps."""
    owner = values
    while isinstance(values, np.ndarray | memoryview):
        owner = values
        values = values.obj if isinstance(values, memoryview) else values.base
    return owner.nbytes if values is None else len(values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "io"), make_pairs(["auto", "store"], ["mmap", "read", "bytes", "file object"])
)
def test_values_keep_only_their_own_memory(name: str, io: str, tmp_path: Path) -> None:
    content, options = FILES[name](), {}
    path: Any = tmp_path / name
    path.write_bytes(content)
    with MemoryStore().running() as store:
        file = path
        if io == "store":
            file = store.put(name, content)
        elif io in ("bytes", "file object"):
            file = memoryview(content) if io == "bytes" else BytesIO(content)
        else:
            options["io"] = io
        for variable in open_variables(name, file, **options):
            for key in KEYS.values():
                values = key(variable.copy(deep=False)).values
                assert count_kept_bytes(values) <= 1.1 * values.nbytes, key
        if io == "file object":
            return
        for variable in open_variables(name, file, chunks={}, chunk_bytes="512KiB", **options):
            for key_name in CHUNK_KEYS:
                persisted = KEYS[key_name](variable).data.persist(scheduler="synchronous")
                chunks = [x for x in find_values(persisted) if isinstance(x, np.ndarray)]
                kept = sum(map(count_kept_bytes, chunks))
                assert sum(chunk.nbytes for chunk in chunks) == persisted.nbytes
                assert kept <= 1.1 * persisted.nbytes, key_name


@contextmanager
def record_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Record first byte and stop of the system calls that read or map a file."""
    calls: list[tuple[int, int]] = []
    read_into, build_window = source_module.read_into, local._build_window

    def record_read(file: Any, start: int, buffer: memoryview) -> int:
        calls.append((start, start + len(buffer)))
        return read_into(file, start, buffer)

    def record_map(descriptor: int, origin: int, length: int) -> Any:
        calls.append((origin, origin + length))
        return build_window(descriptor, origin, length)

    with monkeypatch.context() as patch:
        patch.setattr(source_module, "read_into", record_read)
        patch.setattr(local, "_build_window", record_map)
        yield calls


def list_planned(variable: xr.Variable) -> list[tuple[int, int]]:
    explained = xr.DataArray(variable).tensorfmt.explain()
    planned = [(a, b) for read in explained.reads for _, a, b in read.request_ranges]
    assert explained.requests == len(planned)
    return sorted(planned)


def is_same(actual: tuple[int, int], planned: tuple[int, int]) -> bool:
    """Compare a call with a request. A map begins with a page."""
    return actual[1] == planned[1] and actual[0] in (planned[0], planned[0] // 4096 * 4096)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize(("name", "io"), make_pairs(["auto"], ["mmap", "read"]))
def test_planned_requests_are_the_system_calls(
    name: str, io: str, chunks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name]())
    options = {"io": io, "chunks": chunks, "chunk_bytes": "512KiB"}
    for key_name in KEYS if chunks is None else CHUNK_KEYS:
        key = KEYS[key_name]
        for variable in open_variables(name, path, **options):
            selected = key(variable)
            planned = list_planned(selected)
            with record_calls(monkeypatch) as calls, dask.config.set(scheduler="synchronous"):
                selected.compute() if chunks is not None else selected.load()
            if name in KEPT:  # by the first read of a chunk
                planned = planned[: len(calls)]
            assert len(calls) == len(planned), key_name
            assert all(map(is_same, sorted(calls), planned)), key_name


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_planned_requests_are_those_of_other_sources(name: str) -> None:
    for key_name, key in KEYS.items():
        source = RecordingSource(FILES[name]())
        for variable in open_variables(name, source):
            selected = key(variable)
            planned = list_planned(selected)
            source.requests.clear()
            selected.load()
            actual = sorted((start, start + length) for start, length in source.requests)
            assert actual == planned, key_name


def test_explaining_steps_lists_no_ranges(tmp_path: Path) -> None:
    """A plan of short gaps needs no memory for the ranges between them."""
    content = vf.make_tensor("double", [], {"x": 500_000}, [], np.zeros((1, 500_000)))
    (tmp_path / "a.tbf").write_bytes(content)
    tensor = xr.open_dataset(tmp_path / "a.tbf", engine="tensorfmt").tensor
    (read,) = tensor[::4].tensorfmt.explain().reads
    assert (read.range_count, read.needed_bytes) == (1, 10**6)
    assert read.fetched_bytes == 4 * 10**6 - 24
