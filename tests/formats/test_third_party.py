"""The example format of the documentation works in all public functions."""

from __future__ import annotations

import os
import re
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest
import xarray as xr

from tests.paths import ROOT
from tests.processes import run_python
from xr_tensorfmt.core.file_format import CONTRACT_VERSION
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.writing.checked_input import CheckedInput

PAGE = (ROOT / "docs" / "adding_a_format.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
MODULE = BLOCKS[0]
OF_PAGE = next(block for block in BLOCKS if "FormatTests" in block)
ROWS_FORMAT = Path(__file__).with_name("grid_rows.txt").read_text()
ALL_FORMATS = "".join(block for block in BLOCKS if block is not OF_PAGE) + ROWS_FORMAT
ENTRY_POINTS = re.findall(r"^grid.* = .*$", PAGE, flags=re.MULTILINE)
ENTRY_POINTS.append('grid-rows = "xarray_grid:RowsFormat"')
SUITE = (
    OF_PAGE
    + """

from xr_tensorfmt.testing import FormatTests


class TestRows(FormatTests):
    format = "grid-rows"
    file_name = "example.gridr"

    def create_dataset(self):
        values = np.zeros((200, 100))
        values[:128:2] = VALUES
        return xr.Dataset({"tensor": (("y", "x"), values)})

    def write(self, dataset, path):
        values = dataset.tensor.values
        numbers = np.flatnonzero(values.any(axis=1))
        header = np.array([1, *values.shape, len(numbers), *numbers], dtype="<u4")
        with open(path, "wb") as file:
            file.write(b"GRIR" + header.tobytes() + values[numbers].tobytes())
"""
)
COMMANDS = """
from xr_tensorfmt.cli import main

to_file(xr.DataArray(np.eye(3), dims=("y", "x")), "a.grid")
for command in ("info a.grid", "validate a.grid", "convert a.grid a.tens", "convert a.tens b.grid"):
    with pytest.raises(SystemExit, match="^0$"):
        main(command.split())
"""
ENTRY_POINT = ENTRY_POINTS[0].replace('"', "")

WAYS = """
import pickle
import numpy as np, pytest, xarray as xr
import xr_tensorfmt
from distributed import Client, LocalCluster
from xr_tensorfmt import TensorFormatError, to_file, validate

values = np.arange(3_000_000.0).reshape(3000, 1000)
ds = xr.Dataset({"tensor": (("y", "x"), values)})
ds.chunk(y=700).tensorfmt.to_file("a.grid")
to_file(ds, "b.bytes", "grid")
assert open("a.grid", "rb").read() == open("b.bytes", "rb").read()
for changed, lost in (
    (ds.assign_attrs(unit="m"), "cannot store the attribute 'unit'"),
    (ds.assign_coords(x=np.arange(1000)), "cannot store the coordinate 'x'"),
    (ds.rename(x="z"), "cannot store the dims"),
    (ds.rename(tensor="t"), "cannot store the name 't'"),
    (ds.isel(x=0), "must have 2 dimensions, not 1"),
):
    with pytest.raises(ValueError, match=lost):
        to_file(changed, "c.grid")

for opened in (
    xr.open_dataset("a.grid", engine="tensorfmt"),
    xr.open_dataset("a.grid"),
    xr.open_dataset("b.bytes", format="grid", engine="tensorfmt", chunks={}),
    xr.open_dataset(open("a.grid", "rb").read(), engine="tensorfmt"),
    pickle.loads(pickle.dumps(xr.open_dataset("a.grid"))),
):
    xr.testing.assert_identical(opened.load(), ds)
assert xr.open_dataset("a.grid", chunks={}).chunks["y"]
assert xr.open_dataset("a.grid").tensorfmt.explain(y=5).needed_bytes == 8000
with pytest.raises(ValueError, match="sparse='stored' does not apply to format 'grid'"):
    xr.open_dataset("a.grid", sparse="stored")
renamed = xr.open_dataset("a.grid", name="t", dims=("lat", "lon"))
assert renamed.t.dims == ("lat", "lon")

to_file(-ds.isel(y=slice(10, 20)), "a.grid", region={"y": slice(10, 20)})
assert (xr.open_dataset("a.grid").tensor[10:20] == -ds.tensor[10:20]).all()

assert validate("a.grid") == []
with open("a.grid", "ab") as file:
    file.write(b"more")
(finding,) = validate("a.grid")
assert (finding.offset, finding.field) == (24_000_016, "the end of the matrix"), finding
with open("cut.grid", "wb") as file:
    file.write(open("b.bytes", "rb").read()[:-1])
with pytest.raises(TensorFormatError, match="24000015 bytes, expected 24000016 bytes"):
    xr.open_dataset("cut.grid")
for content, wrong in (
    (b"GRID\\2\\0\\0\\0" + bytes(8), "the version at byte 4: 2, expected 1"),
    (b"GRIT" + bytes(12), "the marker GRID at byte 0"),
    (b"GRID", "the header at byte 4: truncated by the end of the file"),
):
    with pytest.raises(TensorFormatError, match=wrong):
        xr.open_dataset(content, format="grid", engine="tensorfmt")
(finding,) = validate("cut.grid")
assert finding.severity == "error"

with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:
    with Client(cluster):
        for io in ("auto", "read"):
            options = {"format": "grid", "chunks": {}, "chunk_bytes": 2**20, "io": io}
            tensor = xr.open_dataset("b.bytes", engine="tensorfmt", **options).tensor
            assert len(tensor.chunks[0]) > 16
            assert float(tensor.sum()) == values.sum()
"""


def install(directory: Path, module: str, entry_point: str, package: str = "xarray_grid") -> None:
    """Create the files of an installed package."""
    (directory / f"{package}.py").write_text(module)
    information = directory / f"{package}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[xr_tensorfmt.formats]\n{entry_point}\n")


def run(directory: Path, *arguments: str) -> str:
    """Run Python with the installed package, and return its output."""
    path = os.pathsep.join([str(directory / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return run_python(*arguments, cwd=directory, env=variables).stdout


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    (tmp_path / "site").mkdir()
    install(tmp_path / "site", MODULE, ENTRY_POINT)
    return tmp_path


def test_example_has_the_length_that_the_page_states() -> None:
    lines = [line for line in MODULE.splitlines() if line.strip()]
    assert len(lines) <= 50


def test_format_of_another_package_works_in_every_public_way(grid: Path) -> None:
    # A worker process imports the script.
    script = "if __name__ == '__main__':\n" + indent(WAYS + COMMANDS, "    ")
    (grid / "ways.py").write_text(script)
    assert "a.grid: Grid" in run(grid, "ways.py")
    assert (grid / "b.grid").read_bytes() == (grid / "a.grid").read_bytes()


SPECIAL = """
import warnings
import numpy as np, pytest, xarray as xr
from xr_tensorfmt import TensorFormatError, TensorFormatWarning, to_file

values = np.arange(12.0).reshape(3, 4)
ds = xr.Dataset({"tensor": (("y", "x"), values)}, {"y": [0.5, 1.0, 1.5]})
to_file(ds.drop_vars("y"), "a.gridc")
assert open("a.gridc", "rb").read()[16:] == values.tobytes(order="F")
to_file(ds, "a.gridl")
assert open("a.gridl.y", "rb").read() == ds.y.values.tobytes()
with pytest.raises(ValueError, match="assign a coordinate 'y'"):
    to_file(ds.drop_vars("y"), "a.gridl")
with open("a.gridl.y", "ab") as file:
    file.write(b"more")
with pytest.raises(TensorFormatError, match="the end of the labels"):
    xr.open_dataset("a.gridl")
with pytest.warns(TensorFormatWarning, match="the end of the labels"):
    xr.open_dataset("a.gridl", verify=False)

def rows(shape, numbers):
    header = np.array([1, *shape, len(numbers), *numbers], "<u4").tobytes()
    return b"GRIR" + header + values[: len(numbers), : shape[1]].tobytes()

stored = xr.open_dataset(rows((9, 4), [2, 5, 7]), engine="tensorfmt", sparse="stored")
expected = xr.Dataset({"tensor": (("entry", "x"), values)}, {"y": ("entry", [2, 5, 7])})
xr.testing.assert_identical(stored.load(), expected)
part = xr.open_dataset(rows((9, 4), [2, 5, 7]), engine="tensorfmt").tensor
assert part[3:6].tensorfmt.explain().needed_bytes == 32
for content, wrong in (
    (rows((9, 4), [2, 2, 7]), "the row numbers"),
    (rows((7, 4), [2, 5, 7]), "ascending numbers below 7"),
    (rows((1 << 31, 1 << 31), []), "open it with sparse='stored'"),
):
    with pytest.raises(TensorFormatError, match=wrong):
        xr.open_dataset(content, engine="tensorfmt")
"""


@pytest.fixture
def all_formats(tmp_path: Path) -> Path:
    (tmp_path / "site").mkdir()
    install(tmp_path / "site", ALL_FORMATS, "\n".join(ENTRY_POINTS).replace('"', ""))
    return tmp_path


def test_formats_of_page_pass_their_suite(all_formats: Path) -> None:
    special = "\nimport pytest\n\n\n@pytest.mark.filterwarnings('ignore:unclosed file')\n"
    special += "def test_orders_sibling_files_and_stored_elements(tmp_path, monkeypatch):\n"
    special += indent("monkeypatch.chdir(tmp_path)\n" + SPECIAL, "    ")
    (all_formats / "test_grid.py").write_text(SUITE + special)
    report = run(all_formats, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    suites = re.findall(r"^class (\w+)\(", SUITE, flags=re.MULTILINE)
    assert len(suites) == len(ENTRY_POINTS)
    assert re.search(r"\b(\d+) passed", report)
    assert "skipped" not in report


OPTIONS = """
import numpy as np, pytest, xarray as xr
from xr_tensorfmt import to_file

ds = xr.Dataset({"tensor": (("y", "x"), np.eye(3))})
to_file(ds, "a.grid", labels=1)
for keywords in ({}, {"engine": "tensorfmt"}, {"engine": "tensorfmt", "chunks": {}}):
    assert xr.open_dataset("a.grid", **keywords).tensor.dims == ("y", "x")
    opened = xr.open_dataset("a.grid", axes="LATLON", **keywords)
    assert opened.tensor.dims == ("LATLON_0", "LATLON_1")
    assert xr.open_dataset("a.grid", axes=2, **keywords).tensor.dims == ("2_0", "2_1")
    with pytest.raises(ValueError, match="axes='LATLOM'.* is not one of 'LATLON', '2'"):
        xr.open_dataset("a.grid", axes="LATLOM", **keywords)
    with pytest.raises(TypeError, match="'axis'.*is not a keyword of the engine .*axes"):
        xr.open_dataset("a.grid", axis="LATLON", **keywords)
with pytest.raises(TypeError, match="'label'.*labels"):
    to_file(ds, "b.grid", label="1")
with pytest.raises(ValueError, match="labels='3' is not one of '1', '2'"):
    to_file(ds, "b.grid", labels="3")
to_file(xr.Dataset({"a": ("x", np.ones(3, "f4"))}), "a.mag")
with pytest.raises(ValueError, match="axes='LATLON' does not apply to format 'mag'"):
    xr.open_dataset("a.mag", axes="LATLON")

from xr_tensorfmt.cli import main
with pytest.raises(SystemExit, match="^0$"):
    main("convert a.grid b.zarr --open-option axes=2".split())
"""


def test_options_of_another_package_work_and_unknown_keywords_raise(grid: Path) -> None:
    module = (
        MODULE.replace("    Format,", "    Format,\n    Option,")
        .replace('    open_options = share_options("name", "verify")\n', "", 1)
        .replace(
            "    def read",
            "    open_options = share_options('name', 'verify')\n"
            "    open_options |= {'axes': Option('Prefix of the dimensions.', ('LATLON', '2'))}\n"
            "    write_options = {'labels': Option('A number.', ('1', '2'))}\n\n    def read",
            1,
        )
        .replace(
            "        dims = name_dims(options.dims, options.name, DIMS)",
            "        axes = options['axes']\n"
            "        default = (f'{axes}_0', f'{axes}_1') if axes else DIMS\n"
            "        dims = name_dims(options.dims, options.name, default)",
        )
        .replace("def plan(self, checked):", "def plan(self, checked, labels='1'):")
        .replace(
            "        name, variable =", "        assert labels == '1'\n        name, variable ="
        )
    )
    (grid / "site" / "xarray_grid.py").write_text(module)
    run(grid, "-c", OPTIONS)
    assert list(xr.open_zarr(grid / "b.zarr").sizes) == ["2_0", "2_1"]


OPEN = """
import warnings, numpy, xarray, xr_tensorfmt
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    xr_tensorfmt.to_file(xarray.Dataset({'a': ('x', numpy.ones(3, 'f4'))}), 'a.1.mag')
    assert xarray.open_dataset('a.1.mag').a.sum() == 3
    assert xarray.open_dataset('a.1.mag', engine='tensorfmt').a.sum() == 3
    assert xr_tensorfmt.validate('a.1.mag') == []
    assert xr_tensorfmt.formats.registry.find_format('mag').title == 'MAG'
print(*(f'{warning.category.__name__}: {warning.message}' for warning in caught), sep='\\n')
"""


def declare(line: str) -> str:
    """Return the module with another line in its class."""
    return MODULE.replace("    def read", f"    {line}\n\n    def read", 1)


BROKEN = {
    "its import fails": ("raise RuntimeError('no such library')", "no such library"),
    "its import exits": ("raise SystemExit('no such library')", "SystemExit('no such library')"),
    "it exits when it is created": (declare("def __init__(self): raise SystemExit(2)"), "Exit(2)"),
    "it exits when it is compared": (
        declare("def match(self, reader): raise SystemExit(2)"),
        "cannot be compared with",
    ),
    "it is no class": ("GridFormat = 3", "not a subclass"),
    "it is another class": ("class GridFormat: name = 'grid'", "not a subclass"),
    "it has no version": (MODULE.replace("contract_version = 1", ""), "contract_version is None"),
    "it has a later version": (
        MODULE.replace("contract_version = 1", "contract_version = 2"),
        "contract_version is 2, expected 1",
    ),
    "it does not read": (MODULE.replace("def read", "def other"), "abstract"),
    "it has the name of another": (
        MODULE.replace('"grid"', '"mag"'),
        "name is 'mag', which another",
    ),
    "it has no name": (MODULE.replace('name = "grid"', ""), "no attribute 'name'"),
    "its magic number is empty": (MODULE.replace('b"GRID"', 'b""'), "empty magic number"),
    "it has another default of a shared option": (
        MODULE.replace(
            'share_options("name", "verify")', '{"sparse": Option("", default=3)}'
        ).replace("    Format,", "    Format,\n    Option,"),
        "sparse= has the default 'auto' in other formats",
    ),
    "its suffixes are bytes": (MODULE.replace('(".grid",)', '(b".grid",)'), "str, not bytes"),
    "it finds no suffix": (declare("def find_suffix(self, path): return None"), "NoneType"),
    "it cannot find a suffix": (declare("find_suffix = ''"), "not callable"),
    "it cannot be compared": (
        MODULE.replace("    def read", "    def match(self, reader): 1 / 0\n\n    def read", 1),
        "cannot be compared with",
    ),
}


@pytest.fixture(scope="module")
def warnings_of_broken_formats(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("broken")
    (directory / "site").mkdir()
    for number, (module, _) in enumerate(BROKEN.values()):
        name = f"grid{number}"
        renamed = module.replace('"grid"', f'"{name}"') + "\n"
        install(directory / "site", renamed, f"{name} = {name}:GridFormat", name)
    return run(directory, "-c", OPEN).splitlines()


@pytest.mark.parametrize("case", BROKEN)
def test_broken_format_is_skipped_with_warning(
    warnings_of_broken_formats: list[str], case: str
) -> None:
    start = f"TensorFormatWarning: the format 'grid{list(BROKEN).index(case)}'"
    (warning,) = {line for line in warnings_of_broken_formats if line.startswith(start)}
    assert BROKEN[case][1] in warning
    assert "update or remove its package" in warning


def test_methods_on_page_exist() -> None:
    objects = {"checked": CheckedInput, "reader": HeaderReader}
    names = set(re.findall(r"\b(checked|reader)\.([a-z_]+)", PAGE))
    assert {variable for variable, _ in names} == set(objects)
    for variable, name in names - {("reader", "source"), ("reader", "head")}:
        assert name in {*dir(objects[variable]), *objects[variable].__annotations__}


def test_page_has_version_of_contract() -> None:
    assert f"contract_version = {CONTRACT_VERSION}\n" in MODULE


def test_format_is_matched_by_content_without_magic_number_and_suffix(grid: Path) -> None:
    module = MODULE.replace('    magics = (b"GRID",)\n', "").replace("self.magics[0]", 'b"GRID"')
    module = module.replace(
        "    def read",
        "    def match(self, reader):\n"
        '        return Match.CERTAIN if reader.head.startswith(b"GRID") else Match.NONE\n\n'
        "    def read",
        1,
    )
    (grid / "site" / "xarray_grid.py").write_text(
        module.replace("    Format,", "    Format, Match,")
    )
    content = b"GRID" + np.array([1, 3, 3], "<u4").tobytes() + np.eye(3).tobytes()
    (grid / "a.txt").write_bytes(content)
    code = """
import xarray
opened = [xarray.open_dataset("a.txt", engine=engine) for engine in (None, "tensorfmt")]
assert [ds.tensor.size for ds in opened] == [9, 9]
opened[0].tensorfmt.to_file("b.txt", format="grid")
"""
    run(grid, "-c", code)
    assert (grid / "b.txt").read_bytes() == content


VECTOR = """
import struct
import numpy as np, pytest, xarray as xr
from xr_tensorfmt import TensorFormatError, validate
from xr_tensorfmt.cli import main

content = b"VEC1" + struct.pack("<I3f", 3, 1, 2, 4)
with open("a.vec", "wb") as file:
    file.write(content)
ds = xr.open_dataset("a.vec", engine="tensorfmt", chunks={})
assert ds["values"].values.tolist() == [1, 2, 4] and validate("a.vec") == []
assert ds.tensorfmt.explain(x=0).needed_bytes == 4
with pytest.raises(TensorFormatError):
    xr.open_dataset(content[:-1], engine="tensorfmt")
with pytest.raises(SystemExit, match="^0$"):
    main("convert a.vec a.mag".split())
"""


def test_shortest_format_of_contract_page_opens(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "contract.md").read_text(encoding="utf-8")
    (module,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (entry_point,) = re.findall(r"^vector = .*$", page, flags=re.MULTILINE)
    (tmp_path / "site").mkdir()
    install(tmp_path / "site", module, entry_point.replace('"', ""), "my_package")
    run(tmp_path, "-c", VECTOR)
