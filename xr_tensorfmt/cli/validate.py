"""``xr-tensorfmt validate``: every check that a reader can make."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from xr_tensorfmt.cli.messages import one_line, plain_warnings, sentence
from xr_tensorfmt.cli.options import Pairs, options_for, source_options
from xr_tensorfmt.cli.standard_input import input_of, shown
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.validation import validate as findings_of


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings as well.")
@click.option("--all", "every", is_flag=True, help="More than one finding of a kind, up to 20.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list with one object per file.")
@source_options
def validate(
    files: tuple[str, ...],
    strict: bool,
    every: bool,
    as_json: bool,
    format: str | None,
    storage_options: Pairs,
) -> None:
    """Check files: header, checksums, padding, and every value."""
    documents: list[dict[str, Any]] = []
    failed = False
    for file in files:
        path = one_line(shown(file))
        try:
            with plain_warnings(), input_of(file) as content:
                storage = options_for(file, storage_options)
                findings = findings_of(content, all=every, format=format, storage_options=storage)
        except Exception as error:  # noqa: BLE001  # one file must not keep the others back
            failed = True
            documents.append({"path": path, "error": sentence(error, file)})
            click.echo(f"Error: {documents[-1]['error']}", err=True)
            continue
        failed |= any(strict or finding.severity == "error" for finding in findings)
        documents.append({"path": path, "findings": [asdict(finding) for finding in findings]})
        if not as_json:
            _report(path, findings)
    if as_json:
        click.echo(json.dumps(documents, indent=2, ensure_ascii=False))
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
