"""``python -m benchmark``: measure all sections, or compare two versions of the package."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import psutil
from dask.system import CPU_COUNT

from benchmark.measure import Effort, measure_section
from benchmark.page import build_page, build_sections, draw_charts
from benchmark.report import AGAINST, PRESENT, Measurement, Report, format_comparison
from benchmark.sections import SECTIONS

ROOT = Path(__file__).resolve().parents[2]
REPORT = Path(__file__).with_name("measurements.json")
COMPARISON = ROOT / "build" / "against.md"
FULL = Effort(scale=1, min_rounds=3, max_rounds=25, seconds=6, memory=True)
QUICK = Effort(scale=16, min_rounds=1, max_rounds=3, seconds=0.2, memory=False)
PACKAGES = ("numpy", "xarray", "dask", "zarr", "h5netcdf", "netCDF4", "safetensors", "xr-tensorfmt")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write or print the results, and return the number of failed contenders."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    if options.draw:
        write_page(Report.from_json(REPORT.read_text(encoding="utf-8")), ROOT / "docs")
        return 0
    failures: list[str] = []
    effort = QUICK if options.quick else FULL
    sections = options.sections or list(SECTIONS)
    with _check_out(options.against) as packages:
        report = measure(sections, packages, effort, failures)
    if options.against:
        table = format_comparison(report, options.against)
        COMPARISON.parent.mkdir(exist_ok=True)
        COMPARISON.write_text(table, encoding="utf-8")
        print(table)
    elif options.quick or options.sections:
        print(build_sections(report))
    else:
        REPORT.write_text(report.to_json(), encoding="utf-8")
        write_page(Report.from_json(report.to_json()), ROOT / "docs")  # with its rounded numbers
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return len(failures)


def measure(
    sections: Sequence[str],
    packages: dict[str, Path],
    effort: Effort,
    failures: list[str],
) -> Report:
    """Measure sections one after the other; only the files of one section exist at a time."""
    warnings.simplefilter("ignore")  # zarr warns while it writes files
    start = perf_counter()
    measurements: list[Measurement] = []

    def say(line: str) -> None:
        print(f"[{perf_counter() - start:4.0f} s] {line}", file=sys.stderr, flush=True)

    for name in sections:
        with TemporaryDirectory(dir=os.environ.get("TENSORFMT_BENCH_DIR")) as folder:
            say(f"{name}: writing files")
            with SECTIONS[name].provide(Path(folder), effort.scale):
                jobs = SECTIONS[name].get_jobs(Path(folder), effort.scale)
                measurements += measure_section(
                    name, jobs, packages, Path(folder), effort, failures, say
                )
    return Report(_describe_machine(), measurements)


def write_page(report: Report, docs: Path) -> None:
    """Write the page and draw its charts."""
    (docs / "performance.md").write_text(build_page(report), encoding="utf-8")
    draw_charts(report, docs / "_static" / "charts")


@contextmanager
def _check_out(reference: str | None) -> Iterator[dict[str, Path]]:
    """Yield the directories of the present version, and of another one in a temporary worktree."""
    if reference is None:
        yield {PRESENT: ROOT}
        return
    with TemporaryDirectory() as parent:
        path = Path(parent).resolve() / "worktree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(path), reference], check=True)
        try:
            yield {PRESENT: ROOT, AGAINST: path}
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def _describe_machine() -> str:
    memory = psutil.virtual_memory().total / (1 << 30)
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"{CPU_COUNT} cores, {memory:.0f} GiB, {platform.system()} "
        f"{platform.release().split('-')[0]} ({platform.machine()}), "
        f"Python {platform.python_version()}, {packages}"
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sh ci/bench",
        description="Measure xr_tensorfmt and its peers, and write "
        "ci/benchmark/measurements.json, docs/performance.md and its charts.",
    )
    parser.add_argument(
        "--against", metavar="REF", help="compare with a commit and write build/against.md"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes; print the tables only")
    parser.add_argument("--draw", action="store_true", help="draw the page from measurements.json")
    parser.add_argument(
        "sections",
        nargs="*",
        metavar="SECTION",
        help=f"measure only these of {', '.join(SECTIONS)}, and print the tables",
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"unknown sections {', '.join(unknown)}, expected {', '.join(SECTIONS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
