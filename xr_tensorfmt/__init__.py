"""Binary tensor files as lazy, labelled xarray Datasets: ``engine="tensorfmt"``."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import typing

from xr_tensorfmt.backend import TensorFormatBackend  # also registers `ds.tensorfmt`
from xr_tensorfmt.errors import (
    Finding,
    SourceChangedError,
    StoreTimeoutError,
    StoreUnavailableError,
    TensorFormatError,
    TensorFormatWarning,
)

# For type checkers. `_LAZY` is for Python.
if typing.TYPE_CHECKING:
    from xr_tensorfmt import cc4s as cc4s
    from xr_tensorfmt import contract as contract
    from xr_tensorfmt import pycauset as pycauset
    from xr_tensorfmt import testing as testing
    from xr_tensorfmt import tutorial as tutorial
    from xr_tensorfmt import vespa as vespa
    from xr_tensorfmt import virtual as virtual
    from xr_tensorfmt.datasets.explanation import Explanation, explain
    from xr_tensorfmt.opening import validate
    from xr_tensorfmt.saving import to_file

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
    "to_file",
    "validate",
]

__version__ = "0.1.0"

# Imported at first use, because xarray imports this package when it lists its engines.
_LAZY = {
    "Explanation": "datasets.explanation",
    "explain": "datasets.explanation",
    "to_file": "saving",
    "validate": "opening",
}
# Modules of functions for one purpose, and the packages that they need beside the required ones.
_MODULES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("cc4s", "contract", "pycauset", "tutorial", "vespa"), ()),
    "testing": ("pytest",),
    "virtual": ("obspec_utils", "virtualizarr"),
}


def _wait_for_imports() -> None:
    """Let other threads complete imports of this package. A child would wait for their locks."""
    for name in [name for name in sys.modules.copy() if name.startswith(f"{__name__}.")]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_imports)
if "pytest" in sys.modules:  # so that failed assertions print their values
    sys.modules["pytest"].register_assert_rewrite(f"{__name__}.testing")


def _is_importable(module: str) -> bool:
    return all(importlib.util.find_spec(package) for package in _MODULES[module])


def __getattr__(name: str) -> typing.Any:
    """Import a public name at its first use."""
    if name in _MODULES:
        if not _is_importable(name):  # `hasattr` and `inspect.getmembers` expect an AttributeError
            packages = " and ".join(_MODULES[name])
            raise AttributeError(f"{__name__}.{name} needs {packages}; install it first")
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    """List only the public names that can be imported."""
    return sorted((*__all__, *filter(_is_importable, _MODULES)))
