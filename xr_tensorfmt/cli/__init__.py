"""The commands of ``xr-tensorfmt``; `xr_tensorfmt_cli` imports each of them when it is run."""

from __future__ import annotations

from xr_tensorfmt_cli import main

__all__ = ["main"]
