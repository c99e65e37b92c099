"""The sections of the benchmark in the order of the page.

A section is a module. `provide` is a context manager that writes its files and runs its servers,
and `get_jobs` returns its jobs. All sizes are divided by `scale`.
"""

from __future__ import annotations

from types import ModuleType

from benchmark.sections import bits, labels, local, opening, remote, writing

SECTIONS: dict[str, ModuleType] = {
    "local": local,
    "open": opening,
    "bits": bits,
    "labels": labels,
    "remote": remote,
    "write": writing,
}
