"""Standard input as a file that can be read at any place."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import BinaryIO

STDIN = "-"
"""The argument that stands for it."""

_SHOWN = "<stdin>"


def shown(file: str) -> str:
    """The name of a file in what the command prints."""
    return _SHOWN if file == STDIN else file


@contextmanager
def input_of(file: str) -> Iterator[str | BinaryIO]:
    """What to open for an argument: itself, or a copy of standard input.

    The copy is a temporary file without a name, which goes away with the process.
    """
    if file != STDIN:
        yield file
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError("there is no standard input; redirect a file or a pipe to it")
    with TemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy, 1 << 20)
        copy.flush()
        raw = io.FileIO(os.dup(copy.fileno()), "rb")
        raw.name = _SHOWN
        with io.BufferedReader(raw) as content:
            yield content
