"""Elements of fewer bits than numpy has floating-point numbers for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from xr_tensorfmt.elements import Array, Element


@dataclass(frozen=True)
class BFloat16(Element):
    """The upper half of a float32, which is what its values become, exactly.

    Parameters
    ----------
    big_endian : bool
        Whether the most significant byte comes first.
    """

    big_endian: bool = False

    @property
    def name(self) -> str:
        """The field's word."""
        return "bfloat16"

    @property
    def stored(self) -> np.dtype[Any]:
        """Sixteen bits in the byte order of the file."""
        return np.dtype(">u2" if self.big_endian else "<u2")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Single precision."""
        return np.dtype(np.float32)

    def decode_into(self, values: Array, raw: Array) -> None:
        """Put the bits where they are in a float32; those of NaN as well."""
        words = values.view(np.uint32)
        np.left_shift(raw, np.uint32(16), out=words, dtype=np.uint32, casting="unsafe")
