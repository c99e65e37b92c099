"""The format of Vespa: typed binary tensors."""

from __future__ import annotations

import re
from numbers import Real

from xr_tensorfmt.core.file_format import LazyFormat, Match, OpenOptions, Option, share_options
from xr_tensorfmt.core.header import HeaderReader

TAGS = (1, 2, 3, 5, 6, 7)


class VespaFormat(LazyFormat):
    """Vespa: one tensor of mapped and indexed dimensions."""

    name = "vespa"
    title = "Vespa"
    suffixes = (".tbf",)
    magics = ()
    open_options = share_options("name", "sparse", "verify", "decode_floats") | {
        "fill_value": Option(
            "Value of missing elements if sparse is dense. The default is NaN. int8 has no NaN: "
            "it is required if elements are missing.",
            type=Real,
        ),
    }
    validation_options = OpenOptions(loads_labels=False, format_options={"verify": False})

    def describe_unsupported(self, reader: HeaderReader) -> tuple[str, str] | None:
        """Describe feeds and other JSON."""
        opener = (
            "open it in Python with xr_tensorfmt.vespa.from_jsonl(path, field='...') if it is a "
            "feed of Vespa, or with xr_tensorfmt.vespa.from_json(pathlib.Path(path)) if it is a "
            "tensor"
        )
        if re.search(r"\.(json|jsonl|ndjson)\.(bz2|gz|lz4|xz|zst)$", reader.source.file_name):
            return "compressed JSON", f"decompress it first, or {opener}"
        if re.match(rb'\s*(\{|\[\s*[-\[{"\d\]])', reader.head):
            return "text", f"read it as JSON, or {opener}"
        return None

    def match(self, reader: HeaderReader) -> Match:
        """Compare the suffix and the tag."""
        match = super().match(reader)
        return Match.CERTAIN if match and {*reader.head[:1]} & {*TAGS} else match
