"""Golden files of every format and generation open unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from tests.golden import (
    ROOT,
    Golden,
    describe,
    list_golden_files,
    make_storable,
    open_golden,
    to_json,
)
from tests.goldenfiles import GENERATED
from xr_tensorfmt import validate
from xr_tensorfmt.formats.registry import BUILT_IN

FILES = list(list_golden_files())


@pytest.fixture(params=FILES, ids=lambda golden: golden.name)
def golden(request: pytest.FixtureRequest) -> Golden:
    return request.param


def test_golden_file_opens_unchanged(golden: Golden) -> None:
    dataset, messages = open_golden(golden.path)
    expected = golden.expected
    assert messages == expected.get("warnings", [])
    # Compare text, in which NaN equals NaN.
    actual = json.dumps(to_json(describe(dataset)), sort_keys=True)
    retained = {"attrs": expected["attrs"], "variables": expected["variables"]}
    assert actual == json.dumps(retained, sort_keys=True)
    for name, values in golden.values.items():
        np.testing.assert_array_equal(make_storable(dataset[name].values), values, strict=True)
        assert get_bits(dataset[name].values) == get_bits(values)


def get_bits(values: np.ndarray) -> bytes:
    """Return the bits of numbers, so that -0.0 differs from 0.0."""
    if values.dtype.kind not in "fc":
        return b""
    return np.where(np.isnan(values), np.nan, values).tobytes()


@pytest.mark.slow
def test_golden_file_opens_unchanged_in_chunks(golden: Golden) -> None:
    dataset, _ = open_golden(golden.path, chunks={})
    for name, values in golden.values.items():
        np.testing.assert_array_equal(make_storable(dataset[name].values), values, strict=True)


@pytest.mark.slow
def test_golden_file_has_no_findings(golden: Golden) -> None:
    assert [finding for finding in validate(golden.path) if finding.severity == "error"] == []


def test_every_format_has_golden_file() -> None:
    assert {golden.name.partition("/")[0] for golden in FILES} == {
        file_format.name for file_format in BUILT_IN
    }


@pytest.mark.parametrize("name", GENERATED)
def test_golden_file_is_reproducible(name: str) -> None:
    # numpy and safetensors may write another header in another version.
    with TemporaryDirectory() as scratch:
        path = GENERATED[name](Path(scratch))
        created, _ = open_golden(path)
    expected, _ = open_golden(Golden(ROOT / name).path)
    assert created.identical(expected)
