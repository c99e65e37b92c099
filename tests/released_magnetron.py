"""The magnetron that is released; a module that imports this is skipped where there is none."""

from __future__ import annotations

from typing import Any

import pytest

magnetron = pytest.importorskip("magnetron", reason="magnetron has no wheel for this platform")
snapshot = pytest.importorskip("magnetron.snapshot")


def magnetron_dtype(name: str) -> Any:
    """The dtype that magnetron calls so."""
    return next(each for each in magnetron.dtype.all if each.name == name)
