"""Run the package on a mutated file, and decide which outcomes are bugs."""

from __future__ import annotations

import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import xarray as xr
from dask.base import tokenize

from tests.fuzz.mutation import Original
from tests.golden import OWN, ROOT, list_golden_files
from xr_tensorfmt import TensorFormatError, TensorFormatWarning, validate
from xr_tensorfmt.backend import TensorFormatBackend

MAX_SECONDS = 2
"""Limit on the processor time of a case."""

MAX_MEMORY = 1 << 30
"""Limit on the bytes of address space that a case may take beside what the process has."""

MAX_ORIGINAL = 40_000
"""Limit on the bytes of the golden files that are mutated, so that many cases fit in a minute."""

MAX_VARIABLES = 12

FINDS = Path(__file__).parent / "finds"
"""A directory for each file that was found, with ``find.json``; the ordinary tests open them."""


class TooLongError(BaseException):
    """A case takes too much CPU time. Not an Exception, which code might catch."""


def find_originals() -> list[Original]:
    """Find the golden files that are mutated."""
    result = []
    for golden in list_golden_files():
        expected = golden.expected
        files = {
            path.relative_to(golden.directory).as_posix(): path.read_bytes()
            for path in sorted(golden.directory.rglob("*"))
            if path.is_file() and path.name not in ("expected.json", "values.npz")
        }
        is_small = sum(map(len, files.values())) <= MAX_ORIGINAL
        if is_small and len(expected["variables"]) <= MAX_VARIABLES:
            family = golden.directory.relative_to(ROOT).parts[0]
            is_generated = expected["written_by"] == OWN
            result.append(Original(golden.name, family, expected["file"], files, is_generated))
    return result


def write_files(directory: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = directory / name
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
        path.write_bytes(content)


def check_case(path: Path) -> str | None:
    """Use a file as users do. Return the problem, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", TensorFormatWarning)
        warnings.filterwarnings("ignore", "Reading `.npy`", UserWarning)  # as from np.load
        try:
            with limit_case():
                use(path)
        except TooLongError as error:
            return describe(error)
        except Exception as error:  # noqa: BLE001  # that is what is searched for
            return describe(error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def describe(error: BaseException) -> str:
    """Format an error as a line, with the last frame within the package."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "xr_tensorfmt/" in frame.filename] or frames[-1:]
    frame = own[-1]
    where = f"{'/'.join(frame.filename.split('/')[-3:])}:{frame.lineno}"
    return f"{type(error).__name__} at {where}: {' '.join(str(error).split())[:200]}"


def use(path: Path) -> None:
    """Guess, validate, open, display, pickle and read a file, unless it is refused."""
    TensorFormatBackend().guess_can_open(path)
    for finding in _try(lambda: validate(path)) or ():
        assert finding.severity in ("error", "warning")
        assert finding.message
    dataset = _try(lambda: _open(path))
    if dataset is None:
        return
    repr(dataset)
    pickle.loads(pickle.dumps(dataset))
    for variable in dataset.variables.values():
        _try(lambda: _read_parts(variable))  # noqa: B023  # it is called at once
    _open_with_other_sparse(path, dataset)
    chunked = _try(lambda: _open(path, chunks={}))
    if chunked is not None:
        copy = pickle.loads(pickle.dumps(chunked))
        # dask reads all values of the others, which label a dimension.
        tokenize(copy.attrs, [variable for variable in copy.variables.values() if variable.chunks])


def _open_with_other_sparse(path: Path, dataset: xr.Dataset) -> None:
    """Open a tensor with the other value of sparse=, and read it."""
    way = "dense" if "block" in dataset.dims else "stored"
    try:
        other = _try(lambda: xr.open_dataset(path, engine="tensorfmt", sparse=way))
    except ValueError as error:  # it stores all elements, or is too large
        if "sparse=" not in str(error):
            raise
        return
    for variable in other.variables.values() if other is not None else ():
        _try(lambda: _read_parts(variable))  # noqa: B023


def _try(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or None if the file is refused."""
    try:
        return call()
    except TensorFormatError as error:
        message, of_copy = str(error), str(pickle.loads(pickle.dumps(error)))
        if message != of_copy:
            raise AssertionError(f"the message {message!r} is {of_copy!r} in a copy") from error
        return None
    except FileNotFoundError:  # a sibling file that the header names
        return None


def _open(path: Path, **options: Any) -> xr.Dataset:
    """Open a file. If its size requires a decision, open the stored elements."""
    try:
        return xr.open_dataset(path, engine="tensorfmt", **options)
    except TensorFormatError:
        raise
    except ValueError as error:
        if "sparse='stored'" not in str(error):
            raise
        return xr.open_dataset(path, engine="tensorfmt", sparse="stored", **options)


def _read_parts(variable: xr.Variable) -> None:
    """Read the first, the last and some reversed elements."""
    few, others = variable.dims[:3], variable.dims[3:]
    backwards = {dim: slice(None, None, -max(1, variable.sizes[dim] // 2)) for dim in few}
    keys: list[dict[Hashable, Any]] = [{dim: slice(0, 2) for dim in variable.dims}]
    if variable.size:
        keys = [
            dict.fromkeys(few, slice(0, 2)) | dict.fromkeys(others, 0),
            dict.fromkeys(variable.dims, -1),
            backwards | dict.fromkeys(others, -1),
        ]
    for key in keys:
        variable.isel(key).load()


@contextmanager
def limit_case() -> Iterator[None]:
    """End a case that takes too long. Limit the memory once per process."""

    def too_long(_: int, __: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limit_memory() -> None:
    """Limit the additional memory of this process, on Linux."""
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + MAX_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
