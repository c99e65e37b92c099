"""ci/benchmark/measurements.md: the whole report as Markdown, for developers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmark.report import AimReport, Report, Row, TableReport


def page(report: Report) -> str:
    """Write the whole page.

    Parameters
    ----------
    report : Report
        What was measured.

    Returns
    -------
    str
    """
    aims = [aim for section in report.sections for aim in section.aims]
    blocks = [
        "<!-- Written by `sh ci/bench`; do not edit. -->\n\n# All measurements",
        f"Measured in one run of `sh ci/bench` on: {report.machine}.",
        _READING,
        "## Aims\n\n" + "\n".join(_aim_rows(aims)),
    ]
    for section in report.sections:
        blocks.append(f"## {section.title}\n\n{section.intro}")
        blocks.extend(_table(table) for table in section.tables)
    return "\n\n".join(blocks) + "\n"


_READING = """\
This page is for work on the package; [Benchmarks](performance.md) shows what matters to users. How
to read the tables:

- The fastest row comes first. Rows of this package are **bold**; every row above a bold one is
  faster than it, and every row below is slower. The row in *italics* is the limit: plain numpy, or
  xarray itself, at the same job.
- Times are medians of interleaved rounds: each round runs every row of a table once, in another
  order, with the files in the page cache. Machines differ, so compare the ratios: `x limit` is the
  time divided by that of the limit.
- A time goes from the path to the result: opening the file is part of it.
- Peak memory is that of a fresh process beyond its imports, sampled each millisecond. *Own* is
  memory that only the process has (anonymous); *resident* also counts pages of the file that it has
  mapped, which the system shares between processes and takes back when it needs them. Short jobs
  are repeated for a quarter of a second, so that their peaks are seen."""


def _aim_rows(aims: Sequence[AimReport]) -> Iterator[str]:
    yield "| aim | measured | |\n| --- | --- | --- |"
    for aim in aims:
        verdict = "reached" if aim.reached else "**not reached**"
        yield f"| {aim.text} | {aim.value:.3g} {aim.unit} | {verdict} |"


def _table(table: TableReport) -> str:
    head = ["", "ms", "x limit", "rounds"]
    head += ["peak own MiB", "peak resident MiB"] if table.memory else []
    lines = [f"### {table.title}", "", table.note, "", _row(head), _row(["---"] * len(head))]
    for row in table.rows:
        mark = {"limit": "*", "ours": "**", "peer": ""}[row.role]
        lines.append(_row([f"{mark}{row.name}{mark}", *_numbers(row, table.memory)]))
    return "\n".join(lines)


def _numbers(row: Row, memory: bool) -> Iterator[str]:
    yield significant(row.milliseconds)
    yield f"{row.ratio:.2f}"
    yield str(row.rounds)
    if memory:
        yield "-" if row.own is None else f"{row.own:,.0f}"
        yield "-" if row.resident is None else f"{row.resident:,.0f}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def significant(value: float) -> str:
    """A number with three digits, or as an integer."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
