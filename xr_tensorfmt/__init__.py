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
    from xr_tensorfmt.formats.cc4s.calculation import (
        open_cc4s_calculation,
        select_cc4s_states,
        to_cc4s_calculation,
    )
    from xr_tensorfmt.formats.vespa.json import vespa_from_hex, vespa_from_json
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
        vespa_to_json,
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
    "open_cc4s_calculation",
    "select_cc4s_states",
    "to_cc4s",
    "to_cc4s_calculation",
    "to_file",
    "to_mag",
    "to_npy",
    "to_pycauset",
    "to_safetensors",
    "to_tens",
    "to_vespa",
    "validate",
    "vespa_from_hex",
    "vespa_from_json",
    "vespa_to_json",
]

__version__ = "0.1.0"

# Names imported at first use, because xarray imports this package when it lists its engines.
_LAZY = {
    "backend": "TensorFormatBackend",
    "core.findings": "Finding",
    "datasets.explanation": "Explanation",
    "formats.cc4s.calculation": "open_cc4s_calculation select_cc4s_states to_cc4s_calculation",
    "formats.vespa.json": "vespa_from_hex vespa_from_json",
    "validation": "validate",
    "writers": "to_cc4s to_file to_mag to_npy to_pycauset to_safetensors to_tens to_vespa "
    "vespa_to_json",
}
_SUBMODULES = ("pycauset", "tutorial")
_MODULES = {name: module for module, names in _LAZY.items() for name in names.split()}


def __getattr__(name: str) -> typing.Any:
    """Import a public name at its first use."""
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """List only the public names."""
    return list(__all__)
