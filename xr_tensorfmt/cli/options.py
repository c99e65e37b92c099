"""Options that several commands have, and the forms of their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

FAMILIES = ("tens", "mag", "pycauset", "vespa")

Function = TypeVar("Function", bound=Callable[..., Any])


def pairs(context: click.Context, option: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    """Values of the form ``KEY=VALUE``, as a mapping; a callback of click."""
    found: dict[str, str] = {}
    for value in values:
        key, sign, text = value.partition("=")
        if not (sign and key):
            raise click.BadParameter(f"{value!r} is not of the form KEY=VALUE", context, option)
        if found.setdefault(key, text) != text:
            raise click.BadParameter(f"{key!r} is both {found[key]} and {text}", context, option)
    return found


def json_pairs(
    context: click.Context, option: click.Parameter, values: Iterable[str]
) -> dict[str, Any]:
    """The same, where values may be JSON; others are texts."""
    return {key: _json(text) for key, text in pairs(context, option, values).items()}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def names(
    context: click.Context, option: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    """Names with commas between them; a callback of click."""
    if value is None:
        return None
    found = tuple(each.strip() for each in value.split(","))
    if not all(found) or len(set(found)) != len(found):
        raise click.BadParameter(
            f"{value!r} is not a list of different names such as a,b,c", context, option
        )
    return found


def source_options(function: Function) -> Function:
    """How to reach a file and what to take it for."""
    options = (
        click.option(
            "--from",
            "format",
            type=click.Choice(FAMILIES),
            help="Format of the files. By default their content decides, and .tbf for Vespa.",
        ),
        storage_option,
    )
    for option in reversed(options):
        function = option(function)
    return function


storage_option = click.option(
    "--storage-option",
    "storage_options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=json_pairs,
    help="How to reach a URL, in the words of its file system of fsspec, such as anon=true. "
    "Values may be JSON. Repeatable.",
)

sparse_option = click.option(
    "--sparse",
    type=click.Choice(("auto", "dense", "stored")),
    default="auto",
    help="Of a sparse file: all elements, or only what is stored.",
)

verify_option = click.option(
    "--no-verify",
    "verify",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Read on in spite of a wrong checksum, or of bytes after the end.",
)


def reaching(file: str, storage_options: dict[str, Any]) -> dict[str, Any] | None:
    """The storage options where they are for this file: those that are paths need none."""
    from xr_tensorfmt.sources import is_url  # noqa: PLC0415

    return (storage_options or None) if is_url(file) else None
