"""The pages of benchmarks are what the measurements say that lie beside them."""

from __future__ import annotations

import json
from pathlib import Path

from benchmark.case import Aim, Case, Result, Section, Table
from benchmark.page import page
from benchmark.performance import CAPTIONS, ROWS, performance
from benchmark.report import Report, report

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REPORT = ROOT / "ci" / "benchmark" / "measurements.json"


def test_both_pages_are_made_of_the_saved_report() -> None:
    saved = Report.from_json(REPORT.read_text(encoding="utf-8"))
    assert REPORT.with_suffix(".md").read_text(encoding="utf-8") == page(saved)
    assert (DOCS / "performance.md").read_text(encoding="utf-8") == performance(saved)


def test_a_report_comes_back_from_json() -> None:
    cases = [Case("slow", lambda _: None), Case("best", lambda _: None, "limit")]
    results = {"slow": Result(0.5, 3, 1.0, 2.0), "best": Result(0.25, 3)}
    table = Table("A table", "What is done.", cases)
    section = Section(
        "name",
        "A section",
        "An introduction.",
        lambda size: size,
        lambda folder, size: None,
        lambda folder: [table],
        lambda results: [Aim("as fast", 2.0, 1.5)],
    )
    made = report([(section, [table], results)], "a machine")
    assert Report.from_json(made.to_json()) == made
    rows = made.table("A section", "A table").rows
    assert [(row.name, row.milliseconds, row.ratio) for row in rows] == [
        ("best", 250.0, 1.0),
        ("slow", 500.0, 2.0),
    ]
    assert not made.sections[0].aims[0].reached


def test_charts_and_rows_are_in_the_saved_report() -> None:
    saved = Report.from_json(REPORT.read_text(encoding="utf-8"))
    assert len(ROWS) == 10
    for each in ROWS:
        names = {row.name for row in saved.table(each.section, each.table).rows}
        assert {each.ours, each.peer or each.ours} <= names
    for name in CAPTIONS:
        for theme in ("light", "dark"):
            assert (DOCS / "_static" / "charts" / f"{name}-{theme}.svg").is_file()
    assert json.loads(REPORT.read_text())["machine"] == saved.machine
