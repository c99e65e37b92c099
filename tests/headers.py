"""Read the header of a file without building a Dataset."""

from __future__ import annotations

from typing import Any

from xr_tensorfmt.core.file_format import Container, OpenOptions
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.formats.recognition import choose_format, read_container


def read_header(source: Source, **options: Any) -> Container:
    """Parse the header of a file, whose content decides the format."""
    reader = HeaderReader(source)
    known = {name: options.pop(name) for name in ("name", "dims") if name in options}
    options = OpenOptions(**known, format_options=options)
    return read_container(reader, choose_format(reader), options)
