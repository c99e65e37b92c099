"""The command on a terminal."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import pytest

from tests.commands import save
from xr_tensorfmt.cli.common import print_message
from xr_tensorfmt.tutorial import get_path

fcntl = pytest.importorskip("fcntl", reason="this system has no pseudoterminals")
pty = pytest.importorskip("pty")
termios = pytest.importorskip("termios")

pytestmark = pytest.mark.usefixtures("working_directory")


COMMANDS = """
import sys
from xr_tensorfmt.cli import main

for command in sys.argv[1:]:
    try:
        main(command.split())
    except SystemExit as end:
        assert not end.code
    print("END", end="", file=sys.stderr, flush=True)
"""


def run_in_terminal(*commands: str) -> list[str]:
    """Return the outputs of commands on a terminal of 100 columns."""
    main_end, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    arguments = [sys.executable, "-c", COMMANDS, *commands]
    subprocess.run(arguments, stderr=terminal, check=True, timeout=300)
    os.close(terminal)
    output = b""
    while output.count(b"END") < len(commands):
        output += os.read(main_end, 4096)
    os.close(main_end)
    return output.decode().split("END")[:-1]


def test_terminal_shows_bar_of_one_line_that_quiet_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    save()
    monkeypatch.setenv("DASK_ARRAY__CHUNK_SIZE", "16B")  # several chunks
    targets = ["b.mag", "b.zarr", "b.nc"]
    commands = [f"convert a.mag {target}" for target in targets]
    *outputs, quiet = run_in_terminal(*commands, "convert a.mag c.mag --quiet")
    for target, output in zip(targets, outputs, strict=True):
        assert "\n" not in output
        shown = output.split("\r")
        assert any(line.startswith(f"{target}: ") for line in shown)
        assert not shown[-1]
        assert max(map(len, shown)) <= 100
    assert quiet == ""


def test_progress_is_hidden_in_pipes() -> None:
    save()
    command = [sys.executable, "-m", "xr_tensorfmt", "convert", "a.mag", "b.mag"]
    output = subprocess.run(command, capture_output=True, check=True, timeout=300)
    assert (output.stdout, output.stderr) == (b"", b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_full_output_is_no_difference() -> None:
    save()
    command = [sys.executable, "-m", "xr_tensorfmt", "diff", "a.mag", "a.mag"]
    with open("/dev/full", "w") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=300)
    assert run.returncode == 2
    assert run.stderr.startswith(b"Error: the output was not written: ")
    assert run.stderr.count(b"\n") == 1


@pytest.mark.parametrize("arguments", [["convert", "--help"], ["info", str(get_path("circle"))]])
def test_commands_import_only_what_they_need(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom xr_tensorfmt.cli import main\n"
        f"try: main({arguments})\nexcept SystemExit: pass\n"
        "assert sys.modules.keys().isdisjoint(['tqdm', 'dask.array'])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)


def test_errors_are_wrapped_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    message = "Error: " + " ".join(f"word-{number}" for number in range(40)) + " " + "x" * 90
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        print_message(message)
        lines = capsys.readouterr().err.splitlines()
        assert " ".join(map(str.strip, lines)) == message
        assert (len(lines) > 1) == is_terminal
        assert not is_terminal or max(map(len, lines[:-1])) <= 80
