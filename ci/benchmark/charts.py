"""docs/_static/charts: three charts of the report, each for light and for dark pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmark.report import Report, Row

OURS, PEER = "#0b8a9c", "#9aa3ad"
THEMES = {"light": "#1f2328", "dark": "#dfe4ea"}


@dataclass(frozen=True)
class Chart:
    """The bars of a chart.

    Parameters
    ----------
    title : str
        What was measured, and in which unit.
    section, table : str
        Where the rows are.
    bars : dict of str to str
        The names of cases, and what the chart calls them.
    """

    title: str
    section: str
    table: str
    bars: dict[str, str]


CHARTS = {
    "sum": Chart(
        "sum of 2 GiB, in seconds",
        "Dense tensors",
        "Sum of the whole tensor",
        {
            "numpy over the mapped file, 2 threads": "limit",
            "tensorfmt, column-major, 32 MiB": "xr_tensorfmt",
            "netcdf4, 32 MiB": "netCDF4",
            "h5netcdf, 64 MiB": "h5netcdf",
            "zarr, 8 MiB": "zarr",
            "dask.array.from_array(np.memmap), 32 MiB": "dask over np.memmap",
        },
    ),
    "open": Chart(
        "opening a model of 1,000 tensors, in seconds",
        "MAG",
        "Open 1,000 tensors",
        {
            "xarray's floor, 1,000": "limit",
            "tensorfmt, 1,000": "xr_tensorfmt",
            "zarr, consolidated, 1,000": "zarr, consolidated",
            "netcdf4, 1,000": "netCDF4",
            "zarr, 1,000": "zarr",
            "h5netcdf, 1,000": "h5netcdf",
        },
    ),
    "remote": Chart(
        "sum of 512 MiB in S3, in seconds",
        "Object storage",
        "64 chunks through dask",
        {
            "arithmetic, all": "limit",
            "tensorfmt, s3fs, chunks of 31 MiB, all": "xr_tensorfmt",
            "zarr, obstore, all": "zarr by obstore",
            "zarr, s3fs, all": "zarr by s3fs",
        },
    ),
}


def draw(report: Report, directory: Path) -> None:
    """Draw all charts into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    # Text stays text; without a date and random names the same numbers give the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "charts"})
    for name, chart in CHARTS.items():
        rows = {row.name: row for row in report.table(chart.section, chart.table).rows}
        for theme, colour in THEMES.items():
            figure = Figure(figsize=(7.2, 0.55 + 0.34 * len(chart.bars)), layout="constrained")
            axes = figure.subplots()
            for place, (case, label) in enumerate(reversed(chart.bars.items())):
                _bar(axes, place, rows[case], label, colour, _longest(chart, rows))
            axes.set_title(chart.title, loc="left", fontsize=10, color=colour)
            axes.set(xticks=[], xlim=(0, 1.18 * _longest(chart, rows)))
            axes.tick_params(left=False, labelcolor=colour, labelsize=10)
            axes.spines[:].set_visible(False)
            path = directory / f"{name}-{theme}.svg"
            figure.savefig(path, transparent=True, metadata={"Date": None})
            text = "\n".join(line.rstrip() for line in path.read_text("utf-8").splitlines())
            path.write_text(text + "\n", "utf-8")


def _longest(chart: Chart, rows: dict[str, Row]) -> float:
    """The longest bar; one that is far longer than all others is cut."""
    *_, second, longest = sorted(rows[case].milliseconds for case in chart.bars)
    return min(longest, 2 * second)


def _bar(axes: Axes, place: int, row: Row, label: str, colour: str, longest: float) -> None:
    length = min(row.milliseconds, longest)
    fill = {"ours": OURS, "peer": PEER, "limit": "none"}[row.role]
    edge = colour if row.role == "limit" else fill
    axes.barh(label, length, 0.68, color=fill, edgecolor=edge, linewidth=1, zorder=2)
    seconds = row.milliseconds / 1000
    text = f"{seconds:.3f}" if seconds < 0.1 else f"{seconds:.2f}"
    if length < row.milliseconds:
        text += " (the bar is cut)"
        axes.text(0.985 * length, place, text, va="center", ha="right", color="black", fontsize=10)
        return
    axes.annotate(
        text,
        (length, place),
        (5, 0),
        textcoords="offset points",
        va="center",
        color=colour,
        fontsize=10,
        fontweight="bold" if row.role == "ours" else "normal",
    )
