"""The end of the command by a signal, before which what is unfinished is removed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def sigterm_raises_exit() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that a file that is being written is removed as by Ctrl-C.

    Only the command does this: handlers of signals belong to the program. One that is there, or
    that ignores the signal, stays.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
