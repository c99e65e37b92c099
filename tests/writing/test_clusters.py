"""Writing from other processes, and memory of writing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tests.opening import open_lazily
from tests.processes import run_python, run_script
from xr_tensorfmt import to_file

MIB = 1 << 20

CLUSTER = """
import json, os, sys, time
from pathlib import Path

import dask.array as da
import numpy as np
import xarray as xr
from distributed import Client, LocalCluster

from xr_tensorfmt import to_file

folder = Path(sys.argv[1])

def who(values):
    (folder / f"writer-{os.getpid()}").touch()
    time.sleep(0.1)  # the other worker gets tasks, too
    return values

def die_once(values, block_id=None):
    if block_id == (5, 0):
        try:
            (folder / "died").touch(exist_ok=False)
        except FileExistsError:
            return values
        os._exit(1)
    return values

def fail(values, block_id=None):
    if block_id == (5, 0):
        raise ArithmeticError("the sixth")
    return values

def dataset(function):
    values = da.from_array(np.arange(8 * 2000, dtype="f4").reshape(8, 2000), chunks=(1, -1))
    return xr.Dataset({"a": (("x", "y"), values.map_blocks(function, meta=values._meta))})

if __name__ == "__main__":
    found = {}
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
                      memory_limit="1GiB") as cluster, Client(cluster) as client:
        to_file(dataset(who), folder / "now.mag")
        writers = [each.name for each in folder.glob("writer-*")]
        found["writers"] = len(writers)
        found["client"] = f"writer-{os.getpid()}" in writers
        task = to_file(dataset(who), folder / "later.mag", compute=False)
        found["early"] = (folder / "later.mag").exists()
        client.compute(task).result()
        held = xr.Dataset({"a": (("x", "y"), np.arange(8 * 2000, dtype="f4").reshape(8, 2000))})
        to_file(held, folder / "held.mag")
        lazy = xr.open_dataset(folder / "held.mag", engine="tensorfmt", chunks={}, chunk_bytes=8000)
        to_file(lazy, folder / "held.mag")
        part = dataset(who).isel(x=slice(2, 4)) * -1
        to_file(part.astype("f4"), folder / "later.mag", region={"x": slice(2, 4)})
        try:
            to_file(dataset(fail), folder / "now.mag")
        except ArithmeticError as error:
            found["error"] = [str(error), *error.__notes__]
        to_file(dataset(die_once), folder / "died.mag")
        found["died"] = (folder / "died").exists()
    print(json.dumps(found))
"""


@pytest.mark.filterwarnings("ignore")
def test_worker_processes_write(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    output = run_script(CLUSTER, folder, directory=tmp_path)
    actual = json.loads(output.splitlines()[-1])
    assert actual["writers"] == 2
    assert not actual["client"]
    assert not actual["early"]
    assert actual["died"]
    note = f"{folder / 'now.mag'} was not written; the target is unchanged."
    assert actual["error"] == ["the sixth", note]
    expected = np.arange(8 * 2000, dtype="f4").reshape(8, 2000)
    for name in ("now", "held", "died"):
        np.testing.assert_array_equal(open_lazily(folder / f"{name}.mag").a, expected)
    expected[2:4] *= -1
    np.testing.assert_array_equal(open_lazily(folder / "later.mag").a, expected)
    assert not [name for name in os.listdir(folder) if name.endswith(".part")]


@pytest.mark.parametrize("scheduler", ["processes", "synchronous", "threads"])
def test_any_scheduler_writes(tmp_path: Path, scheduler: str) -> None:
    import dask  # noqa: PLC0415
    import dask.array as da  # noqa: PLC0415

    values = np.arange(8 * 2000, dtype="f4").reshape(8, 2000)
    dataset = xr.Dataset({"a": (("x", "y"), da.from_array(values, chunks=(2, -1))), "b": 1.0})
    encoding = {"b": {"dtype": "float32"}}
    with dask.config.set(scheduler=scheduler, num_workers=2):
        to_file(dataset, tmp_path / "a.mag", encoding=encoding)
    np.testing.assert_array_equal(open_lazily(tmp_path / "a.mag").a, values)


MEMORY = """
import resource, sys
import dask, dask.array as da, numpy, xarray
from xr_tensorfmt import to_file

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

path, kind = sys.argv[1:]
shape = (40 if kind == "chunks" else 24, 2048, 2048)
small = xarray.Dataset({"a": ("x", da.ones(10, dtype="f4"))})
to_file(small, path, encoding={"a": {"dtype": "bfloat16"}})
to_file(small, path)
with dask.config.set(num_workers=2):
    if kind == "held":
        array = numpy.ones(shape, "f4")
    else:
        array = da.random.default_rng(0).random(shape, chunks=(1, 2048, 2048), dtype="f4")
    dataset = xarray.Dataset({"a": (("x", "y", "z"), array)})
    encoding = {"a": {"dtype": "bfloat16"}} if kind == "narrow" else {}
    start = peak()
    if kind == "lazy":
        to_file(dataset, path)
        dataset = xarray.open_dataset(path, engine="tensorfmt")
        start = peak()
    to_file(dataset, path, encoding=encoding)
    print(peak() - start)
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("chunks", marks=pytest.mark.nightly),
        "narrow",
        pytest.param("held", marks=pytest.mark.nightly),
        "lazy",
    ],
)
def test_large_write_needs_memory_of_few_chunks(tmp_path: Path, kind: str) -> None:
    output = run_python("-c", MEMORY, tmp_path / "a.mag", kind).stdout
    # Two threads have a chunk of 16 MiB and its encoded copy each.
    assert int(output) < 12 * 16 * MIB
