"""What validation finds in a file that a reader refuses."""

from __future__ import annotations

import pytest

from tests.opening import load
from xr_tensorfmt import TensorFormatError, validate


def assert_found_where_refused(content: bytes, format: str, *, same_place: bool = True) -> None:
    """Validation has an error for a file that is refused: with `same_place`, at the same byte."""
    with pytest.raises(TensorFormatError) as caught:
        load(content, format=format)
    found = [each for each in validate(content, format=format) if each.severity == "error"]
    assert found
    if same_place:
        assert caught.value.offset in [each.offset for each in found]
