"""The garbage collector, paused while many small objects are made that all stay."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Let no collection begin.

    Each new object counts towards the next collection, which then visits all that there are. For
    the variables of a file it would visit them again and again and find nothing to free, at about
    a third of the time that opening takes.
    """
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


_paused: list[bool] = []


def _resume_in_child() -> None:
    """A process that is forked in the meantime has no thread that would come back to this."""
    if _paused:
        _paused.clear()
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume_in_child)
