"""Read a file of a known format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.file_format import Format
from xr_tensorfmt.core.findings import finding_from_error
from xr_tensorfmt.core.header import UNFINISHED_MARK, HeaderReader
from xr_tensorfmt.core.open_options import OpenOptions, match_names
from xr_tensorfmt.errors import did_you_mean, shorten, suggest_pattern

# Options that a format must declare. The values are the reason and hint of the error.
DECLARED_OPTIONS = {
    "name": "contains variable names; use ds.rename",
    "sparse": "stores all elements; omit it",
    "fill_value": "defines the value of elements that are not stored; omit it",
    "text_errors": "has no labels that need it; omit it",
    "verify": "has no data to verify; omit it",
    "apply_unit": "has no unit; omit it",
    "decode_floats": "returns numpy's dtypes; omit it",
}


def read_container(
    reader: HeaderReader,
    file_format: Format,
    options: OpenOptions,
    dropped: Collection[str] = (),
) -> Container:
    """Read a header, apply embedded metadata, and report tensors omitted but not `dropped`."""
    options = _check_options(file_format, options)
    if reader.head.startswith(UNFINISHED_MARK):
        hint = "a writer is replacing its files, or has failed; write them again"
        raise reader.error("the index", "a mark of a writer", "an index of files", hint, 0)
    container = _check_ends(file_format.read(reader, options), options)
    if container.embedded is not None:
        from xr_tensorfmt.core.embedded_metadata import apply_embedded_metadata  # noqa: PLC0415

        container = apply_embedded_metadata(reader.source.name, container, options)
    container = file_format.finish(container, options)
    _check_named_variables(container, options)
    return _report_omitted(container, dropped)


def _report_omitted(container: Container, dropped: Collection[str]) -> Container:
    """Add a finding about the first omitted tensor, with the number of others."""
    omitted = {name: error for name, error in container.omitted.items() if name not in dropped}
    if not omitted:
        return container
    finding = finding_from_error(next(iter(omitted.values())))
    others = list(omitted)[1:]
    also = f", and so are {len(others)} others ({shorten(', '.join(others))})" if others else ""
    message = f"{finding.message}; the tensor is omitted{also}"
    finding = replace(finding, message=message, severity="warning")
    return replace(container, findings=(*container.findings, finding))


def _check_ends(container: Container, options: OpenOptions) -> Container:
    """Report trailing bytes. Raise an error if `verify` is True."""
    findings = []
    for end in container.ends:
        if end.error is None:
            continue
        if end.severity == "error" and options.verify:
            raise end.error
        findings.append(replace(finding_from_error(end.error), severity=end.severity))
    if not findings:
        return container
    return replace(container, findings=(*container.findings, *findings))


def _check_options(file_format: Format, options: OpenOptions) -> OpenOptions:
    """Return the options with normalized values. Raise an error if one does not apply."""
    for keyword, reason in DECLARED_OPTIONS.items():
        value = getattr(options, keyword)
        if keyword not in file_format.open_options and value != getattr(type(options), keyword):
            raise ValueError(
                f"{keyword}={value!r} does not apply to format {file_format.name!r}, which {reason}"
            )
    if not options.format_options:
        return options
    own = file_format.read_options
    check_keywords(options, own, f" for format {file_format.name!r}")
    values = {name: own[name].normalize(name, v) for name, v in options.format_options.items()}
    return replace(options, format_options=values)


def check_keywords(options: OpenOptions, own: Collection[str], scope: str = "") -> None:
    """Raise an error if a keyword is not one of the engine or of formats, which are `own`."""
    for name in options.format_options:
        if name not in own:
            declared = (field.name for field in fields(options) if field.name != "format_options")
            keywords = (*own, *declared)
            raise TypeError(
                f"{name!r}{did_you_mean(name, keywords)} is not a keyword of the engine "
                f"'tensorfmt'{scope}, expected one of {', '.join(keywords)}; pass options of a "
                "file system in storage_options="
            )


def _check_named_variables(container: Container, options: OpenOptions) -> None:
    if not isinstance(options.dims, Mapping):
        return
    ranks = {tensor.name: len(tensor.dims) for tensor in container.tensors}
    for key, dims in options.dims.items():
        matching = match_names(key, ranks)
        if key in ranks or any(ranks[name] == len(dims) for name in matching):
            continue
        if matching:
            raise ValueError(
                f"dims={shorten(options.dims)} has {len(dims)} names for {key!r}, but "
                f"{matching[0]!r} has {ranks[matching[0]]} dimensions; pass as many names"
            )
        for name in match_names(key, container.omitted):
            raise container.omitted[name]
        raise ValueError(
            f"dims={shorten(options.dims)} names dimensions of {shorten(repr(key))}"
            f"{suggest_pattern(key, ranks)}, but the variables are "
            f"{shorten(', '.join(map(repr, ranks)))}; to rename single dimensions use ds.rename"
        )
