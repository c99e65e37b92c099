"""The functions of the tutorial of cc4s, for the benchmark and the tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "cc4s.md"


def get_functions() -> dict[str, Any]:
    """Return the functions that the tutorial defines."""
    page = PAGE.read_text(encoding="utf-8")
    cells = re.findall(r"```\{code-cell\} ipython3\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"xr": xr, "np": np}
    for definition in re.findall(
        r"^def .*?(?=\n\n\n|\Z)", "\n\n\n".join(cells), re.DOTALL | re.MULTILINE
    ):
        exec(definition, names)
    return names
