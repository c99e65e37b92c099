"""The cases of the benchmark run in small with the values of numpy, and the tables show them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("the benchmark measures memory as Linux states it", allow_module_level=True)

import benchmark.__main__
from benchmark.__main__ import QUICK_SCALE, main, measure, run
from benchmark.cases import CASES, SERVERS
from benchmark.table import DATA, OURS, format_row, format_slower, format_tables, format_time

SCALE = 4096
LONG = {
    *(name for name in CASES if name.startswith("processes_")),
    "first_open",
    "upload_by_obstore",
    "upload_by_s3fs",
    "remote_row",
    "remote_sum",
    "remote_chunks",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmark")


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
    assert format_row(row | {"median": {"numpy": 0.5}}, [OURS, "numpy"]) == ["a task", "", "500 ms"]


def test_fastest_is_bold_unless_it_ties() -> None:
    rows = [
        {"text": "lost", "median": {OURS: 2.0, "zarr": 1.5, "netCDF4": 0.25, "the read": 0.125}},
        {"text": "tie", "median": {OURS: 1.04, "zarr": 1.0}},
        {"text": "alone", "median": {OURS: 1.0}},
        {"text": "limited", "median": {OURS: 1.0, "the read": 2.0}},
    ]
    rows = [{"section": "Reading"} | row for row in rows]
    compared, parts = format_tables(rows).split("\n\n")
    assert compared.splitlines() == [
        ":::{dropdown} Reading: fastest or equal in 1 of 2",
        f"| Task | {OURS} | netCDF4 | zarr |",
        "| --- | --- | --- | --- |",
        "| lost | 2 s | **250 ms** | 1.5 s |",
        "| tie | 1.04 s |  | 1 s |",
        ":::",
    ]
    assert parts.splitlines()[3:] == [
        "| lost | 2 s | the read | 125 ms |",
        "| limited | 1 s | the read | 2 s |",
        ":::",
    ]
    assert format_slower(rows).splitlines()[2:] == [
        "| lost | 8.0 | 2 s instead of 250 ms (netCDF4) |"
    ]


def test_tables_show_saved_measurements() -> None:
    rows = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
    table = format_tables(rows)
    times = [format_time(seconds) for row in rows for seconds in row["median"].values()]
    assert all(f"| {row['text']} |" in table for row in rows)
    assert not [time for time in times if time not in table]
    assert {row["case"] for row in rows} <= set(CASES)


def test_chart_and_first_lines_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from benchmark.chart import HEADLINE, write_page_parts  # noqa: PLC0415

    write_page_parts(tmp_path)
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        "benchmarks-dark.svg",
        "benchmarks-light.svg",
    }
    assert (tmp_path / "benchmarks.md").read_text().count(" instead of ") == len(HEADLINE)
    assert (tmp_path / "tables.md").read_text() == format_tables(
        json.loads(DATA.read_text())["rows"]
    )


@pytest.mark.parametrize(
    ("ours", "words"),
    [(1.0, "**2.0 times** as fast as"), (1.96, "**As fast** as"), (2.2, "**Slower** than")],
)
def test_first_lines_say_who_is_faster(ours: float, words: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from benchmark.chart import compare_times  # noqa: PLC0415

    assert compare_times(ours, 2.0) == words


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
