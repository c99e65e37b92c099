"""Tables of measurements."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("measurements.json")
OURS = "xr_tensorfmt"
NUMPY, SAFETENSORS = "numpy, unlabelled", "safetensors, unlabelled"
PRODUCTS = "matrix products alone"
PROCESSES = "in 2 processes"
LIMITS = {NUMPY, SAFETENSORS, PRODUCTS, "the read", "import xarray", "DataTree.from_dict"}
LIMITS.add(PROCESSES)
"""Contenders that do a part of a task, or the same task in processes."""

TIE = 1.05
"""Times with a smaller ratio are equal. They change sides between runs."""

Row = dict[str, Any]


def format_time(seconds: float) -> str:
    """Return a time with three digits."""
    seconds = float(f"{seconds:.3g}")
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def select_times(row: Row) -> dict[str, float]:
    """Return the times of packages that do the whole task, the fastest first."""
    times = {name: time for name, time in row["median"].items() if name not in LIMITS}
    return dict(sorted(times.items(), key=lambda item: item[1]))


def is_slower(row: Row) -> bool:
    """Return whether another package does the task in less time, and not by a tie."""
    times = select_times(row)
    return times.get(OURS, 0.0) > TIE * min(times.values(), default=0.0)


def format_row(row: Row, names: Iterable[str]) -> list[str]:
    """Return the cells of a case, one per package. The fastest is bold, unless it ties."""
    times = select_times(row)
    cells = {name: format_time(seconds) for name, seconds in times.items()}
    fastest, second, *_ = *times.values(), 0.0, 0.0
    if second > TIE * fastest:
        name = next(iter(cells))
        cells[name] = f"**{cells[name]}**"
    return [row["text"], *(cells.get(name, "") for name in names)]


def format_table(head: list[str], lines: Iterable[list[str]]) -> str:
    """Return a table in Markdown."""
    table = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in table)


def format_folded(title: str, table: str) -> str:
    """Return a table that the page shows when the title is clicked."""
    return f":::{{dropdown}} {title}\n{table}:::\n"


def format_tables(rows: Iterable[Row]) -> str:
    """Return a table per section with a column per package, and one with parts of tasks."""
    tables, parts = list[str](), list[list[str]]()
    for section, group in groupby(rows, key=lambda row: row["section"]):
        cases = [*group]
        for row in cases:
            ours, limits = row["median"].get(OURS, 0.0), LIMITS & {*row["median"]}
            times = ((name, row["median"][name]) for name in sorted(limits))
            parts += [
                [row["text"], format_time(ours), name, format_time(time)] for name, time in times
            ]
        compared = [row for row in cases if len(select_times(row)) > 1]
        if compared:
            others = {name for row in compared for name in select_times(row)} - {OURS}
            names = [OURS, *sorted(others, key=str.lower)]
            won = sum(not is_slower(row) for row in compared)
            title = f"{section}: fastest or equal in {won} of {len(compared)}"
            table = format_table(["Task", *names], (format_row(row, names) for row in compared))
            tables.append(format_folded(title, table))
    head = ["Task", OURS, "Part", "Its time"]
    tables.append(format_folded("Parts of tasks, and processes", format_table(head, parts)))
    return "\n".join(tables)


def format_slower(rows: Iterable[Row]) -> str:
    """Return a table of the tasks that another package does faster, the slowest first."""
    lines = []
    for row in filter(is_slower, rows):
        times = select_times(row)
        name, fastest = next(iter(times.items()))
        ratio = times[OURS] / fastest
        compared = f"{format_time(times[OURS])} instead of {format_time(fastest)}"
        lines.append((ratio, [row["text"], f"{ratio:.1f}", f"{compared} ({name})"]))
    ordered = [line for _, line in sorted(lines, reverse=True)]
    return format_table(["Task", "Ratio", "Times"], ordered)
