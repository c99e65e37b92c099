"""The end of the command by a signal, before which what is unfinished is removed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xr_tensorfmt.writing.unfinished import remove_own

_CODE = 128 + signal.SIGTERM
_LONGEST_WAIT = 5.0


@contextmanager
def sigterm_raises_exit(directory: str) -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that a file that is being written is removed as by Ctrl-C.

    Libraries that write may ignore or replace an exception that is raised in one of their
    callbacks. So the process ends after 5 seconds in any case, and what it left in `directory` is
    removed. A handler that is there, or that ignores the signal, stays.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end_at_once() -> None:
        remove_own(directory)
        os._exit(_CODE)

    later = threading.Timer(_LONGEST_WAIT, end_at_once)
    later.daemon = True

    def end(*_: Any) -> None:
        if not later.is_alive():
            later.start()
        raise SystemExit(_CODE)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if later.is_alive():
            remove_own(directory)
            raise SystemExit(_CODE)
