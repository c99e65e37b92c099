"""Constants of .npy files and .npz archives."""

from __future__ import annotations

MAGIC = b"\x93NUMPY"
SUFFIX = ".npy"


def get_default_dims(rank: int) -> tuple[str, ...]:
    """Return the names of the dimensions, which the format does not store."""
    return tuple(f"dim_{axis}" for axis in range(rank))
