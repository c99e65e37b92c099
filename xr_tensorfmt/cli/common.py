"""Options that commands share, and their output without tracebacks, secrets and control codes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from glob import escape, glob
from typing import Any

import click

from xr_tensorfmt.errors import TensorFormatWarning, redact, warn
from xr_tensorfmt.formats import recognition, registry
from xr_tensorfmt.sources import find_matches, is_url

Decorator = Callable[[Any], Any]
KeyValues = dict[str, Any]

STORES = ZARR, NETCDF = "zarr", "netcdf"

STORE_SUFFIXES = {".zarr": ZARR, **dict.fromkeys((".nc", ".nc4", ".cdf", ".h5", ".hdf5"), NETCDF)}


def get_store_format(file: str) -> str | None:
    """Return "zarr" or "netcdf" if a name has such a suffix."""
    return STORE_SUFFIXES.get(os.path.splitext(file.rstrip("/").casefold())[1])


def format_option(flag: str, variable: str, *, writable: bool, help: str) -> Decorator:
    """Create an option for the name of a format or store."""
    names = [*registry.list_names(writable=writable), *STORES]
    text = f"{help} ({', '.join(names)})"
    return click.option(flag, variable, type=click.Choice(names), metavar="FORMAT", help=text)


def _parse_key_value(pair: str) -> tuple[str, Any]:
    key, equals, value = pair.partition("=")
    if not (equals and key):  # the pair may be secret
        raise click.BadParameter("the value must have the form KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def key_value_option(*flags: str, help: str) -> Decorator:
    """Create a repeatable option ``KEY=VALUE``. A value may be JSON or any string."""
    return click.option(
        *flags,
        metavar="KEY=VALUE",
        multiple=True,
        type=_parse_key_value,
        callback=lambda _, __, pairs: dict(pairs),
        help=f"{help} Values may be JSON. Repeatable.",
    )


PATH = click.Path(readable=False)
"""The type of paths. Opening a file decides whether it is readable."""

files_argument = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: a list with one object per file."
)


def add_source_options(function: Any) -> Any:
    """Add options for the format and storage of a file."""
    text = "Format of the files (stores only for convert and diff), by default by content or suffix"
    storage = "Option of the fsspec file system of a URL, such as anon=true."
    function = key_value_option("--storage-option", "storage_options", help=storage)(function)
    return format_option("--from", "format", writable=False, help=text)(function)


def add_open_options(function: Any) -> Any:
    """Add the options of `add_source_options`, and keywords of opening."""
    group = "Only the variables of a group, such as layers.0 or /layers/0."
    text = "A keyword to open a tensor file, such as verify=false, sparse=stored, apply_unit=true."
    function = key_value_option("--open-option", "open_options", help=text)(function)
    return add_source_options(click.option("--group", help=group)(function))


def get_storage_options(file: str, storage_options: KeyValues) -> KeyValues | None:
    """Return the storage options if a file is a URL."""
    return (storage_options or None) if is_url(file) else None


def _expand_path(path: str, storage_options: KeyValues) -> list[str]:
    """Return the matches of a pattern, or the tensor files in a directory."""
    options = get_storage_options(path, storage_options)
    files = find_matches(path, options)
    if files and files != [path] and all(map(os.path.isdir, files)):
        return [name for file in files for name in _expand_path(file, storage_options)]
    is_directory = path.endswith("/") if is_url(path) else os.path.isdir(path)
    if files == [path] and is_directory:
        left_out = [] if is_url(path) else sorted(glob(os.path.join(escape(path), "*", "")))
        try:
            files = recognition.list_files(path, options, None)
        except IsADirectoryError as error:
            examples = f", such as {left_out[0][:-1]} or {path.rstrip('/')}/*" if left_out else ""
            raise IsADirectoryError(f"{error}{examples}") from None
        if files != [path]:
            for name in left_out:
                warn(f"{name[:-1]} is a directory, and is left out")
    return files or [path]


def find_file(path: str, storage_options: KeyValues) -> str:
    """Return the only file of a directory or pattern, or a directory that may open as a model."""
    files = _expand_path(path, storage_options)
    is_directory = path.endswith("/") or os.path.isdir(path)
    formats = map(registry.find_format_by_suffix, files)
    if is_directory and all(known and known.directory_patterns for known in formats):
        return path  # opening it explains which index or file is missing
    if files[1:]:
        raise ValueError(f"{path} has {len(files)} files; pass the path of one of them")
    return files[0]


@contextmanager
def _report_error(path: str, documents: list[dict[str, Any]]) -> Iterator[None]:
    """Print an error about a file, and add it to the documents."""
    try:
        with format_errors(path):
            yield
    except click.ClickException as error:
        documents.append({"path": to_one_line(path), "error": error.message})
        error.show()


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


class FileError(click.ClickException):
    """An error about a file."""

    def show(self, file: Any = None) -> None:
        """Print the error."""
        print_message(f"Error: {self.message}")


@contextmanager
def format_errors(file: str, origin: str = "") -> Iterator[None]:
    """Print warnings about a file, and convert its errors to errors of the command, in one line."""

    def show_warning(message: Any, *_: Any, **__: Any) -> None:
        print_message(f"Warning: {to_one_line(str(message))}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TensorFormatWarning)
        warnings.showwarning = show_warning
        try:
            yield
        except click.ClickException:
            raise
        except Exception as error:
            raise FileError(_format_error(error, file, origin)) from error


def _format_error(error: BaseException, file: str, origin: str) -> str:
    message = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        message = f"{error.filename}: {error.strerror}"
    elif isinstance(error, ModuleNotFoundError) and error.name:
        message += f"; run pip install {error.name.partition('.')[0]}"
    elif isinstance(error, NotImplementedError | KeyError) or not message:
        message = f"{type(error).__name__}: {message}"
    message = to_one_line(message)
    names = [to_one_line(name) for name in (file, origin) if name]
    if any(os.path.basename(name.rstrip("/")) in message for name in names):
        return message
    return f"{' from '.join(names) or repr(file)}: {message}"


def describe_files(
    paths: Iterable[str],
    describe: Callable[[str], dict[str, Any]],
    format_lines: Callable[[dict[str, Any]], Iterable[str]],
    storage_options: KeyValues,
    as_json: bool,
) -> list[dict[str, Any]]:
    """Print the description of every file, or its error, and return all documents."""
    documents: list[dict[str, Any]] = []
    for path in paths:
        files: list[str] = []
        with _report_error(path, documents):
            files = _expand_path(path, storage_options)
        for file in files:
            with _report_error(file, documents):
                documents.append({"path": to_one_line(file), **describe(file)})
            if not (as_json or "error" in documents[-1]):
                print_lines(format_lines(documents[-1]))
    if as_json:  # in one line, because indenting takes ten times as long
        text = json.dumps(
            documents, default=lambda x: {**asdict(x), "message": x.message}, check_circular=False
        )
        click.echo(text.replace("\x7f", "\\u007f"))  # the only control character that JSON keeps
    return documents
