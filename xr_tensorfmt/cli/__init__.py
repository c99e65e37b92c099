"""The command ``xr-tensorfmt``."""

from __future__ import annotations

import click

from xr_tensorfmt.cli.convert import convert
from xr_tensorfmt.cli.diff import diff
from xr_tensorfmt.cli.examples import examples
from xr_tensorfmt.cli.explain import explain
from xr_tensorfmt.cli.info import info
from xr_tensorfmt.cli.validate import validate


@click.group(
    commands=[info, validate, convert, explain, diff, examples],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="xr-tensorfmt", prog_name="xr-tensorfmt")
def main() -> None:
    """Describe, validate, convert and compare binary tensor files."""
