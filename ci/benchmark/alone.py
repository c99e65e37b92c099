"""Run a case in a process of its own and watch its memory."""

from __future__ import annotations

import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

_INTERVAL = 0.001
_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Observed:
    """What a run in a fresh process took.

    Parameters
    ----------
    seconds : float
        Time, measured inside.
    own : float
        Peak MiB of the process' own memory (RssAnon) beyond what it had after imports and setup.
    pages : float
        The same of all resident memory, mapped pages of files (RssFile) included.
    """

    seconds: float
    own: float
    pages: float


def observe(section: str, case: str, folder: Path) -> Observed:
    """Run one case in a fresh process, and look at its memory every millisecond from outside.

    Parameters
    ----------
    section, case : str
        Their names.
    folder : Path
        Where the section's files are.

    Returns
    -------
    Observed
    """
    command = [sys.executable, "-m", "benchmark.child", section, case, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise RuntimeError(f"{case!r} did not get ready")
        process = psutil.Process(child.pid)
        first = _memory(process)
        peak = first
        child.stdin.write("go\n")
        child.stdin.flush()
        while not select.select([child.stdout], [], [], _INTERVAL)[0]:
            now = _memory(process)
            peak = (max(peak[0], now[0]), max(peak[1], now[1]))
        line = child.stdout.readline()
    if child.returncode:
        raise RuntimeError(f"{case!r} failed in its own process")
    own, pages = ((high - low) / _MEBIBYTE for high, low in zip(peak, first, strict=True))
    return Observed(float(line), own, pages)


def _memory(process: psutil.Process) -> tuple[int, int]:
    info = process.memory_info()
    # "shared" counts resident pages of files, on Linux; where it is missing, all is own memory.
    return info.rss - getattr(info, "shared", 0), info.rss
