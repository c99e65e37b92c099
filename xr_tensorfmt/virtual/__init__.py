"""Files as virtual Zarr: a parser for VirtualiZarr, and references for Kerchunk.

What is read by Zarr alone needs this package no more, once the references are made.
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
