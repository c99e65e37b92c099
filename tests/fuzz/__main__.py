"""``python -m tests.fuzz --seconds 60``: mutates files, and says what it found; see ``ci/fuzz``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.fuzz.campaign import Campaign
from tests.fuzz.cases import FINDS


def main() -> int:
    """Run a campaign; 1 if there were finds."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most so long")
    parser.add_argument("--cases", type=float, default=float("inf"), help="at most so many cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--format", default="", help="files of this format alone")
    parser.add_argument("--finds", type=Path, default=FINDS, help="where finds are kept")
    arguments = parser.parse_args()
    campaign = Campaign(
        arguments.seed, arguments.seconds, arguments.cases, arguments.workers, arguments.format
    )
    print(f"seed {campaign.seed}, {campaign.workers} processes, "
          f"{len(campaign.originals)} golden files")
    campaign.run(lambda line: print(line, flush=True))
    for find in campaign.finds.values():
        print(f"kept in {campaign.keep(find, arguments.finds)}")
    rate = campaign.done / max(campaign.taken, 1e-9)
    print(f"{campaign.done} cases in {campaign.taken:.0f} s, {rate:.0f} a second; "
          f"{len(campaign.finds)} finds")
    return int(bool(campaign.finds))


if __name__ == "__main__":
    sys.exit(main())
