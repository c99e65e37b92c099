"""Products of causal matrices, by square blocks that are read when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import dask.array
import numpy as np
from numpy.typing import NDArray
from xarray import DataArray, Variable

from xr_tensorfmt.datasets.lazy_array import drop_chunks

_BLOCK = 2048
"""Rows and columns of a block: 16 MiB of float32, enough for a fast product of matrices."""

Block = NDArray[np.bool_]


def check_causal(causal: DataArray) -> None:
    """Raise an error unless an array is a square matrix of bool."""
    if not isinstance(causal, DataArray) or causal.dtype != np.bool_:
        owner = "" if isinstance(causal, DataArray) else f"{type(causal).__name__} of "
        actual = f"{owner}{getattr(causal, 'dtype', 'other values')}"
        raise TypeError(f"a causal matrix is a DataArray of bool, not {actual}")
    if causal.ndim != 2 or causal.shape[0] != causal.shape[1]:
        raise ValueError(f"a causal matrix is square, but the shape is {causal.shape}")


@dataclass(frozen=True, eq=False)
class CausalMatrix:
    """A causal matrix, divided into square blocks."""

    variable: Variable
    size: int

    @classmethod
    def from_array(cls, causal: DataArray) -> CausalMatrix:
        """Read the blocks of an array of this engine from the file, and load other arrays."""
        check_causal(causal)
        variable = drop_chunks(causal.variable)
        return cls(variable if variable.chunks is None else variable.load(), causal.shape[0])

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the blocks along either axis."""
        full, rest = divmod(self.size, _BLOCK)
        return (_BLOCK,) * full + ((rest,) if rest or not full else ())

    def read(self, row: int, column: int) -> Block:
        """Return the values of a block."""
        rows, columns = (slice(n * _BLOCK, (n + 1) * _BLOCK) for n in (row, column))
        return np.asarray(self.variable[rows, columns].values)

    def map_blocks(
        self,
        compute: Callable[..., NDArray[Any]],
        dtype: type[np.generic],
        chunks: tuple[tuple[int, ...], ...] | None = None,
    ) -> Any:
        """Compute a dask array with one chunk per block: of its shape, or of other `chunks`."""

        def run(block_info: Any) -> NDArray[Any]:
            location = block_info[None]["chunk-location"][:2]
            return compute(self, *location, self.read(*location))

        chunks = chunks or (self.lengths,) * 2
        return dask.array.map_blocks(  # type: ignore[no-untyped-call]
            run,
            chunks=chunks,
            dtype=dtype,
            meta=np.empty((0,) * len(chunks), dtype),
            name=f"{compute.__name__}-{uuid4().hex}",  # dask would read the matrix
        )


def count_between(matrix: CausalMatrix, row: int, column: int, related: Block) -> NDArray[np.int32]:
    """Multiply a row of blocks with a column of blocks, of which both contain `related`."""
    counts = np.zeros(related.shape, np.float32)  # exact, because counts are below 2**24
    for middle in range(len(matrix.lengths)):
        left = related if middle == column else matrix.read(row, middle)
        right = related if middle == row or not left.any() else matrix.read(middle, column)
        if left.any() and right.any():
            counts += left.astype(np.float32) @ right.astype(np.float32)
    return counts.astype(np.int32)


def find_links(matrix: CausalMatrix, row: int, column: int, related: Block) -> Block:
    """Return the relations of a block without an event between."""
    if related.any():
        related = related & (count_between(matrix, row, column, related) == 0)
    return related


def count_sizes(matrix: CausalMatrix, row: int, column: int, related: Block) -> NDArray[np.int64]:
    """Count the relations of a block by the number of events between."""
    sizes = np.empty(0, int)
    if related.any():
        sizes = count_between(matrix, row, column, related)[related]
    return np.bincount(sizes, minlength=matrix.size).reshape(1, 1, matrix.size)
