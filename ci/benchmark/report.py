"""Measurements, as stored in measurements.json. The pages and charts are made from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmark.case import Aim, Result, Results, Role, Section, Table


@dataclass(frozen=True)
class Row:
    """The numbers of one case: its time, as a ratio to that of the limit too, and its memory."""

    name: str
    role: Role
    milliseconds: float
    ratio: float
    rounds: int
    own: float | None = None
    resident: float | None = None


@dataclass(frozen=True)
class TableReport:
    """The rows of a table, the fastest first."""

    title: str
    note: str
    memory: bool
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class AimReport:
    """A number and whether it is as it should be."""

    text: str
    value: float
    unit: str
    reached: bool


@dataclass(frozen=True)
class SectionReport:
    """The tables and the aims of a section."""

    title: str
    intro: str
    tables: tuple[TableReport, ...]
    aims: tuple[AimReport, ...]


@dataclass(frozen=True)
class Report:
    """A whole run: the machine, and all that was measured on it."""

    machine: str
    sections: tuple[SectionReport, ...]

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report of which `to_json` made the text."""
        data = json.loads(text)
        sections = []
        for each in data["sections"]:
            tables = (
                TableReport(**(table | {"rows": tuple(Row(**row) for row in table["rows"])}))
                for table in each["tables"]
            )
            aims = (AimReport(**aim) for aim in each["aims"])
            sections.append(
                SectionReport(**(each | {"tables": tuple(tables), "aims": tuple(aims)}))
            )
        return cls(data["machine"], tuple(sections))

    def table(self, section: str, title: str) -> TableReport:
        """The table of these titles."""
        return next(
            table
            for each in self.sections
            if each.title == section
            for table in each.tables
            if table.title == title
        )


def report(measured: Sequence[tuple[Section, Sequence[Table], Results]], machine: str) -> Report:
    """Gather what was measured.

    Parameters
    ----------
    measured : sequence of (Section, tables, Results)
        What there is to tell.
    machine : str
        Where it was measured.

    Returns
    -------
    Report
    """
    return Report(
        machine,
        tuple(
            SectionReport(
                section.title,
                section.intro,
                tuple(_table(table, results) for table in tables),
                tuple(map(_aim, section.aims(results))),
            )
            for section, tables, results in measured
        ),
    )


def _aim(aim: Aim) -> AimReport:
    return AimReport(aim.text, float(aim.value), aim.unit, bool(aim.reached))


def _table(table: Table, results: Results) -> TableReport:
    limit = next(results[case.name] for case in table.cases if case.role == "limit")

    def row(name: str, role: Role, result: Result) -> Row:
        seconds = result.seconds
        ratio = seconds / limit.seconds
        return Row(name, role, 1e3 * seconds, ratio, result.rounds, result.own, result.pages)

    rows = (row(case.name, case.role, results[case.name]) for case in table.cases)
    return TableReport(
        table.title, table.note, table.memory, tuple(sorted(rows, key=lambda row: row.milliseconds))
    )
