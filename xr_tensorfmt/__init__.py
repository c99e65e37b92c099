"""Binary tensor files as lazy, labelled xarray Datasets: ``engine="tensorfmt"``."""

from __future__ import annotations

import importlib
import typing

from xr_tensorfmt.accessor import explain  # also registers `ds.tensorfmt`
from xr_tensorfmt.errors import (
    SourceChangedError,
    StoreTimeoutError,
    StoreUnavailableError,
    TensorFormatError,
    TensorFormatWarning,
)

# Type checkers need the imports and the literal `__all__`. `_LAZY` is for Python.
if typing.TYPE_CHECKING:
    from xr_tensorfmt.backend import TensorFormatBackend
    from xr_tensorfmt.core.findings import Finding
    from xr_tensorfmt.datasets.explanation import Explanation
    from xr_tensorfmt.formats.pycauset.popcount import popcount
    from xr_tensorfmt.validation import validate
    from xr_tensorfmt.writers import (
        to_cc4s,
        to_file,
        to_mag,
        to_npy,
        to_pycauset,
        to_safetensors,
        to_tens,
        to_vespa,
    )

__all__ = [
    "Explanation",
    "Finding",
    "SourceChangedError",
    "StoreTimeoutError",
    "StoreUnavailableError",
    "TensorFormatBackend",
    "TensorFormatError",
    "TensorFormatWarning",
    "__version__",
    "explain",
    "popcount",
    "to_cc4s",
    "to_file",
    "to_mag",
    "to_npy",
    "to_pycauset",
    "to_safetensors",
    "to_tens",
    "to_vespa",
    "validate",
]

__version__ = "0.1.0"

# Names imported at first use, because xarray imports this package when it lists its engines.
_LAZY = {
    "backend": "TensorFormatBackend",
    "core.findings": "Finding",
    "datasets.explanation": "Explanation",
    "formats.pycauset.popcount": "popcount",
    "validation": "validate",
    "writers": "to_cc4s to_file to_mag to_npy to_pycauset to_safetensors to_tens to_vespa",
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names.split()}


def __getattr__(name: str) -> typing.Any:
    """Import a public name at its first use."""
    if name in ("cc4s", "tutorial", "vespa"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """List only the public names and modules."""
    return list(__all__)
