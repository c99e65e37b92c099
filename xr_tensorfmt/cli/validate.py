"""``xr-tensorfmt validate``: every check that a reader can make."""

from __future__ import annotations

from typing import Any

import click

from xr_tensorfmt.cli.failing import plain_warnings, sentence
from xr_tensorfmt.cli.options import reaching, source_options
from xr_tensorfmt.cli.words import in_command_words, without_secrets


@click.command(short_help="Check files as a whole.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings as well.")
@source_options
def validate(
    files: tuple[str, ...], strict: bool, format: str | None, storage_options: dict[str, Any]
) -> None:
    """Check files: header, checksums, padding, and every value."""
    failed = False
    for file in files:
        try:
            lines, bad = _checked(file, format, storage_options, strict)
        except Exception as error:  # noqa: BLE001  # one file must not keep the others back
            failed = True
            click.echo(f"Error: {sentence(error, file)}", err=True)
            continue
        failed |= bad
        for line in lines:
            click.echo(line)
    raise SystemExit(int(failed))


def _checked(
    file: str, format: str | None, storage_options: dict[str, Any], strict: bool
) -> tuple[list[str], bool]:
    """The lines about a file, and whether it is bad."""
    from xr_tensorfmt.validation import validate as check  # noqa: PLC0415

    with plain_warnings():
        findings = check(file, format=format, storage_options=reaching(file, storage_options))
    errors = sum(each.severity == "error" for each in findings)
    file = without_secrets(file)
    lines = [f"{file}: {_counted(errors, len(findings) - errors)}"]
    for each in findings:
        other = "" if each.path.endswith(file) else f" ({each.path})"
        lines.append(f"  {in_command_words(str(each))}{other}")
    return lines, bool(errors or (strict and findings))


def _counted(errors: int, warnings: int) -> str:
    if not errors and not warnings:
        return "ok"
    counts = ((errors, "error"), (warnings, "warning"))
    words = [f"{n} {word}{'s' * (n > 1)}" for n, word in counts if n]
    return f"{'' if errors else 'ok, but '}{' and '.join(words)}"
