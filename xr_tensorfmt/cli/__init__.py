"""The command ``xr-tensorfmt``."""

from __future__ import annotations

import signal
import sys
from typing import Any

import click

from xr_tensorfmt.cli.convert import convert
from xr_tensorfmt.cli.diff import diff
from xr_tensorfmt.cli.examples import examples
from xr_tensorfmt.cli.explain import explain
from xr_tensorfmt.cli.info import info
from xr_tensorfmt.cli.validate import validate


class Commands(click.Group):
    """A group of commands that ends with 130 after Ctrl-C, as a shell expects."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Aborted!", err=True)
            ctx.exit(128 + signal.SIGINT)


@click.group(
    cls=Commands,
    commands=[info, validate, convert, explain, diff, examples],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="xr-tensorfmt", prog_name="xr-tensorfmt")
def main() -> None:
    """Describe, validate, convert and compare binary tensor files."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # As after Ctrl-C, temporary files are removed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
