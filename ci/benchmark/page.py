"""docs/benchmarks.md: the results as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmark.case import Aim, Result, Results, Section, Table

_MILLISECOND = 1e-3


def page(measured: Sequence[tuple[Section, Sequence[Table], Results]], machine: str) -> str:
    """Write the whole page.

    Parameters
    ----------
    measured : sequence of (Section, tables, Results)
        What there is to tell.
    machine : str
        Where it was measured.

    Returns
    -------
    str
    """
    aims = [aim for section, _, results in measured for aim in section.aims(results)]
    blocks = [
        "<!-- Written by `sh ci/bench`; do not edit. -->\n\n# Benchmarks",
        f"Measured in one run of `sh ci/bench` on: {machine}.",
        _READING,
        "## Aims\n\n" + "\n".join(_aim_rows(aims)),
    ]
    for section, tables, results in measured:
        blocks.append(f"## {section.title}\n\n{section.intro}")
        blocks.extend(_table(table, results) for table in tables)
    return "\n\n".join(blocks) + "\n"


_READING = """\
How to read it:

- Times are medians of interleaved rounds: each round runs every row of a table once, in another
  order, with the files in the page cache. Machines differ, so read the ratios: `x limit` is the
  time over that of the row in italics, plain numpy (or xarray) at the same job.
- A time goes from the path to the result: opening the file is part of it.
- Rows of `tensorfmt` are bold. Below each table stands which other rows are faster than them.
- Peak memory is that of a fresh process beyond its imports, looked at each millisecond. *Own* is
  memory that only the process has (anonymous); *resident* also counts pages of the file that it has
  mapped, which the system shares between processes and takes back when it needs them. Short jobs
  are repeated for a quarter of a second, so that their peaks are seen."""


def _aim_rows(aims: Sequence[Aim]) -> Iterator[str]:
    yield "| aim | measured | |\n| --- | --- | --- |"
    for aim in aims:
        verdict = "reached" if aim.reached else "**not reached**"
        yield f"| {aim.text} | {aim.value:.3g} {aim.unit} | {verdict} |"


def _table(table: Table, results: Results) -> str:
    limit = next(case.name for case in table.cases if case.role == "limit")
    head = ["", "ms", "x limit", "rounds"]
    head += ["peak own MiB", "peak resident MiB"] if table.memory else []
    lines = [f"### {table.title}", "", table.note, "", _row(head), _row(["---"] * len(head))]
    for case in sorted(table.cases, key=lambda each: results[each.name].seconds):
        mark = {"limit": "*", "ours": "**", "peer": ""}[case.role]
        result = results[case.name]
        cells = [f"{mark}{case.name}{mark}", *_numbers(result, results[limit], table.memory)]
        lines.append(_row(cells))
    return "\n".join([*lines, "", *_lost(table, results)])


def _numbers(result: Result, limit: Result, memory: bool) -> Iterator[str]:
    yield _significant(result.seconds / _MILLISECOND)
    yield f"{result.seconds / limit.seconds:.2f}"
    yield str(result.rounds)
    if memory:
        yield "-" if result.own is None else f"{result.own:,.0f}"
        yield "-" if result.pages is None else f"{result.pages:,.0f}"


def _lost(table: Table, results: Results) -> Iterator[str]:
    """A sentence for each row of ours that other rows beat."""
    for case in table.cases:
        if case.role != "ours":
            continue
        mine = results[case.name].seconds
        faster = [
            f"{other.name} ({mine / results[other.name].seconds:.2f} times as fast)"
            for other in table.cases
            if other.role != "ours" and results[other.name].seconds < mine
        ]
        verdict = f"lost to {', '.join(faster)}" if faster else "nothing is faster"
        yield f"- {case.name}: {verdict}."


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _significant(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
