"""Binary tensor files as lazy, labelled xarray Datasets: ``engine="tensorfmt"``."""

from __future__ import annotations

from xr_tensorfmt.backend import TensorFormatBackend
from xr_tensorfmt.errors import SourceChangedError, TensorFormatError, TensorFormatWarning
from xr_tensorfmt.hexdigits import from_hex

__all__ = [
    "SourceChangedError",
    "TensorFormatBackend",
    "TensorFormatError",
    "TensorFormatWarning",
    "__version__",
    "from_hex",
]

__version__ = "0.1.0"
