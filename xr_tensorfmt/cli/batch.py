"""Conversions of several files into a directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from xr_tensorfmt import formats
from xr_tensorfmt.cli.conversion import Conversion, located
from xr_tensorfmt.cli.options import NETCDF, ZARR, Pairs, store_format
from xr_tensorfmt.cli.standard_input import STDIN
from xr_tensorfmt.sources import is_url


def convert_all(sources: Sequence[str], target: str, wanted: dict[str, Any]) -> None:
    """Convert each file; one that fails does not keep the others back."""
    pairs = [(source, target) for source in sources]
    if _is_directory(sources, target):
        pairs = _into_directory(sources, target, wanted["to"], wanted["storage_options"])
        if not is_url(target):
            os.makedirs(target, exist_ok=True)
    failed = False
    for source, file in pairs:
        try:
            Conversion(source=source, target=file, **wanted).run()
        except click.ClickException as error:
            failed = True
            error.show()
    raise SystemExit(int(failed))


def _is_directory(sources: Sequence[str], target: str) -> bool:
    """Whether files are to be written into a directory; UsageError if it cannot be one."""
    if target.endswith(("/", os.sep)) and store_format(target) is None:
        return True
    if len(sources) == 1:
        return False
    if is_url(target) or not os.path.isdir(target) or store_format(target):
        raise click.UsageError(
            f"{len(sources)} files are converted into a directory; give one, or end OUT with '/' "
            f"to make it, as in '{target.rstrip('/')}/'"
        )
    return True


def _into_directory(
    sources: Sequence[str], directory: str, to: str | None, storage_options: Pairs
) -> list[tuple[str, str]]:
    """Each file and what it becomes, which has its name and the suffix of the format."""
    if to is None:
        raise click.UsageError("OUT is a directory, which has no suffix; name the format by --to")
    suffix = {ZARR: ".zarr", NETCDF: ".nc"}.get(to) or formats.by_name(to).suffixes[0]
    found: dict[str, str] = {}
    for source in sources:
        path = "stdin" if source == STDIN else located(source, storage_options)[1]
        name = os.path.splitext(os.path.basename(path.rstrip("/")))[0] + suffix
        if name in found:
            raise click.UsageError(
                f"{found[name]} and {source} would both become {name}; convert one of them alone"
            )
        found[name] = source
    start = directory.rstrip("/" + os.sep) if directory.strip("/" + os.sep) else ""
    return [(source, f"{start}/{name}") for name, source in found.items()]
