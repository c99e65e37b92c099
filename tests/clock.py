"""Wait for the clock with which a file system records changes."""

from __future__ import annotations

from pathlib import Path


def wait_for_a_tick(path: Path) -> None:
    """Wait until another file would have another time of change than this one."""
    other = path.with_name("clock")
    while True:
        other.write_bytes(b"")
        if other.stat().st_ctime_ns > path.stat().st_ctime_ns:
            break
    other.unlink()
