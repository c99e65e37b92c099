"""The format of Vespa: typed binary tensors."""

from __future__ import annotations

from numbers import Real

from xr_tensorfmt.core.file_format import LazyFormat, Match, OpenOptions, Option, share_options
from xr_tensorfmt.core.header import HeaderReader


class VespaFormat(LazyFormat):
    """Vespa: one tensor of mapped and indexed dimensions."""

    name = "vespa"
    title = "Vespa"
    suffixes = (".tbf",)
    magics = ()
    open_options = share_options("name", "sparse", "verify", "decode_floats") | {
        "fill_value": Option(
            "Value of missing elements. The default is NaN. It is required for integers, which "
            "have no NaN, and for more than 2**32 elements.",
            type=Real,
        ),
        "text_errors": Option(
            "How to decode labels that are not UTF-8, as in bytes.decode.",
            ("strict", "surrogateescape"),
            default="strict",
        ),
    }
    validation_options = OpenOptions(
        format_options={"verify": False, "text_errors": "surrogateescape"}
    )

    def describe_unsupported(self, reader: HeaderReader) -> tuple[str, str] | None:
        """Describe feeds and other JSON."""
        head = reader.head.lstrip()
        if head.startswith(b'{"put":'):
            return "a feed of Vespa", "open it with xr_tensorfmt.vespa.from_jsonl"
        if head.startswith((b"{", b"[")):
            hint = "open it with xr_tensorfmt.vespa.from_json if it is a tensor"
            return "text", f"read it as JSON, or {hint}"
        return None

    def match(self, reader: HeaderReader) -> Match:
        """Compare the suffix and the tag."""
        match = super().match(reader)
        if not match:
            return match
        from xr_tensorfmt.formats.vespa.spec import TAGS  # noqa: PLC0415

        return Match.CERTAIN if reader.head and reader.head[0] in TAGS else match
