"""Replaced objects, and servers without versions, conditions or byte ranges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tests import tensfiles as tf
from tests.families import make_values
from tests.opening import open_tensor
from tests.servers import Handler, HttpStore, S3Store
from xr_tensorfmt import SourceChangedError
from xr_tensorfmt.core.extents import Extents
from xr_tensorfmt.sources.locations import Location
from xr_tensorfmt.sources.requests import Version
from xr_tensorfmt.sources.stores import open_remote


def test_server_without_conditions_is_detected_by_its_answer(http: HttpStore) -> None:
    http.conditions = False
    url = http.put("plain", tf.make_0_9(make_values()))
    tensor = open_tensor(url)
    http.put("plain", tf.make_0_9(make_values() + 1))
    with pytest.raises(SourceChangedError, match="entity tag"):
        tensor[3].values  # noqa: B018


def test_replacement_without_versions_is_detected_by_size(http: HttpStore) -> None:
    http.etags = False
    url = http.put("bare", tf.make_0_9(make_values()))
    tensor = open_tensor(url)
    np.testing.assert_array_equal(tensor, make_values())
    tensor = open_tensor(url)
    http.put("bare", tf.make_0_9(make_values()[:, :, :3]))
    with pytest.raises(SourceChangedError):
        tensor.values  # noqa: B018


@pytest.mark.parametrize("modified", ["", "Mon, 05 Jan 2026 10:00:00 GMT"], ids=["none", "second"])
@pytest.mark.parametrize("rows", [3, 40], ids=["smaller", "larger"])
def test_object_of_another_size_is_detected_without_version(
    http: HttpStore, modified: str, rows: int
) -> None:
    http.etags, http.modified = False, modified
    url = http.put("bare", tf.make_0_9(np.zeros((1000, 20))))
    tensor = open_tensor(url)
    http.put("bare", tf.make_0_9(np.ones((1000, rows))))
    with pytest.raises(SourceChangedError, match=f"{url}.* it has been replaced since"):
        tensor[:5, 1].values  # noqa: B018
    with pytest.raises(SourceChangedError, match=f"{url}.* it has been replaced since"):
        tensor[:, 19].values  # noqa: B018


def test_object_that_shrinks_while_it_is_opened_is_detected(http: HttpStore) -> None:
    http.etags = False
    url = http.put("race", tf.make_0_9(np.zeros(50_000)))

    def replace(handler: Handler, content: bytes, start: int, stop: int) -> bool:
        handler.partial(tf.make_0_9(np.zeros(40_000)), start, stop)
        return True

    http.trouble = replace
    with pytest.raises(SourceChangedError, match="it has been replaced since"):
        open_tensor(url)


def test_object_of_s3_of_another_size_is_detected_without_version(s3: S3Store) -> None:
    fs = fsspec.filesystem("s3", **s3.options)
    for rows in (3, 40):
        url = s3.put("bare", tf.make_0_9(np.zeros((10, 20))))
        source, _ = open_remote(Location(url, fs, "bucket/bare"))
        bare = replace(source, version=Version(source.size))
        s3.put("bare", tf.make_0_9(np.ones((10, rows))))
        with pytest.raises(SourceChangedError, match=f"{url}.* it has been replaced since"):
            bare.read(Extents.single(bare.size - 8, bare.size))


def test_object_replaced_while_it_is_opened_is_detected(http: HttpStore) -> None:
    url = http.put("race", tf.make_0_9(make_values()))

    def replace(handler: Handler, content: bytes, start: int, stop: int) -> bool:
        handler.partial(tf.make_0_9(make_values() + 1), start, stop)
        return True

    http.trouble = replace
    with pytest.raises(SourceChangedError):
        open_tensor(url)


def test_checksum_is_not_sent_as_condition(http: HttpStore) -> None:
    http.etags, http.headers = False, {"Content-MD5": "Q2hlY2sgSW50ZWdyaXR5IQ=="}
    sent: list[str | None] = []

    def note(handler: Handler, content: bytes, start: int, stop: int) -> bool:
        sent.append(handler.headers["If-Match"])
        return False

    url = http.put("checked", tf.make_0_9(make_values()))
    http.trouble = note
    np.testing.assert_array_equal(open_tensor(url), make_values())
    assert set(sent) == {None}


def reads_whole_file(handler: Handler, content: bytes, start: int, stop: int) -> bool:
    handler.answer(200, content)
    return True


def test_small_file_of_server_without_ranges_is_not_read_wrongly(http: HttpStore) -> None:
    url = http.put("small", tf.make_0_9(np.arange(6.0).reshape(2, 3)))
    http.trouble = reads_whole_file
    tensor = open_tensor(url)
    with pytest.raises(OSError, match="does not serve byte ranges"):
        tensor.values  # noqa: B018


def test_s3_without_ranges_raises(s3: S3Store) -> None:
    small = s3.put("small", tf.make_0_9(np.arange(6.0)))
    large = s3.put("large", tf.make_0_9(np.zeros(1 << 20)))
    s3.ranges = False
    words = "sent more than 65536 bytes .* does not serve byte ranges.* 'simplecache::'"
    try:
        with pytest.raises(OSError, match=words):
            open_tensor(large, storage_options=s3.options)
        tensor = open_tensor(small, storage_options=s3.options)
        with pytest.raises(OSError, match="does not serve byte ranges"):
            tensor[3:].values  # noqa: B018
    finally:
        s3.ranges = True
    np.testing.assert_array_equal(tensor, np.arange(6.0))


class Counted(MemoryFileSystem):
    """A store that counts the requests for the version of an object."""

    cachable = False
    infos = 0

    def info(self, path: str, **options: Any) -> Any:
        self.infos += 1
        return super().info(path, **options)


class Generations(Counted):
    """A store that reads a requested generation, such as Google Cloud Storage."""

    __module__, __qualname__ = "gcsfs.core", "GCSFileSystem"

    def cat_file(
        self, path: str, start: Any = None, end: Any = None, generation: Any = None
    ) -> bytes:
        assert generation in (None, "7")
        return super().cat_file(path, start=start, end=end)

    def info(self, path: str, **options: Any) -> Any:
        return {**super().info(path, **options), "generation": "7"}


class Mounted(AbstractFileSystem):
    """A file system that reads local files, and is not known as local."""

    cachable = False
    infos = 0
    _local = LocalFileSystem()

    def info(self, path: str, **_: Any) -> Any:
        self.infos += 1
        return self._local.info(path)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        return self._local.cat_file(path, start, end)


@pytest.mark.parametrize(("store", "limit"), [(Counted, 201), (Generations, 1), (Mounted, 201)])
def test_version_is_requested_after_reads_without_conditions(
    store: type[Any], limit: int, tmp_path: Path
) -> None:
    values, fs, path = np.arange(6400.0).reshape(64, 100), store(), tmp_path / "chunks.tens"
    path.write_bytes(tf.make_0_9(values))
    if store is not Mounted:
        fs.pipe_file(path.as_posix(), path.read_bytes())
    tensor = open_tensor(path.as_posix(), fs=fs, chunks={"dim_1": 1})
    for _ in range(2):
        np.testing.assert_array_equal(tensor, values)
    assert fs.infos <= limit
    tensor = open_tensor(path.as_posix(), fs=fs)
    for column in range(100):
        np.testing.assert_array_equal(tensor[:, column], values[:, column])
    assert fs.infos <= limit + (101 if limit > 1 else 1)
