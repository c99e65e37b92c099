"""``python -m benchmark``: measure, and write the page."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import dask

from benchmark.case import Results, Section, Table
from benchmark.machine import CORES, check_disk, fits_memory, load, versions
from benchmark.page import page
from benchmark.performance import performance
from benchmark.report import Report, report
from benchmark.rounds import Say, measure
from benchmark.sections import SECTIONS

DOCS = Path(__file__).parents[2] / "docs"
REPORT = Path(__file__).with_name("measurements.json")
FULL, QUICK = 2 << 30, 256 << 20


def main() -> None:
    """Run the sections one after the other, each with its files alone on the disk."""
    options = _options()
    if options.draw:
        _write(Report.from_json(REPORT.read_text(encoding="utf-8")))
        return
    size, rounds = (QUICK, 3) if options.quick else (FULL, 7)
    sections = [SECTIONS[name] for name in options.sections or SECTIONS]
    needed = max(section.disk(size) for section in sections)
    start, load_before = perf_counter(), load()

    def say(line: str) -> None:
        print(f"[{perf_counter() - start:4.0f} s] {line}", file=sys.stderr, flush=True)

    dask.config.set(num_workers=CORES)
    warnings.simplefilter("ignore")  # peers warn of their own affairs
    with tempfile.TemporaryDirectory(dir=os.environ.get("TENSORFMT_BENCH_DIR")) as folder:
        check_disk(Path(folder), needed)
        if not fits_memory(needed):
            say("not enough free memory to keep all files in the page cache: expect noise")
        measured = [
            _run(section, Path(folder) / section.name, size, rounds, say) for section in sections
        ]
    gathered = report(measured, versions())
    if options.quick or options.sections:
        print(page(gathered))
    else:
        REPORT.write_text(gathered.to_json(), encoding="utf-8")
        _write(gathered)
        say("wrote ci/benchmark/measurements.json and .md, docs/performance.md and its charts")
    say(f"load average {load_before:.2f} before, {load():.2f} after")


def _write(gathered: Report) -> None:
    """Write the two pages, and draw the charts."""
    from benchmark.charts import draw  # noqa: PLC0415  # matplotlib takes its time

    REPORT.with_suffix(".md").write_text(page(gathered), encoding="utf-8")
    (DOCS / "performance.md").write_text(performance(gathered), encoding="utf-8")
    draw(gathered, DOCS / "_static" / "charts")


def _run(
    section: Section, folder: Path, size: int, rounds: int, say: Say
) -> tuple[Section, Sequence[Table], Results]:
    folder.mkdir()
    say(f"{section.name}: writing files of {section.disk(size) / (1 << 30):.1f} GiB")
    section.write(folder, size)
    results = measure(section, folder, rounds, say)
    tables = section.tables(folder)
    shutil.rmtree(folder)
    return section, tables, results


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sh ci/bench",
        description="Measure xr_tensorfmt and its peers, and write "
        "ci/benchmark/measurements.json, two pages and three charts.",
    )
    parser.add_argument(
        "--draw",
        action="store_true",
        help="measure nothing; write the pages and charts anew from measurements.json",
    )
    parser.add_argument(
        "--quick", action="store_true", help="256 MiB and 3 rounds; prints the page only"
    )
    words = ", ".join(SECTIONS)
    parser.add_argument(
        "sections",
        nargs="*",
        metavar="SECTION",
        help=f"only these, of {words}; prints them",
    )
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"there is no section {', '.join(unknown)}, but {words}")
    return options


if __name__ == "__main__":
    main()
