"""Problems of xarray. A test fails when xarray solves one, and its workaround can go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from xarray.backends import BackendEntrypoint


class Constant(BackendEntrypoint):
    """A backend without a closing function. It takes the content of a file as bytes."""

    def open_dataset(self, filename_or_obj: Any, *, drop_variables: Any = None) -> xr.Dataset:
        return xr.Dataset({"v": ("x", [len(filename_or_obj)])})


def test_slices_before_the_first_element_select_all(tmp_path: Path) -> None:
    xr.Dataset({"v": ("x", np.arange(5))}).to_netcdf(tmp_path / "five.nc")
    assert np.arange(5)[-7::-1].size == 0
    assert xr.open_dataset(tmp_path / "five.nc").v[-7::-1].size == 5
    assert da.arange(5, chunks=2)[-7::-1].compute().size == 5


def test_groups_share_names_of_dask_arrays(tmp_path: Path) -> None:
    groups = {f"/{number}": xr.Dataset({"v": ("x", [number])}) for number in (1, 2)}
    xr.DataTree.from_dict(groups).to_netcdf(tmp_path / "groups.nc")
    opened = xr.open_groups(tmp_path / "groups.nc", chunks={})
    first, second = dask.compute(opened["/1"].v, opened["/2"].v)
    assert first.item() == second.item()


def test_open_mfdataset_needs_a_closing_function() -> None:
    many = xr.open_mfdataset(["a", "b"], engine=Constant, combine="nested", concat_dim="x")
    with pytest.raises(TypeError, match="'NoneType' object is not callable"), many:
        pass


def test_bytes_with_chunks_are_taken_for_a_path() -> None:
    assert xr.open_dataset(b"ab", engine=Constant).v.item() == 2
    with pytest.raises(TypeError, match="cannot use a string pattern on a bytes-like object"):
        xr.open_dataset(b"ab", engine=Constant, chunks={})
