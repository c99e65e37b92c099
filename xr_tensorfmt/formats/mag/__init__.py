"""MAG files, written by magnetron: archives, snapshots and streams."""

from __future__ import annotations

from xr_tensorfmt.core.file_format import LazyFormat, share_options

MAGIC = b"MAG!"
STREAM_MAGIC = b"MAG&"


class MagFormat(LazyFormat):
    """MAG files. A file has tensors under keys, and metadata."""

    name = "mag"
    title = "MAG"
    suffixes = (".mag",)
    directory_patterns = ("*.mag",)
    magics = (MAGIC, STREAM_MAGIC)
    open_options = share_options("verify", "decode_floats")
