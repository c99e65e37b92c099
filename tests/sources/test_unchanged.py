"""The keyword `verify_unchanged`, and stores without conditional requests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.asyn import sync

from tests import cc4sfiles
from tests import tensfiles as tf
from tests.opening import open_lazily, open_tensor
from tests.servers import Handler, HttpStore, S3Store
from xr_tensorfmt import SourceChangedError
from xr_tensorfmt.core.source import DEFAULT_TIMEOUT
from xr_tensorfmt.sources.locations import locate_for_reading

VALUES = np.arange(60_000.0).reshape(200, 300)


def touch(path: Path) -> None:
    os.utime(path)


def copy(path: Path) -> None:
    """Replace a file by its copy, which has another inode."""
    shutil.copy2(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


def round_time(path: Path) -> None:
    seconds = int(path.stat().st_mtime)
    os.utime(path, (seconds, seconds))


@pytest.mark.slow
@pytest.mark.parametrize("change", [touch, copy, round_time])
@pytest.mark.parametrize("io", ["auto", "read", "mmap"])
@pytest.mark.parametrize("chunks", [None, {}], ids=str)
def test_equal_bytes_of_local_file_are_read_if_asked(
    change: Callable[[Path], None], io: str, chunks: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.tens"
    path.write_bytes(tf.make_0_9(VALUES))
    strict = open_tensor(path, io=io, chunks=chunks)
    lenient, later = (
        open_tensor(path, io=io, chunks=chunks, verify_unchanged=False) for _ in range(2)
    )
    change(path)
    np.testing.assert_array_equal(lenient, VALUES)
    hint = "verify_unchanged=False or --open-option verify_unchanged=false if"
    with pytest.raises(SourceChangedError, match=hint):
        strict.load()
    path.write_bytes(tf.make_0_9(VALUES[:, :-1]))
    with pytest.raises(SourceChangedError, match="open it again"):
        later[3].load()


def test_keyword_applies_to_sibling_files(tmp_path: Path) -> None:
    (tmp_path / "x.elements").write_bytes(cc4sfiles.pack_binary(VALUES))
    (tmp_path / "x.yaml").write_text(cc4sfiles.format_yaml(VALUES.shape))
    ds = open_lazily(tmp_path / "x.yaml", verify_unchanged=False)
    touch(tmp_path / "x.elements")
    np.testing.assert_array_equal(ds.x, VALUES)
    with pytest.raises(TypeError, match="verify_unchanged= must be True or False"):
        open_lazily(tmp_path / "x.yaml", verify_unchanged="no")


@pytest.mark.parametrize("status", [400, 403, 412, 501])
def test_store_that_refuses_conditions_is_read_if_asked(http: HttpStore, status: int) -> None:
    url = http.put("a.tens", tf.make_0_9(VALUES))
    http.etags = True

    def refuse(handler: Handler, *_: object) -> bool:
        if "If-Match" in handler.headers:
            handler.answer(status, b"")
            return True
        return False

    http.trouble = refuse
    with pytest.raises((OSError, SourceChangedError), match="verify_unchanged=False"):
        open_tensor(url).load()
    np.testing.assert_array_equal(open_tensor(url, verify_unchanged=False), VALUES)


def test_nodes_with_other_tags_are_read_if_asked(
    http: HttpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = http.put("a.tens", tf.make_0_9(VALUES))
    strict, lenient = open_tensor(url), open_tensor(url, verify_unchanged=False)
    monkeypatch.setattr(http, "etag_of", lambda _: '"another"')
    np.testing.assert_array_equal(lenient, VALUES)
    with pytest.raises(SourceChangedError, match="verify_unchanged=False"):
        strict.load()


@pytest.mark.parametrize("is_local", [False, True])
def test_option_of_s3fs_leaves_out_the_condition(s3: S3Store, is_local: bool) -> None:
    url = s3.put("unconditional.tens", tf.make_0_9(VALUES))
    options = {**s3.options, "local_expiry_check": is_local}
    tensor, stale = (open_tensor(url, storage_options=options) for _ in range(2))
    conditions: list[bool] = []

    def record(params: dict[str, Any], **_: Any) -> None:
        conditions.append("If-Match" in params["headers"])

    fs = locate_for_reading(url, options, None, DEFAULT_TIMEOUT).fs
    sync(fs.loop, fs.set_session).meta.events.register("before-call.s3.GetObject", record)
    np.testing.assert_array_equal(tensor, VALUES)
    assert set(conditions) == {not is_local}
    s3.put("unconditional.tens", tf.make_0_9(VALUES + 1))
    with pytest.raises(SourceChangedError, match="it has been replaced"):
        stale.load()
