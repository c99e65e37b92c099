"""Virtual Zarr: a parser for VirtualiZarr. Zarr reads the references without this package."""

from __future__ import annotations

try:
    from xr_tensorfmt.virtual.parsing import TensorFormatParser
except ModuleNotFoundError as error:
    raise ImportError(
        f"xr_tensorfmt.virtual needs VirtualiZarr: pip install 'xr-tensorfmt[virtual]' ({error})"
    ) from error

__all__ = ["TensorFormatParser", "parser"]

parser = TensorFormatParser()
"""The parser without options, for ``open_virtual_dataset(url, registry, parser=parser)``."""
