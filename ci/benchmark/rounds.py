"""Interleaved rounds: every case once, in another order each time, as often as it takes."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

import psutil

from benchmark.alone import observe
from benchmark.case import Case, Result, Section, Table

Say = Callable[[str], None]

_LITTLE = 16 << 20


def measure(section: Section, folder: Path, rounds: int, say: Say) -> dict[str, Result]:
    """Measure all cases of a section.

    Parameters
    ----------
    section : Section
        The section; its files are there.
    folder : Path
        Where they are.
    rounds : int
        Rounds that count; one more comes before them, to fill caches.
    say : callable
        Takes lines about the progress.

    Returns
    -------
    dict of str to Result
    """
    results: dict[str, Result] = {}
    for table in section.tables(folder):
        say(f"{section.name}, {table.title}: {len(table.cases)} rows")
        for case, times in _rounds(section, table, folder, rounds, say):
            assert case.name not in results, f"two cases are called {case.name!r}"
            results[case.name] = _result(section, case, times, folder, table.memory)
    return results


def _rounds(
    section: Section, table: Table, folder: Path, rounds: int, say: Say
) -> Iterator[tuple[Case, list[float]]]:
    """The times of each case; those with processes of their own come after the others."""
    shared = [case for case in table.cases if not case.alone]
    states = {case.name: case.setup() for case in shared}
    _warm_up(shared, states, table.title)
    times: dict[str, list[float]] = {case.name: [] for case in table.cases}
    order = Random(0)
    before = _read_from_disk()
    for number in range(max(case.rounds or rounds for case in shared)):
        for case in order.sample(shared, len(shared)):
            if number < (case.rounds or rounds):
                times[case.name].append(_time(case, states[case.name]))
    if (missed := _read_from_disk() - before) > _LITTLE:
        say(f"{missed / (1 << 20):.0f} MiB came from the disk: these numbers are not all warm")
    for case in table.cases:
        if case.alone:
            each = range(case.rounds or rounds)
            times[case.name] = [observe(section.name, case.name, folder).seconds for _ in each]
        yield case, times[case.name]


def _read_from_disk() -> int:
    """Bytes that this process has waited for so far; 0 where the system does not tell."""
    counters = getattr(psutil.Process(), "io_counters", None)
    return int(counters().read_bytes) if counters else 0


def _warm_up(cases: Sequence[Case], states: dict[str, object], title: str) -> None:
    answers = {case.name: case.run(states[case.name]) for case in cases if not case.times_itself}
    numbers = {name: answer for name, answer in answers.items() if answer is not None}
    first = next(iter(numbers.values()), 0.0)
    wrong = [name for name, each in numbers.items() if not math.isclose(each, first, rel_tol=1e-9)]
    if wrong:
        raise AssertionError(f"{wrong} disagree with the others in {title!r}: {numbers}")


def _time(case: Case, state: object) -> float:
    gc.collect()
    start = perf_counter()
    answer = case.run(state)
    taken = perf_counter() - start
    if not case.times_itself:
        return taken
    assert answer is not None, f"{case.name!r} should time itself"
    return answer


def _result(section: Section, case: Case, times: list[float], folder: Path, memory: bool) -> Result:
    if not memory:
        return Result(median(times), len(times))
    observed = observe(section.name, case.name, folder)
    return Result(median(times), len(times), observed.own, observed.pages)
