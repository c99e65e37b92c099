"""``xr-tensorfmt validate``: check whole files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import click

from xr_tensorfmt.cli.messages import describe_files, print_summary, show_progress, to_one_line
from xr_tensorfmt.cli.options import (
    KeyValues,
    add_source_options,
    expand_paths,
    format_examples,
    get_storage_options,
)
from xr_tensorfmt.formats.recognition import find_parts, open_header
from xr_tensorfmt.validation import validate as find_faults


@click.command(
    epilog=format_examples("validate model.mag vertex.bin", "validate --strict s3://bucket/models/")
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option("--strict", is_flag=True, help="Exit with 1 also for warnings.")
@click.option("--all", "show_all", is_flag=True, help="Up to 20 findings per check.")
@click.option("--quiet", "-q", is_flag=True, help="Print only files with findings, and no bar.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with one object per file.")
@add_source_options
def validate(
    files: tuple[str, ...],
    strict: bool,
    show_all: bool,
    quiet: bool,
    as_json: bool,
    format: str | None,
    storage_options: KeyValues,
) -> None:
    """Check files: header, checksums, padding and values."""

    def describe(file: str, content: str | BinaryIO) -> dict[str, Any]:
        options = get_storage_options(file, storage_options)
        findings = find_faults(content, all=show_all, format=format, storage_options=options)
        parts = {}
        if not findings and content is file and format is None:
            parts = find_parts([file], lambda path: open_header(path, "read", options))
        return {"findings": findings} | ({"skipped": parts[file]} if file in parts else {})

    def lines(document: Mapping[str, Any]) -> Iterable[str]:
        return () if quiet and not document["findings"] else _format_lines(document)

    def has_failed(document: Mapping[str, Any]) -> bool:
        findings = document.get("findings", ())
        return "error" in document or any(strict or x.severity == "error" for x in findings)

    expanded = list(expand_paths(files, storage_options))
    shown = show_progress(expanded, quiet=quiet or as_json)
    documents = describe_files(shown, describe, lines, as_json=as_json)
    failed = sum(map(has_failed, documents))
    if len(documents) > 1 and not as_json:
        print_summary(len(documents), failed)
    raise SystemExit(int(failed > 0))


def _format_lines(document: Mapping[str, Any]) -> Iterator[str]:
    path, findings = document["path"], document["findings"]
    errors = sum(finding.severity == "error" for finding in findings)
    counts = ((errors, "error"), (len(findings) - errors, "warning"))
    if "skipped" in document:
        yield f"{path}: skipped, {document['skipped']}"
        return
    counted = " and ".join(f"{count} {noun}{'s' * (count > 1)}" for count, noun in counts if count)
    yield f"{path}: " + (counted if errors else f"ok, but {counted}" if counted else "ok")
    for finding in findings:
        other = "" if finding.path.endswith(path) else f" ({finding.path})"
        yield "  " + to_one_line(f"{finding}{other}")
