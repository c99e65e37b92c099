"""BLOCK matrices of R1: a grid of containers in a folder beside the file.

Source: PyCauset, ``documentation/dev/PyCauset Container Format.md``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.pycauset.matrix import Matrix
from xr_tensorfmt.formats.pycauset.metadata import Metadata
from xr_tensorfmt.layouts import Layout, Mosaic, Tile
from xr_tensorfmt.sources import Source

MOST_BLOCKS = 4096
"""Limit on the blocks of a matrix, those of its blocks included."""

MOST_LEVELS = 8
"""Limit on the blocks within blocks."""

_UNSAFE = re.compile(r"[/\\:\0]|^\.*$")

_LONG = 8

Child = Callable[[Source], tuple[Matrix, Layout]]


def blocks_layout(source: Source, matrix: Matrix, metadata: Metadata, child: Child) -> Mosaic:
    """Open the blocks of a matrix.

    Parameters
    ----------
    source : Source
        The file of the matrix.
    matrix : Matrix
        What it says.
    metadata : Metadata
        Its metadata, with the manifest of the blocks.
    child : callable
        Reads the header of a block.

    Returns
    -------
    Mosaic

    Raises
    ------
    TensorFormatError
        The manifest is damaged, or a block is missing, of another shape, or not the one meant.
    """
    manifest = metadata.below("block_manifest")
    version = manifest.take("version", int)
    if version != 1:
        raise manifest.error("version", version, "1", "the file is of a newer version")
    edges = (
        _edges(manifest, "row_partitions", matrix.rows),
        _edges(manifest, "col_partitions", matrix.columns),
    )
    grid = manifest.take("children", list)
    counts = tuple(len(each) - 1 for each in edges)
    fits = len(grid) == counts[0] and all(
        isinstance(row, list) and len(row) == counts[1] for row in grid
    )
    if not fits:
        raise manifest.error(
            "children", "another grid", f"{counts[0]} x {counts[1]} blocks", "the file is damaged"
        )
    blocks = tuple(
        tuple(
            _block(source, manifest, each, (bottom - top, right - left), child)
            for each, (left, right) in zip(row, pairwise(edges[1]), strict=True)
        )
        for row, (top, bottom) in zip(grid, pairwise(edges[0]), strict=True)
    )
    return Mosaic(*edges, blocks)


def lossy_blocks(path: str, mosaic: Mosaic) -> list[str]:
    """What to say where integers of 64 bits become floating-point numbers beside other blocks.

    Parameters
    ----------
    path : str
        The file of the matrix.
    mosaic : Mosaic
        Its blocks.

    Returns
    -------
    list of str
        One warning, or none.
    """
    kinds = {tile.layout.dtype for row in mosaic.tiles for tile in row}
    long = any(kind.kind in "iu" and kind.itemsize == _LONG for kind in kinds)
    if mosaic.dtype.kind not in "fc" or not long:
        return []
    names = ", ".join(sorted(map(str, kinds)))
    message = (
        f"{path}: blocks of {names} together are {mosaic.dtype}, which rounds integers above "
        "2**53; open a block by its own path for its exact values"
    )
    return [message]


def _edges(manifest: Metadata, key: str, length: int) -> tuple[int, ...]:
    edges = manifest.take(key, list)
    ascend = (
        all(type(each) is int for each in edges)
        and 1 < len(edges) <= MOST_BLOCKS + 1
        and all(low < high for low, high in pairwise(edges))
        and (edges[0], edges[-1]) == (0, length)
    )
    if not ascend:
        raise manifest.error(
            key, repr(edges)[:60], f"ascending from 0 to {length}", "the file is damaged"
        )
    return tuple(edges)


def _block(
    source: Source, manifest: Metadata, entry: Any, shape: tuple[int, int], child: Child
) -> Tile:
    facts = Metadata(entry if isinstance(entry, dict) else {}, manifest.path, manifest.offset)
    name = facts.take("path", str)
    if _UNSAFE.search(name):
        raise facts.error(
            "path", repr(name), "a bare file name", "a block must lie in the folder of blocks"
        )
    place = f"{os.path.basename(source.name)}.blocks/{name}"
    try:
        sibling = source.sibling(place)
    except OSError as error:
        raise facts.error(
            "path",
            repr(name),
            f"the file {place}",
            f"it cannot be opened ({error.strerror or error})",
        ) from error
    if sibling is None:
        raise facts.error(
            "path", repr(name), "a file beside this one", "open a BLOCK matrix by its path"
        )
    matrix, layout = child(sibling)
    if matrix.facts.get("payload_uuid") != facts.take("payload_uuid", str):
        raise TensorFormatError(
            sibling.name,
            "the metadata key 'payload_uuid'",
            matrix.facts.get("payload_uuid"),
            repr(facts.values["payload_uuid"]),
            f"it is not the block that {source.name} was saved with; save that again",
            offset=matrix.fields,
        )
    if layout.shape != shape:
        raise TensorFormatError(
            sibling.name,
            "the shape of a block",
            layout.shape,
            f"{shape} as in {source.name}",
            "the files do not belong together",
            offset=matrix.fields,
        )
    return Tile(sibling, layout)
