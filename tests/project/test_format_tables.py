"""The tables of formats in the documentation match readers, writers and checks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem

import xr_tensorfmt
from tests.paths import DATA, DOCS, ROOT
from xr_tensorfmt.core.file_format import SHARED_OPTIONS, Format, LazyFormat
from xr_tensorfmt.formats.registry import BUILT_IN

TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "cc4s": (".yaml", {}),
    "TENS 0.9": (".bin", {}),
    "TENS 1.0": (".tens", {"version": "1.0"}),
    "MAG": (".mag", {}),
    "PyCauset": (".pycauset", {}),
    "Vespa": (".tbf", {}),
    "safetensors": (".safetensors", {}),
    "NumPy": (".npy", {}),
}
PARTS = ("name", "dims", "coords", "attrs")
DTYPES = ("uint8", "float32", "float64")


def make_samples() -> dict[str, tuple[str, xr.Dataset | xr.DataArray, Mapping[str, Any]]]:
    """Return a typical file of every format: name, content and write keywords."""
    vertex = np.arange(96.0).reshape(6, 4, 4) * (1 + 2j)
    weights = {"w": (("out", "in"), np.ones((4, 3), "f4")), "b": ("out", np.zeros(4, "f4"))}
    plain = {
        "w": (("w_dim_0", "w_dim_1"), np.ones((4, 3), "f4")),
        "b": ("b_dim_0", np.zeros(4, "f2")),
    }
    return {
        "cc4s": (
            "CoulombVertex.yaml",
            xr.DataArray(
                vertex,
                dims=("AuxiliaryField", "State", "State_2"),
                name="CoulombVertex",
                attrs={"unit": 0.5, "halfGrid": 1},
            ),
            {},
        ),
        "TENS 0.9": ("v.bin", xr.DataArray(vertex, dims=("a", "b", "c"), name="tensor"), {}),
        "TENS 1.0": (
            "gamma.tens",
            xr.DataArray(
                np.linspace(0, 1, 24).reshape(6, 4),
                dims=("F", "q"),
                coords={"q": list("stuv")},
                name="gamma",
                attrs={"units": "eV"},
            ),
            {},
        ),
        "MAG": (
            "model.mag",
            xr.Dataset(weights, attrs={"epoch": 3, "config": {"layers": 2}}),
            {"encoding": {"w": {"dtype": "bfloat16"}}},
        ),
        "PyCauset": (
            "order.pycauset",
            xr.DataArray(np.triu(np.ones((4, 4), bool), 1), dims=("row", "col"), name="tensor"),
            {},
        ),
        "Vespa": (
            "users.tbf",
            xr.DataArray(
                np.float32([[1, 2], [3, 4]]), {"user": ["u1", "u2"]}, ("user", "x"), "tensor"
            ),
            {},
        ),
        "safetensors": ("model.safetensors", xr.Dataset(plain, attrs={"format": "pt"}), {}),
        "NumPy": (
            "a.npy",
            xr.DataArray(
                np.linspace(0, 1, 6).reshape(2, 3), dims=("dim_0", "dim_1"), name="tensor"
            ),
            {},
        ),
    }


def try_write(data: Any, path: Path, keywords: Mapping[str, Any]) -> tuple[str | None, list[str]]:
    """Return the requested dtype and the dropped parts. Raise ValueError if refused."""
    error: ValueError | None = None
    for dtype in (None, *DTYPES):
        encoding = None if dtype is None else {"dtype": dtype}
        for count in range(len(PARTS) + 1):
            for drop in itertools.combinations(PARTS, count):
                try:
                    xr_tensorfmt.to_file(data, path, drop=drop, encoding=encoding, **keywords)
                except ValueError as problem:
                    error = error or problem
                else:
                    return dtype, list(drop)
    assert error is not None
    raise error


def describe_conversion(ds: xr.Dataset, path: Path, keywords: Mapping[str, Any]) -> str:
    """Return the result of converting a file."""
    try:
        dtype, dropped = try_write(ds, path, keywords)
    except ValueError as error:
        return summarize_refusal(str(error))
    back = xr.open_dataset(path, engine="tensorfmt")
    if list(ds) not in (list(back), ["tensor"]) and "name" not in dropped:
        dropped.insert(0, "name")
    words = [f"without {', '.join(dropped)}"] if dropped else ["all"]
    if not dropped:
        assert_kept(ds, back)
    if dtype is not None:
        words.append(f"as {dtype}" if have_same_values(back, ds) else f"rounded to {dtype}")
    return ", ".join(words)


def summarize_refusal(message: str) -> str:
    """Shorten the reason of an error."""
    if "one variable" in message:
        return "one variable at a time"
    has_wrong_rank = "dimensions, expected" in message or "one or two dimensions" in message
    return "no: three dimensions" if has_wrong_rank else "no: complex"


def have_same_values(first: xr.Dataset, second: xr.Dataset) -> bool:
    """Return whether all values are equal, in any order of the dimensions."""
    for one, other in zip(first.values(), second.values(), strict=True):
        ordered = one.transpose(*other.dims) if set(one.dims) == set(other.dims) else one
        if not np.array_equal(ordered.values, other.values):
            return False
    return True


# Attributes that readers set, and the unit of cc4s.
OF_THE_FILE = {"vespa_type", "matrix_type", "data_type", "seed", "scalar", "unit"}


def assert_kept(before: xr.Dataset, after: xr.Dataset) -> None:
    """Check that labels, dimension names and attributes are unchanged."""
    assert set(after.sizes.items()) == set(before.sizes.items())
    assert set(after.coords) == set(before.coords)
    for name in before.coords:
        assert after[name].values.tolist() == before[name].values.tolist()
    assert all(after.attrs.get(name) == value for name, value in before.attrs.items())
    for one, other in zip(before.values(), after.values(), strict=True):
        stated = {name: value for name, value in one.attrs.items() if name not in OF_THE_FILE}
        assert {name for name in stated if not name.startswith("is_")} <= set(other.attrs)


def format_conversions(directory: Path) -> Iterator[str]:
    """Yield the lines of the table of conversions."""
    yield f"| From ↓ to → | {' | '.join(TARGETS)} |"
    yield f"| --- {'| --- ' * len(TARGETS)}|"
    for source, (name, data, keywords) in make_samples().items():
        xr_tensorfmt.to_file(data, directory / name, **keywords)
        ds = xr.open_dataset(directory / name, engine="tensorfmt")
        cells = []
        for target, (suffix, options) in TARGETS.items():
            path = directory / f"{source} to {target}"
            path.mkdir()
            cells.append(describe_conversion(ds, path / f"{Path(name).stem}{suffix}", options))
        yield f"| **{source}** | {' | '.join(cells)} |"


def make_pieces(target: str) -> dict[str, xr.Dataset | xr.DataArray]:
    """Return Datasets with one optional part each."""
    dtype = "f8" if target in ("cc4s", "TENS 0.9") else "f4"
    dims = ("dim_0", "dim_1") if target == "NumPy" else ("a", "b")
    plain = xr.DataArray(np.full((2, 2), 0.5, dtype), dims=dims, name="tensor")
    first = dims[0]
    complete = plain.astype(bool)
    return {
        "a variable name": plain.rename("energy"),
        "names of dimensions": plain.rename({first: "occupied"}),
        "labels that are strings": plain.assign_coords({first: ["s", "t"]}),
        "labels that are numbers": plain.assign_coords({first: [0.5, 1.5]}),
        "attributes of a variable": plain.assign_attrs(units="eV"),
        "attributes of the Dataset": plain.to_dataset().assign_attrs(title="a title"),
        "several variables": xr.Dataset({"v": plain.variable, "w": plain.variable}),
        "no dimension": plain[0, 0],
        "three dimensions": plain.expand_dims("dim_2" if target == "NumPy" else "c", axis=2),
        **{f"`{name}`": plain.astype(name) for name in ("float64", "float32", "float16")},
        "`complex128`": plain.astype("complex128"),
        **{f"`{name}`": complete.astype(name) for name in ("int64", "uint8", "bool")},
    }


def format_places(directory: Path) -> Iterator[str]:
    """Yield the lines of the table of supported parts."""
    yield f"| | {' | '.join(TARGETS)} |"
    yield f"| --- {'| --- ' * len(TARGETS)}|"
    columns = [
        [
            describe_place(piece, directory / f"{number}{suffix}", options)
            for number, piece in enumerate(make_pieces(target).values())
        ]
        for target, (suffix, options) in TARGETS.items()
    ]
    for what, cells in zip(make_pieces("MAG"), zip(*columns, strict=True), strict=True):
        yield f"| {what} | {' | '.join(cells)} |"


def describe_place(data: Any, path: Path, options: Mapping[str, Any]) -> str:
    """Return whether a format supports a part of a Dataset."""
    try:
        dtype, dropped = try_write(data, path, options)
    except ValueError:
        return "no"
    if dtype is not None:
        return f"as {dtype}"
    back = xr.open_dataset(path, engine="tensorfmt")
    lost = data.name not in (*back, "tensor") if isinstance(data, xr.DataArray) else False
    return "by `drop=`" if dropped else "left out" if lost else "yes"


def format_table(memory: MemoryFileSystem, directory: Path) -> Iterator[str]:
    """Yield the lines of the table of formats, by trying a file of each."""
    yield "| Format | Suffixes | Recognised by | Written | Checked |"
    yield "| --- | --- | --- | --- | --- |"
    for file_format in BUILT_IN:
        page, path = PAGES[file_format.name], write_sample(file_format.name, directory)
        expected = xr.load_dataset(path, engine="tensorfmt")
        for part in path.parent.iterdir():
            memory.pipe_file(f"/bucket/{part.name}", part.read_bytes())
        remote = xr.open_dataset(f"memory://bucket/{path.name}", engine="tensorfmt")
        xr.testing.assert_identical(remote.load(), expected)
        assert needs_its_file(path), "the page says that all formats are lazy"
        suffixes = ", ".join(f"`{suffix}`" for suffix in file_format.suffixes)
        own = type(file_format).check not in (Format.check, LazyFormat.check)
        module = type(file_format).__module__
        # A format may have its reader in its own module.
        reader = f"{module}.read" if find_spec(f"{module}.read") else module
        checked = own or (
            isinstance(file_format, LazyFormat) and hasattr(import_module(reader), "check")
        )
        yield (
            f"| [{file_format.title}]({page}) | {suffixes} | "
            f"{'content' if file_format.magics else 'suffix and content'} | "
            f"{WRITTEN.get(file_format.name, 'yes') if file_format.can_write else 'no'} | "
            f"{'header, values, structure' if checked else 'header, values'} |"
        )


def needs_its_file(path: Path) -> bool:
    """Return whether values are lazy. They cannot be loaded without the file."""
    ds = xr.open_dataset(path, engine="tensorfmt")
    for part in path.parent.iterdir():
        part.unlink()
    try:
        ds.load()
    except FileNotFoundError:
        return True
    return False


WRITTEN = {"tens": "dense", "mag": "snapshots", "pycauset": "causal, triangular, dense"}
"""What is written of formats that have other files, too."""

PAGES = {
    "tens": "tens.md",
    "cc4s": "cc4s.md",
    "mag": "mag.md",
    "pycauset": "pycauset.md",
    "vespa": "vespa.md",
    "safetensors": "safetensors.md",
    "npy": "npy.md",
    "npz": "npy.md#archives",
}


def write_sample(name: str, directory: Path) -> Path:
    """Write a small file of a format, alone in a directory."""
    (directory / name).mkdir()
    data = xr.DataArray(np.ones((2, 3)), dims=("a", "b"), name="tensor")
    suffix = next(file_format.suffixes[0] for file_format in BUILT_IN if file_format.name == name)
    path = directory / name / f"sample{suffix}"
    if name == "npz":
        np.savez(path, tensor=data.values)
    else:
        data = data.astype("f4") if name == "mag" else data
        drop = ["dims"] if name == "npy" else []
        xr_tensorfmt.to_file(data, path, name, drop=drop)
    return path


def find_table(page: str, heading: str) -> list[str]:
    """Return the first table of a page below a heading."""
    text = (DOCS / page).read_text(encoding="utf-8").partition(f"# {heading}\n")[2]
    lines = itertools.dropwhile(lambda line: not line.startswith("|"), text.splitlines())
    return list(itertools.takewhile(lambda line: line.startswith("|"), lines))


def test_table_of_formats_equals_registry(tmp_path: Path, memory: MemoryFileSystem) -> None:
    assert find_table("formats/index.md", "All formats") == [*format_table(memory, tmp_path)]


def test_page_of_to_file_lists_formats_and_keywords() -> None:
    page = (DOCS / "reference" / "to_file.md").read_text(encoding="utf-8")
    items = dict(re.findall(r'^- \[`"(\w+)"`\]((?:.|\n  )*)', page, flags=re.MULTILINE))
    written = {item.name: item for item in BUILT_IN if item.can_write}
    assert [*items] == sorted(written)
    for name, text in items.items():
        assert re.findall(r"`(\w+)=`", text) == [*written[name].write_options]
        assert f"(../formats/{PAGES[name]}): `{written[name].suffixes[0]}`" in text


def test_readme_says_what_is_written() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, words in WRITTEN.items():
        (line,) = (x for x in readme.splitlines() if f"(docs/formats/{PAGES[name]})" in x)
        assert line.endswith(f"| {words} |")


def test_matrix_of_conversions_matches_writers(tmp_path: Path) -> None:
    expected = (DATA / "conversions.md").read_text(encoding="utf-8").splitlines()
    assert expected == [*format_conversions(tmp_path)]


def test_table_of_supported_parts_matches_writers(tmp_path: Path) -> None:
    assert find_table("cli/convert.md", "What the formats can store") == [*format_places(tmp_path)]


def test_table_of_shared_options_equals_formats() -> None:
    expected = ["| Keyword | Description | Formats |", "| --- | --- | --- |"]
    for name, option in SHARED_OPTIONS.items():
        titles = ", ".join(x.title for x in BUILT_IN if x.open_options.get(name) is option)
        expected.append(f"| `{name}={option.default!r}` | {option.description} | {titles} |")
    assert find_table("api.md", "Keywords of several formats") == expected


@pytest.mark.parametrize("file_format", BUILT_IN, ids=lambda file_format: file_format.name)
def test_options_of_page_equal_options_of_format(file_format: Format) -> None:
    page = f"formats/{PAGES[file_format.name].partition('#')[0]}"
    for function, options in [
        ("open_dataset", file_format.open_options),
        ("to_file", file_format.write_options),
    ]:
        rows = [
            f"| `{name}` | {option.description} |"
            for name, option in options.items()
            if name not in SHARED_OPTIONS
        ]
        head = ["| Option | Description |", "| --- | --- |"] if rows else []
        assert find_table(page, f"Options of `{function}`") == head + rows
