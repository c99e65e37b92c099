"""``xr-tensorfmt diff``: what differs between two files."""

from __future__ import annotations

from typing import Any

import click

from xr_tensorfmt.cli.messages import errors_in_one_line, one_line, print_json, print_lines
from xr_tensorfmt.cli.options import (
    Pairs,
    group_options,
    options_for,
    source_options,
    store_format,
    verify_option,
)


class _Failure(click.ClickException):
    """An error, which is told from a difference by its exit code."""

    exit_code = 2


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--json", "as_json", is_flag=True, help="A JSON object.")
@group_options
@source_options
@verify_option
def diff(
    first: str,
    second: str,
    as_json: bool,
    format: str | None,
    storage_options: Pairs,
    **options: Any,
) -> None:
    """Compare the variables of two files: names, dtypes, shapes and all values.

    The formats may differ, and zarr and netCDF are read as well. Names of dimensions and attributes
    are not compared. The exit code is 0 if nothing differs, 1 if something does, 2 for an error.
    """
    try:
        with errors_in_one_line(first, second):
            from xr_tensorfmt.cli.comparison import compare, lines_of, opened  # noqa: PLC0415

            one, other = (
                opened(
                    file,
                    format or store_format(file),
                    storage_options=options_for(file, storage_options),
                    **options,
                )
                for file in (first, second)
            )
            comparison = compare(one, other)
    except click.ClickException as error:
        raise _Failure(error.message) from error
    first, second = one_line(first), one_line(second)
    if as_json:
        print_json({"first": first, "second": second, **comparison})
    else:
        print_lines(lines_of(comparison, first, second))
    raise SystemExit(int(not comparison["equal"]))
