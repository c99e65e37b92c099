"""A set of objects in S3 is old or new as a whole, whichever request of a write is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

import pytest
import s3fs
from obstore.fsspec import FsspecStore

from tests.servers import S3Store
from tests.workflows.sets import KINDS, read_set, write_set

DIRECTORY = "s3://bucket/b"

pytestmark = pytest.mark.filterwarnings("ignore:.*(not removed|may remain)")


class Fault:
    """Counts requests, and refuses one of them, before or after it has an effect."""

    def __init__(self, at: int = 0, *, has_effect: bool = False) -> None:
        self.at, self.has_effect, self.count, self.lock = at, has_effect, 0, Lock()

    def __call__(self, environ: dict, answer: Callable[[], list[bytes]]) -> Any:
        with self.lock:
            self.count += 1
            is_refused = self.count == self.at
        if is_refused and not self.has_effect:
            return "403 AccessDenied"
        body = answer()
        return "403 AccessDenied" if is_refused else body


@pytest.fixture
def bucket(s3: S3Store) -> Iterator[s3fs.S3FileSystem]:
    fs = s3fs.S3FileSystem(**s3.options)
    s3.put("first", b"")
    yield fs
    s3.fault = lambda environ, answer: answer()


def read(s3: S3Store, kind: str) -> set[float] | None:
    """Read a set by s3fs and by obstore."""
    fs = FsspecStore(
        "s3",
        endpoint=s3.options["endpoint_url"],
        access_key_id="key",
        secret_access_key="secret",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    values = read_set(kind, DIRECTORY, storage_options=s3.options)
    assert read_set(kind, DIRECTORY, fs=fs) == values
    return values


def restore(fs: s3fs.S3FileSystem, objects: dict[str, bytes]) -> None:
    fs.invalidate_cache()
    fs.rm(fs.find("bucket"))
    fs.pipe({f"bucket/{name}": content for name, content in objects.items()})


def check(
    s3: S3Store, fs: s3fs.S3FileSystem, kind: str, positions: slice, *, way: str, effect: bool
) -> None:
    """Refuse some of the requests of a write, one after the other."""
    mode, old = "x" if way == "x" else "w", {1} if way == "over" else None
    restore(fs, {"first": b""})
    if old:
        write_set(kind, 1, DIRECTORY, storage_options=s3.options)
    before = {name.removeprefix("bucket/"): fs.cat_file(name) for name in fs.find("bucket")}
    s3.fault = counter = Fault()
    write_set(kind, 2, DIRECTORY, storage_options=s3.options, mode=mode)
    s3.fault = Fault()
    for at in range(1, counter.count + 1)[positions]:
        restore(fs, before)
        s3.fault = Fault(at, has_effect=effect)
        message = ""
        try:
            write_set(kind, 2, DIRECTORY, storage_options=s3.options, mode=mode)
        except OSError as error:
            message = " ".join([str(error), *getattr(error, "__notes__", ())])
        s3.fault = Fault()
        values = read(s3, kind)
        assert message or values == {2}, at
        assert values in ({2}, old), at
        fs.invalidate_cache()
        if values != {2}:  # nothing else is left
            assert fs.find("bucket") == [f"bucket/{name}" for name in sorted(before)], at
        elif message and "exists already" not in message:
            assert message.endswith("but the new file is in place."), at


@pytest.mark.store
@pytest.mark.parametrize("effect", [False, True], ids=["before", "after"])
def test_some_requests_are_refused(s3: S3Store, bucket: s3fs.S3FileSystem, effect: bool) -> None:
    check(s3, bucket, "model", slice(1, None, 8), way="over", effect=effect)
    # The upload of the index, and the checks that follow.
    check(s3, bucket, "model", slice(-4, None), way="new", effect=effect)


@pytest.mark.nightly
@pytest.mark.store
@pytest.mark.parametrize("effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("way", ["new", "over", "x"])
@KINDS
def test_each_request_is_refused(
    s3: S3Store, bucket: s3fs.S3FileSystem, kind: str, way: str, effect: bool
) -> None:
    check(s3, bucket, kind, slice(None), way=way, effect=effect)
