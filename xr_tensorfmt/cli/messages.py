"""Output of the command, without tracebacks, secrets and control codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import click

from xr_tensorfmt.errors import TensorFormatWarning, redact

STANDARD_STREAM = "-"
"""The argument for standard input or output."""

_SHOWN = "<stdin>"


_OPTIONS: Mapping[str, str | Callable[[re.Match[str]], str]] = {
    "apply_unit=True": "--apply-unit",
    r"drop=\[([^]]*)\]": lambda drop: "--drop " + ",".join(re.findall(r"\w+", drop[1])),
    r"encoding=\{'([^']*)': \{'dtype': '([^']*)'\}\}": r"--dtype \1=\2",
    "format=,": "--to,",
    r"format='([^']*)'": r"--from \1",
    "mode='w'": "--overwrite",
    "pass one of them as a DataArray": "choose one with --variable NAME",
    r"pass positions as to isel, or select labels with sel\(\) first": "pass positions to --select",
    r"sparse='([^']*)'": r"--sparse \1",
    r"use xarray\.open_mfdataset for a pattern": "no file matches the pattern either",
    "verify=False": "--no-verify",
    r"version='([^']*)'": r"--option version=\1",
}
"""The options of the command for the next steps in messages for Python, as patterns."""


def get_display_name(file: str) -> str:
    """Return the name of a file for output."""
    return to_one_line(_SHOWN if file == STANDARD_STREAM else file)


@contextmanager
def open_argument(file: str) -> Iterator[str | BinaryIO]:
    """Return an argument, or a copy of standard input in an anonymous temporary file."""
    if file != STANDARD_STREAM:
        yield file
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError("there is no standard input; redirect a file or a pipe to it")
    with TemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy, 1 << 20)
        copy.flush()
        raw: Any = copy.raw
        raw.name = _SHOWN
        yield copy


def escape_unprintable(string: str) -> str:
    """Escape characters of an untrusted string that could control a terminal."""
    if string.isprintable():
        return string
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in string)


def to_one_line(message: str) -> str:
    """Remove line breaks, control characters and secrets in URLs from a message."""
    return escape_unprintable(redact(" ".join(message.split())))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines with escaped control characters, and headings in bold on a terminal."""
    for line in lines:
        is_heading = line.endswith(":") and not line.startswith(" ")
        _print(escape_unprintable(line), bold=is_heading)


def _print(line: str, *, err: bool = False, **style: Any) -> None:
    """Print a line with a style, unless the output is no terminal or NO_COLOR is set."""
    click.secho(line, err=err, color=False if os.environ.get("NO_COLOR") else None, **style)


def print_json(document: Any) -> None:
    """Print a document with findings as JSON, in one line: indenting takes ten times as long."""
    text = json.dumps(document, default=asdict, check_circular=False)
    click.echo(text.replace("\x7f", "\\u007f"))  # the only control character that JSON keeps


def _replace_keywords(message: str) -> str:
    """Replace keywords of Python in a message by options of the command."""
    for keyword, option in _OPTIONS.items():
        message = re.sub(keyword, option, message)
    return message


def _format_error(error: BaseException, file: str, origin: str) -> str:
    """Format an error as one line that names the file and its origin."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        message = f"{error.filename}: {error.strerror}"
    elif isinstance(error, NotImplementedError | KeyError) or not message:
        message = f"{type(error).__name__}: {message}"
    message = to_one_line(_replace_keywords(message))
    names = [get_display_name(name) for name in (file, origin) if name]
    if any(os.path.basename(name.rstrip("/")) in message for name in names):
        return message
    return f"{' from '.join(names)}: {message}"


@contextmanager
def errors_in_one_line(file: str, origin: str = "") -> Iterator[None]:
    """Print warnings about a file, and convert its errors to errors of the command, in one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TensorFormatWarning)
        warnings.showwarning = _show_warning
        try:
            yield
        except click.ClickException:
            raise
        except Exception as error:
            raise click.ClickException(_format_error(error, file, origin)) from error


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    _print(f"Warning: {to_one_line(_replace_keywords(str(message)))}", err=True, fg="yellow")


def show_progress(files: Sequence[str], *, quiet: bool) -> Iterator[str]:
    """Yield files, and show one bar for several files if stderr is a terminal."""
    if quiet or len(files) == 1:
        yield from files
        return
    from tqdm import tqdm  # noqa: PLC0415  # --help does not need it

    for file in tqdm(files, unit=" files", disable=None):
        with tqdm.external_write_mode():  # lines do not overwrite the bar
            yield file


def print_summary(count: int, failed: int) -> None:
    """Print the number of files, and of files with errors."""
    click.echo(f"{count} files, {failed} with errors", err=True)


def describe_files(
    files: Iterable[str],
    describe: Callable[[str, str | BinaryIO], dict[str, Any]],
    lines: Callable[[dict[str, Any]], Iterable[str]],
    *,
    as_json: bool,
    separate: bool = False,
) -> list[dict[str, Any]]:
    """Print the description of every file, or its error, and return all documents."""
    documents: list[dict[str, Any]] = []
    for file in files:
        try:
            with errors_in_one_line(file), open_argument(file) as content:
                document = {"path": get_display_name(file)} | describe(file, content)
        except click.ClickException as error:
            document = {"path": get_display_name(file), "error": error.message}
            error.show()
        else:
            if separate and documents and not as_json:
                click.echo()
            print_lines(() if as_json else lines(document))
        documents.append(document)
    if as_json:
        print_json(documents)
    return documents
