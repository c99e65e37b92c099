"""``xr-tensorfmt examples``: copy the example files of the package."""

from __future__ import annotations

import shutil

import click

from xr_tensorfmt.cli.messages import errors_in_one_line
from xr_tensorfmt.cli.options import format_examples
from xr_tensorfmt.tutorial import get_path


@click.command(epilog=format_examples("examples tensors"))
@click.argument("directory", metavar="DIR", type=click.Path())
def examples(directory: str) -> None:
    """Copy small files of several formats to a new directory.

    The examples of the documentation use these files.
    """
    with errors_in_one_line(directory):
        shutil.copytree(get_path("circle").parent, directory)
