"""What a package costs a process that has just begun."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmark.case import Aim, Case, Results, Role, Section, Table
from benchmark.files import write_netcdf, write_tens, write_zarr

_ROUNDS = 15
_ROWS = 64
_HELP = "xr-tensorfmt --help"

_INTRO = """\
Each round starts Python anew and measures inside of it. The byte code of all modules is cached, as
pip leaves it."""

_LAST = """
import sys, time
for statement in sys.argv[1:]:
    start = time.perf_counter()
    exec(statement)
print(time.perf_counter() - start)
"""


def _write(folder: Path, _: int) -> None:
    write_tens(folder / "small.tens", _ROWS)
    write_netcdf(folder / "small.nc", _ROWS)
    write_zarr(folder / "small.zarr", _ROWS, 8 << 20)


def _seconds(folder: Path, statements: Sequence[str], _: object = None) -> float:
    """Time of the last statement in a new process."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-W", "ignore", "-c", _LAST, *statements]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)


def _case(folder: Path, name: str, *statements: str, role: Role = "peer") -> Case:
    run = partial(_seconds, folder, statements)
    # The setup is a first run, which writes the byte code.
    return Case(name, run, role, run, rounds=_ROUNDS, times_itself=True)


def _imports(folder: Path) -> tuple[Case, ...]:
    engine = "import xr_tensorfmt.backend"
    return (
        _case(folder, "import xarray", "import xarray", role="limit"),
        _case(folder, "tensorfmt's entry point", "import xarray", engine, role="ours"),
    )


def _first_opens(folder: Path) -> tuple[Case, ...]:
    def opened(name: str, engine: str, file: str, role: Role = "peer") -> Case:
        path = str(folder / file)
        more = ", consolidated=False, chunks=None" if engine == "zarr" else ""
        statement = f"xarray.open_dataset({path!r}, engine={engine!r}{more})"
        # What xarray does once for all engines is done before.
        engines = "xarray.backends.list_engines()"
        return _case(folder, name, "import xarray", engines, statement, role=role)

    engines = ("import xarray", "xarray.backends.list_engines()")
    return (
        _case(folder, "xarray finds its engines", *engines, role="limit"),
        opened("tensorfmt, first open", "tensorfmt", "small.tens", "ours"),
        opened("zarr, first open", "zarr", "small.zarr"),
        opened("h5netcdf, first open", "h5netcdf", "small.nc"),
        opened("netcdf4, first open", "netcdf4", "small.nc"),
    )


def _process(folder: Path, code: str, _: object = None) -> float:
    """Time of a whole new process."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)
    return time.perf_counter() - start


def _helps(folder: Path) -> Iterator[Case]:
    as_script = "import sys; sys.argv[0] = 'xr-tensorfmt'; "
    codes = {
        "Python and click": "import click",
        _HELP: f"{as_script}from xr_tensorfmt.cli import main; main(['--help'])",
        "Python and xarray": "import xarray",
    }
    roles: dict[str, Role] = {"Python and click": "limit", _HELP: "ours"}
    for name, code in codes.items():
        run = partial(_process, folder, code)
        role = roles.get(name, "peer")
        yield Case(name, run, role, run, rounds=_ROUNDS, times_itself=True)


def _tables(folder: Path) -> Sequence[Table]:
    return (
        Table(
            "Import",
            "Time that the entry point takes after `import xarray`, and that of xarray itself. "
            "Everybody who uses xarray on the machine pays for it.",
            _imports(folder),
            memory=False,
        ),
        Table(
            "First open",
            "`open_dataset` of a small file, with all that the engine imports at that time, after "
            "xarray has looked for its engines (the row in italics). The entry point leaves the "
            "rest of its package to this moment.",
            _first_opens(folder),
            memory=False,
        ),
        Table(
            "Help of the command",
            "`xr-tensorfmt --help` from the start of Python to its end.",
            tuple(_helps(folder)),
            memory=False,
        ),
    )


def _aims(results: Results) -> Sequence[Aim]:
    taken = 1e3 * results["tensorfmt's entry point"].seconds
    later = 1e3 * results["tensorfmt, first open"].seconds
    text = (
        "the entry point adds under 20 ms to `import xarray` (it leaves the rest of its imports to "
        f"the first open, which takes {later:.0f} ms with them)"
    )
    found = 1e3 * results["xarray finds its engines"].seconds
    first = "the first open of a process: within 60 ms of what xarray itself takes"
    return (
        Aim(text, taken, 20, "ms"),
        Aim(first, later - found, 60, "ms"),
        Aim(f"{_HELP}: under 150 ms", 1e3 * results[_HELP].seconds, 150, "ms"),
    )


SECTION = Section("imports", "Imports", _INTRO, lambda _: 64 << 20, _write, _tables, _aims)
