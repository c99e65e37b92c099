"""``python -m xr_tensorfmt``: the command ``xr-tensorfmt``."""

from __future__ import annotations

from xr_tensorfmt.cli import main

if __name__ == "__main__":
    main(prog_name="python -m xr_tensorfmt")
