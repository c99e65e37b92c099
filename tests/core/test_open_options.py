"""Values of keywords of formats."""

from __future__ import annotations

from numbers import Real
from typing import Any

import pytest

from xr_tensorfmt.core.file_format import Option


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        (Option("", default=True, type=bool), "no", "'no' must be of type bool"),
        (Option("", type=Real), "0", "'0' must be of type Real"),
        (Option("", type=int), 0.5, "0.5 must be of type int"),
    ],
)
def test_values_of_other_types_raise(option: Option, value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"keyword={words}"):
        option.normalize("keyword", value)
    assert option.normalize("keyword", option.default) is option.default
