"""From Datasets to files: one module a family, and what they share."""

from __future__ import annotations

from xr_tensorfmt.write.anyformat import to_file
from xr_tensorfmt.write.mag import to_mag
from xr_tensorfmt.write.pycauset import to_pycauset
from xr_tensorfmt.write.tens import to_tens
from xr_tensorfmt.write.vespa import to_vespa

__all__ = ["to_file", "to_mag", "to_pycauset", "to_tens", "to_vespa"]
