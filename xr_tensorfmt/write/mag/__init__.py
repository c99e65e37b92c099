"""MAG: every variable a tensor under its name."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from dask.delayed import Delayed
from xarray import DataArray, Dataset

from xr_tensorfmt.write.job import Job, Plan, SaveOptions
from xr_tensorfmt.write.mag.archive import plan_archive
from xr_tensorfmt.write.mag.snapshot import plan_snapshot

_PLANS: dict[int, Plan] = {300: plan_snapshot, 1: plan_archive}


def to_mag(
    data: Dataset | DataArray,
    path: Any,
    *,
    version: Literal[300, 1] = 300,
    **options: Unpack[SaveOptions],
) -> Delayed | None:
    """Write a MAG file: every variable a tensor under its name.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write. Attributes of the Dataset become the file's metadata.
    path : str or PathLike
        The file, or its URL.
    version : {300, 1}
        A snapshot that magnetron 0.2 loads, or an archive as magnetron 0.1.2 wrote it, which has
        no place for dims, coordinates and attributes of variables.
    **options
        As for `to_file`: mode, compute, region, encoding, drop, storage_options, fs.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something; the message says what, and what would work.
    OSError
        The system refuses; what was there before is unchanged.
    """
    if version not in _PLANS:
        raise ValueError(f"version={version!r} is not one of {', '.join(map(str, _PLANS))}")
    return Job.of(options).run(data, path, "MAG", _PLANS[version])
