"""Virtual Zarr: a parser for VirtualiZarr, and Kerchunk references.

Zarr reads the references without this package.
"""

from __future__ import annotations

try:
    from xr_tensorfmt.virtual.kerchunk import to_kerchunk
    from xr_tensorfmt.virtual.parsing import TensorFormatParser
except ModuleNotFoundError as error:
    raise ImportError(
        f"xr_tensorfmt.virtual needs VirtualiZarr: pip install 'xr-tensorfmt[virtual]' ({error})"
    ) from error

__all__ = ["TensorFormatParser", "parser", "to_kerchunk"]

parser = TensorFormatParser()
"""The parser without options, for ``open_virtual_dataset(url, registry, parser=parser)``."""
