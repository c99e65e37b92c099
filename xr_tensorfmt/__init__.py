"""Binary tensor files as lazy, labelled xarray Datasets: ``engine="tensorfmt"``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.accessor import explain
from xr_tensorfmt.errors import SourceChangedError, TensorFormatError, TensorFormatWarning
from xr_tensorfmt.formats.vespa.hex import from_hex

if TYPE_CHECKING:
    from xr_tensorfmt.backend import TensorFormatBackend
    from xr_tensorfmt.core.findings import Finding
    from xr_tensorfmt.formats.mag.write import to_mag
    from xr_tensorfmt.formats.pycauset.popcount import popcount
    from xr_tensorfmt.formats.pycauset.write import to_pycauset
    from xr_tensorfmt.formats.tens.write import to_tens
    from xr_tensorfmt.formats.vespa.write import to_vespa
    from xr_tensorfmt.validation import validate
    from xr_tensorfmt.writing.to_file import to_file

__all__ = [
    "Finding",
    "SourceChangedError",
    "TensorFormatBackend",
    "TensorFormatError",
    "TensorFormatWarning",
    "__version__",
    "explain",
    "from_hex",
    "popcount",
    "to_file",
    "to_mag",
    "to_pycauset",
    "to_tens",
    "to_vespa",
    "validate",
]

__version__ = "0.1.0"


_LATE = {name: "xr_tensorfmt.write" for name in __all__ if name.startswith("to_")}
_LATE |= {
    "TensorFormatBackend": "xr_tensorfmt.backend",
    "popcount": "xr_tensorfmt.counting",
    "Finding": "xr_tensorfmt.validation",
    "validate": "xr_tensorfmt.validation",
}


def __getattr__(name: str) -> Any:
    """Import what not every user needs when it is asked for."""
    room = _LATE.get(name)
    if room is not None:
        return getattr(import_module(room), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
