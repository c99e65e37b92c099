"""Send a loaded Dataset to a program without this package."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.processes import run_python
from tests.workflows.formats import WRITABLE, make_array, open_array, write


@pytest.mark.parametrize("name", WRITABLE)
def test_loaded_values_are_unpickled_without_the_package(tmp_path: Path, name: str) -> None:
    encoding = {"dtype": "bfloat16"} if name in ("mag", "safetensors", "vespa") else None
    array = make_array(shape=(2, 3))
    path = write(array, tmp_path, name, **({"encoding": encoding} if encoding else {}))
    ds = open_array(path).load().to_dataset(name="values")
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(ds))
    run_python(
        "-c",
        "import pickle, sys\n"
        "sys.modules['xr_tensorfmt'] = None\n"
        f"with open({os.fspath(tmp_path / 'a.pickle')!r}, 'rb') as file:\n"
        "    ds = pickle.load(file)\n"
        "assert ds['values'].sum() == 15\n"
        "ds.close()\n",
    )
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ds))["values"], array)
