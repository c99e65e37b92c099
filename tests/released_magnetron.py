"""The magnetron that is released; a module that imports this is skipped where there is none."""

from __future__ import annotations

from typing import Any

import pytest

REASON = "magnetron has no wheel for this platform"
magnetron = pytest.importorskip("magnetron", reason=REASON)
snapshot = pytest.importorskip("magnetron.snapshot", reason=REASON)


def magnetron_dtype(name: str) -> Any:
    """The dtype that magnetron calls so."""
    return next(item for item in magnetron.dtype.all if item.name == name)
