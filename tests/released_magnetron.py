"""The released magnetron. Modules that import this one are skipped if it is not installed."""

from __future__ import annotations

from typing import Any

import pytest

REASON = "magnetron has no wheel for this platform"
magnetron = pytest.importorskip("magnetron", reason=REASON)
snapshot = pytest.importorskip("magnetron.snapshot", reason=REASON)


def get_magnetron_dtype(name: str) -> Any:
    """Return the dtype of magnetron with a name."""
    return next(item for item in magnetron.dtype.all if item.name == name)
