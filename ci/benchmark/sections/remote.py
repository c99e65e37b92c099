"""Read from a store that is 20 ms away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from benchmark import slowstore
from benchmark.files import ROW, add_in_threads, open_tensor, write_dense
from benchmark.job import Job, Prepared
from benchmark.report import format_bytes
from benchmark.sections.local import add_lazily
from benchmark.slowstore import BUCKET, run_server

TITLE = "Object storage"
INTRO = """\
An emulated S3 store that answers 20 ms after each request, with 100 MB/s per connection. It holds a
TENS file of float64 and the same values as an uncompressed zarr array in chunks of 8 MiB. The
baseline is a program that sends the requests with obstore, up to 16 at a time. All packages have
their default number of concurrent requests, and xr_tensorfmt its default chunk size."""
ROWS, THREADS, REQUEST_BYTES = 4096, 16, 8 << 20
Opener = Callable[..., xr.DataArray]


@contextmanager
def provide(folder: Path, scale: int) -> Iterator[None]:
    """Write the objects and run the store."""
    write_dense(folder / "t", ROWS // scale)
    with run_server(slowstore.__file__, str(folder)) as url:
        (folder / "url").write_text(url)
        yield


def get_jobs(folder: Path, scale: int) -> Sequence[Job]:
    """Return the jobs of three clients."""
    url, rows = (folder / "url").read_text(), ROWS // scale
    fetch = partial(_fetch, url, (folder / "t.tens").stat().st_size - 8 * ROW * rows)
    return [
        job
        for client, opener, peers in _get_clients(url)
        for job in _get_client_jobs(client, opener, peers, fetch, rows)
    ]


@cache
def connect(url: str, prefix: str | None = None) -> Any:
    """Return a store of obstore."""
    from obstore.store import S3Store  # noqa: PLC0415

    return S3Store(
        BUCKET,
        prefix=prefix,
        endpoint=url,
        access_key_id="key",
        secret_access_key="secret",
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def get_s3_options(url: str) -> dict[str, str]:
    """Return the storage options of s3fs."""
    return {"key": "key", "secret": "secret", "endpoint_url": url}


def _get_clients(url: str) -> Iterator[tuple[str, Opener, dict[str, Opener]]]:
    """Yield clients of the store with their openers and peers."""

    def open_by_obstore(**options: Any) -> xr.DataArray:
        return open_tensor("t.tens", "tensorfmt", fs=connect(url), **options)

    def open_zarr_by_obstore(**options: Any) -> xr.DataArray:
        from zarr.storage import ObjectStore  # noqa: PLC0415

        return open_tensor(ObjectStore(connect(url, "t.zarr"), read_only=True), "zarr", **options)

    s3: dict[str, Any] = {"storage_options": get_s3_options(url)}
    ours = partial(open_tensor, f"s3://{BUCKET}/t.tens", "tensorfmt", **s3)
    zarr = partial(open_tensor, f"s3://{BUCKET}/t.zarr", "zarr", **s3)
    yield "s3fs", ours, {"zarr via s3fs": zarr, "zarr via obstore": open_zarr_by_obstore}
    # The peers are the same, so they take part once.
    yield "obstore", open_by_obstore, {}
    yield "HTTP", partial(open_tensor, f"{url}/{BUCKET}/t.tens", "tensorfmt"), {}


def _get_client_jobs(
    client: str, opener: Opener, peers: dict[str, Opener], fetch: Callable[..., float], rows: int
) -> Iterator[Job]:
    column = 8 * ROW

    def open_only(opener: Opener) -> None:
        opener()

    def load_column(array: xr.DataArray) -> float:
        return float(array.isel(b=rows // 2).values.sum())

    def add(opener: Opener) -> float:
        return add_lazily(opener(chunks={}))

    yield Job(
        f"open by {client}",
        f"open a tensor by {client}",
        partial(open_only, opener),
        "obstore, one request",
        partial(fetch, 0, 8),
        {name: partial(open_only, peer) for name, peer in peers.items()},
    )
    yield Job(
        f"column by {client}",
        f"read one column of {format_bytes(column)} by {client}",
        Prepared(load_column, opener),
        "obstore",
        partial(fetch, rows // 2 * column, column),
        {name: Prepared(load_column, peer) for name, peer in peers.items()},
    )
    yield Job(
        f"sum by {client}",
        f"open and sum {format_bytes(column * rows)} with dask by {client}",
        partial(add, opener),
        "obstore",
        partial(fetch, 0, column * rows),
        {name: partial(add, peer) for name, peer in peers.items()},
        memory=True,
    )


def _fetch(url: str, header_bytes: int, start: int, size: int) -> float:
    """Add up values that are fetched by requests of up to 8 MiB."""
    store, step = connect(url), min(size, REQUEST_BYTES)

    def add(offset: int) -> float:
        length = min(step, start + size - offset)
        data = store.get_range("t.tens", start=header_bytes + offset, length=length)
        return float(np.frombuffer(data, np.float64).sum())

    return add_in_threads(add, range(start, start + size, step), THREADS)
