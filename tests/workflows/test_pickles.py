"""Send a loaded Dataset to a program without this package."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.processes import run_python
from tests.workflows.formats import WRITABLE, make_array, open_array, write
from xr_tensorfmt import to_file
from xr_tensorfmt.core.elements import get_stored_name

UNPICKLE = """
import pickle, sys
sys.modules['xr_tensorfmt'] = None
for path in sys.argv[1:]:
    with open(path, 'rb') as file:
        ds = pickle.load(file)
    assert ds['values'].sum() == 15, path
    ds.close()
"""


def test_loaded_values_are_unpickled_without_the_package(tmp_path: Path) -> None:
    paths = []
    for (name,) in (parameter.values for parameter in WRITABLE):
        encoding = {"dtype": "bfloat16"} if name in ("mag", "safetensors", "vespa") else None
        array = make_array(shape=(2, 3))
        path = write(array, tmp_path, name, **({"encoding": encoding} if encoding else {}))
        ds = open_array(path, chunk_bytes=8).load().to_dataset(name="values")
        paths.append(tmp_path / f"{name}.pickle")
        paths[-1].write_bytes(pickle.dumps(ds))
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(ds))["values"], array)
    run_python("-c", UNPICKLE, *paths)


@pytest.mark.parametrize("copy", [copy.deepcopy, lambda ds: pickle.loads(pickle.dumps(ds))])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_stored_dtypes_survive_copies(tmp_path: Path, dtype: str, copy: Any) -> None:
    path = write(make_array(shape=(2, 3)), tmp_path, "safetensors", encoding={"dtype": dtype})
    ds = copy(copy(open_array(path).load().to_dataset(name="values")))
    to_file(ds, tmp_path / "again.safetensors")
    to_file(open_array(path).to_dataset(name="values"), tmp_path / "direct.safetensors")
    again = open_array(tmp_path / "again.safetensors")
    assert get_stored_name(again.encoding["dtype"]) == dtype
    assert (tmp_path / "again.safetensors").stat().st_size == path.stat().st_size
    ds.to_netcdf(tmp_path / "a.nc")
    assert xr.open_dataset(tmp_path / "a.nc")["values"].dtype == np.float32


@pytest.mark.parametrize("name", WRITABLE)
def test_encoding_is_json_except_dtypes(tmp_path: Path, name: str) -> None:
    path = write(make_array(shape=(2, 3)), tmp_path, name)
    ds = open_array(path, chunk_bytes=8).to_dataset(name="values")
    described = ds.to_dict(data=False, encoding=True)
    for encoding in (described["encoding"], described["data_vars"]["values"]["encoding"]):
        encoding.pop("dtype", None)
        json.dumps(encoding)
