"""Golden files: files of every format and generation, and their expected content.

A golden file is in the directory ``tests/data/golden/FORMAT/NAME``, with its siblings,
``expected.json`` (the writer; dims, dtypes and attributes) and ``values.npz`` (all values)::

    python -m tests.golden                      writes the files of tests/goldenfiles.py
    python -m tests.golden FORMAT/NAME FILE ... --written-by "magnetron 0.2.2"

The second form copies the files, of which the first is opened. A directory is copied with what is
in it. What is expected is what the engine reads now: compare it with what the writer was given
before it is checked in.
"""

from __future__ import annotations

import argparse
import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import xarray as xr

ROOT = Path(__file__).parent / "data" / "golden"

EXPECTED, VALUES = "expected.json", "values.npz"

OWN = "xr_tensorfmt's tests or writers, see tests/goldenfiles.py"
"""Who wrote the files of `tests.goldenfiles`."""


@dataclass(frozen=True)
class Golden:
    """A golden file by its directory."""

    directory: Path

    @property
    def name(self) -> str:
        """Format and name."""
        return self.directory.relative_to(ROOT).as_posix()

    @property
    def expected(self) -> dict[str, Any]:
        """The expected content without values."""
        text = (self.directory / EXPECTED).read_text(encoding="utf-8")
        return json.loads(text)

    @property
    def path(self) -> Path:
        """The file that is opened."""
        return self.directory / self.expected["file"]

    @property
    def values(self) -> dict[str, np.ndarray]:
        """All values, by the name of the variable."""
        names = [item["name"] for item in self.expected["variables"]]
        with np.load(self.directory / VALUES) as stored:
            return {name: stored[f"v{number}"] for number, name in enumerate(names)}


def list_golden_files() -> Iterator[Golden]:
    """List all golden files, sorted by name."""
    for path in sorted(ROOT.rglob(EXPECTED)):
        yield Golden(path.parent)


def describe(dataset: xr.Dataset) -> dict[str, Any]:
    """Return dims, dtypes and attributes as JSON."""
    variables = [
        {
            "name": name,
            "dims": list(variable.dims),
            "shape": list(variable.shape),
            "dtype": variable.dtype.str if variable.dtype != object else "object",
            "is_coordinate": name in dataset.coords,
            "attrs": to_json(variable.attrs),
            **describe_file(variable.encoding.get("tensorfmt", {})),
        }
        for name, variable in dataset.variables.items()
    ]
    return {"attrs": to_json(dataset.attrs), "variables": variables}


FILE_PROPERTIES = {
    "vespa": ("type",),
    "vespa-json": ("type",),
    "tens": ("symmetries", "skipped_chunks"),
    "pycauset": (
        *("matrix_type", "data_type", "seed", "scalar"),
        *("is_transposed", "is_conjugated", "is_temporary", "properties"),
        *("object_type", "n"),
    ),
}


def describe_file(file_info: dict[str, Any]) -> dict[str, Any]:
    """Return properties of the file that are in the encoding of its variable."""
    names = FILE_PROPERTIES.get(file_info.get("format", ""), ())
    properties = {name: to_json(file_info[name]) for name in names if name in file_info}
    return {"file": properties} if properties else {}


def to_json(value: Any) -> Any:
    """Convert attributes to JSON that distinguishes types."""
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, np.ndarray | np.generic):
        return {"$dtype": value.dtype.str, "$values": value.tolist()}
    return value


def open_golden(path: Path, **options: Any) -> tuple[xr.Dataset, list[str]]:
    """Return the loaded Dataset, and the warnings without the directory."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = xr.open_dataset(path, engine="tensorfmt", **options).load()
    directory = str(path.parent)
    return dataset, [str(warning.message).replace(directory, "").lstrip("/") for warning in caught]


def keep(directory: Path, file: str, written_by: str) -> None:
    """Save the content of the file in a directory."""
    dataset, messages = open_golden(directory / file)
    expected = {"file": file, "written_by": written_by, **describe(dataset)}
    if messages:
        expected["warnings"] = messages
    text = json.dumps(expected, indent=1, ensure_ascii=False)
    (directory / EXPECTED).write_text(text + "\n", encoding="utf-8")
    arrays = [make_storable(variable.values) for variable in dataset.variables.values()]
    np.savez_compressed(
        directory / VALUES, **{f"v{number}": item for number, item in enumerate(arrays)}
    )


def make_storable(values: np.ndarray) -> np.ndarray:
    """Return an array without objects, which would be pickled."""
    return values.astype(str) if values.dtype == object else values


def add(name: str, files: list[Path], written_by: str) -> None:
    """Copy files into the golden directory of a name. It is removed if they do not open."""
    directory = ROOT / name
    directory.mkdir(parents=True)
    try:
        for file in files:
            if file.is_dir():
                shutil.copytree(file, directory / file.name)
            else:
                shutil.copyfile(file, directory / file.name)
        keep(directory, files[0].name, written_by)
    except BaseException:
        shutil.rmtree(directory)
        raise


def generate() -> None:
    """Write the files of `tests.goldenfiles` that are not there yet."""
    from tests.goldenfiles import GENERATED  # noqa: PLC0415  # it imports this package's writers

    for name, make in GENERATED.items():
        if not (ROOT / name).exists():
            with TemporaryDirectory() as scratch:
                path = make(Path(scratch))
                siblings = sorted(item for item in Path(scratch).iterdir() if item != path)
                add(name, [path, *siblings], OWN)


def main() -> None:
    """Run one of the forms of the command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.golden")
    parser.add_argument("name", nargs="?", help="FORMAT/NAME of a new golden file")
    parser.add_argument("files", nargs="*", type=Path, help="the file, and those beside it")
    parser.add_argument("--written-by", help="the program and its version")
    arguments = parser.parse_args()
    if arguments.name is None:
        generate()
    elif not arguments.files or not arguments.written_by:
        parser.error("a new golden file needs its FILE and --written-by")
    else:
        add(arguments.name, arguments.files, arguments.written_by)


if __name__ == "__main__":
    main()
