"""Draw docs/performance.md and its charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.report import Measurement, Report, format_section
from benchmark.sections import SECTIONS

CHARTS = {"sum": ("local", "sum"), "open": ("open", "some"), "remote": ("remote", "sum by s3fs")}
"""Section and job of each chart."""

BARS = {
    "light": {"ours": "#0b8a9c", "peer": "#9aa3ad", "baseline": "none"},
    "dark": {"ours": "#3fb1c5", "peer": "#5a6472", "baseline": "none"},
}
THEMES = {"light": "#1f2328", "dark": "#dfe4ea"}

PAGE = """\
<!-- Written by `sh ci/bench`; do not edit. -->

# Benchmarks

The time of xr_tensorfmt compared with packages that do the same job with their formats, and with a
baseline: a minimal program that reads or writes the same bytes. Shorter bars are better.

{charts}

{sections}

## Method

Times are medians of interleaved rounds in one run. "Fastest other" is the fastest package that does
the same job. Memory is the peak of a new process beyond its imports, without mapped files. Empty
cells were not measured. Machine and versions: {machine}.

`sh ci/bench` repeats the measurements, and `ci/benchmark/measurements.json` in the source contains
them. `sh ci/bench --against REF` compares two versions of the package.
"""


def build_page(report: Report) -> str:
    """Return the page."""
    charts = "\n\n".join(
        _build_image(name, theme, get_chart(report, name)[0].text)
        for name in CHARTS
        for theme in THEMES
    )
    return PAGE.format(charts=charts, sections=build_sections(report), machine=report.machine)


def build_sections(report: Report) -> str:
    """Return the tables of all measured sections."""
    return "\n\n".join(
        f"## {section.TITLE}\n\n{section.INTRO}\n\n{format_section(report, name)}"
        for name, section in SECTIONS.items()
        if report.get_jobs(name)
    )


def get_chart(report: Report, name: str) -> list[Measurement]:
    """Return the measurements of a chart."""
    return next(job for job in report.get_jobs() if (job[0].section, job[0].job) == CHARTS[name])


def _build_image(name: str, theme: str, text: str) -> str:
    return (
        f"```{{image}} _static/charts/{name}-{theme}.svg\n:alt: Bar chart: seconds to {text}\n"
        f":class: only-{theme} chart\n:width: 100%\n```"
    )


def draw_charts(report: Report, directory: Path) -> None:
    """Draw all charts into a directory."""
    import matplotlib as mpl  # noqa: PLC0415  # the page alone does not need it
    from matplotlib.figure import Figure  # noqa: PLC0415

    directory.mkdir(parents=True, exist_ok=True)
    # Text stays text. Without dates and random names, equal numbers give equal files.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "charts"})
    for name in CHARTS:
        items = get_chart(report, name)
        for theme, colour in THEMES.items():
            figure = Figure(figsize=(3.8, 0.7 + 0.34 * len(items)))
            figure.set_layout_engine("constrained")
            title = {"ha": "left", "fontsize": 10, "color": colour}
            figure.suptitle(f"Seconds (less is better):\n{items[0].text}", x=0.01, **title)
            _draw_bars(figure.subplots(), items, colour, BARS[theme])
            path = directory / f"{name}-{theme}.svg"
            figure.savefig(path, transparent=True, metadata={"Date": None})
            lines = (line.rstrip() for line in path.read_text("utf-8").splitlines())
            path.write_text("\n".join(lines) + "\n", "utf-8")


def _draw_bars(
    axes: Any, items: Sequence[Measurement], colour: str, fills: Mapping[str, str]
) -> None:
    order = {"baseline": 0, "ours": 1, "peer": 2}
    items = sorted(items, key=lambda item: (order[item.role], item.median))
    for index, item in enumerate(reversed(items)):
        _draw_bar(axes, index, item, colour, fills[item.role])
    axes.set(xticks=[], xlim=(0, 1.18 * max(item.median for item in items)))
    axes.tick_params(left=False, labelcolor=colour, labelsize=10)
    axes.spines[:].set_visible(False)


def _draw_bar(axes: Any, index: int, item: Measurement, colour: str, fill: str) -> None:
    edge = colour if item.role == "baseline" else fill
    label = f"baseline: {item.name}" if item.role == "baseline" else item.name
    axes.barh(label, item.median, 0.68, color=fill, edgecolor=edge, linewidth=1)
    text = f"{item.median:.3f}" if item.median < 0.1 else f"{item.median:.2f}"
    weight = "bold" if item.role == "ours" else "normal"
    where = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
    font = {"color": colour, "fontsize": 10, "fontweight": weight}
    axes.annotate(text, (item.median, index), **where, **font)
