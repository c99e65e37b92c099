"""The chart, first lines and tables of the page of benchmarks, from the measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmark.table import (
    DATA,
    OURS,
    TIE,
    format_slower,
    format_tables,
    format_time,
    is_slower,
    select_times,
)

SHOWN = {
    "sum": "Sum 1 GiB with dask",
    "write_TENS": "Write 64 MiB of TENS",
    "values": "Load 1 GiB",
    "fast_slab": "Load 256 columns",
    "open_model": "Open 1,000 tensors",
    "remote_sum": "Sum 256 MiB in S3",
}
HEADLINE = ("sum", "write_TENS", "values")
COLORS = {OURS: "#d9480f", "zarr": "#1c7ed6", "netCDF4": "#868e96", "h5netcdf": "#37b24d"}
PAGES = {"light": "black", "dark": "white"}


def draw_chart(rows: dict[str, Any], color: str) -> Figure:
    """Draw the time of each package as a multiple of the time of this package."""
    with rc_context({"text.color": color, "axes.labelcolor": color, "xtick.color": color}):
        figure = Figure(figsize=(4.2, 6), layout="constrained")
        axes = figure.subplots()
        height = 0.0
        for case, label in SHOWN.items():
            times = select_times(rows[case])
            axes.text(0, height - 0.2, label, va="center", fontsize=10.5, fontweight="bold")
            for name, seconds in times.items():
                ratio = seconds / times[OURS]
                bar = axes.barh(height, ratio, 0.17, color=COLORS[name.partition(" ")[0]])
                axes.bar_label(bar, [f"{name}, {format_time(seconds)}"], padding=3, fontsize=9)
                height += 0.2
            height += 0.4
        axes.set(xlim=(0, 9.8), xticks=(1, 2, 4, 6), yticks=())
        axes.set_xlabel("time as a multiple of xr_tensorfmt's: shorter is faster")
        axes.invert_yaxis()
        axes.spines[:].set_visible(False)
        return figure


def compare_times(ours: float, seconds: float) -> str:
    """Return in words how fast this package is, before the name of the other package."""
    if ours > TIE * seconds:
        return "**Slower** than"
    if seconds > TIE * ours:
        return f"**{seconds / ours:.1f} times** as fast as"
    return "**As fast** as"


def write_page_parts(directory: Path) -> None:
    """Write the charts for light and dark pages, the first lines of the page, and its tables."""
    directory.mkdir(parents=True, exist_ok=True)
    saved = json.loads(DATA.read_text("utf-8"))
    rows = {row["case"]: row for row in saved["rows"]}
    for theme, color in PAGES.items():
        figure = draw_chart(rows, color)
        figure.savefig(directory / f"benchmarks-{theme}.svg", transparent=True)
    compared = [row for row in saved["rows"] if len(select_times(row)) > 1]
    won = sum(not is_slower(row) for row in compared)
    lines = [
        "xr_tensorfmt is fastest, or within 5 % of the fastest, in",
        f"{won} of {len(compared)} tasks, and [slower in {len(compared) - won}](#slower-tasks).\n",
        "::::{grid} 1 1 3 3\n:gutter: 3",
    ]
    for case in HEADLINE:
        times = select_times(rows[case])
        ours = times.pop(OURS)
        name, seconds = next(iter(times.items()))
        lines.append(f":::{{grid-item-card}} {SHOWN[case]}")
        lines.append(f"{compare_times(ours, seconds)} {name}:")
        lines.append(f"{format_time(ours)} instead of {format_time(seconds)}\n:::")
    lines.append("::::\n")
    parts = {
        "benchmarks": "\n".join(lines),
        "machine": f"The measurements ran with {saved['machine']}.",
        "slower": format_slower(saved["rows"]),
        "tables": format_tables(saved["rows"]),
    }
    for name, text in parts.items():
        (directory / f"{name}.md").write_text(text, encoding="utf-8")
