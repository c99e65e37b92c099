"""The sections of the benchmark in the order of the page."""

from __future__ import annotations

from typing import cast

from benchmark.job import Section
from benchmark.sections import bits, labels, local, opening, remote, writing

SECTIONS: dict[str, Section] = {
    "local": cast("Section", local),
    "open": cast("Section", opening),
    "bits": cast("Section", bits),
    "labels": cast("Section", labels),
    "remote": cast("Section", remote),
    "write": cast("Section", writing),
}
