"""Jobs of the benchmark and the contenders that do the same job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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

    `text` describes the task with its sizes. The limit is the least time that a program can take.
    `memory` says whether to measure the peak memory of this package.
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
