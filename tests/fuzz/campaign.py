"""Run many cases in a process per core, and collect the finds.

Case N of a seed is the same on every machine and with any number of processes. If a case hangs or
kills its process, the process is replaced and the case is a find.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, groupby
from multiprocessing.connection import Connection, wait
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.cases import FINDS, check_case, find_originals, limit_memory, write_files
from tests.fuzz.choices import Seeded, pick
from tests.fuzz.mutation import Original, mutate

HANGS_AFTER = 120
"""Seconds by the clock after which a process is ended that has not finished its case.

A case that takes too much processor time is ended from within. This is for code that cannot be
interrupted, and long enough for a machine that is busy.
"""

PROGRESS_EVERY = 60
"""Seconds between two lines that say how far a campaign is."""


@dataclass(frozen=True)
class Find:
    """A case that the package handles wrongly."""

    number: int
    name: str
    problem: str

    @property
    def place(self) -> str:
        """Return error and location without values. Finds with equal signatures are one."""
        return self.problem.partition(": ")[0]


@dataclass
class Campaign:
    """Cases of a seed, from `first` on, until a limit is reached."""

    seed: int
    seconds: float = float("inf")
    cases: float = float("inf")
    workers: int = 1
    family: str = ""
    most_finds: float = 20
    first: int = 0
    finds: dict[str, Find] = field(default_factory=dict)
    done: int = 0
    taken: float = 0.0

    @cached_property
    def originals(self) -> list[list[list[Original]]]:
        """The files that are mutated, by format, and whether a generator made them.

        There are many of some formats; those of generators have each generation once.
        """
        chosen = [original for original in find_originals() if self.family in ("", original.family)]
        by_family = groupby(chosen, key=attrgetter("family"))
        return [_group_by_origin(list(group)) for _, group in by_family]

    def case(self, number: int) -> tuple[Original, dict[str, bytes]]:
        """The original and the files of a case."""
        choices = Seeded(self.seed, number)
        original = pick(choices, pick(choices, pick(choices, self.originals)))
        return original, mutate(original, choices)

    def run(self, report: Callable[[str], None], kept_in: Path = FINDS) -> None:
        """Run all cases and save the finds."""
        start = told = time.monotonic()
        workers = [_Worker(self, self.first + item) for item in range(self.workers)]
        try:
            while (
                any(worker.is_running for worker in workers) and len(self.finds) < self.most_finds
            ):
                wait([worker.connection for worker in workers if worker.is_running], timeout=1)
                for find in (find for worker in workers for find in worker.news()):
                    if self.finds.setdefault(find.place, find) is find:
                        report(f"case {find.number} ({find.name}): {find.problem}")
                        report(f"kept in {self.keep(find, kept_in)}")
                self.taken = time.monotonic() - start
                self.done = sum(worker.done for worker in workers)
                if time.monotonic() - told > PROGRESS_EVERY:
                    told = time.monotonic()
                    report(self.summary)
        finally:
            for worker in workers:
                worker.end()

    @property
    def summary(self) -> str:
        """Describe the progress."""
        rate = self.done / max(self.taken, 1e-9)
        return (
            f"{self.done} cases in {self.taken:.0f} s, {rate:.0f} a second; "
            f"{len(self.finds)} different finds"
        )

    def keep(self, find: Find, finds: Path) -> Path:
        """Save the files of a find."""
        original, files = self.case(find.number)
        words = re.sub(r"[^A-Za-z0-9]+", "-", f"{original.name} {find.place}").strip("-")
        directory = finds / words[:100]
        shutil.rmtree(directory, ignore_errors=True)
        write_files(directory, files)
        info = {
            "file": original.main, "original": original.name, "seed": self.seed,
            "case": find.number, "problem": find.problem,
        }  # fmt: skip
        text = json.dumps(info, indent=1)
        (directory / "find.json").write_text(text + "\n", encoding="utf-8")
        return directory


def _group_by_origin(files: list[Original]) -> list[list[Original]]:
    generated = [file for file in files if file.is_generated]
    others = [file for file in files if not file.is_generated]
    return [item for item in (generated, others) if item]


class _Worker:
    """A process for every n-th case, replaced if it hangs or dies."""

    def __init__(self, campaign: Campaign, first: int) -> None:
        self.campaign, self.first, self.current = campaign, first, first
        self.is_running = True
        self._until = time.monotonic() + campaign.seconds
        self._start(first)

    def _start(self, number: int) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe(duplex=False)
        arguments = (self.campaign, number, self._until, theirs)
        self._process = context.Process(target=_run_cases, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._heard = time.monotonic()

    @property
    def done(self) -> int:
        """Number of completed cases."""
        return (self.current - self.first) // self.campaign.workers

    def news(self) -> Iterator[Find]:
        """Return the new finds of the process."""
        try:
            while self.is_running and self.connection.poll():
                self.current, problem = self.connection.recv()
                self._heard = time.monotonic()
                if problem is not None:
                    yield self._find(problem)
        except EOFError:
            self._process.join()
            if self._process.exitcode == 0:
                self.is_running = False
                return
            yield from self._replaced(f"Died: the process ended with {self._process.exitcode}")
        if self.is_running and time.monotonic() - self._heard > HANGS_AFTER:
            yield from self._replaced(f"Hung: more than {HANGS_AFTER} s by the clock")

    def _replaced(self, problem: str) -> Iterator[Find]:
        """Return the find of a failed process, which another process replaces."""
        yield self._find(problem)
        self.end()
        self.current += self.campaign.workers
        self._start(self.current)

    def _find(self, problem: str) -> Find:
        return Find(self.current, self.campaign.case(self.current)[0].name, problem)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def _run_cases(campaign: Campaign, first: int, until: float, parent: Connection) -> None:
    """Report each case and its result to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with TemporaryDirectory(prefix="fuzz-", dir=_choose_directory()) as scratch:
        for number in count(first, campaign.workers):
            parent.send((number, None))
            if number >= campaign.cases or time.monotonic() > until:
                break
            case = campaign.case(number)
            limit_memory()
            problem = run_case(Path(scratch), *case)
            if problem is not None:
                parent.send((number, problem))
    parent.close()


def _choose_directory() -> str | None:
    """Return a directory for many small files, in memory if possible."""
    shared_memory = "/dev/shm"
    return shared_memory if Path(shared_memory).is_dir() else None


def run_case(scratch: Path, original: Original, files: dict[str, bytes]) -> str | None:
    """Write the files of a case, and check what the package does with them."""
    directory = scratch / original.name
    write_files(directory, files)
    problem = check_case(directory / original.main)
    return problem and problem.replace(str(directory), "...")
