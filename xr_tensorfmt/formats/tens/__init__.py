"""TENS, the tensor files of cc4s: versions 0.9 and 1.0."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.contract import Container, Finding, Format, HeaderReader, Match, OpenOptions
from xr_tensorfmt.formats.tens.spec import MAGIC

if TYPE_CHECKING:
    from xr_tensorfmt.contract import CheckedInput, DeferredPlans, FilePlan


# One symmetry or several as the attribute has them, each an operation and an index map.
_SYMMETRIES = re.compile(r"[^ ,]* [^ ,]+(, [^ ,]* [^ ,]+)*")


class TensFormat(Format):
    """TENS: one tensor, dense or as pairs of index and value."""

    name = "tens"
    title = "TENS"
    suffixes = (".tens", ".bin")
    magics = (MAGIC,)
    open_options = frozenset({"name", "sparse", "verify"})
    write_options = MappingProxyType(
        {"version": ("1.0", "0.9"), "sparse": (True, False), "symmetries": ()}
    )

    def match(self, reader: HeaderReader) -> Match:
        """Look at the fixed fields; four other formats begin with the same magic."""
        if not super().match(reader):
            return Match.NONE
        from xr_tensorfmt.formats.tens.spec import recognises  # noqa: PLC0415

        is_certain = recognises(reader.head, reader.source.size)
        return Match.CERTAIN if is_certain else Match.POSSIBLE

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read the header of a file."""
        from xr_tensorfmt.formats.tens.read import read  # noqa: PLC0415

        return read(reader, options)

    def finish(self, container: Container, options: OpenOptions) -> Container:
        """Turn the tensor of a file of pairs into its pairs if ``sparse="stored"``."""
        from xr_tensorfmt.formats.tens.read import select_stored  # noqa: PLC0415

        return select_stored(container) if options.sparse == "stored" else container

    def find_file_attrs(self, attrs: Mapping[Any, Any]) -> Collection[str]:
        """The symmetries of the file, the chunks that were skipped, and its sparse dimensions."""
        found = {"skipped_chunks", "sparse_dims"} & set(attrs)
        stated = attrs.get("symmetries")
        is_ours = isinstance(stated, str) and _SYMMETRIES.fullmatch(stated)
        return found | {"symmetries"} if is_ours else found

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan | DeferredPlans:
        """Plan a file; the keywords are those of `to_tens`."""
        from xr_tensorfmt.formats.tens.write import plan  # noqa: PLC0415

        return plan(checked, **options)

    @property
    def check_options(self) -> OpenOptions:
        """All elements of a file of pairs, however many."""
        return OpenOptions(sparse="dense", verify=False)

    def check(self, reader: HeaderReader, container: Container, most: int) -> Iterator[Finding]:
        """Check reserved bytes, chunks, pairs and symmetries."""
        from xr_tensorfmt.formats.tens.check import check  # noqa: PLC0415

        return check(reader, container, most)
