"""Jobs of the benchmark and the contenders that do the same job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

OURS = "xr_tensorfmt"
Role = Literal["ours", "peer", "limit"]
Run = Callable[..., float | None]


@dataclass(frozen=True)
class Prepared:
    """A contender with a part that is not timed: `run` receives the result of `prepare`."""

    run: Run
    prepare: Callable[[], Any]


@dataclass(frozen=True)
class Job:
    """A task, which all contenders do with the same result.

    Parameters
    ----------
    name, text : str
        Identifier, unique in its section, and description with sizes for the page.
    ours, limit : callable or Prepared
        This package, and the least time that a program can take. A returned number must be the
        same for all contenders.
    limit_name : str
        Description of the limit.
    peers : dict
        Other packages by name.
    memory : bool
        Whether to measure the peak memory of this package.
    """

    name: str
    text: str
    ours: Run | Prepared
    limit_name: str
    limit: Run | Prepared
    peers: Mapping[str, Run | Prepared]
    memory: bool = False

    @property
    def contenders(self) -> dict[str, Run | Prepared]:
        """All contenders by name."""
        return {self.limit_name: self.limit, OURS: self.ours, **self.peers}

    def get_role(self, name: str) -> Role:
        """Return the role of a contender."""
        if name == OURS:
            return "ours"
        return "limit" if name == self.limit_name else "peer"


class Section(Protocol):
    """A module of `benchmark.sections`; sizes are those of a full run divided by `scale`."""

    TITLE: str
    INTRO: str

    def provide(self, folder: Path, scale: int) -> AbstractContextManager[None]:
        """Write the files into a folder, and run the servers while the context lasts."""

    def get_jobs(self, folder: Path, scale: int) -> Sequence[Job]:
        """Return the jobs on the files of a folder."""
