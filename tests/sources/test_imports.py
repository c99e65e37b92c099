"""Opening a local file does not look into modules that another thread imports."""

from __future__ import annotations

import sys
from types import ModuleType

import fsspec
import pytest

from xr_tensorfmt.sources import is_remote
from xr_tensorfmt.sources.locations import is_cache


def test_partially_imported_modules_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    file = fsspec.open("memory://x")
    for name in ("fsspec.core", "fsspec.implementations.cached", "aiohttp"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert is_remote(file)
    assert not is_remote("a.mag")
    assert not is_cache(file.fs)
