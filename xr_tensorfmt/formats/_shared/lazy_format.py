"""The base of built-in formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.file_format import Format
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.open_options import OpenOptions

if TYPE_CHECKING:
    from xr_tensorfmt.writing.checked_input import CheckedInput
    from xr_tensorfmt.writing.file_plan import FilePlan


class LazyFormat(Format):
    """A format whose modules `read`, `check` and `write` are imported when they are needed."""

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Call `read` of the module `read`."""
        container: Container = import_module(f"{self.__module__}.read").read(reader, options)
        return container

    def check(self, reader: HeaderReader, container: Container, limit: int) -> Iterator[Finding]:
        """Call `check` of the module `check`, if there is one."""
        name = f"{self.__module__}.check"
        if find_spec(name) is None:
            return iter(())
        findings: Iterator[Finding] = import_module(name).check(reader, container, limit)
        return findings

    def plan(self, checked: CheckedInput, **options: Any) -> FilePlan | Sequence[FilePlan]:
        """Call `plan` of the module `write`."""
        plan: FilePlan | Sequence[FilePlan] = import_module(f"{self.__module__}.write").plan(
            checked, **options
        )
        return plan
