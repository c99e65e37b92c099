"""``xr-tensorfmt clean``: what processes that have ended left of files that they were writing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from xr_tensorfmt.cli.messages import one_line, sentence
from xr_tensorfmt.core.extents import format_size
from xr_tensorfmt.writing.unfinished import Unfinished, unfinished_in


@click.command(short_help="Remove what killed processes left unfinished.")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path())
@click.option("--recursive", "-r", is_flag=True, help="Directories below DIR as well.")
@click.option("--dry-run", "-n", is_flag=True, help="Only say what would be removed.")
def clean(directories: tuple[str, ...], recursive: bool, dry_run: bool) -> None:
    """Remove unfinished files (.NAME.….part) of processes that have ended.

    Files of processes that run, or of which that cannot be known from here, are kept and listed.
    """
    removed: list[int] = []
    failed = False
    for directory in (each for top in directories for each in _directories(top, recursive)):
        try:
            for each in sorted(unfinished_in(directory), key=lambda each: each.path):
                size, reason = each.size, each.reason_to_keep
                if not reason:
                    if not dry_run:
                        os.unlink(each.path)
                    removed.append(size)
                _report(each, size, reason, dry_run=dry_run)
        except OSError as error:
            failed = True
            click.echo(f"Error: {sentence(error, directory)}", err=True)
    files = "1 file" if len(removed) == 1 else f"{len(removed)} files"
    done = "would be removed" if dry_run else "removed"
    click.echo(f"{files} {done}, {format_size(sum(removed))}")
    raise SystemExit(int(failed))


def _directories(top: str, recursive: bool) -> Iterator[str]:
    """A directory, and perhaps those below it; links are not followed."""
    yield top
    if recursive:
        for root, below, _ in os.walk(top):
            below[:] = sorted(name for name in below if not os.path.islink(f"{root}/{name}"))
            yield from (os.path.join(root, name) for name in below)


def _report(each: Unfinished, size: int, reason: str, *, dry_run: bool) -> None:
    verb = "kept" if reason else "would remove" if dry_run else "removed"
    click.echo(f"{verb} {one_line(each.path)}, {format_size(size)}{reason and f': {reason}'}")
