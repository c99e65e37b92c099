"""Errors and warnings as single lines on stderr, without tracebacks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from xr_tensorfmt.cli.words import in_command_words, printable, without_secrets
from xr_tensorfmt.errors import TensorFormatWarning


def sentence(error: BaseException, file: str = "") -> str:
    """What an error says, on one line."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    if isinstance(error, NotImplementedError | KeyError) or not text:
        text = f"{type(error).__name__}: {text}"
    text, file = in_command_words(text), without_secrets(file)
    return text if os.path.basename(file) in text else f"{printable(file)}: {text}"


@contextmanager
def one_line(file: str = "") -> Iterator[None]:
    """Make errors of what is within those of the command: a line, and exit code 1."""
    try:
        with plain_warnings():
            yield
    except (click.ClickException, click.Abort, click.exceptions.Exit):
        raise
    except Exception as error:
        raise click.ClickException(sentence(error, file)) from error


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings about files as a line each, and none that is about Python's own affairs."""

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        del category, where, more
        click.echo(f"Warning: {in_command_words(str(message))}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TensorFormatWarning)
        warnings.showwarning = show
        yield
