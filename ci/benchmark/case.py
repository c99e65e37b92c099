"""The words of the benchmark: a section has tables, a table has cases that do the same job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Role = Literal["limit", "ours", "peer"]


@dataclass(frozen=True)
class Case:
    """One contender at one job.

    Parameters
    ----------
    name : str
        What the page calls it; different from the others of its section.
    run : callable
        Does the job on what `setup` gave. It returns a number that is the same for all cases of a
        table (or None), or seconds where `times_itself` is set.
    role : {"limit", "ours", "peer"}
        The limit is what a table's ratios refer to.
    setup : callable
        What is done once, before the clock runs.
    rounds : int, optional
        Rounds, where it is too slow for those of the others.
    alone : bool
        Whether each round has a process of its own.
    times_itself : bool
        Whether `run` returns seconds.
    """

    name: str
    run: Callable[[Any], float | None]
    role: Role = "peer"
    setup: Callable[[], Any] = lambda: None
    rounds: int | None = None
    alone: bool = False
    times_itself: bool = False


@dataclass(frozen=True)
class Table:
    """Cases that can be compared with each other.

    Parameters
    ----------
    title : str
        Heading on the page.
    note : str
        What is measured.
    cases : sequence of Case
        One of them is the limit.
    memory : bool
        Whether the peak memory matters.
    """

    title: str
    note: str
    cases: Sequence[Case]
    memory: bool = True


@dataclass(frozen=True)
class Result:
    """What was measured of one case.

    Parameters
    ----------
    seconds : float
        Median of the rounds.
    rounds : int
        How many there were.
    own, pages : float, optional
        Peak MiB beyond the imports: memory of the process' own, and all with mapped file pages.
    """

    seconds: float
    rounds: int
    own: float | None = None
    pages: float | None = None


Results = Mapping[str, Result]


@dataclass(frozen=True)
class Aim:
    """What a measured number should be.

    Parameters
    ----------
    text : str
        The aim in words.
    value : float
        What was measured.
    bound : float
        The most it may be, or the least where `at_least` is set.
    unit : str
        Unit of both.
    """

    text: str
    value: float
    bound: float
    unit: str = "x"
    at_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the number is on the right side of its bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


@dataclass(frozen=True)
class Section:
    """One part of the page: its files, its tables, its aims.

    Parameters
    ----------
    name : str
        One word, the module's.
    title : str
        Heading on the page.
    intro : str
        What there is to know before the tables.
    disk : callable
        Bytes of disk for tensors of a number of bytes.
    write : callable
        Writes the files for tensors of a number of bytes into a folder.
    tables : callable
        The tables over the files of a folder.
    aims : callable
        The aims, from the results of all tables by name of case.
    """

    name: str
    title: str
    intro: str
    disk: Callable[[int], int]
    write: Callable[[Path, int], None]
    tables: Callable[[Path], Sequence[Table]]
    aims: Callable[[Results], Sequence[Aim]]

    def case(self, folder: Path, name: str) -> Case:
        """Find a case by its name."""
        return next(
            each for table in self.tables(folder) for each in table.cases if each.name == name
        )
