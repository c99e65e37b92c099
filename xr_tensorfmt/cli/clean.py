"""``xr-tensorfmt clean``: remove temporary files of processes that ended."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from operator import attrgetter

import click

from xr_tensorfmt.cli.messages import errors_in_one_line, to_one_line
from xr_tensorfmt.cli.options import format_examples
from xr_tensorfmt.core.extents import format_size
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.sources.store_errors import redact
from xr_tensorfmt.writing.unfinished import UnfinishedFile, find_unfinished

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _parse_duration(value: str) -> float:
    match = re.fullmatch(r"(\d+)([smhd])", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a duration such as 36h or 7d")
    return int(match[1]) * _SECONDS[match[2]]


@click.command(epilog=format_examples("clean .", "clean --recursive --dry-run /data"))
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path())
@click.option("--recursive", "-r", is_flag=True, help="Include subdirectories.")
@click.option("--dry-run", "-n", is_flag=True, help="List files without removing them.")
@click.option(
    "--older-than",
    metavar="AGE",
    type=_parse_duration,
    help="Also remove files of other hosts and of clusters that are older, such as 36h or 7d.",
)
def clean(
    directories: tuple[str, ...], recursive: bool, dry_run: bool, older_than: float | None
) -> None:
    """Remove the temporary files of processes that ended.

    Their names end with .part. Files of running processes, and of processes on other hosts, are
    kept and listed.
    """
    removed = size = 0
    failed = False
    for directory in _list_subdirectories(directories) if recursive else directories:
        try:
            with errors_in_one_line(directory):
                for file in _find_unfinished_files(directory):
                    named = f"{to_one_line(file.path)}, {format_size(file.size)}"
                    reason = _find_reason_to_keep(file, older_than)
                    if reason:
                        click.echo(f"kept {named}: {reason}")
                        continue
                    if not dry_run:
                        os.unlink(file.path)
                    click.echo(f"{'would remove' if dry_run else 'removed'} {named}")
                    removed += 1
                    size += file.size
        except click.ClickException as error:
            failed = True
            error.show()
    done = "would be removed" if dry_run else "removed"
    click.echo(f"{removed} file{'s' * (removed != 1)} {done}, {format_size(size)}")
    raise SystemExit(int(failed))


def _list_subdirectories(directories: Iterable[str]) -> Iterator[str]:
    """Yield directories and their subdirectories, without following links."""
    for directory in directories:
        yield from sorted(root for root, *_ in os.walk(directory)) or [directory]


def _find_unfinished_files(directory: str) -> list[UnfinishedFile]:
    if is_url(directory):
        raise ValueError(
            f"{redact(directory)} is a URL; pass a local directory, and use a lifecycle rule of "
            "the bucket to abort incomplete multipart uploads"
        )
    return sorted(find_unfinished(directory), key=attrgetter("path"))


def _find_reason_to_keep(file: UnfinishedFile, older_than: float | None) -> str:
    """Return the reason to keep a file, or an empty string."""
    reason = file.reason_to_keep
    if not reason or file.is_being_written:
        return reason
    if older_than is not None and time.time() - file.modified >= older_than:
        return ""
    date = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(file.modified))
    advice = "; remove it with --older-than" if older_than is None else ""
    return f"{reason} (last written to {date}{advice})"
