"""``xr-tensorfmt clean``: what processes that have ended left of files that they were writing."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter

import click

from xr_tensorfmt.cli.messages import errors_in_one_line, one_line
from xr_tensorfmt.cli.options import Pairs, storage_option
from xr_tensorfmt.core.extents import format_size
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.writing.unfinished import Unfinished, unfinished_in

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _duration(value: str) -> float:
    found = re.fullmatch(r"(\d+)([smhd])", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is not a duration such as 36h or 7d")
    return int(found[1]) * _SECONDS[found[2]]


@click.command()
@click.argument("places", metavar="DIR|URL...", nargs=-1, required=True, type=click.Path())
@click.option("--recursive", "-r", is_flag=True, help="Directories below as well.")
@click.option("--dry-run", "-n", is_flag=True, help="Only say what would be removed.")
@click.option(
    "--older-than",
    metavar="AGE",
    type=_duration,
    help="Also what a process may be writing, if it was begun (in S3) or last written to (all "
    "others) before this time, such as 36h or 7d.",
)
@storage_option
def clean(
    places: tuple[str, ...],
    recursive: bool,
    dry_run: bool,
    older_than: float | None,
    storage_options: Pairs,
) -> None:
    """Remove unfinished files (.NAME.….part) of processes that have ended, and unfinished uploads.

    Files of processes that are running, or that cannot be looked up from here, are kept and listed.
    So are all unfinished uploads of S3, whoever began them, unless --older-than is given.
    """
    removed: Counter[str] = Counter()
    size, failed = 0, False
    for place in _with_directories(places) if recursive else places:
        try:
            with errors_in_one_line(place):
                for each in _unfinished(place, storage_options, recursive=recursive):
                    named = f"{one_line(each.path)}, {format_size(each.size)}"
                    reason = _reason_to_keep(each, older_than)
                    if reason:
                        click.echo(f"kept {named}: {reason}")
                        continue
                    if not dry_run:
                        each.remove()
                    click.echo(f"{'would remove' if dry_run else 'removed'} {named}")
                    removed[each.noun] += 1
                    size += each.size
        except click.ClickException as error:
            failed = True
            error.show()
    counted = " and ".join(f"{n} {noun}{'s' * (n != 1)}" for noun, n in sorted(removed.items()))
    done = "would be removed" if dry_run else "removed"
    click.echo(f"{counted or '0 files'} {done}, {format_size(size)}")
    raise SystemExit(int(failed))


_LOCAL = re.compile("^(file|local)://")


def _with_directories(places: Iterable[str]) -> Iterator[str]:
    """The places, and the directories below those that are local; links are not followed."""
    for place in places:
        path = _LOCAL.sub("", place)
        below = [] if is_url(path) else sorted(root for root, *_ in os.walk(path))
        yield from below or [path]


def _unfinished(place: str, storage_options: Pairs, *, recursive: bool) -> Iterator[Unfinished]:
    """What is unfinished in a local directory or in a store."""
    place = _LOCAL.sub("", place)
    if is_url(place):
        from xr_tensorfmt.sources.places import locate  # noqa: PLC0415  # fsspec takes its time
        from xr_tensorfmt.writing.upload import unfinished_at  # noqa: PLC0415

        found = locate(place, dict(storage_options), None)
        yield from unfinished_at(found, recursive=recursive)
        return
    yield from sorted(unfinished_in(place), key=attrgetter("path"))


def _reason_to_keep(each: Unfinished, older_than: float | None) -> str:
    """Why something is kept; nothing if its process has ended, or if it is as old as asked for."""
    reason = each.reason_to_keep
    if not reason or each.is_being_written:
        return reason
    modified, date = each.modified, "at an unknown time"
    if modified is not None:
        if older_than is not None and time.time() - modified >= older_than:
            return ""
        date = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(modified))
    dated = "begun" if each.noun == "upload" else "last written to"
    advice = "; remove it with --older-than" if older_than is None else ""
    return f"{reason} ({dated} {date}{advice})"
