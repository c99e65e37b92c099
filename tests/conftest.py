from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import settings

from tests.paths import ROOT

if TYPE_CHECKING:
    from tests.servers import HttpStore, S3Store

# Without this, their failed assertions do not show the compared values.
pytest.register_assert_rewrite(
    *(f"tests.{name}" for name in ("commands", "findings", "lazyarrays", "processes", "work"))
)

# Examples are few, the same on every machine, and have no time limit.
# `XR_TENSORFMT_HYPOTHESIS=nightly` tries many others.
settings.register_profile(
    "project", deadline=None, derandomize=True, max_examples=30, print_blob=True
)
settings.register_profile("nightly", deadline=None, max_examples=500, print_blob=True)
settings.load_profile(os.environ.get("XR_TENSORFMT_HYPOTHESIS", "project"))

# A shell starts background jobs with SIGINT ignored, and the processes of tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Markers of whole modules and directories. `sh ci/test quick` leaves these tests out.
MARKERS = {
    "cluster": {"sources/test_clusters.py", "writing/test_clusters.py"},
    "store": {
        "sources/test_caches.py", "sources/test_clouds.py", "sources/test_faults.py",
        "sources/test_object_stores.py", "sources/test_remote.py",
        "sources/test_remote_versions.py", "sources/test_secrets.py", "virtual",
        "workflows/test_keys_and_urls.py", "writing/test_remote.py",
    },
    "docs": {
        "formats/cc4s/test_tutorial.py", "project/test_benchmark.py",
        "project/test_docstrings.py", "project/test_readme.py", "project/test_site.py",
    },
    "slow": {
        "cli/test_batch.py", "cli/test_diff.py", "cli/test_stores.py", "cli/test_terminal.py",
        "core/test_reads.py", "datasets/test_dask.py", "datasets/test_explain.py",
        "formats/cc4s/test_calculation.py", "formats/pycauset/test_causal_sets.py",
        "formats/pycauset/test_package.py", "formats/pycauset/test_packed.py",
        "formats/pycauset/test_popcount.py", "formats/pycauset/test_read.py",
        "formats/pycauset/test_subposets.py", "formats/test_hostile.py",
        "formats/test_third_party.py", "formats/vespa/test_blocks.py", "fuzz",
        "project/test_architecture.py", "project/test_format_tables.py",
        "project/test_private_names.py", "sources/test_extras.py", "sources/test_fork.py",
        "sources/test_names.py", "sources/test_requests.py", "sources/test_unchanged.py",
        "workflows", "writing/test_attributes.py", "writing/test_faults.py",
        "writing/test_injected_faults.py", "writing/test_killed.py", "writing/test_round_trips.py",
        "writing/test_signals.py",
    },
}  # fmt: skip
STORE_FIXTURES = {"http", "s3"}
QUICK = "not (cluster or docs or nightly or property or slow or store)"

UNTRACKED = pytest.StashKey[set[str]]()
CONFORMANCE = os.environ.get("XR_TENSORFMT_CONFORMANCE")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help=f"run only tests that are {QUICK}")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.quick:
        config.option.markexpr = QUICK
    config.stash[UNTRACKED] = find_untracked_files()
    gc.disable()


def find_untracked_files() -> set[str]:
    """Return the files of the checkout that are neither tracked nor ignored by git."""
    command = ["git", "ls-files", "--others", "--exclude-standard"]
    result = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    return set(result.stdout.splitlines())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if the run left a file in the checkout."""
    is_worker = hasattr(session.config, "workerinput")
    left = set() if is_worker else find_untracked_files() - session.config.stash[UNTRACKED]
    if left:
        sys.stderr.write(f"\nThe tests left files in the checkout: {', '.join(sorted(left))}\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@cache
def find_markers(path: Path) -> list[str]:
    """Return the markers of all tests in a module or directory."""
    place = path.relative_to(ROOT / "tests")
    places = {place.as_posix(), *(parent.as_posix() for parent in place.parents)}
    return [marker for marker, marked in MARKERS.items() if places & marked]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # Importing modules, and rewriting their assertions, takes seconds.
    return True if config.option.quick and find_markers(collection_path) else None


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by their markers
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    for item in items:
        for marker in find_markers(item.path):
            item.add_marker(marker)
        if STORE_FIXTURES & set(item.fixturenames):
            item.add_marker("store")
        if "conformance" in item.fixturenames or item.name.startswith("test_mutated_files"):
            item.add_marker("slow")
        if hasattr(item.obj, "hypothesis"):
            item.add_marker("property")
    # The longest tests start first, so that the last ones are short.
    items.sort(key=lambda item: "cluster" not in item.keywords)
    # The objects of 9,000 tests stay, so searching them for garbage again and again is in vain.
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Function) -> None:
    """Undo the patches of a test, such as of `os.unlink`, before its directory is removed."""
    if "monkeypatch" in item.funcargs:
        item.funcargs["monkeypatch"].undo()


@pytest.fixture
def conformance() -> Path:
    """The directory of real files, which are not distributed."""
    if CONFORMANCE is None:
        pytest.skip("XR_TENSORFMT_CONFORMANCE does not name a directory of real files")
    return Path(CONFORMANCE)


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def always_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Map windows of any size, so that small files are read like large ones."""
    monkeypatch.setattr("xr_tensorfmt.sources.local._MIN_WINDOW", 1)


@pytest.fixture(autouse=True, scope="session")
def without_waiting() -> Iterator[None]:
    """Retry failed requests without a pause, and do not wait for the disk."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("xr_tensorfmt.sources.requests.FIRST_PAUSE", 0.001)
        monkeypatch.setattr(os, "fsync", os.fstat)  # both raise if the file is closed
        yield


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    """The empty memory file system of fsspec."""
    MemoryFileSystem.store.clear()
    yield MemoryFileSystem()
    MemoryFileSystem.store.clear()


@pytest.fixture
def http() -> Iterator[HttpStore]:
    """An HTTP server on loopback."""
    from tests.servers import HttpStore  # noqa: PLC0415  # its packages take their time

    with HttpStore().running() as store:
        yield store


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Store]:
    """An S3 server on loopback."""
    from tests.servers import S3Store  # noqa: PLC0415

    with S3Store().running() as store:
        yield store
