"""safetensors files. A model is one file, or several files and an index."""

from __future__ import annotations

import os
from types import MappingProxyType

from xr_tensorfmt.core.file_format import LazyFormat, Match, Option
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.formats.safetensors.spec import INDEX, INDEX_SUFFIX, LENGTH_BYTES


class SafetensorsFormat(LazyFormat):
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
