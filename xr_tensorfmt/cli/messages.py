"""What the command prints about files: without tracebacks, secrets or control codes.

Standard input is one of the files.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import click

from xr_tensorfmt.errors import TensorFormatWarning
from xr_tensorfmt.sources.store_errors import redact

STDIN = "-"
"""The argument that stands for standard input."""

_SHOWN = "<stdin>"


def shown(file: str) -> str:
    """The name of a file in what the command prints."""
    return one_line(_SHOWN if file == STDIN else file)


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


def printable(string: str) -> str:
    """A string of unknown origin, with characters that could control a terminal escaped."""
    if string.isprintable():
        return string
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in string)


def one_line(message: str) -> str:
    """A message without line breaks and control characters, and without secrets in its URLs."""
    return printable(redact(" ".join(message.split())))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines in which control characters are escaped."""
    for line in lines:
        click.echo(printable(line))


def print_json(document: Any) -> None:
    """Print what JSON can represent, and findings."""
    text = json.dumps(document, indent=2, ensure_ascii=False, default=asdict)
    # UTF-8 cannot encode lone surrogates. Their escapes are valid JSON.
    click.echo(text.encode(errors="backslashreplace").decode())


def _sentence(error: BaseException, file: str, origin: str) -> str:
    """What an error says, on one line that names the file, and perhaps the one it is made from."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        message = f"{error.filename}: {error.strerror}"
    elif isinstance(error, NotImplementedError | KeyError) or not message:
        message = f"{type(error).__name__}: {message}"
    message = one_line(message)
    names = [shown(name) for name in (file, origin) if name]
    if any(os.path.basename(name.rstrip("/")) in message for name in names):
        return message
    return f"{' from '.join(names)}: {message}"


@contextmanager
def errors_in_one_line(file: str, origin: str = "") -> Iterator[None]:
    """Turn errors about a file into those of the command: one line, and exit code 1.

    Warnings about files are a line each as well, and no other warnings are shown.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TensorFormatWarning)
        warnings.showwarning = _show_warning
        try:
            yield
        except click.ClickException:
            raise
        except Exception as error:
            raise click.ClickException(_sentence(error, file, origin)) from error


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {one_line(str(message))}", err=True)


def described(
    files: Iterable[str],
    describe: Callable[[str, str | BinaryIO], dict[str, Any]],
    lines: Callable[[dict[str, Any]], Iterable[str]],
    *,
    as_json: bool,
    apart: bool = False,
) -> list[dict[str, Any]]:
    """Print what each file is found to be; one that fails does not keep the others back."""
    documents: list[dict[str, Any]] = []
    for file in files:
        try:
            with errors_in_one_line(file), input_of(file) as content:
                document = {"path": shown(file)} | describe(file, content)
        except click.ClickException as error:
            document = {"path": shown(file), "error": error.message}
            error.show()
        else:
            if apart and documents and not as_json:
                click.echo()
            print_lines(() if as_json else lines(document))
        documents.append(document)
    if as_json:
        print_json(documents)
    return documents
