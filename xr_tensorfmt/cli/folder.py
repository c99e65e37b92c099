"""A zarr store in a folder in the making: it takes its name when it is complete."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress

from xr_tensorfmt.cli.troubles import said_of
from xr_tensorfmt.writing.atomic_file import beside, check_absent, exists_already

ROOTS = ("zarr.json", ".zgroup", ".zmetadata")
"""Files that a zarr store has one of."""


def write_folder(
    path: str, source: str, write: Callable[[str], object], *, overwrite: bool
) -> None:
    """Write a store under another name beside its own, which it takes when it is complete."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if not overwrite:
        check_absent(target)
    elif os.path.lexists(target):
        _check_store(target, path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{path}: there is no folder {folder}; make it first")
    atomic_file = beside(target)
    with said_of(path, source, "what was there before is unchanged", atomic_file=atomic_file):
        try:
            _fill(atomic_file, target, write)
            if overwrite and os.path.lexists(target):
                _replace(atomic_file, target, path)
            else:
                _take(atomic_file, target, path)
        finally:
            shutil.rmtree(atomic_file, ignore_errors=True)


def _fill(atomic_file: str, target: str, write: Callable[[str], object]) -> None:
    """Who may read a store is not changed by writing it anew, nor more open until then."""
    mode = stat.S_IMODE(os.stat(target).st_mode) if os.path.lexists(target) else None
    os.mkdir(atomic_file, 0o777 if mode is None else mode | stat.S_IRWXU)
    write(atomic_file)
    if mode is not None:
        os.chmod(atomic_file, mode)


def _check_store(folder: str, path: str) -> None:
    if not any(os.path.exists(os.path.join(folder, root)) for root in ROOTS):
        raise no_store(path)


def no_store(path: str) -> FileExistsError:
    """The error about what must not be replaced."""
    return FileExistsError(
        f"{path} is there and no zarr store, so that it is not replaced; choose another name"
    )


def _take(atomic_file: str, target: str, path: str) -> None:
    """Give a folder a name that nothing has: POSIX lets it replace an empty folder, ours alone."""
    if os.name == "nt":
        os.rename(atomic_file, target)  # fails where anything is
        return
    try:
        os.mkdir(target)
    except FileExistsError:
        raise exists_already(path) from None
    try:
        os.rename(atomic_file, target)
    except BaseException:
        with suppress(OSError):
            os.rmdir(target)
        raise


def _replace(atomic_file: str, target: str, path: str) -> None:
    """A folder cannot take the place of another at once: for a moment there is none."""
    old = beside(target)
    os.rename(target, old)
    try:
        _check_store(old, path)  # what is there may have changed
        os.rename(atomic_file, target)
    except BaseException:
        _give_back(old, target, path)
        raise
    _remove(old, path)


def _give_back(old: str, target: str, path: str) -> None:
    try:
        os.rename(old, target)
    except OSError as error:
        raise OSError(
            f"{path}: neither the new store nor the old one could get this name "
            f"({error.strerror}); the old one is {old}, rename it"
        ) from error


def _remove(old: str, path: str) -> None:
    with suppress(OSError):
        os.chmod(old, stat.S_IRWXU)
    try:
        shutil.rmtree(old)
    except OSError as error:
        raise OSError(
            f"{path} is complete, but what it replaced could not be removed ({error.strerror}); "
            f"remove {old}"
        ) from error
