"""Each system call of a write fails, or loses its reply, once or twice."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
import xarray as xr

from tests.failing_calls import Faults, catch_message, inject, read_files, restore_files
from xr_tensorfmt import TensorFormatError, cc4s, to_file, vespa
from xr_tensorfmt.cli import main

HARMLESS = ("unlink", "close", "chmod", "chown", "stat", "lstat", "fstat")


def make_variables(value: float, count: int = 3) -> xr.Dataset:
    return xr.Dataset({f"t{n}": ((f"x{n}",), np.full(50, float(value))) for n in range(count)})


def write_region(directory: Path, value: float) -> None:
    to_file(
        make_variables(value)[["t0"]],
        directory / "m.safetensors.index.json",
        region={"x0": slice(0, 50)},
    )


def write_tree(directory: Path, value: float) -> None:
    tree = xr.DataTree.from_dict({"/a": make_variables(value, 1), "/b": make_variables(value, 1)})
    to_file(tree, directory / "tree.safetensors")


def write_feed(directory: Path, value: float) -> None:
    rows = xr.DataArray(np.full((4, 2), value, "f4"), {"d": list("abcd")}, ("d", "x"), "tensor")
    vespa.to_jsonl(rows, directory / "feed.jsonl", field="v", dim="d", prefix="id:a:b::")


def write_calculation(directory: Path, value: float) -> None:
    ds = xr.Dataset(
        {
            "CoulombVertex": (
                ("AuxiliaryField", "State", "State_2"),
                np.full((2, 3, 3), value + 0j),
            ),
            "EigenEnergies": ("State", np.full(3, float(value)), {"fermiEnergy": 9.0}),
        }
    )
    cc4s.to_calculation(ds, directory)


def convert(directory: Path, value: float) -> None:
    """Run the command, which reports errors by its exit status."""
    source = directory.parent / f"source-{value}.npy"
    target = str(directory / "c.mag")
    if not source.exists():
        np.save(source, np.full((3, 4), value, "f4"))
    try:
        main(["convert", "--overwrite", str(source), target])
    except SystemExit as end:
        if end.code == 130:
            raise KeyboardInterrupt from None
        if end.code:
            raise OSError(errno.EIO, "the command failed") from None


WRITES: dict[str, Callable[[Path, float], object]] = {
    "single": lambda directory, value: to_file(make_variables(value), directory / "a.safetensors"),
    "tensor": lambda directory, value: to_file(make_variables(value, 1), directory / "w.yaml"),
    "set": lambda directory, value: to_file(make_variables(value), directory / "s.yaml"),
    "model": lambda directory, value: to_file(
        make_variables(value), directory / "m.safetensors.index.json", max_shard_bytes=1
    ),
    "tree": write_tree,
    "feed": write_feed,
    "convert": convert,
}
CREATES: dict[str, Callable[[Path, float], object]] = {
    "single": lambda directory, value: to_file(
        make_variables(value), directory / "a.safetensors", mode="x"
    ),
    "tensor": lambda directory, value: to_file(
        make_variables(value, 1), directory / "w.yaml", mode="x"
    ),
    "model": lambda directory, value: to_file(
        make_variables(value), directory / "m.safetensors.index.json", mode="x", max_shard_bytes=1
    ),
}

KINDS = [
    (errno.EIO, False),
    (errno.EIO, True),
    (KeyboardInterrupt, False),
    (KeyboardInterrupt, True),
    (errno.ENOENT, False),
    (errno.EACCES, False),
]
"""What fails, and whether the call has an effect before."""


def read_values(directory: Path) -> dict[str, set[float] | None]:
    """Return the values of each index or file, or None if it cannot be opened."""
    found: dict[str, set[float] | None] = {}
    for path in directory.iterdir():
        if path.name.startswith(".") or path.name.endswith((".elements", "3.safetensors")):
            continue
        try:
            if path.suffix == ".jsonl":
                ds = vespa.from_jsonl(path, field="v", dim="d")
            else:
                ds = xr.open_dataset(path, engine="tensorfmt", group=None).load()
        except (OSError, ValueError, TensorFormatError):
            found[path.name] = None
            continue
        found[path.name] = {
            float(value) for v in ds.data_vars.values() for value in np.unique(v.values.real)
        }
    return found


def check(
    directory: Path, before: dict[str, bytes], new: set[str], message: str | None, faults: Faults
) -> None:
    """Check that no file has values of both writes, and that the message is true."""
    after = read_files(directory)
    left = {name for name in after if name.endswith(".part")}
    values = read_values(directory)
    assert all(item in ({1.0}, {2.0}, None) for item in values.values()), (values, message)
    is_single = len(faults.hits) < 2
    if message is None:
        assert new <= after.keys()
        assert all(item == {2.0} for item in values.values())
    elif "the target is unchanged" in message:
        assert {name: after[name] for name in after.keys() - left} == before, message
    if is_single:
        assert None not in values.values(), message
        assert not left or set(faults.hits) & {*HARMLESS, "open", "link"}, (left, faults.hits)


@pytest.mark.parametrize("way", WRITES)
def test_one_fault_while_files_are_replaced(tmp_path: Path, way: str) -> None:
    directory, write = tmp_path / "d", WRITES[way]
    directory.mkdir()
    write(directory, 1)
    before = read_files(directory)
    with inject(counter := Faults(), directory):
        write(directory, 2)
    for at in range(1, counter.count + 1):
        failure, has_effect = KINDS[at % len(KINDS)]
        restore_files(directory, before)
        faults = Faults(at, failure=failure, has_effect=has_effect)
        with inject(faults, directory):
            message = catch_message(lambda: write(directory, 2))
        check(directory, before, set(before), message, faults)


@pytest.mark.parametrize("way", CREATES)
def test_one_fault_while_files_are_created(tmp_path: Path, way: str) -> None:
    directory, write = tmp_path / "d", CREATES[way]
    directory.mkdir()
    with inject(counter := Faults(), directory):
        write(directory, 2)
    new = set(read_files(directory))
    for at in range(1, counter.count + 1):
        # Each call fails before and after it has an effect, once by an error and once by a signal.
        for failure, has_effect in (KINDS[0], KINDS[3]) if at % 2 else (KINDS[1], KINDS[2]):
            restore_files(directory, {})
            faults = Faults(at, failure=failure, has_effect=has_effect)
            with inject(faults, directory):
                message = catch_message(lambda: write(directory, 2))
            check(directory, {}, new, message, faults)
            names = {name for name in read_files(directory) if not name.endswith(".part")}
            assert names in (set(), new), message
            if message is not None and not names:
                write(directory, 2)
                assert [*read_values(directory).values()] == [{2.0}]


@pytest.mark.parametrize("way", ["single", "tensor", "model"])
@pytest.mark.parametrize("creates", [False, True], ids=["over", "x"])
def test_two_faults(tmp_path: Path, way: str, creates: bool) -> None:
    directory, write = tmp_path / "d", (CREATES if creates else WRITES)[way]
    directory.mkdir()
    before: dict[str, bytes] = {}
    if not creates:
        WRITES[way](directory, 1)
        before = read_files(directory)
    with inject(counter := Faults(), directory):
        write(directory, 2)
    new = {name for name in read_files(directory) if not name.endswith(".part")}
    random = Random(way)
    for at in range(counter.count // 3, counter.count + 1):  # the first ones come before blocks
        restore_files(directory, before)
        failure, has_effect = random.choice(KINDS[:4])
        second = at + random.randint(1, 4)
        faults = Faults(at, second, failure=failure, has_effect=has_effect)
        with inject(faults, directory):
            message = catch_message(lambda: write(directory, 2))
        check(directory, before, new, message, faults)
        if None in read_values(directory).values():
            assert message is not None
            assert "write it again with mode='w', because" in message


def test_faults_in_a_region_of_a_set(tmp_path: Path) -> None:
    WRITES["model"](tmp_path, 1)
    before = read_files(tmp_path)
    with inject(counter := Faults(), tmp_path):
        write_region(tmp_path, 2)
    assert counter.count > 3
    for at in range(1, counter.count + 1):
        failure, has_effect = KINDS[at % len(KINDS)]
        restore_files(tmp_path, before)
        with inject(Faults(at, failure=failure, has_effect=has_effect), tmp_path):
            message = catch_message(lambda: write_region(tmp_path, 2))
        after = read_files(tmp_path)
        assert after.keys() == before.keys()
        assert {len(item) for item in after.values()} == {len(item) for item in before.values()}
        values = read_values(tmp_path)["m.safetensors.index.json"]
        assert values in ({1.0}, {1.0, 2.0})
        assert message is not None or values == {1.0, 2.0}


def test_faults_in_a_calculation(tmp_path: Path) -> None:
    """Each of its tensors is a set of files."""
    with inject(counter := Faults(), tmp_path):
        write_calculation(tmp_path, 2)
    for at in range(1, counter.count + 1, 3):
        failure, has_effect = KINDS[at % len(KINDS)]
        restore_files(tmp_path, {})
        with inject(Faults(at, failure=failure, has_effect=has_effect), tmp_path):
            catch_message(lambda: write_calculation(tmp_path, 2))
        assert all(values == {2.0} for values in read_values(tmp_path).values())


def test_kept_files_that_someone_removes_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITES["tensor"](tmp_path, 1)
    replace = os.replace

    def fail(source: str, target: str) -> None:
        if target.endswith(".yaml"):
            for path in tmp_path.glob(".*.part"):
                path.unlink()
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match=r"write it again .*not restored: .*w\.elements"):
        WRITES["tensor"](tmp_path, 2)
