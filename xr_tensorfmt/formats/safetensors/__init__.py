"""safetensors files. A model is one file, or several files and an index."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.file_format import Format, Match, Option
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.open_options import OpenOptions
from xr_tensorfmt.formats.safetensors.spec import INDEX, INDEX_SUFFIX, LENGTH_BYTES

if TYPE_CHECKING:
    from xr_tensorfmt.writing.checked_input import CheckedInput
    from xr_tensorfmt.writing.file_plan import FilePlan


class SafetensorsFormat(Format):
    """safetensors files. A file has tensors under keys, and metadata."""

    name = "safetensors"
    title = "safetensors"
    suffixes = (".safetensors", INDEX)
    directory_patterns = ("*.safetensors*.index*.json", "*.safetensors")
    open_options = frozenset({"verify", "decode_floats"})
    write_options = MappingProxyType(
        {
            "max_shard_bytes": Option(
                "Limit on the data of a file if there are several, such as 5GB, the default. A "
                "single tensor may be larger."
            )
        }
    )

    def find_suffix(self, path: str) -> str:
        """Return the suffix. The suffix of an index may contain a variant."""
        index = INDEX_SUFFIX.search(os.path.basename(path.casefold()))
        return index[0] if index else super().find_suffix(path)

    def match(self, reader: HeaderReader) -> Match:
        """Check the suffix and the first bytes. The format has no magic number."""
        match = super().match(reader)
        is_json = reader.head[LENGTH_BYTES:].startswith(b"{") or reader.head.lstrip()[:1] == b"{"
        return Match.CERTAIN if match and is_json else match

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the header of a file, or an index and the headers of its files."""
        from xr_tensorfmt.formats.safetensors.read import read  # noqa: PLC0415

        return read(reader, options)

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan:
        """Plan a file, or several files and an index."""
        from xr_tensorfmt.formats.safetensors.write import plan  # noqa: PLC0415

        return plan(checked, **options)
