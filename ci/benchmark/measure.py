"""Run the jobs of a section in interleaved rounds, with one or two versions of the package."""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

import psutil

from benchmark.job import OURS, Job
from benchmark.report import Measurement

CI = Path(__file__).resolve().parents[1]
POLL_SECONDS = 0.001
Say = Callable[[str], None]
Pair = tuple[str, str]


class FailedRunError(RuntimeError):
    """A contender raised an error."""


@dataclass(frozen=True)
class Effort:
    """Divisor of all sizes, and bounds of the rounds of a job, which follow a warm-up round.

    No round starts after `seconds` if there are `min_rounds`.
    """

    scale: int
    min_rounds: int
    max_rounds: int
    seconds: float
    memory: bool


class Worker:
    """A process that runs contenders of a section with one version of the package."""

    def __init__(self, package: Path, section: str, folder: Path, scale: int) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{CI}"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # imports are measured
        self._errors = (folder / "errors.txt").open("a+")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-W", "ignore", "-m", "benchmark.worker"),
                *(section, str(folder), str(scale)),
            ],
            cwd=folder,  # a package in the current directory would precede PYTHONPATH
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        imported = self._receive()
        if Path(imported) != package:
            raise FailedRunError(f"imported the package from {imported}, expected {package}")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._errors.close()

    def run(self, job: str, contender: str) -> tuple[float, float | None]:
        """Run a contender once, and return the seconds and its answer."""
        self._start(job, contender)
        result = self._receive()
        return result["seconds"], result["answer"]

    def measure_memory(self, job: str, contender: str) -> float:
        """Run a contender once, and return its peak memory in MiB without mapped files."""
        process = psutil.Process(self._process.pid)
        self._start(job, contender)
        first = peak = _get_own_memory(process)
        while not select.select([self._process.stdout], [], [], POLL_SECONDS)[0]:
            peak = max(peak, _get_own_memory(process))
        self._receive()
        return (peak - first) / (1 << 20)

    def _start(self, job: str, contender: str) -> None:
        self._send(json.dumps([job, contender]))
        self._receive()
        self._send("go")

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise FailedRunError(f"the worker ended: {self._errors.read()}")
        reply = json.loads(line)
        if isinstance(reply, dict) and "error" in reply:
            raise FailedRunError(reply["error"])
        return reply


def _get_own_memory(process: psutil.Process) -> int:
    memory = process.memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def measure_section(
    section: str,
    jobs: Sequence[Job],
    packages: Mapping[str, Path],
    folder: Path,
    effort: Effort,
    failures: list[str],
    say: Say,
) -> Iterator[Measurement]:
    """Yield the measurements of all jobs of a section, and append errors to `failures`.

    The first of the versions in `packages` also runs the peers and the baselines.
    """
    start = partial(Worker, section=section, folder=folder, scale=effort.scale)
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(closing(start(path))) for name, path in packages.items()
        }
        for job in jobs:
            say(f"{section}: {job.text}")
            for (version, name), seconds in _measure_job(job, workers, effort, failures).items():
                memory = None
                if job.memory and effort.memory and name == OURS:
                    with closing(start(packages[version])) as worker:
                        memory = worker.measure_memory(job.name, name)
                yield Measurement(
                    section,
                    job.name,
                    job.text,
                    name,
                    job.get_role(name),
                    version,
                    min(seconds),
                    median(seconds),
                    len(seconds),
                    memory,
                )


def _measure_job(
    job: Job, workers: Mapping[str, Worker], effort: Effort, failures: list[str]
) -> dict[Pair, list[float]]:
    """Return the seconds of all rounds by version and contender."""
    pairs = _warm_up(job, workers, failures)
    times: dict[Pair, list[float]] = {pair: [] for pair in pairs}
    start, order = perf_counter(), Random(0)
    for number in range(effort.max_rounds):
        if number >= effort.min_rounds and perf_counter() - start > effort.seconds:
            break
        for version, name in order.sample(pairs, len(pairs)):
            times[version, name].append(workers[version].run(job.name, name)[0])
    return times


def _warm_up(job: Job, workers: Mapping[str, Worker], failures: list[str]) -> list[Pair]:
    """Return the versions and contenders that do the job with the result of the first one."""
    first, expected, pairs = next(iter(workers)), None, []
    candidates = [(first, name) for name in job.contenders]
    candidates += [(version, OURS) for version in workers if version != first]
    for version, name in candidates:
        try:
            _, answer = workers[version].run(job.name, name)
        except FailedRunError as error:
            failures.append(f"{job.text}: {name} ({version}): {error}")
            continue
        expected = answer if expected is None else expected
        if answer is not None and not math.isclose(answer, expected, rel_tol=1e-4):
            failures.append(f"{job.text}: {name} ({version}): {answer}, expected {expected}")
            continue
        pairs.append((version, name))
    return pairs
