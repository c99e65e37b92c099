"""The benchmark runs in small, and its page shows the saved measurements."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmark.__main__ import REPORT, ROOT, main, measure
from benchmark.measure import Effort
from benchmark.page import CHARTS, build_page, draw_charts
from benchmark.report import AGAINST, PRESENT, Measurement, Report, format_comparison
from benchmark.sections import SECTIONS

from tests.opening import SUPPORTS_FS

DOCS = ROOT / "docs"
TINY = Effort(scale=1024, min_rounds=1, max_rounds=1, seconds=0, memory=False)


LONG_SECTIONS = {"local", "open", "remote", "write"}


@pytest.mark.store
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="pwrite and select on pipes need POSIX")
@pytest.mark.parametrize(
    "section",
    [
        pytest.param(section, marks=[pytest.mark.nightly] if section in LONG_SECTIONS else [])
        for section in SECTIONS
    ],
)
def test_section_runs_without_failures(section: str) -> None:
    pytest.importorskip("moto")
    if section == "remote" and not SUPPORTS_FS:
        pytest.skip("fs= needs xarray 2026.7")
    failures: list[str] = []
    report = measure([section], {PRESENT: ROOT}, TINY, failures)
    assert failures == []
    for job in report.get_jobs(section):
        assert {item.role for item in job} >= {"ours", "baseline"}
        assert all(item.median > 0 for item in job)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="select on pipes needs POSIX")
def test_two_versions_are_compared(tmp_path: Path) -> None:
    other = tmp_path.resolve() / "other"
    other.mkdir()
    (other / "xr_tensorfmt").symlink_to(ROOT / "xr_tensorfmt")
    failures: list[str] = []
    effort = Effort(scale=1024, min_rounds=1, max_rounds=1, seconds=0, memory=True)
    report = measure(["labels"], {PRESENT: ROOT, AGAINST: other}, effort, failures)
    assert failures == []
    versions = {item.version for item in report.measurements if item.role == "ours"}
    assert versions == {PRESENT, AGAINST}
    assert any(item.memory is not None for item in report.measurements)


def test_page_of_alternatives_quotes_saved_measurements() -> None:
    page = (DOCS / "get_started" / "alternatives.md").read_text(encoding="utf-8")
    saved = Report.from_json(REPORT.read_text(encoding="utf-8"))

    def get_seconds(section: str, text: str, name: str, digits: int = 2) -> str:
        (median,) = [
            item.median
            for item in saved.measurements
            if (item.section, item.text, item.name) == (section, text, name)
        ]
        return f"{median:.{digits}f} s"

    def get_row(section: str, text: str) -> str:
        names = ("xr_tensorfmt", "zarr", "netCDF4")
        ours, zarr, netcdf = (get_seconds(section, text, name) for name in names)
        return f"| {ours} | {zarr} | {netcdf} (netCDF4) |"

    assert get_row("local", "sum 1 GiB of float64 with dask") in page
    assert get_row("open", "open a model of 1,000 tensors") in page
    unpack = "unpack a matrix of 2,000 elements"
    ours = get_seconds("bits", unpack, "xr_tensorfmt", 3)
    peer = get_seconds("bits", unpack, "pycauset")
    assert f"takes {ours} instead of {peer}" in page


def test_page_and_charts_show_saved_measurements(tmp_path: Path) -> None:
    saved = Report.from_json(REPORT.read_text(encoding="utf-8"))
    assert (DOCS / "performance.md").read_text(encoding="utf-8") == build_page(saved)
    pytest.importorskip("matplotlib")
    draw_charts(saved, tmp_path)
    charts = {f"{name}-{theme}.svg" for name in CHARTS for theme in ("light", "dark")}
    assert {path.name for path in tmp_path.iterdir()} == charts
    assert {path.name for path in (DOCS / "_static" / "charts").iterdir()} == charts


def test_json_restores_report() -> None:
    text = REPORT.read_text(encoding="utf-8")
    assert Report.from_json(text).to_json() == text


def test_comparison_prints_ratios() -> None:
    def build(role: str, version: str, seconds: float, memory: float) -> Measurement:
        return Measurement("s", "j", "a job", role, role, version, seconds, seconds, 3, memory)

    items = [
        build("ours", PRESENT, 0.5, 10.0),
        build("ours", AGAINST, 0.25, 20.0),
        build("baseline", PRESENT, 0.125, 0.0),
        build("peer", PRESENT, 2.0, 0.0),
    ]
    *_, row = format_comparison(Report("a machine", items), "v1").splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "a job", "250 ms", "500 ms", "2.00", "2.00", "20, 10", "2 s (peer)", "125 ms (baseline)",
    ]  # fmt: skip


def test_unknown_section_raises(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "unknown sections nothing" in capsys.readouterr().err
