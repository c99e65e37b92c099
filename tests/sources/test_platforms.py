"""Branches for Windows and macOS, emulated with replaced functions."""

from __future__ import annotations

import errno
import mmap
import ntpath
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.local import LocalFileSystem

from tests.opening import load, open_lazily
from xr_tensorfmt import to_file
from xr_tensorfmt.core.locks import ForkSafeLock, call_in_children
from xr_tensorfmt.sources import is_url
from xr_tensorfmt.sources.locations import Location

O_BINARY = 1 << 30


def make_dataset(value: int = 1) -> xr.Dataset:
    """Return 512 KiB, which are read through a memory map."""
    return xr.Dataset({"a": (("x", "y"), np.full((256, 512), value, "f4"))})


def set_platform(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    """Emulate another platform."""
    system = SimpleNamespace(platform=platform, version_info=sys.version_info, modules=sys.modules)
    monkeypatch.setattr("xr_tensorfmt.sources.local.sys", system)


@pytest.fixture
def windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove functions that Windows lacks, and refuse calls that it refuses."""
    original_open, disk_usage = os.open, shutil.disk_usage(".")

    def open_file(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        if flags & os.O_RDWR and os.path.dirname(path) == str(tmp_path):
            assert flags & O_BINARY
        return original_open(path, flags & ~O_BINARY, *arguments, **options)

    set_platform(monkeypatch, "win32")
    monkeypatch.setattr(os, "O_BINARY", O_BINARY, raising=False)
    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk_usage)
    for name in ("O_NONBLOCK", "posix_fadvise", "pwrite", "statvfs", "sysconf"):
        monkeypatch.delattr(os, name)
    monkeypatch.delattr(mmap, "MADV_RANDOM")


@pytest.mark.usefixtures("windows")
def test_windows_writes_and_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    for mode in ("x", "w"):
        to_file(make_dataset().chunk(x=16), path, "mag", mode=mode)
    xr.testing.assert_identical(load(path), make_dataset())
    xr.testing.assert_identical(
        open_lazily(path).isel(y=[3, 400]).load(), make_dataset().isel(y=[3, 400])
    )
    assert os.listdir(tmp_path) == ["a.mag"]


@pytest.mark.usefixtures("windows")
def test_windows_writes_file_with_siblings(tmp_path: Path) -> None:
    expected = xr.Dataset({"tensor": (("x", "y"), np.eye(3))})
    to_file(expected, tmp_path / "a.yaml")
    assert sorted(os.listdir(tmp_path)) == ["a.elements", "a.yaml"]
    np.testing.assert_array_equal(load(tmp_path / "a.elements").to_dataarray()[0], np.eye(3))


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_loaded_values_do_not_change_with_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    set_platform(monkeypatch, platform)
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag")
    before = load(path)
    to_file(make_dataset(2).isel(x=slice(8)), path, "mag", region={"x": slice(8)})
    xr.testing.assert_identical(before, make_dataset())
    assert load(path).a.sum() == 256 * 512 + 8 * 512


@pytest.mark.usefixtures("windows")
def test_windows_maps_values_copy_on_write(tmp_path: Path) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag")
    values = load(path).a.values
    assert not values.flags.owndata
    values[:] = 7
    xr.testing.assert_identical(load(path), make_dataset())


def test_file_in_use_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.mag"
    to_file(make_dataset(), path, "mag")

    def refuse(source: str, target: str) -> None:
        raise PermissionError(errno.EACCES, "Access is denied", source, None, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(
        PermissionError, match=r"Access is denied.*the target is unchanged"
    ) as caught:
        to_file(make_dataset(2), path, "mag")
    assert caught.value.filename == str(path)
    xr.testing.assert_identical(load(path), make_dataset())
    assert os.listdir(tmp_path) == ["a.mag"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_new_file_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """exFAT has no hard links: Windows reports EINVAL, macOS ENOTSUP."""

    def refuse(*_: Any) -> None:
        raise OSError(code, "Incorrect function")

    monkeypatch.setattr(os, "link", refuse)
    to_file(make_dataset(), tmp_path / "a.mag", mode="x")
    xr.testing.assert_identical(load(tmp_path / "a.mag"), make_dataset())
    with pytest.raises(FileExistsError, match="exists already"):
        to_file(make_dataset(2), tmp_path / "a.mag", mode="x")
    assert os.listdir(tmp_path) == ["a.mag"]


def test_locks_without_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "register_at_fork")
    lock = ForkSafeLock()
    call_in_children(lambda: None)
    with lock.current:
        assert lock.current.locked()


@pytest.mark.parametrize("path", [r"C:\data\a.mag", "C:/data/a.mag", "C://a.mag", "c:a.mag"])
def test_drive_is_not_scheme_of_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    assert not is_url(path)
    to_file(make_dataset(), path, "mag")
    xr.testing.assert_identical(load(path), make_dataset())


def test_file_url_with_drive(tmp_path: Path) -> None:
    (tmp_path / "C:").mkdir()
    url = f"file://{tmp_path}/C:/a.mag"
    to_file(make_dataset(), url, "mag")
    xr.testing.assert_identical(load(url), make_dataset())
    assert is_url("file:///C:/a.mag")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (r"C:\data\a.yaml", r"C:\data\a.elements"),
        (r"C:/data\a.yaml", r"C:/data\a.elements"),
        ("C:/data/a.yaml", r"C:/data\a.elements"),
        (r"\\server\share\a.yaml", r"\\server\share\a.elements"),
    ],
)
def test_siblings_of_path_with_backslashes(
    monkeypatch: pytest.MonkeyPatch, path: str, expected: str
) -> None:
    monkeypatch.setattr("xr_tensorfmt.sources.locations.os", SimpleNamespace(path=ntpath))
    sibling = Location(path, LocalFileSystem(), path).sibling("a.elements")
    assert (sibling.url, sibling.path) == (expected, expected)
