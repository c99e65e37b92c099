"""The command ``xr-tensorfmt``, whose help is there within 0.1 s: nothing else is imported."""

from __future__ import annotations

from importlib import import_module

import click

_SHORT_HELP = {
    "info": "Say what files are and hold.",
    "validate": "Check files as a whole.",
    "convert": "Convert to another format, to zarr or netCDF, or from these.",
    "explain": "Say what a read would fetch.",
    "diff": "Compare two files.",
    "clean": "Remove what killed processes left unfinished.",
}
"""The commands; each is the function of its name in the module of its name."""


class _LazyGroup(click.Group):
    """A group of placeholders with short help, whose commands are imported when they are run."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            command = getattr(import_module(f"xr_tensorfmt.cli.{name}"), name)
        return name, command, rest


@click.group(
    cls=_LazyGroup,
    commands=[click.Command(name, short_help=text) for name, text in _SHORT_HELP.items()],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="xr-tensorfmt", prog_name="xr-tensorfmt")
def main() -> None:
    """Describe binary tensor files, check them, and convert them."""
