"""Measure all cases in interleaved rounds, and print a Markdown table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from traceback import format_exc
from typing import Any

from dask.system import CPU_COUNT

from benchmark import worker
from benchmark.cases import CASES, OURS

ROOT = Path(__file__).resolve().parents[2]
DATA, TABLE = (Path(__file__).with_name(name) for name in ("measurements.json", "table.md"))
PACKAGES = ("numpy", "xarray", "dask", "zarr", "h5netcdf", "netCDF4", "safetensors")
QUICK_SCALE, MAX_ROUNDS, MAX_SECONDS, HUNG_SECONDS = 16, 9, 4.0, 600
Row = dict[str, Any]
Worker = Callable[..., Any]


def start_worker(package: Path, folder: str, scale: int, stack: ExitStack) -> Worker:
    """Start a process with a version of the package, and return its function `answer`."""
    sys.path.insert(0, str(package))  # which the process inherits
    pool = stack.enter_context(get_context("spawn").Pool(1, worker.start))
    sys.path.pop(0)
    stack.callback(pool.apply, worker.close)
    return lambda *names: pool.apply_async(worker.answer, (folder, scale, *names)).get(HUNG_SECONDS)


def measure(name: str, workers: dict[str, Worker], seconds: float, failures: list[str]) -> Row:
    """Run all contenders of a case in interleaved rounds after a round to warm up.

    Other packages run in the last worker.
    """
    runs, replies = dict[str, Any](), dict[str, list[dict[str, float]]]()

    def attempt(label: str, ask: Worker, *contender: str) -> Any:
        try:
            return ask(name, *contender)
        except Exception:  # noqa: BLE001  # of any package; the others go on
            failures.append(f"{name}: {label}: {format_exc()}")
            runs.pop(label, None)
            replies.pop(label, None)

    for label, ask in workers.items():
        for contender in attempt(label, ask) or ():
            if contender == OURS or label == list(workers)[-1]:
                runs[label if contender == OURS else contender] = ask, contender
    start = time.perf_counter()
    for number in range(MAX_ROUNDS + 1):
        if number > 1 and time.perf_counter() - start > seconds:
            break
        for label, run in list(runs.items()):
            if reply := attempt(label, *run):
                replies.setdefault(label, []).append(reply)
    times = {
        label: [float(f"{reply['seconds']:.4g}") for reply in rounds[1:]]
        for label, rounds in replies.items()
    }
    return {
        "case": name,
        "section": CASES[name].section,
        "median": {label: median(values) for label, values in times.items()},
        "best": {label: min(values) for label, values in times.items()},
        "memory": {label: round(rounds[0]["memory"], 1) for label, rounds in replies.items()},
    }


def format_row(row: Row, packages: list[str]) -> list[str]:
    """Return the cells of a case: the packages, then the others; the fastest is bold."""
    times = row["median"]

    def show(label: str) -> str:
        if label not in times:
            return "-"
        seconds = float(f"{times[label]:.3g}")
        text = f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
        return f"**{text}**" if times[label] == min(times.values()) else text

    others = sorted(set(times) - set(packages), key=times.__getitem__)
    cells = [f"{show(label)} ({label})" for label in others]
    return [row["text"], *map(show, packages), ", ".join(cells)]


def format_table(rows: list[Row], packages: list[str]) -> str:
    """Return a Markdown table of the rows with more than one contender."""
    lines = [["Task", *packages, "Others"], ["---"] * (2 + len(packages))]
    lines += [format_row(row, packages) for row in rows if len(row["median"]) > 1]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def describe_machine() -> str:
    """Return the hardware and the versions of the packages."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    python = f"Python {platform.python_version()}"
    return f"{CPU_COUNT} cores, {memory:.0f} GiB, {system}, {python}, {packages}"


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the arguments of the command."""
    parser = argparse.ArgumentParser(prog="sh ci/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument("--package", metavar="DIR", type=Path, help="also measure another version")
    parser.add_argument("cases", nargs="*", metavar="NAME", help="names of cases or sections")
    options = parser.parse_args(arguments)
    unknown = set(options.cases) - {*CASES, *(case.section for case in CASES.values())}
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}, expected one of {', '.join(CASES)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table, and return the number of failed contenders."""
    options = parse_arguments(arguments)
    packages = {OURS: ROOT}
    if options.package:
        packages = {"before": options.package.resolve(), "after": ROOT}
    scale, seconds = (QUICK_SCALE, 0.0) if options.quick else (1, MAX_SECONDS)
    names = set(options.cases or CASES)
    chosen = [name for name, case in CASES.items() if {name, case.section} & names]
    rows, failures, start = [], list[str](), time.perf_counter()
    for _, group in groupby(chosen, key=lambda name: CASES[name].section):
        directory = TemporaryDirectory(dir=os.environ.get("TENSORFMT_BENCH_DIR"))
        with directory as folder, ExitStack() as stack:
            workers = {x: start_worker(y, folder, scale, stack) for x, y in packages.items()}
            for name in group:
                row = measure(name, workers, seconds, failures)
                rows.append(row | {"text": CASES[name].get_text(scale)})
                cells = " | ".join(format_row(rows[-1], list(packages)))
                print(f"[{time.perf_counter() - start:4.0f} s] {cells}", file=sys.stderr)
    table = f"{describe_machine()}\n\n{format_table(rows, list(packages))}"
    print(table, *failures, sep="\n")
    if not (options.quick or options.cases or options.package):
        lines = ",\n".join(map(json.dumps, rows))
        machine = json.dumps(describe_machine())
        DATA.write_text(f'{{"machine": {machine},\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")
        TABLE.write_text(table, encoding="utf-8")
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
