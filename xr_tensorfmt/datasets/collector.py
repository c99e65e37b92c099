"""The collector of garbage is paused while a file is opened.

Each new object counts towards the next collection, which then visits all that there are. For the
variables of a file it would visit them again and again and find nothing to free: of 10,000
variables the opening takes 1.4 s of processor time instead of 0.95 s.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_paused: list[bool] = []


@contextmanager
def paused_collector() -> Iterator[None]:
    """Let no collection begin; where the collector is off already, nothing is changed."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    _paused.append(True)
    try:
        yield
    finally:
        _paused.pop()
        gc.enable()


def _resume_in_child() -> None:
    """A process that is forked in the meantime has no thread that would come back to this."""
    if _paused:
        _paused.clear()
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume_in_child)
