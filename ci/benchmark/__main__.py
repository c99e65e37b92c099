"""Measure all cases in interleaved rounds, and print tables in Markdown."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import warnings
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import perf_counter
from traceback import format_exc
from typing import Any

import dask
import numpy as np
from dask.system import CPU_COUNT

from benchmark.cases import CASES, SERVERS
from benchmark.table import DATA, Row, format_tables

PACKAGES = ("numpy", "xarray", "dask", "zarr", "h5netcdf", "netCDF4", "safetensors")
QUICK_SCALE, MAX_ROUNDS, MAX_SECONDS, PAGE = 16, 25, 5.0, os.sysconf("SC_PAGE_SIZE")


def get_own_memory() -> float:
    """Return the memory of this process that is not a mapped file, in MiB."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text("ascii").split())
    return (resident - shared) * PAGE / (1 << 20)


def run(contender: Any, expected: Any = None, memory: float = 0) -> dict[str, float]:
    """Run a contender; with `expected`, check its value and measure its memory."""
    function, read = contender if isinstance(contender, tuple) else (contender, None)
    gc.collect()
    np.ones(int(memory) << 20, np.uint8)  # a virtual machine returns unused memory to the host
    samples, done = [get_own_memory()], Event()

    def sample() -> None:
        while not done.wait(0.002):
            samples.append(get_own_memory())

    thread = Thread(target=sample, daemon=True)
    if expected:
        thread.start()
    start = perf_counter()
    try:
        value = function()
        seconds = perf_counter() - start
    finally:
        done.set()
    if expected:
        thread.join()
        array = np.asarray(read(value) if read else value)
        np.testing.assert_allclose(array, np.asarray(expected()), rtol=1e-5)
    return {"seconds": seconds, "memory": max(samples) - samples[0]}


def measure(contenders: Row, expected: Any, seconds: float, failures: list[str]) -> Row:
    """Run contenders in interleaved rounds. The first round warms up, and checks the values."""
    replies, start = {name: list[dict[str, float]]() for name in contenders}, 0.0
    for number in range(MAX_ROUNDS + 1):
        if number > 1 and perf_counter() - start > seconds:
            break
        start = start if number > 1 else perf_counter()
        for name in list(replies):
            memory = replies[name][0]["memory"] if number else 0
            try:
                replies[name].append(run(contenders[name], None if number else expected, memory))
            except Exception:  # noqa: BLE001  # of any package; the others go on
                failures.append(f"{name}: {format_exc()}")
                del replies[name]
    times = {x: median(y["seconds"] for y in rounds[1:]) for x, rounds in replies.items()}
    return {
        "median": {name: float(f"{value:.4g}") for name, value in times.items()},
        "memory": {name: round(rounds[0]["memory"], 1) for name, rounds in replies.items()},
    }


def describe_machine() -> str:
    """Return the hardware and the versions of the packages."""
    memory = PAGE * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    hardware = f"{CPU_COUNT} cores, {memory:.0f} GiB, {system}, Python {platform.python_version()}"
    return ", ".join([hardware, *(f"{name} {version(name)}" for name in PACKAGES)])


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the tables, and return the number of failures."""
    parser = argparse.ArgumentParser(prog="sh ci/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    names = {*CASES, *(case.section for case in CASES.values())}
    parser.add_argument("cases", nargs="*", metavar="NAME", help="cases or sections")
    options = parser.parse_args(arguments)
    if unknown := {*options.cases} - names:
        parser.error(f"{', '.join(unknown)}: there is no such case or section")
    dask.config.set(num_workers=CPU_COUNT)
    warnings.simplefilter("ignore")
    scale, seconds = (QUICK_SCALE, 0.0) if options.quick else (1, MAX_SECONDS)
    chosen = {*options.cases} or names
    cases = [(name, case) for name, case in CASES.items() if {name, case.section} & chosen]
    rows, failures = [], list[str]()
    for section, group in groupby(cases, key=lambda item: item[1].section):
        directory = TemporaryDirectory(dir=os.environ.get("TENSORFMT_BENCH_DIR"))
        with directory as folder, SERVERS:
            for name, case in group:
                built = case.build(Path(folder), case.get_size(scale))
                row = {"case": name, "section": section, "text": case.get_text(scale)}
                rows.append(row | measure(*built, seconds, failures))
                print(row["text"], rows[-1]["median"], file=sys.stderr)
    print(describe_machine(), format_tables(rows), *failures, sep="\n\n")
    if not (options.quick or options.cases):
        document = {"machine": describe_machine(), "rows": rows}
        DATA.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
