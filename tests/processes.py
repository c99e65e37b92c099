"""Python in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any


def run_python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, which must succeed."""
    run = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )
    assert run.returncode == 0, run.stderr
    return run


def run_script(script: str, *arguments: object, directory: Path) -> str:
    """Run a script as a file, which one that starts processes has to be; what it printed."""
    path = directory / "script.py"
    path.write_text(script)
    return run_python(path, *arguments, cwd=directory).stdout
