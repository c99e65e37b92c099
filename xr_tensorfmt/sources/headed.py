"""A source whose first bytes are known, so that parsing a header does not fetch them again."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np

from xr_tensorfmt.extents import Bytes, Extents
from xr_tensorfmt.sources.base import Fill, Source


class Headed(Source):
    """Another source and its first bytes; for parsing alone, as it would not travel light.

    Parameters
    ----------
    source : Source
        The other source.
    head : bytes
        Its first bytes.
    """

    def __init__(self, source: Source, head: bytes) -> None:
        self._source = source
        self._head = np.frombuffer(head, dtype=np.uint8)
        self.size = source.size
        self.mapped = source.mapped
        self.distant = source.distant
        self.read_ahead = source.read_ahead

    @property
    def name(self) -> str:
        """That of the other source."""
        return self._source.name

    def opened(self) -> AbstractContextManager[Fill]:
        """As the other source."""
        return self._source.opened()

    def window(self, start: int, stop: int) -> Bytes | None:
        """As the other source."""
        return self._source.window(start, stop)

    def sibling(self, path: str) -> Source | None:
        """As the other source."""
        return self._source.sibling(path)

    def read(self, extents: Extents) -> Bytes:
        """Take the ranges out of the first bytes where all are in them."""
        if extents.bounds[1] <= self._head.size:
            return extents.gather(self._head, 0)
        return self._source.read(extents)
