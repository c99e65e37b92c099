"""Jobs of the benchmark and the contenders that do the same job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

OURS = "xr_tensorfmt"
Role = Literal["ours", "peer", "baseline"]
Run = Callable[..., float | None]


@dataclass(frozen=True)
class Prepared:
    """A contender with a part that is not timed: `run` receives the result of `prepare`."""

    run: Run
    prepare: Callable[[], Any]


@dataclass(frozen=True)
class Job:
    """A task, which all contenders do with the same result.

    `text` describes the task with its sizes. The baseline is a minimal program for the same bytes.
    `memory` says whether to measure the peak memory of this package.
    """

    name: str
    text: str
    ours: Run | Prepared
    baseline_name: str
    baseline: Run | Prepared
    peers: Mapping[str, Run | Prepared]
    memory: bool = False

    @property
    def contenders(self) -> dict[str, Run | Prepared]:
        """All contenders by name."""
        return {self.baseline_name: self.baseline, OURS: self.ours, **self.peers}

    def get_role(self, name: str) -> Role:
        """Return the role of a contender."""
        if name == OURS:
            return "ours"
        return "baseline" if name == self.baseline_name else "peer"
