"""Measurements as JSON, and their tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from benchmark.job import Role

PRESENT, AGAINST = "present", "against"


@dataclass(frozen=True)
class Measurement:
    """The result of a contender at a job.

    The times are seconds per round, and the best is None if it is unknown. The memory is the peak
    of the process in MiB, without mapped files.
    """

    section: str
    job: str
    text: str
    name: str
    role: Role
    version: str
    best: float | None
    median: float
    rounds: int
    memory: float | None = None


@dataclass(frozen=True)
class Report:
    """All measurements of a run, and the machine with its software."""

    machine: str
    measurements: Sequence[Measurement]

    def to_json(self) -> str:
        """Return the report as JSON with one line per measurement."""
        lines = ",\n".join(json.dumps(_round(item)) for item in self.measurements)
        return f'{{"machine": {json.dumps(self.machine)},\n"measurements": [\n{lines}\n]}}\n'

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Parse a report."""
        report = json.loads(text)
        return cls(report["machine"], [Measurement(**item) for item in report["measurements"]])

    def get_jobs(self, section: str | None = None) -> list[list[Measurement]]:
        """Return the measurements of each job of a section, or of all sections."""
        jobs: dict[tuple[str, str], list[Measurement]] = {}
        for item in self.measurements:
            if section in (None, item.section):
                jobs.setdefault((item.section, item.job), []).append(item)
        return list(jobs.values())


def _round(item: Measurement) -> dict[str, object]:
    return {
        key: float(f"{value:.4g}") if isinstance(value, float) else value
        for key, value in asdict(item).items()
    }


def find_fastest(
    job: Iterable[Measurement], role: Role, version: str = PRESENT
) -> Measurement | None:
    """Return the fastest contender with a role."""
    items = [item for item in job if (item.role, item.version) == (role, version)]
    return min(items, key=lambda item: item.median, default=None)


def format_bytes(size: float) -> str:
    """Format a byte count with a binary unit, such as "1.5 MiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def format_section(report: Report, section: str) -> str:
    """Return the table of a section."""
    lines = []
    for job in report.get_jobs(section):
        ours, peer, baseline = (find_fastest(job, role) for role in ("ours", "peer", "baseline"))
        memory = ours.memory if ours else None
        lines.append(
            [
                job[0].text,
                f"**{_format_time(ours)}**",
                _format_time(peer, with_name=True),
                _format_time(baseline, with_name=True),
                "" if memory is None else f"{memory:.0f} MiB",
            ]
        )
    return _format_table(["Job", "xr_tensorfmt", "Fastest other", "Baseline", "Memory"], lines)


def format_comparison(report: Report, reference: str) -> str:
    """Return one table of all jobs in two versions."""
    header = ["case", "before", "after", "ratio", "ratio of best", "memory", "peer", "baseline"]
    table = _format_table(header, [_compare(job) for job in report.get_jobs()])
    return (
        f"# Comparison with {reference}\n\n{report.machine}\n\n"
        "Medians of interleaved rounds. A ratio is the time after divided by the time before. "
        f"Memory is the peak before and after in MiB.\n\n{table}\n"
    )


def _compare(job: Sequence[Measurement]) -> list[str]:
    before, after = find_fastest(job, "ours", AGAINST), find_fastest(job, "ours")
    ratio = best = memory = ""
    if before and after:
        ratio = f"{after.median / before.median:.2f}"
        if before.best and after.best:
            best = f"{after.best / before.best:.2f}"
        if before.memory is not None and after.memory is not None:
            memory = f"{before.memory:.0f}, {after.memory:.0f}"
    others = (
        _format_time(find_fastest(job, role), with_name=True) for role in ("peer", "baseline")
    )
    times = (_format_time(before), _format_time(after))
    return [job[0].text, *times, ratio, best, memory, *others]


def _format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _format_time(item: Measurement | None, *, with_name: bool = False) -> str:
    """Format a median with three digits."""
    if item is None:
        return ""
    seconds = float(f"{item.median:.3g}")
    time = f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
    return f"{time} ({item.name})" if with_name else time
