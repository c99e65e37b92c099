"""Run Python in another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Workers of clusters are forked from a process that has imported distributed, at half the cost.
if hasattr(os, "fork"):
    os.environ.setdefault("DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD", "forkserver")


def run_python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments, and raise an error if it fails."""
    run = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run


def run_script(script: str, *arguments: object, directory: Path) -> str:
    """Run a script as a file, so that it can start processes, and return its output."""
    path = directory / "script.py"
    path.write_text(script)
    return run_python(path, *arguments, cwd=directory).stdout


_LONGEST = 30


def run_in_child(call: Callable[[], bool]) -> bool:
    """Return whether a function returns a true value in a forked process in time."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if call() else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + _LONGEST
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False
