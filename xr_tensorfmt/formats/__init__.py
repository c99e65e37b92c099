"""The families of files: bytes in, Containers out. One line of `FORMATS` for each."""

from __future__ import annotations

from collections.abc import Mapping

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.embedded_metadata import annotated
from xr_tensorfmt.core.format import Format, OpenOptions, Sparse, TextErrors
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.errors import TensorFormatError, shortened
from xr_tensorfmt.formats.mag.read import MAG
from xr_tensorfmt.formats.pycauset.read import PYCAUSET
from xr_tensorfmt.formats.tens.read import TENS
from xr_tensorfmt.formats.vespa.read import VESPA

FORMATS: tuple[Format, ...] = (TENS, MAG, PYCAUSET, VESPA)

HEAD_BYTES = 64
"""Bytes of a file that suffice to tell the formats apart."""


def recognised(source: Source) -> bool:
    """Whether a file can only be of one of the families, by its content and perhaps its name."""
    head = HeaderReader(source).first_bytes(HEAD_BYTES)
    named = [each for each in FORMATS if each.may_be_named(source.name)]
    return any(each.recognises(head, source.size) for each in named)


def parse(
    source: Source, options: OpenOptions, name: str | None = None, head: bytes = b""
) -> Container:
    """Read a file's header.

    Parameters
    ----------
    source : Source
        The file.
    options : OpenOptions
        What the user asked for.
    name : str, optional
        The format's name; by default the file's first bytes decide, then the end of its name.
    head : bytes
        The file's first bytes, as far as they are known.

    Returns
    -------
    Container

    Raises
    ------
    TensorFormatError
        The file is of no known format, or its header is wrong.
    ValueError
        There is no format of that name, or the options are none that it knows.
    """
    known = {each.name: each for each in FORMATS}
    if name is not None and name not in known:
        raise ValueError(f"format={name!r} is not one of {', '.join(map(repr, known))}")
    reader = HeaderReader(source, head)
    chosen = known[name] if name is not None else _by_magic_or_name(reader)
    if options.fill_value is not None and not chosen.fills:
        raise ValueError(
            f"fill_value={options.fill_value!r} does not fit format {chosen.name!r}, which itself "
            "says what elements are that are not stored; leave it out"
        )
    container = chosen.parse(reader, options)
    if container.note is not None:
        container = annotated(source.name, container, options)
    if options.dims is not None:
        _check_named_variables(container, options)
        _check_lengths(container, options)
    return container


def _check_named_variables(container: Container, options: OpenOptions) -> None:
    if isinstance(options.dims, Mapping):
        names = {each.name: None for each in container.tensors}
        unknown = next((name for name in options.dims if name not in names), None)
        if unknown is not None:
            raise ValueError(
                f"dims={shortened(options.dims)} names dimensions of {shortened(repr(unknown))}, "
                f"but the variables are {shortened(', '.join(map(repr, names)))}; "
                "to rename single dimensions use ds.rename"
            )


def _check_lengths(container: Container, options: OpenOptions) -> None:
    """Refuse one name for dimensions of different lengths."""
    found: dict[str, tuple[int, str]] = {}
    for tensor in container.tensors:
        for name, length in zip(tensor.dims, tensor.layout.shape, strict=True):
            known, other = found.setdefault(name, (length, tensor.name))
            if known != length:
                raise ValueError(
                    f"dims={shortened(options.dims)} gives the name {name!r} to dimensions of "
                    f"different lengths: {known} in {shortened(repr(other))} and {length} in "
                    f"{shortened(repr(tensor.name))}"
                )


def _by_magic_or_name(reader: HeaderReader) -> Format:
    head = reader.first_bytes(HEAD_BYTES)
    for each in FORMATS:
        if head.startswith(each.magics):
            return each
    for each in FORMATS:
        if each.suffixes and each.may_be_named(reader.source.name):
            return each
    without_magic = ", ".join(f"format={each.name!r}" for each in FORMATS if not each.magics)
    raise TensorFormatError(
        reader.source.name,
        "the magic number",
        repr(head[:8]) if head else "nothing, as the file is empty",
        " or ".join(repr(magic) for each in FORMATS for magic in each.magics),
        "no format of this engine begins so; leave out engine= to let xarray look for another, "
        f"or name a format that has no magic number: {without_magic}",
        offset=0,
    )
