"""The search for files that the package handles wrongly, and its finds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="memory is limited by a module that this system lacks")

from tests.fuzz.campaign import Campaign
from tests.fuzz.cases import FINDS, check_case, find_originals
from tests.fuzz.faults import BREAKS, FAULTS, Fault
from tests.fuzz.mutation import Original
from tests.fuzz.structure import Field, find_structure, patch
from tests.golden import ROOT, open_golden

FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

ORIGINALS = {original.name: original for original in find_originals()}


def find_problems(fault: Fault, finds: Path, *, seed: int, cases: int) -> list[str]:
    """Return the problems of a campaign that ends at its first find, or soon after."""
    with fault.seeded():
        campaign = Campaign(seed, cases=cases, family=fault.family, most_finds=1)
        campaign.run(lambda line: None, finds)
    return read_problems(finds)


def read_problems(finds: Path) -> list[str]:
    return [json.loads(path.read_text())["problem"] for path in finds.glob("*/find.json")]


def list_main_files() -> Iterator[tuple[Original, bytes]]:
    for original in ORIGINALS.values():
        yield original, original.files[original.main]


@pytest.mark.parametrize("directory", sorted(FINDS.glob("*")), ids=lambda item: item.name)
def test_earlier_finds_are_fixed(directory: Path) -> None:
    file = json.loads((directory / "find.json").read_text())["file"]
    assert check_case(directory / file) is None


GENERATED = [
    ROOT / original.name / original.main for original in ORIGINALS.values() if original.is_generated
]


@pytest.mark.parametrize("path", GENERATED, ids=lambda item: item.parent.name)
def test_golden_files_are_no_finds(path: Path) -> None:
    assert check_case(path) is None


def test_case_does_not_depend_on_previous_cases() -> None:
    first, second, other = Campaign(seed=3), Campaign(seed=3), Campaign(seed=4)
    cases = [first.case(number) for number in range(300)]
    assert [second.case(number) for number in reversed(range(300))] == cases[::-1]
    assert [other.case(number) for number in range(300)] != cases


def test_most_cases_are_different() -> None:
    campaign = Campaign(seed=0)
    cases = [campaign.case(number) for number in range(2000)]
    assert sum(files != original.files for original, files in cases) > 1800
    assert len({tuple(files.items()) for _, files in cases}) > 1800


def test_repair_keeps_checksums_of_golden_files() -> None:
    for original, content in list_main_files():
        structure = find_structure(original.family, original.main, content)
        assert structure.repair(content) == content, original.name


@pytest.mark.parametrize(
    ("name", "start", "size"),
    [
        ("mag/archive-1", 12, 4),
        ("mag/snapshot-200", 28, 4),
        ("pycauset/r1-bits", 16, 8),
        ("pycauset/zip", 66, 4),
    ],
)
def test_repair_fixes_corrupt_checksum(name: str, start: int, size: int) -> None:
    original = ORIGINALS[name]
    content = original.files[original.main]
    structure = find_structure(original.family, original.main, content)
    field = Field(start, size)
    changed = patch(content, start, field.packed(field.value(content) ^ 1))
    repaired = structure.repair(changed)
    assert len(repaired) == len(content)
    assert repaired != changed
    assert structure.repair(repaired) == repaired


def test_numbers_of_header_are_found() -> None:
    for original, content in list_main_files():
        structure = find_structure(original.family, original.main, content)
        walk = structure.walked(content)
        is_text = structure.document is not None and structure.document(content) == content
        assert walk.fields or is_text, original.name
        assert all(field.start + field.size <= len(content) for field in walk.fields)


def test_file_with_its_own_document_put_back_is_same_tensors(tmp_path: Path) -> None:
    for original, content in list_main_files():
        structure = find_structure(original.family, original.main, content)
        if structure.document is None or not structure.document(content):
            continue
        directory = ROOT / original.name
        path = tmp_path / original.main
        replaced = structure.replaced(content, structure.document(content))
        path.write_bytes(replaced)
        if len(original.files) == 1:
            assert open_golden(path)[0].identical(open_golden(directory / original.main)[0]), (
                original.name
            )


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (BREAKS[0], "TooLongError at"),
        (BREAKS[1], "MemoryError at"),
        (BREAKS[2], "Died: the process ended with 9"),
        (FAULTS[1], "IndexError at"),
        (FAULTS[4], "TokenError at"),
    ],
)
@FORKS
def test_limit_violations_and_other_errors_are_finds(
    fault: Fault, problem: str, tmp_path: Path
) -> None:
    finds = find_problems(fault, tmp_path, seed=0, cases=300)
    assert [find for find in finds if problem in find]


def test_command_returns_whether_it_has_finds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--workers", "1", "--most-finds", "1"]
    command += ["--format", FAULTS[1].family, "--fault", FAULTS[1].name, "--cases", "300"]
    run = subprocess.run(
        [*command, "--finds", str(tmp_path)], capture_output=True, timeout=600, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert run.returncode == 1, run.stderr
    assert read_problems(tmp_path)


@FORKS
def test_campaign_continues_after_a_process_died(tmp_path: Path) -> None:
    campaign = Campaign(seed=0, cases=60, family="vespa")
    with BREAKS[2].seeded():
        campaign.run(lambda line: None, tmp_path)
    assert campaign.done == 60
    assert len(campaign.finds) == 1


LATE = {
    "a wait without end",  # it is ended after minutes
    "embedded dims that disagree about a length",
    "lengths that are no numbers",
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[pytest.mark.nightly] if fault.name in LATE else [])
        for fault in (*FAULTS, BREAKS[3])
    ],
    ids=lambda item: item.name,
)
@FORKS
def test_faults_are_found(fault: Fault, tmp_path: Path) -> None:
    assert find_problems(fault, tmp_path, seed=1, cases=100_000)


@pytest.mark.parametrize("fault", [*FAULTS, *BREAKS], ids=lambda item: item.name)
def test_faults_can_be_seeded(fault) -> None:
    with fault.seeded():
        pass
