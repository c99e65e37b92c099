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
            "none does this"
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
A tensor of 2 GiB of float64 is opened with `chunks={}` and summed by two threads. All formats store
it without compression, in chunks of their best size. The limit is numpy over the mapped file, in
two threads as well.""",
    ),
    "open": (
        "Bar chart: seconds to open a model of 1,000 tensors",
        """\
A model of 1,000 tensors is opened as a Dataset, of which no value is read. The limit is what xarray
itself takes to make a Dataset of as many variables.""",
    ),
    "remote": (
        "Bar chart: seconds to sum a tensor of 512 MiB in S3",
        """\
A tensor of 512 MiB is opened and summed from a store that speaks S3, and answers 20 ms after each
request, with 100 MB/s for each connection. The chunks of zarr are of 8 MiB, those of xr_tensorfmt
of 31 MiB, which is its default. The limit is arithmetic: one round trip, and all bytes over 16
connections.""",
    ),
}

_PAGE = """\
<!-- Written by `sh ci/bench`; do not edit. -->

# Benchmarks

What xr_tensorfmt costs, beside the packages that do the same with their own formats, and beside the
limit: the least that any program could take on that machine. Shorter bars are better.

{charts}

## Ten jobs

Of the other packages, the fastest that does the whole job is shown, also where it is faster than
xr_tensorfmt.

| job | xr_tensorfmt | the fastest other | limit |
| --- | --- | --- | --- |
{rows}

All times were measured in one run, with the files in the page cache, on: {machine}. Medians of
interleaved rounds; your machine will have other times, but similar ratios. `sh ci/bench` repeats
all of it. `ci/benchmark/measurements.md` in the source has every table, with the memory used.
"""
