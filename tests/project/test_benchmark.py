"""The cases of the benchmark run in small with the values of numpy, and the table shows them."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("the benchmark measures memory as Linux states it", allow_module_level=True)

import benchmark.__main__
from benchmark.__main__ import (
    DATA,
    QUICK_SCALE,
    TABLE,
    format_row,
    format_table,
    main,
    measure,
    run,
)
from benchmark.cases import CASES, OURS, SERVERS

SCALE = 4096
LONG = {
    "first_open",
    "upload_by_obstore",
    "upload_by_s3fs",
    "remote_row",
    "remote_sum",
    "remote_chunks",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    gc.freeze()  # each run collects garbage
    yield tmp_path_factory.mktemp("benchmark")
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] if name in LONG else []) for name in CASES],
)
def test_contenders_return_the_value_of_numpy(name: str, folder: Path) -> None:
    case = CASES[name]
    path = folder / case.section
    path.mkdir(exist_ok=True)
    with SERVERS:
        contenders, expected = case.build(path, case.get_size(SCALE))
        assert OURS in contenders
        for contender in contenders.values():
            assert run(contender, expected)["seconds"] > 0


def test_contender_that_fails_has_no_time() -> None:
    failures: list[str] = []
    contenders = {OURS: lambda: 1.0, "numpy": lambda: 2.0, "zarr": lambda: 1 / 0}
    row = {"text": "a task", **measure(contenders, lambda: 1.0, 0, failures)}
    wrong, failed = failures
    assert wrong.startswith("numpy: ")
    assert "Not equal to tolerance" in wrong
    assert failed.endswith("ZeroDivisionError: division by zero\n")
    assert [*row["median"]] == [*row["memory"]] == [OURS]
    assert format_row(row | {"median": {"numpy": 0.5}}) == ["a task", "-", "500 ms (numpy)", ""]


def test_fastest_is_bold_and_rows_without_others_are_omitted() -> None:
    rows = [
        {"text": "lost", "median": {OURS: 2.0, "zarr": 1.5, "netCDF4": 0.25, "the read": 0.125}},
        {"text": "alone", "median": {OURS: 1.0}},
    ]
    rows.append({"text": "limited", "median": {OURS: 1.0, "the read": 2.0}})
    _, _, row, limited = format_table(rows).splitlines()
    assert limited == "| limited | 1 s |  | 2 s (the read) |"
    assert row == "| lost | 2 s | **250 ms** (netCDF4), 1.5 s (zarr) | 125 ms (the read) |"


def test_table_shows_saved_measurements() -> None:
    saved = json.loads(DATA.read_text(encoding="utf-8"))
    table = format_table(saved["rows"])
    assert TABLE.read_text(encoding="utf-8") == f"{saved['machine']}\n\n{table}"
    assert {row["case"] for row in saved["rows"]} <= set(CASES)


def test_unknown_case_raises(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "nothing: there is no such case or section" in capsys.readouterr().err


def test_all_cases_are_measured_without_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, case = next(iter(CASES.items()))
    monkeypatch.setattr(benchmark.__main__, "CASES", {name: case})
    assert main(["--quick"]) == 0
    assert case.get_text(QUICK_SCALE) in capsys.readouterr().out
