"""Errors about missing extras name the command that installs them."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.paths import ROOT
from tests.processes import run_python
from xr_tensorfmt.sources.locations import EXTRAS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = PROJECT["optional-dependencies"]

OPEN = """
import sys
for name in ("adlfs", "aiohttp", "gcsfs", "s3fs"):
    sys.modules[name] = None  # an import of it fails
import xarray as xr
for url in {urls}:
    try:
        xr.open_dataset(url, engine="tensorfmt")
    except ImportError as error:
        print(url, str(error))
"""


def test_url_without_its_package_names_extra() -> None:
    urls = [f"{scheme}://bucket/a.tens" for scheme in EXTRAS]
    urls.append("simplecache::s3://bucket/a.tens")
    lines = run_python("-c", OPEN.format(urls=urls)).stdout.splitlines()
    assert [line.split()[0] for line in lines] == urls
    extras = [*EXTRAS.values(), "s3"]
    for line, extra in zip(lines, extras, strict=True):
        assert line.endswith(f"run: pip install 'xr-tensorfmt[{extra}]'")
        assert line.count("bucket") == 2  # printed once before the message


@pytest.mark.parametrize("missing", ["virtualizarr", "obspec_utils", "zarr"])
def test_virtual_zarr_without_its_packages_names_extra(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "try:\n    import xr_tensorfmt.virtual\n"
        "except ImportError as error:\n    print(error)"
    )
    assert "pip install 'xr-tensorfmt[virtual]'" in run_python("-c", code).stdout


def test_named_extras_are_declared_and_all_has_every_extra() -> None:
    assert set(EXTRAS.values()) | {"virtual"} <= set(DECLARED)
    (combined,) = DECLARED["all"]
    match = re.fullmatch(r"xr-tensorfmt\[(.+)\]", combined)
    assert match is not None
    assert set(match[1].split(",")) == set(DECLARED) - {"all"}
