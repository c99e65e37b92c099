"""Bytes and arrays: sources, selections, elements, layouts, chunk grids and header parsing."""
