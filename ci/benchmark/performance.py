"""docs/performance.md: what matters to users, as three charts and ten rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmark.page import significant
from benchmark.report import Report


@dataclass(frozen=True)
class Chosen:
    """One row of the page: a job, and the cases of a table that are compared at it.

    Parameters
    ----------
    job : str
        What is done.
    section, table : str
        Where it was measured.
    ours : str
        The case of this package.
    peer : str, optional
        The fastest other package that does the whole job.
    peer_name : str
        What the page calls it.
    """

    job: str
    section: str
    table: str
    ours: str
    peer: str | None = None
    peer_name: str = ""


ROWS = (
    Chosen(
        "sum 2 GiB of float64, in chunks of 32 MiB",
        "Dense tensors",
        "Sum of the whole tensor",
        "tensorfmt, column-major, 32 MiB",
        "netcdf4, 32 MiB",
        "netCDF4",
    ),
    Chosen(
        "load 2 GiB of float64, and sum them in one thread",
        "Dense tensors",
        "All values",
        "tensorfmt, then sum",
        "netcdf4, then sum",
        "netCDF4",
    ),
    Chosen(
        "open a model of 1,000 tensors",
        "MAG",
        "Open 1,000 tensors",
        "tensorfmt, 1,000",
        "zarr, consolidated, 1,000",
        "zarr",
    ),
    Chosen(
        "open a table of a million labelled vectors, with its index",
        "Labelled blocks (Vespa)",
        "Open: numbered labels",
        "tensorfmt, numbered labels",
        "zarr, with its index",
        "zarr",
    ),
    Chosen(
        "count the relations of 100,000 elements, row by row",
        "Causal matrices and triangles",
        "Row sums, column sums, total: the larger",
        "tensorfmt, row sums, the larger",
    ),
    Chosen(
        "open a tensor in S3",
        "Object storage",
        "Open from a store",
        "tensorfmt, s3fs, open",
        "zarr, s3fs, open",
        "zarr",
    ),
    Chosen(
        "read one column of it, 128 KiB",
        "Object storage",
        "A column",
        "tensorfmt, s3fs, column",
        "zarr, obstore, column",
        "zarr",
    ),
    Chosen(
        "sum 512 MiB in S3",
        "Object storage",
        "64 chunks through dask",
        "tensorfmt, s3fs, chunks of 31 MiB, all",
        "zarr, obstore, all",
        "zarr",
    ),
    Chosen(
        "write 2 GiB of float32, into memory",
        "Writing",
        "Write 2 GiB of float32 from dask",
        "tensorfmt, MAG",
        "zarr",
        "zarr",
    ),
    Chosen(
        "write 2 GiB of float32, until they are on the disk",
        "Writing",
        "Write 2 GiB of float32 from dask to the disk",
        "tensorfmt, MAG, disk",
        "netcdf4, disk, synced",
        "netCDF4",
    ),
)


def performance(report: Report) -> str:
    """Write the page.

    Parameters
    ----------
    report : Report
        What was measured.

    Returns
    -------
    str
    """
    charts = "\n\n".join(
        f"{_picture(name, alt)}\n\n{caption}" for name, (alt, caption) in CAPTIONS.items()
    )
    return _PAGE.format(machine=report.machine, charts=charts, rows="\n".join(_rows(report)))


def _picture(name: str, alt: str) -> str:
    return "\n\n".join(
        f"```{{image}} _static/charts/{name}-{theme}.svg\n:alt: {alt}\n"
        f":class: only-{theme} chart\n:width: 100%\n```"
        for theme in ("light", "dark")
    )


def _rows(report: Report) -> Iterator[str]:
    for each in ROWS:
        rows = {row.name: row for row in report.table(each.section, each.table).rows}
        ours = rows[each.ours]
        limit = next(row for row in rows.values() if row.role == "limit")
        other = (
            "none"
            if each.peer is None
            else (f"{_time(rows[each.peer].milliseconds)} ({each.peer_name})")
        )
        yield (
            f"| {each.job} | **{_time(ours.milliseconds)}** | {other} | "
            f"{_time(limit.milliseconds)} |"
        )


def _time(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.2f} s"
    return f"{significant(milliseconds)} ms"


CAPTIONS = {
    "sum": (
        "Bar chart: seconds to sum a tensor of 2 GiB",
        """\
The job opens a tensor of 2 GiB of float64 with `chunks={}` and sums it with two threads. The
formats store it without compression, in chunks of the size that is fastest for them. The baseline
is numpy over the mapped file, with two threads.""",
    ),
    "open": (
        "Bar chart: seconds to open a model of 1,000 tensors",
        """\
The job opens a model of 1,000 tensors as a lazy Dataset. The baseline is the time that xarray needs
to create a Dataset of 1,000 variables.""",
    ),
    "remote": (
        "Bar chart: seconds to sum a tensor of 512 MiB in S3",
        """\
The job opens and sums a tensor of 512 MiB in an emulated S3 store with 20 ms of latency and
100 MB/s per connection. zarr uses chunks of 8 MiB, and xr_tensorfmt its default of 31 MiB. The
baseline is calculated: one round trip, and the transfer over 16 connections.""",
    ),
}

_PAGE = """\
<!-- Written by `sh ci/bench`; do not edit. -->

# Benchmarks

The time of xr_tensorfmt compared with packages that do the same job with their formats, and with a
baseline: a minimal program, or a calculated time. The charts label the baseline "limit".
Shorter bars are better.

{charts}

## Ten jobs

The third column shows the fastest other package that does the whole job.

| job | xr_tensorfmt | fastest other | baseline |
| --- | --- | --- | --- |
{rows}

The times are medians of interleaved rounds in one run, with the files in the page cache. Machine
and versions: {machine}.

`sh ci/bench` repeats the measurements. `ci/benchmark/measurements.md` in the source contains all
tables, with the memory used.
"""
