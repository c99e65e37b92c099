"""Many cases one after the other, in a process for each core, and what to do with the finds.

Case number N of a seed is the same on every machine, however many processes there are and however
long they run. A process that hangs in a case, or dies of it, is replaced, and the case is a find.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.fuzz.cases import (
    FINDS,
    MOST_SECONDS,
    check_case,
    limit_memory,
    originals,
    write_files,
)
from tests.fuzz.choices import Seeded, pick
from tests.fuzz.mutation import Original, mutated

HANGS_AFTER = 60
"""Seconds by the clock after which a process is ended that has not finished its case.

Processor time above the limit ends a case from within; this is for code that cannot be
interrupted, and long enough for a machine that is busy."""

MOST_FINDS = 20
"""Limit on the finds after which a campaign ends."""


@dataclass(frozen=True)
class Find:
    """A case that the package does not treat as it should."""

    number: int
    name: str
    problem: str

    @property
    def place(self) -> str:
        """What went wrong and where, without values: finds that agree in it are one."""
        return self.problem.partition(": ")[0]


@dataclass
class Campaign:
    """Cases of one seed, from the first on, until time or number is up."""

    seed: int
    seconds: float = float("inf")
    cases: float = float("inf")
    workers: int = 1
    family: str = ""
    finds: dict[str, Find] = field(default_factory=dict)
    done: int = 0
    taken: float = 0.0

    def case(self, number: int) -> tuple[Original, dict[str, bytes]]:
        """The original and the files of a case."""
        choices = Seeded(self.seed, number)
        original = pick(choices, self.originals)
        return original, mutated(original, choices)

    def __post_init__(self) -> None:
        self.originals = [
            each for each in originals() if each.name.startswith(f"{self.family}/" * bool(self.family))
        ]

    def run(self, report: Callable[[str], None] = print) -> None:
        """Run all cases; `finds` and `done` have the outcome."""
        start = time.monotonic()
        workers = [_Worker(self, first) for first in range(self.workers)]
        try:
            while any(each.is_alive for each in workers) and len(self.finds) < MOST_FINDS:
                wait([each.connection for each in workers if each.is_alive], timeout=1)
                for each in workers:
                    for find in each.news():
                        if self.finds.setdefault(find.place, find) is find:
                            report(f"case {find.number} ({find.name}): {find.problem}")
                self.taken = time.monotonic() - start
        finally:
            for each in workers:
                each.end()
        self.done = sum(each.done for each in workers)

    def keep(self, find: Find, finds: Path = FINDS) -> Path:
        """Keep the file of a find with those beside it."""
        original, files = self.case(find.number)
        words = re.sub(r"[^A-Za-z0-9]+", "-", f"{original.name} {find.place}").strip("-")
        directory = finds / words[:100]
        shutil.rmtree(directory, ignore_errors=True)
        write_files(directory, files)
        facts = {
            "file": original.main, "original": original.name, "seed": self.seed,
            "case": find.number, "problem": find.problem,
        }  # fmt: skip
        text = json.dumps(facts, indent=1)
        (directory / "find.json").write_text(text + "\n", encoding="utf-8")
        return directory


class _Worker:
    """A process that does every n-th case, and another one where it hangs or dies."""

    def __init__(self, campaign: Campaign, first: int) -> None:
        self.campaign, self.first = campaign, first
        self.done, self.current, self.is_alive = 0, first, True
        self._until = time.monotonic() + campaign.seconds
        self._start(first)

    def _start(self, number: int) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_work, args=(self.campaign, number, self._until, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self._heard = time.monotonic()

    def news(self) -> Iterator[Find]:
        """What the process has found since the last time."""
        if not self.is_alive:
            return
        try:
            while self.connection.poll():
                number, problem = self.connection.recv()
                self._heard = time.monotonic()
                if problem is None:
                    self.current = number
                elif number < 0:
                    self.is_alive = False
                    self.done += problem
                    return
                else:
                    yield self._find(number, problem)
        except EOFError:
            yield from self._replaced(f"the process died of signal {self._exit()}")
        if time.monotonic() - self._heard > HANGS_AFTER:
            yield from self._replaced(f"it hangs for {HANGS_AFTER} s")

    def _exit(self) -> int:
        self._process.join(5)
        return -(self._process.exitcode or 0)

    def _replaced(self, problem: str) -> Iterator[Find]:
        """The find of a process that cannot go on, which is replaced by one for the next case."""
        yield self._find(self.current, problem)
        self.end()
        self.done += (self.current - self.first) // self.campaign.workers + 1 - self.done
        self._start(self.current + self.campaign.workers)

    def _find(self, number: int, problem: str) -> Find:
        return Find(number, self.campaign.case(number)[0].name, problem)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


def _work(campaign: Campaign, first: int, until: float, parent: Connection) -> None:
    """Do every n-th case, and tell the parent of finds and, now and then, of the present case."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory()
    done, told = 0, 0.0
    with TemporaryDirectory(prefix="fuzz-", dir=_directory()) as scratch:
        for number in _numbers(campaign, first):
            now = time.monotonic()
            if now > until:
                break
            parent.send((number, None))
            original, files = campaign.case(number)
            problem = run_case(Path(scratch), original, files)
            if problem is not None:
                parent.send((number, problem))
            done += 1
    parent.send((-1, done))
    parent.close()


def _numbers(campaign: Campaign, first: int) -> Iterator[int]:
    number = first
    while number < campaign.cases:
        yield number
        number += campaign.workers


def _directory() -> str | None:
    """Where many small files are written: in memory if there is such a place."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def run_case(scratch: Path, original: Original, files: dict[str, bytes]) -> str | None:
    """Write the files of a case, and check what the package does with them."""
    directory = scratch / original.name
    write_files(directory, files)
    return check_case(directory / original.main)
