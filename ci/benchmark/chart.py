"""The chart and the first lines of the page of benchmarks, from the measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmark.table import DATA, OURS, find_slower, format_time, select_times

SHOWN = {
    "open_model": "open 1,000 tensors",
    "values": "load 1 GiB",
    "fast_slab": "load 256 columns",
    "sum": "sum 1 GiB with dask",
    "write_floats": "write 512 MiB from dask",
    "remote_sum": "sum 256 MiB in S3",
}
HEADLINE = ("values", "sum", "open_model")
COLORS = {OURS: "#d9480f", "zarr": "#1c7ed6", "netCDF4": "#868e96", "h5netcdf": "#37b24d"}
PAGES = {"light": "black", "dark": "white"}


def draw_chart(rows: dict[str, Any], color: str) -> Figure:
    """Draw the time of each package as a multiple of the time of this package."""
    with rc_context({"text.color": color, "axes.labelcolor": color, "xtick.color": color}):
        figure = Figure(figsize=(4.6, 6.4), layout="constrained")
        axes = figure.subplots()
        for number, (case, label) in enumerate(SHOWN.items()):
            top = 1.2 * number
            times = select_times(rows[case])
            for place, (name, seconds) in enumerate(times.items()):
                height, ratio = top + 0.2 * place, seconds / times[OURS]
                bar = axes.barh(height, ratio, 0.17, color=COLORS[name.partition(" ")[0]])
                axes.bar_label(bar, [f"{name}, {format_time(seconds)}"], padding=3, fontsize=8.5)
            axes.text(0, top - 0.2, label, va="center", fontsize=10, fontweight="bold")
        axes.set(xlim=(0, 16), xticks=(1, 5, 10), yticks=())
        axes.set_xlabel("time as a multiple of xr_tensorfmt's: shorter is faster")
        axes.invert_yaxis()
        axes.spines[:].set_visible(False)
        return figure


def write_page_parts(directory: Path) -> None:
    """Write the charts for light and dark pages, and the first lines of the page."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = {row["case"]: row for row in json.loads(DATA.read_text("utf-8"))["rows"]}
    for theme, color in PAGES.items():
        figure = draw_chart(rows, color)
        figure.savefig(directory / f"benchmarks-{theme}.svg", transparent=True)
    lines = []
    for case in HEADLINE:
        times = select_times(rows[case])
        ours = times.pop(OURS)
        name, seconds = next(iter(times.items()))
        fast, slow = format_time(ours), format_time(seconds)
        ratio = f"**{seconds / ours:.1f} times** as fast as {name}"
        lines.append(f"- {SHOWN[case]}: {ratio} ({fast} instead of {slow})")
    lines.append("\nIt is slower than another package by more than 5 % in these tasks:\n")
    lines += [f"- {task}" for task in find_slower(rows.values())]
    lines.append("\nThe loaders of safetensors and numpy, without labels, are faster in some")
    lines.append("tasks: see the last table.")
    (directory / "benchmarks.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
