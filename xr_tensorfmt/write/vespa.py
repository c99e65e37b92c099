"""Vespa's typed binary tensors."""

from __future__ import annotations

from typing import Any, Unpack

from dask.delayed import Delayed
from xarray import DataArray, Dataset

from xr_tensorfmt.write.blueprint import Blueprint
from xr_tensorfmt.write.job import Job, SaveOptions
from xr_tensorfmt.write.subject import Subject


def to_vespa(
    data: Dataset | DataArray, path: Any, **options: Unpack[SaveOptions]
) -> Delayed | None:
    """Write a Vespa file.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write.
    path : str or PathLike
        The file, or its URL.
    **options
        As for `to_file`: mode, compute, region, encoding, drop, storage_options, fs.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.
    """
    return Job(**options).run(data, path, "Vespa", plan_vespa)


def plan_vespa(subject: Subject) -> Blueprint:
    """Arrange a Dataset as a Vespa file."""
    raise NotImplementedError
