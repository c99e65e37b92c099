"""Errors and warnings as single lines on stderr: without tracebacks, secrets or control codes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from xr_tensorfmt.cli.standard_input import shown
from xr_tensorfmt.errors import TensorFormatWarning
from xr_tensorfmt.sources.store_errors import redacted


def printable(string: str) -> str:
    """A string of unknown origin, with characters that could control a terminal escaped."""
    if string.isprintable():
        return string
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in string)


def one_line(message: str) -> str:
    """A message without line breaks and control characters, and without secrets in its URLs."""
    return printable(redacted(" ".join(message.split())))


def sentence(error: BaseException, file: str, origin: str = "") -> str:
    """What an error says, on one line that names the file, and perhaps the one it is made from."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        message = f"{error.filename}: {error.strerror}"
    elif isinstance(error, NotImplementedError | KeyError) or not message:
        message = f"{type(error).__name__}: {message}"
    message = one_line(message)
    names = [one_line(shown(name)) for name in (file, origin) if name]
    if any(os.path.basename(name.rstrip("/")) in message for name in names):
        return message
    return f"{' from '.join(names)}: {message}"


@contextmanager
def errors_in_one_line(file: str, origin: str = "") -> Iterator[None]:
    """Turn errors about a file into those of the command: one line, and exit code 1."""
    try:
        with plain_warnings():
            yield
    except Exception as error:
        raise click.ClickException(sentence(error, file, origin)) from error


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show each warning about a file on a line of its own, and no other warnings."""

    def show(message: Any, *_: Any, **__: Any) -> None:
        click.echo(f"Warning: {one_line(str(message))}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TensorFormatWarning)
        warnings.showwarning = show
        yield
