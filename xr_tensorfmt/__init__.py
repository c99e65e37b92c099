"""Binary tensor files as lazy, labelled xarray Datasets: ``engine="tensorfmt"``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xr_tensorfmt.accessor import explain
from xr_tensorfmt.backend import TensorFormatBackend
from xr_tensorfmt.errors import SourceChangedError, TensorFormatError, TensorFormatWarning
from xr_tensorfmt.hexdigits import from_hex

if TYPE_CHECKING:
    from xr_tensorfmt.counting import popcount

__all__ = [
    "SourceChangedError",
    "TensorFormatBackend",
    "TensorFormatError",
    "TensorFormatWarning",
    "__version__",
    "explain",
    "from_hex",
    "popcount",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what not every user of xarray needs when it is asked for."""
    if name == "popcount":
        from xr_tensorfmt.counting import popcount  # noqa: PLC0415

        return popcount
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
