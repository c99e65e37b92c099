"""Errors about missing packages name them."""

from __future__ import annotations

import re
import tomllib

from tests.paths import ROOT
from tests.processes import run_python

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


PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "https": "aiohttp"}


def test_url_without_its_package_names_package() -> None:
    urls = [f"{scheme}://bucket/a.tens" for scheme in PACKAGES]
    urls.append("simplecache::s3://bucket/a.tens")
    lines = run_python("-c", OPEN.format(urls=urls)).stdout.splitlines()
    assert [line.split()[0] for line in lines] == urls
    for line, package in zip(lines, [*PACKAGES.values(), "s3fs"], strict=True):
        assert package in line
        assert line.count("bucket") == 2  # printed once before the message


def test_virtual_zarr_without_its_packages_names_extra() -> None:
    code = """
import sys
packages = ("virtualizarr", "obspec_utils", "zarr")
for missing in packages:
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]
    sys.modules[missing] = None
    try:
        import xr_tensorfmt.virtual
    except ImportError as error:
        print(error)
"""
    lines = run_python("-c", code).stdout.splitlines()
    assert sum("pip install 'xr-tensorfmt[virtual]'" in line for line in lines) == 3


def test_all_has_every_extra() -> None:
    (combined,) = DECLARED["all"]
    match = re.fullmatch(r"xr-tensorfmt\[(.+)\]", combined)
    assert match is not None
    assert set(match[1].split(",")) == set(DECLARED) - {"all"}
