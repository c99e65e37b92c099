"""The table of measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

DATA, TABLE = (Path(__file__).with_name(name) for name in ("measurements.json", "table.md"))
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


def format_row(row: Row) -> list[str]:
    """Return the cells of a case: this package and others. The fastest is bold, unless it ties."""
    times = select_times(row)
    fastest, *others = times.values() or [0.0]
    is_clear = bool(others) and others[0] > TIE * fastest
    cells = {name: format_time(seconds) for name, seconds in times.items()}
    if is_clear:
        name = next(iter(cells))
        cells[name] = f"**{cells[name]}**"
    ours = cells.pop(OURS, "-")
    return [row["text"], ours, ", ".join(f"{text} ({name})" for name, text in cells.items())]


def format_part(row: Row) -> list[str]:
    """Return the cells of a case for the table of parts: this package, and parts of the task."""
    parts = {name: row["median"][name] for name in row["median"] if name in LIMITS}
    texts = [f"{format_time(seconds)} ({name})" for name, seconds in parts.items()]
    return [row["text"], format_time(row["median"][OURS]), ", ".join(texts)]


def format_tables(rows: list[Row]) -> str:
    """Return Markdown: the rows with other packages, then those with parts of the task."""
    compared = [format_row(row) for row in rows if len(select_times(row)) > 1]
    parts = [format_part(row) for row in rows if LIMITS & set(row["median"])]
    tables = [
        [["Task", OURS, "Others"], *([["---"] * 3]), *compared],
        [["Task", OURS, "A part of it, or in processes"], *([["---"] * 3]), *parts],
    ]
    return "\n".join("".join(f"| {' | '.join(line)} |\n" for line in table) for table in tables)


def find_slower(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the tasks that another package does faster, with both times."""
    for row in rows:
        times = select_times(row)
        name = next(iter(times))
        if OURS in times and times[OURS] > TIE * times[name]:
            fast, slow = format_time(times[name]), format_time(times[OURS])
            yield f"{row['text']} ({slow}, {name} {fast})"
