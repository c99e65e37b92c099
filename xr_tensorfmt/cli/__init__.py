"""The command ``xr-tensorfmt``."""

from __future__ import annotations

import errno
import logging
import shutil
import signal
import sys
from typing import Any

import click

from xr_tensorfmt.cli.common import PATH, format_errors
from xr_tensorfmt.cli.convert import convert
from xr_tensorfmt.cli.describe import info, validate
from xr_tensorfmt.cli.diff import diff
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.tutorial import get_path


class Commands(click.Group):
    """A group of commands that ends with 130 after Ctrl-C, and with 2 if stdout fails."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Aborted!", err=True)
            ctx.exit(128 + signal.SIGINT)
        except OSError as error:  # of stdout, as errors of files are converted
            if error.errno == errno.EPIPE:
                raise
            click.echo(f"Error: the output was not written: {error}", err=True)
            ctx.exit(2)


@click.command()
@click.argument("directory", metavar="DIR", type=PATH)
def examples(directory: str) -> None:
    """Copy the example files of the documentation to a new directory."""
    with format_errors(directory):
        if is_url(directory):
            raise ValueError(f"{directory} is a URL; pass the path of a new directory")
        shutil.copytree(get_path("circle").parent, directory)


@click.group(
    cls=Commands,
    commands=[info, validate, convert, diff, examples],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="xr-tensorfmt", prog_name="xr-tensorfmt")
@click.option("-v", "--verbose", is_flag=True, help="Show the log: retries, replaced files.")
def main(verbose: bool) -> None:
    """Describe, validate, convert and compare binary tensor files."""
    if verbose:
        logging.basicConfig(format="%(asctime)s %(message)s")  # stderr
        logging.getLogger("xr_tensorfmt").setLevel(logging.DEBUG)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # As after Ctrl-C, temporary files are removed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
