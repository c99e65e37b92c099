"""Options that commands share, and their output without tracebacks, secrets and control codes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypeVar

import click

from xr_tensorfmt.core.open_options import SHARED_OPTIONS
from xr_tensorfmt.errors import Finding, TensorFormatWarning, redact
from xr_tensorfmt.formats import recognition, registry
from xr_tensorfmt.sources import find_matches, is_url

Function = TypeVar("Function", bound=Callable[..., Any])

KeyValues = tuple[tuple[str, Any], ...]
"""The values of a repeatable option ``KEY=VALUE``."""

STANDARD_STREAM = "-"
"""The argument for standard input or output."""

STORES = ZARR, NETCDF = "zarr", "netcdf"

STORE_SUFFIXES = {".zarr": ZARR, **dict.fromkeys((".nc", ".nc4", ".cdf", ".h5", ".hdf5"), NETCDF)}

_SHOWN = "<stdin>"


def get_store_format(file: str) -> str | None:
    """Return "zarr" or "netcdf" if a name has such a suffix."""
    return STORE_SUFFIXES.get(os.path.splitext(file.rstrip("/").casefold())[1])


def format_examples(*lines: str) -> str:
    """Format examples for the end of ``--help``, one per line."""
    return "\n".join(("\b", "Examples:", *(f"  xr-tensorfmt {line}" for line in lines)))


def format_option(*flags: str, names: Collection[str], help: str) -> Callable[[Function], Function]:
    """Create an option for the name of a format."""
    choice, text = click.Choice(names), f"{help} ({', '.join(names)})"
    return click.option(*flags, type=choice, metavar="FORMAT", help=text)


def parse_key_value(pair: str) -> tuple[str, str]:
    """Parse a value of the form ``KEY=VALUE``."""
    key, equals, value = pair.partition("=")
    if not (equals and key):
        # The pair may be secret.
        raise click.BadParameter("the value must have the form KEY=VALUE")
    return key, value


def parse_key_json(pair: str) -> tuple[str, Any]:
    """Parse ``KEY=VALUE``. The value may be JSON or any string."""
    key, value = parse_key_value(pair)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


storage_option = click.option(
    "--storage-option",
    "storage_options",
    metavar="KEY=VALUE",
    multiple=True,
    type=parse_key_json,
    help="Option of the fsspec file system of a URL, such as anon=true. "
    "Values may be JSON. Repeatable.",
)

dims_option = click.option(
    "--dims",
    type=lambda names: names.split(","),
    metavar="A,B,C",
    help="Dimension names of the only variable.",
)

sparse_option = click.option(
    "--sparse",
    type=click.Choice(SHARED_OPTIONS["sparse"].choices),
    default=SHARED_OPTIONS["sparse"].default,
    help="Read all elements of a sparse file, or only the stored ones.",
)

verify_option = click.option(
    "--no-verify",
    "verify",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Ignore wrong checksums and trailing bytes.",
)

files_argument = click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path()
)

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: a list with one object per file."
)


def add_source_options(function: Function) -> Function:
    """Add options for the format and storage of a file."""
    text = "Format of the files; the default depends on their content or suffix"
    from_option = format_option("--from", "format", names=registry.list_names(), help=text)
    return from_option(storage_option(function))


def add_group_options(function: Function) -> Function:
    """Add options that select a group of variables."""
    group = click.option(
        "--group", help="Only the variables of a group, such as layers.0 or /layers/0."
    )
    separator = click.option(
        "--separator", default=".", show_default=True, help="Separator of name parts."
    )
    return group(separator(function))


def get_storage_options(file: str, storage_options: KeyValues) -> dict[str, Any] | None:
    """Return the storage options if a file is a URL."""
    return (dict(storage_options) or None) if is_url(file) else None


def expand_paths(
    paths: Iterable[str], storage_options: KeyValues, format: str | None = None
) -> Iterator[str]:
    """Replace directories by their files unless `format` is a store, and patterns by matches."""
    for path in paths:
        with errors_in_one_line(path):
            files = find_matches(path, get_storage_options(path, storage_options))
            if files == [path] and format not in STORES:
                files = list_files(path, storage_options)
        yield from files or [path]


def list_files(path: str, storage_options: KeyValues) -> list[str]:
    """Return the tensor files in a directory. A directory with an index opens as a whole."""
    is_directory = path.endswith("/") if is_url(path) else os.path.isdir(path)
    if not is_directory or get_store_format(path):
        return []
    files = recognition.list_files(path, get_storage_options(path, storage_options), None)
    if files != [path] and not is_url(path):
        for name in sorted(name for name in os.listdir(path) if not name.startswith(".")):
            if os.path.isdir(subdirectory := os.path.join(path, name)):
                print_message(
                    f"Warning: {to_one_line(subdirectory)} is a directory, and is left out"
                )
    return files


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
    """Print lines with escaped control characters."""
    for line in lines:
        click.echo(escape_unprintable(line))


def print_message(message: str) -> None:
    """Print a message on stderr: in one line, or wrapped between words on a terminal."""
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns
        options: Any = {"break_long_words": False, "break_on_hyphens": False}
        message = textwrap.fill(message, columns, subsequent_indent="  ", **options)
    click.echo(message, err=True)


def print_json(document: Any) -> None:
    """Print a document with findings as JSON, in one line: indenting takes ten times as long."""
    text = json.dumps(document, default=_finding_to_dict, check_circular=False)
    click.echo(text.replace("\x7f", "\\u007f"))  # the only control character that JSON keeps


def _finding_to_dict(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "message": finding.message}


class FileError(click.ClickException):
    """An error about a file."""

    def show(self, file: Any = None) -> None:
        """Print the error."""
        print_message(f"Error: {self.message}")


def _format_error(error: BaseException, file: str, origin: str) -> str:
    """Format an error as one line that names the file and its origin."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        message = f"{error.filename}: {error.strerror}"
    elif isinstance(error, NotImplementedError | KeyError) or not message:
        message = f"{type(error).__name__}: {message}"
    message = to_one_line(message)
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
            raise FileError(_format_error(error, file, origin)) from error


def _show_warning(message: Any, *_: Any, **__: Any) -> None:
    print_message(f"Warning: {to_one_line(str(message))}")


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
