"""What archives and snapshots know of a tensor that is written."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xarray import Variable

from xr_tensorfmt.write.conversion import Conversion


@dataclass(frozen=True)
class Entry:
    """A tensor to be.

    Parameters
    ----------
    key : str
        Its name.
    variable : Variable
        Its values.
    conversion : Conversion
        What they are stored as.
    """

    key: str
    variable: Variable
    conversion: Conversion

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return prod(self.variable.shape) * self.conversion.element.stored.itemsize
