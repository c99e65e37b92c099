"""``python -m tests.fuzz --seconds 60``: mutates files and keeps what it finds; see ``ci/fuzz``."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from tests.fuzz.campaign import Campaign
from tests.fuzz.cases import FINDS
from tests.fuzz.faults import BREAKS, FAULTS


def main() -> int:
    """Run a campaign. Return 1 if it has finds."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    unlimited = float("inf")
    cores = os.cpu_count() or 1
    parser.add_argument("--seconds", type=float, default=unlimited, help="stop after this time")
    parser.add_argument("--cases", type=float, default=unlimited, help="end before this one")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0, help="0 by default")
    parser.add_argument(
        "--workers", type=int, default=cores, help="processes; all cores by default"
    )
    parser.add_argument("--format", default="", help="mutate only files of this format")
    parser.add_argument(
        "--most-finds", type=int, default=20, help="stop after this number of different finds"
    )
    parser.add_argument("--finds", type=Path, default=FINDS, help="directory for finds")
    faults = {item.name: item for item in (*FAULTS, *BREAKS)}
    parser.add_argument("--fault", choices=faults, help="put this fault into the package first")
    arguments = parser.parse_args()
    campaign = Campaign(
        arguments.seed,
        arguments.seconds,
        arguments.cases,
        arguments.workers,
        arguments.format,
        arguments.most_finds,
        arguments.first,
    )
    files = sum(len(group) for family in campaign.originals for group in family)
    say(f"seed {campaign.seed}, {campaign.workers} processes, {files} golden files")
    with faults[arguments.fault].seeded() if arguments.fault else nullcontext():
        campaign.run(say, arguments.finds)
    say(campaign.summary)
    return int(bool(campaign.finds))


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
