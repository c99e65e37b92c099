"""``xr-tensorfmt validate``: every check that a reader can make."""

from __future__ import annotations

import click

from xr_tensorfmt.cli.messages import one_line, plain_warnings, sentence
from xr_tensorfmt.cli.options import Pairs, options_for, source_options
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.validation import validate as findings_of


@click.command(short_help="Check files as a whole.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings as well.")
@source_options
def validate(
    files: tuple[str, ...],
    strict: bool,
    format: str | None,
    storage_options: Pairs,
) -> None:
    """Check files: header, checksums, padding, and every value."""
    failed = False
    for file in files:
        try:
            with plain_warnings():
                findings = findings_of(
                    file, format=format, storage_options=options_for(file, storage_options)
                )
        except Exception as error:  # noqa: BLE001  # one file must not keep the others back
            failed = True
            click.echo(f"Error: {sentence(error, file)}", err=True)
            continue
        failed |= any(strict or finding.severity == "error" for finding in findings)
        _report(one_line(file), findings)
    raise SystemExit(int(failed))


def _report(file: str, findings: list[Finding]) -> None:
    errors = sum(finding.severity == "error" for finding in findings)
    click.echo(f"{file}: {_counted(errors, len(findings) - errors)}")
    for finding in findings:
        other = "" if finding.path.endswith(file) else f" ({finding.path})"
        click.echo(f"  {one_line(f'{finding}{other}')}")


def _counted(errors: int, warnings: int) -> str:
    if not errors and not warnings:
        return "ok"
    counts = ((errors, "error"), (warnings, "warning"))
    parts = [f"{count} {noun}{'s' * (count > 1)}" for count, noun in counts if count]
    return f"{'' if errors else 'ok, but '}{' and '.join(parts)}"
