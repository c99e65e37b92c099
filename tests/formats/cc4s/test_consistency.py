"""Elements and YAML files of different writes are not mixed on a local disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.opening import load, open_lazily
from tests.servers import MemoryStore
from xr_tensorfmt import TensorFormatError, to_file


def make_tensor(factor: float, size: int = 50) -> xr.Dataset:
    """Return a tensor whose product with its unit does not depend on `factor`."""
    values = (np.arange(size) + 1.0) * factor
    return xr.Dataset({"a": ("x", values, {"unit": 1 / factor})})


def make_tensor_set(factor: float) -> xr.Dataset:
    values = {name: (("x",), np.arange(1.0, 6) * factor, {"unit": 1 / factor}) for name in "bcd"}
    return xr.Dataset(values)


def test_old_files_remain_if_elements_cannot_be_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.yaml"
    to_file(make_tensor(1), path, "cc4s")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        to_file(make_tensor(2), path, "cc4s")
    monkeypatch.undo()
    xr.testing.assert_identical(load(path), make_tensor(1))
    assert sorted(os.listdir(tmp_path)) == ["a.elements", "a.yaml"]


def test_old_files_remain_if_elements_are_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.yaml"
    to_file(make_tensor(1), path, "cc4s")
    plain = os.rename

    def refuse(source: Any, target: Any) -> None:
        if str(source).endswith(".elements"):  # as Windows does while a program maps the file
            raise PermissionError(13, "The process cannot access the file", str(source))
        plain(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(PermissionError, match="the target is unchanged"):
        to_file(make_tensor(2), path, "cc4s")
    monkeypatch.undo()
    xr.testing.assert_identical(load(path), make_tensor(1))


def test_tasks_that_create_a_file_keep_it_if_they_run_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    tasks = to_file(make_tensor(1), path, "cc4s", mode="x", compute=False)
    assert tasks is not None
    tasks.compute()
    with pytest.raises(FileExistsError, match=r"it exists already; .*a\.yaml"):
        tasks.compute()
    xr.testing.assert_identical(load(path), make_tensor(1))
    assert sorted(os.listdir(tmp_path)) == ["a.elements", "a.yaml"]


def test_file_that_appears_while_another_is_created_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    tasks = to_file(make_tensor(1), path, "cc4s", mode="x", compute=False)
    assert tasks is not None
    path.write_text("of another program")
    with pytest.raises(FileExistsError, match=r"it exists already; .*a\.yaml"):
        tasks.compute()
    assert path.read_text() == "of another program"
    assert os.listdir(tmp_path) == ["a.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_tensor, make_tensor_set])
def test_values_always_have_unit_of_their_write(tmp_path: Path, make: Any) -> None:
    path, expected = tmp_path / "a.yaml", make(1)
    to_file(expected, path, "cc4s")
    writes = [2.0**number for number in range(40)]
    writer = threading.Thread(target=lambda: [to_file(make(one), path, "cc4s") for one in writes])
    writer.start()
    while writer.is_alive():
        try:
            actual = xr.open_dataset(path, engine="tensorfmt", apply_unit=True).load()
        except (TensorFormatError, FileNotFoundError):
            continue
        xr.testing.assert_equal(actual, expected)
    writer.join()
    xr.testing.assert_identical(load(path), make(writes[-1]))


def test_opening_sends_two_requests_per_object_and_checks_the_yaml_file_again() -> None:
    with MemoryStore().running() as store:
        to_file(make_tensor(1, 1 << 20).rename(x="dim_0"), "memory://bucket/a.yaml")
        store.log.clear()
        open_lazily("memory://bucket/a.yaml", chunks={})
        assert (len(store.log.gets), store.log.heads) == (2, 3)
