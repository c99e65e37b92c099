"""System calls and requests that fail, or whose replies are lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import pytest

CALLS = (
    "open", "pwrite", "ftruncate", "fsync", "replace", "rename", "link", "unlink", "chmod", "chown",
    "close", "stat", "lstat", "fstat", "access",
)  # fmt: skip


class Faults:
    """Counts calls, and lets some of them fail before or after they have an effect.

    If the faults last, all calls from the first of them on fail.
    """

    def __init__(
        self,
        *at: int,
        failure: Any = errno.EIO,
        has_effect: bool = False,
        lasts: bool = False,
    ) -> None:
        self.at, self.failure, self.has_effect, self.lasts = at, failure, has_effect, lasts
        self.count, self.hits = 0, list[str]()

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        self.count += 1
        if self.count not in self.at and not (self.lasts and self.count > self.at[0]):
            return call()
        self.hits.append(name)
        if self.has_effect or name == "close":
            result = call()
            if name == "open":
                os.close(result)
        if isinstance(self.failure, int):
            raise OSError(self.failure, os.strerror(self.failure))
        raise self.failure


@contextmanager
def inject(faults: Faults, directory: Path) -> Iterator[None]:
    """Let system calls fail that concern a directory."""
    opened: set[int] = set()

    def wrap(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            first = arguments[0]
            is_open = isinstance(first, int) and first in opened
            if not is_open and not str(first).startswith(str(directory)):
                return call(*arguments, **options)
            if name == "close":
                opened.discard(first)
            result = faults.run(name, lambda: call(*arguments, **options))
            if name == "open":
                opened.add(result)
            return result

        return run

    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler="synchronous"):
        for name in CALLS:
            patch.setattr(os, name, wrap(name, getattr(os, name)))
        yield
    assert not opened


def read_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def restore_files(directory: Path, files: Mapping[str, bytes]) -> None:
    for path in directory.iterdir():
        path.unlink()
    for name, content in files.items():
        (directory / name).write_bytes(content)


def catch_message(call: Callable[[], object]) -> str | None:
    """Return what the error of a write says, or None if there is none."""
    try:
        call()
    except (OSError, KeyboardInterrupt) as error:
        return " ".join([str(error), *getattr(error, "__notes__", ())])
    return None
