"""Options that several commands share, and the syntax of their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from xr_tensorfmt import formats
from xr_tensorfmt.sources import is_url

Function = TypeVar("Function", bound=Callable[..., Any])


def format_option(
    *flags: str, more: tuple[str, ...] = (), help: str
) -> Callable[[Function], Function]:
    """An option whose value is the name of a registered format, or one of some more names."""

    def check(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
        known = (*(each.name for each in formats.all_formats()), *more)
        if value is not None and value not in known:
            raise click.BadParameter(f"{value!r} is not one of {', '.join(known)}", context, option)
        return value

    built_in = ", ".join((*(each.name for each in formats.BUILT_IN), *more))
    return click.option(*flags, callback=check, metavar="FORMAT", help=f"{help} ({built_in})")


def pairs(context: click.Context, option: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    """Parse values of the form ``KEY=VALUE``; a callback of click."""
    found: dict[str, str] = {}
    for pair in values:
        key, equals, value = pair.partition("=")
        if not (equals and key):
            raise click.BadParameter(f"{pair!r} is not of the form KEY=VALUE", context, option)
        if found.setdefault(key, value) != value:
            raise click.BadParameter(f"{key!r} is both {found[key]} and {value}", context, option)
    return found


def json_pairs(
    context: click.Context, option: click.Parameter, values: Iterable[str]
) -> dict[str, Any]:
    """Parse values of the form ``KEY=VALUE`` where a value may be JSON; others are strings."""
    return {key: _from_json(value) for key, value in pairs(context, option, values).items()}


def _from_json(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def names(
    context: click.Context, option: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    """Parse names that are separated by commas; a callback of click."""
    if value is None:
        return None
    found = tuple(name.strip() for name in value.split(","))
    if not all(found) or len(set(found)) != len(found):
        raise click.BadParameter(
            f"{value!r} is not a list of different names such as a,b,c", context, option
        )
    return found


storage_option = click.option(
    "--storage-option",
    "storage_options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=json_pairs,
    help="Option of the fsspec file system of a URL, such as anon=true. "
    "Values may be JSON. Repeatable.",
)

dims_option = click.option(
    "--dims", callback=names, metavar="A,B,C", help="Names for the dimensions of a sole variable."
)

sparse_option = click.option(
    "--sparse",
    type=click.Choice(("auto", "dense", "stored")),
    default="auto",
    help="Of a sparse file: all elements, or only those that are stored.",
)

verify_option = click.option(
    "--no-verify",
    "verify",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Continue in spite of a wrong checksum, or of bytes after the end.",
)


def source_options(function: Function) -> Function:
    """Add the options that say what format a file has and how to reach it."""
    from_option = format_option(
        "--from",
        "format",
        help="Format of the files; by default their content decides, or else their suffix",
    )
    function = storage_option(function)
    return from_option(function)


def options_for(file: str, storage_options: dict[str, Any]) -> dict[str, Any] | None:
    """The storage options if a file is a URL; a path needs none."""
    return (storage_options or None) if is_url(file) else None
