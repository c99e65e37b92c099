"""``xr-tensorfmt info``: what a file is and what it holds, from its header."""

from __future__ import annotations

import json
from typing import Any

import click

from xr_tensorfmt.cli.failing import sentence
from xr_tensorfmt.cli.options import reaching, source_options, verify_option
from xr_tensorfmt.cli.words import without_secrets


@click.command(short_help="Say what files are and hold.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON list with an object a file.")
@source_options
@verify_option
def info(
    files: tuple[str, ...],
    as_json: bool,
    format: str | None,
    storage_options: dict[str, Any],
    verify: bool,
) -> None:
    """Say what files are: format, dimensions, variables, attributes, places."""
    failed = False
    documents = []
    for number, file in enumerate(files):
        try:
            document = _described(file, format, storage_options, verify)
        except Exception as error:  # noqa: BLE001  # one file must not keep the others back
            failed = True
            click.echo(f"Error: {sentence(error, file)}", err=True)
            documents.append({"path": without_secrets(file), "error": sentence(error, file)})
            continue
        documents.append(document)
        if not as_json:
            from xr_tensorfmt.cli.text import text_of  # noqa: PLC0415

            click.echo(("\n" if number else "") + text_of(document))
    if as_json:
        click.echo(json.dumps(documents, indent=2, ensure_ascii=False))
    raise SystemExit(int(failed))


def _described(
    file: str, format: str | None, storage_options: dict[str, Any], verify: bool
) -> dict[str, Any]:
    from xr_tensorfmt.cli.description import describe  # noqa: PLC0415

    return describe(file, format, reaching(file, storage_options), verify=verify)
