"""A directory in place of a file: each error names the next step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xarray as xr

from tests.commands import run_failing
from tests.workflows.formats import WRITABLE, make_array, write
from xr_tensorfmt import to_file, validate
from xr_tensorfmt.formats import registry


@pytest.mark.parametrize("name", [None, *WRITABLE])
@pytest.mark.parametrize("target", ["there", "there/", "new/"])
def test_target_that_is_a_directory(name: str | None, target: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(
        IsADirectoryError, match=r"expected a file; append a name such as model.mag"
    ):
        to_file(make_array(), f"{tmp_path}/{target}", name)
    assert os.listdir(tmp_path) == ["there"]
    assert not os.listdir(tmp_path / "there")


@pytest.mark.parametrize("name", WRITABLE)
def test_file_in_directory_is_the_next_step(name: str, tmp_path: Path) -> None:
    if registry.find_format(name).directory_patterns:
        return  # a directory opens as the model in it
    write(make_array(), tmp_path, name)
    assert validate(tmp_path) == validate(str(tmp_path)) == []
    if name != "cc4s":  # its error names the function for calculations
        with pytest.raises(IsADirectoryError, match=r"pass the path of a file in it"):
            xr.open_dataset(tmp_path, engine="tensorfmt")


def test_empty_directory(tmp_path: Path) -> None:
    for command in ("validate", "info"):
        assert "a directory without tensor files; pass" in run_failing(command, str(tmp_path))
