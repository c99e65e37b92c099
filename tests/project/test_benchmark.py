"""The cases of the benchmark run in small with the values of numpy, and the table shows them."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("the benchmark measures memory as Linux states it", allow_module_level=True)
pytest.importorskip("moto")

from benchmark.__main__ import (
    DATA,
    TABLE,
    format_row,
    format_table,
    main,
    measure,
)
from benchmark.cases import CASES, OURS, SERVERS
from benchmark.worker import run

SCALE = 4096
LONG = {"first_open", "upload", "remote_row", "remote_sum", "remote_chunks"}


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


def answer(name: str, contender: str | None = None) -> Any:
    """Answer as a worker does."""
    return [OURS, "numpy"] if contender is None else {"seconds": 0.5, "memory": 1.0}


def answer_without_function(name: str, contender: str | None = None) -> Any:
    """Raise the error of a version of the package without the function of a case."""
    raise AttributeError("no such function")


def test_version_without_a_function_has_no_time() -> None:
    failures: list[str] = []
    workers = {"before": answer_without_function, "after": answer}
    row = {"text": "a task", **measure("values", workers, 0, failures)}
    (failure,) = failures
    assert failure.startswith("values: before: ")
    assert failure.endswith("AttributeError: no such function\n")
    assert row["median"] == row["best"] == {"after": 0.5, "numpy": 0.5}
    assert row["memory"] == {"after": 1.0, "numpy": 1.0}
    assert format_row(row, list(workers)) == ["a task", "-", "**500 ms**", "**500 ms** (numpy)"]


def test_fastest_is_bold_and_rows_without_others_are_omitted() -> None:
    rows = [
        {"text": "lost", "median": {OURS: 2.0, "zarr": 1.5, "netCDF4": 0.25}},
        {"text": "alone", "median": {OURS: 1.0}},
    ]
    _, _, row = format_table(rows, [OURS]).splitlines()
    assert row == "| lost | 2 s | **250 ms** (netCDF4), 1.5 s (zarr) |"


def test_table_shows_saved_measurements() -> None:
    saved = json.loads(DATA.read_text(encoding="utf-8"))
    table = format_table(saved["rows"], [OURS])
    assert TABLE.read_text(encoding="utf-8") == f"{saved['machine']}\n\n{table}"
    assert {row["case"] for row in saved["rows"]} <= set(CASES)


def test_unknown_case_raises(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "unknown case nothing" in capsys.readouterr().err
