"""Workers of a cluster: memory, killed workers and spawned processes."""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests import magfiles as mf
from tests import pycausetfiles as pf
from tests import tensfiles as tf
from tests import vespafiles as vf
from tests.families import FILES, make_values
from tests.processes import run_script
from tests.servers import HttpStore, S3Store

MIB = 1 << 20
PIECE = 64 * MIB
LARGE = 960 * MIB
LIMIT = 240 * MIB
ROWS = LARGE // (8 * 1024)

CLUSTER = """
import json, sys
import xarray as xr
from distributed import Client, LocalCluster, WorkerPlugin
from tornado.ioloop import PeriodicCallback

class Watch(WorkerPlugin):
    name = "watch"

    def setup(self, worker):
        worker.pauses = 0
        def look():
            worker.pauses += worker.status.name == "paused"
        worker.periodic_callbacks["look"] = PeriodicCallback(look, 20)
        worker.periodic_callbacks["look"].start()

def trouble(dask_worker):
    return dask_worker.pauses, int(dask_worker.data.spilled_total.memory)

if __name__ == "__main__":
    limit, way, *files = sys.argv[1:]
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
                      memory_limit=limit, silence_logs=50) as cluster, Client(cluster) as client:
        client.register_plugin(Watch())
        before = set(client.scheduler_info()["workers"])
        for file in files:
            dataset = xr.open_dataset(file, engine="tensorfmt", chunks={}, chunk_bytes=2**23)
            (tensor,) = dataset.data_vars.values()
            if way == "hoard":
                tensor = (tensor + 1).persist()
            total = float(tensor.sum(skipna=False).compute())
            same = before == set(client.scheduler_info()["workers"])
            print(json.dumps([total, same, list(client.run(trouble).values())]))
"""
NO_TROUBLE = [[0, 0], [0, 0]]


def write_zeros(path: Path, header: bytes, size: int = LARGE, tail: bytes = b"") -> Path:
    """Write a sparse file of zeros between header and tail."""
    with path.open("wb") as file:
        file.write(header)
        file.seek(len(header) + size)
        file.write(tail)
        file.truncate(len(header) + size + len(tail))
    return path


HEADERS = {
    "pycauset": pf.v2("DENSE", "FLOAT64", ROWS, 1024, b""),
    "vespa": vf.pack_header("double", [], {"x": ROWS, "y": 1024}),
    "mag": mf.make_snapshot({"w": mf.Put("float32", (2 * ROWS, 1024), b"")}, version=100),
}


def run_cluster(way: str, *files: object, directory: Path) -> list[Any]:
    """Return for each file the sum, whether all workers stayed, and their pauses and spills."""
    output = run_script(CLUSTER, LIMIT, way, *files, directory=directory)
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.nightly
@pytest.mark.parametrize("family", HEADERS)
def test_file_of_four_times_memory_is_reduced_without_pause(tmp_path: Path, family: str) -> None:
    name = "large.tbf" if family == "vespa" else "large.bin"
    path = write_zeros(tmp_path / name, HEADERS[family])
    assert run_cluster("reduce", path, directory=tmp_path) == [[0.0, True, NO_TROUBLE]]


@pytest.mark.nightly
def test_memory_watch_of_workers_detects_excess(tmp_path: Path) -> None:
    path = write_zeros(tmp_path / "part.bin", tf.pack_header((1024, ROWS // 2)), LARGE // 2)
    (answer,) = run_cluster("hoard", path, directory=tmp_path)
    assert answer[2] != NO_TROUBLE


def test_tens_files_larger_than_memory_are_reduced_without_pause(
    tmp_path: Path, http: HttpStore
) -> None:
    half = tf.pack_header((1024, ROWS // 2))  # twice the memory of a worker
    path = write_zeros(tmp_path / "large.bin", half, LARGE // 2)
    piece = np.zeros(PIECE, dtype=np.uint8).tobytes()
    size = 5 * PIECE
    url = http.put("large", tf.pack_header((1024, size // 8192)) + piece * (size // PIECE))
    assert run_cluster("reduce", path, url, directory=tmp_path) == [[0.0, True, NO_TROUBLE]] * 2
    assert http.log.fetched == size + 65536


KILLED = """
import os, signal, sys
import xarray as xr
from distributed import Client, LocalCluster, Nanny

def die_once(block, marker):
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return block
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    url, marker = sys.argv[1:]
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
                      silence_logs=50) as cluster, Client(cluster):
        tensor = xr.open_dataset(url, engine="tensorfmt", chunks={}, chunk_bytes=2**18).tensor
        hurt = tensor.data.map_blocks(die_once, marker, dtype=tensor.dtype, meta=tensor.data._meta)
        print(repr(float(hurt.sum().compute())))
    assert os.path.exists(marker)
"""


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="kills a worker by a signal")
def test_killed_worker_changes_nothing(tmp_path: Path, http: HttpStore) -> None:
    values = (make_values() * 1000).astype("i4").astype("f8")
    url = http.put("killed", tf.make_0_9(values))
    marker = tmp_path / "marker"
    assert float(run_script(KILLED, url, str(marker), directory=tmp_path)) == values.sum()
    assert marker.exists()


def test_spawned_process_reads_file(http: HttpStore) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for family in ("tens-0.9", "tens-pairs", "mag-archive", "pycauset-triangle"):
            dataset = xr.open_dataset(http.put(family, FILES[family]()), engine="tensorfmt")
            xr.testing.assert_identical(pool.apply(xr.Dataset.load, (dataset,)), dataset)


WRITER = """
import json, sys
import dask, numpy as np, xarray as xr
import dask.array as da
from distributed import Client, LocalCluster
from xr_tensorfmt import to_file

def broken(block):
    raise ZeroDivisionError

if __name__ == "__main__":
    folder, options = sys.argv[1], json.loads(sys.argv[2])
    dask.config.set({"temporary-directory": folder})
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
                      silence_logs=50) as cluster, Client(cluster) as client:
        values = da.arange(3_000_000, chunks=400_000, dtype="f4").reshape(3000, 1000)
        ds = xr.Dataset({"a": (("x", "y"), values.rechunk((500, 300)))})
        to_file(ds, "s3://bucket/now.mag", storage_options=options)
        tasks = to_file(ds, "s3://bucket/later.mag", storage_options=options, compute=False)
        client.compute(tasks).result()
        try:
            to_file(ds * ds.a.data.map_blocks(broken, dtype="f4"), "s3://bucket/never.mag",
                   storage_options=options)
        except ZeroDivisionError as error:
            print(*error.__notes__)
        dask.config.set({"temporary-directory": folder + "/missing"})
        try:
            to_file(ds, "s3://bucket/never.mag", storage_options=options)
        except FileNotFoundError as error:
            print(error)
"""


@pytest.mark.nightly
def test_cluster_puts_object_together_on_disk(tmp_path: Path, s3: S3Store) -> None:
    s3.put("first", b"")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    output = run_script(WRITER, str(scratch), json.dumps(s3.options), directory=tmp_path)
    assert "s3://bucket/never.mag was not written; the target is unchanged" in output
    assert "set dask's 'temporary-directory' to a directory that all workers share" in output
    values = np.arange(3_000_000, dtype="f4").reshape(3000, 1000)
    for name in ("now", "later"):
        url = f"s3://bucket/{name}.mag"
        written = xr.open_dataset(url, engine="tensorfmt", storage_options=s3.options)
        np.testing.assert_array_equal(written.a, values)
    with pytest.raises(FileNotFoundError):
        xr.open_dataset("s3://bucket/never.mag", engine="tensorfmt", storage_options=s3.options)
    assert not list(scratch.glob("*.part"))
