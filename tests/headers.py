"""Read the header of a file without building a Dataset."""

from __future__ import annotations

from typing import Any

from xr_tensorfmt import formats
from xr_tensorfmt.core.container import Container, OpenOptions
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.source import Source


def read_header(source: Source, **options: Any) -> Container:
    """Parse the header of a file, whose content decides the format."""
    reader = HeaderReader(source)
    return formats.read(reader, formats.choose_format(reader), OpenOptions(**options))
