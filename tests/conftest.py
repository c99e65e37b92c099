from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Timings never decide a test, and the same examples are tried on every machine.
settings.register_profile("project", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("project")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "conformance"


@pytest.fixture
def conformance() -> Path:
    """The folder of real files beside the project, which may not be passed on with it."""
    if not SHARED.is_dir():
        pytest.skip("the real files of other programs are not beside this checkout")
    return SHARED


@pytest.fixture
def always_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Map windows of any size, so that small files go the way of large ones."""
    monkeypatch.setattr("xr_tensorfmt.sources.local._SMALLEST_WINDOW", 1)
