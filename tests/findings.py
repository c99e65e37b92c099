"""Findings of files that cannot be opened."""

from __future__ import annotations

import pytest

from tests.opening import load
from xr_tensorfmt import TensorFormatError, validate


def assert_finding_at_error(content: bytes, format: str, *, same_offset: bool = True) -> None:
    """Check that `validate` reports the error of `open_dataset`, by default with its offset."""
    with pytest.raises(TensorFormatError) as caught:
        load(content, format=format)
    findings = [
        finding for finding in validate(content, format=format) if finding.severity == "error"
    ]
    assert findings
    if same_offset:
        assert caught.value.offset in [finding.offset for finding in findings]
