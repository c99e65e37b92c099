"""Faults that are inserted into the package to measure how soon they are found.

Most remove a check. The last ones exceed a limit or end the process.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A function of the package with a part of its text replaced."""

    name: str
    family: str
    module: str
    function: str
    old: str
    new: str

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Insert the fault temporarily."""
        module = importlib.import_module(f"xr_tensorfmt.{self.module}")
        *owners, name = self.function.split(".")
        owner = getattr(module, owners[0]) if owners else module
        before = vars(owner)[name]
        text = textwrap.dedent(inspect.getsource(getattr(owner, name)))
        assert text.count(self.old) == 1, f"{self.old!r} is not in {self.function} once"
        namespace = dict(vars(module))
        code = compile(
            f"from __future__ import annotations\n{text.replace(self.old, self.new)}",
            module.__file__ or "", "exec", dont_inherit=True,
        )  # fmt: skip
        # Look up names in the module itself, so that other patches apply.
        exec(code, vars(module), namespace)
        setattr(owner, name, namespace[name])
        try:
            yield
        finally:
            setattr(owner, name, before)


FAULTS = (
    Fault(
        "an unknown type of numbers", "tens", "formats.tens.spec", "TensHeader.read",
        "if number_type not in _CODES:", "if False:",
    ),
    Fault(
        "a key that is not in the pool, behind a checksum", "mag", "formats.mag.earlier",
        "_read_descriptor", " or key >= len(keys)", "",
    ),
    Fault(
        "lengths that are no numbers", "mag", "formats._shared.keyed", "parse_shape",
        " or not all(map(is_count, shape))", "",
    ),
    Fault(
        "metadata of another type, behind a checksum", "pycauset", "core.fields", "Fields.get",
        "if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):",
        "if False:",
    ),
    Fault(
        "a header that numpy's parser cannot tokenize", "npy", "formats.npy.read", "parse_array",
        "except (*_UNREADABLE, *_TOO_DEEP) as fault:", "except ValueError as fault:",
    ),
    Fault(
        "offsets that are no numbers", "safetensors", "formats.safetensors.read", "_parse",
        "type(first) is not int or type(stop) is not int", "False",
    ),
    Fault(
        "a value of YAML of another type", "cc4s", "core.fields", "Fields.get",
        "if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):",
        "if False:",
    ),
    Fault(
        "embedded dims that disagree about a length", "safetensors", "core.embedded_metadata",
        "_check_dims", "if lengths.setdefault(dim, length) != length:", "if False:",
    ),
    Fault(
        "an index beyond the tensor", "tens", "formats.tens.pairs", "Pairs.find_wrong_pairs",
        "is_wrong = ascending >= prod(self.lengths)", "is_wrong = ascending < 0",
    ),
)  # fmt: skip
"""`tests.fuzz.choices` lists how soon some of them are found."""


def _insert_where_blocks_exceed_file(name: str, statement: str) -> Fault:
    """Insert a fault that is reached if a Vespa header has more blocks than bytes."""
    function = ("vespa", "formats.vespa.spec", "VespaHeader.check_fits")
    new = f"if min_bytes > available: {statement}\n    if min_bytes > available:"
    return Fault(name, *function, "if min_bytes > available:", new)


BREAKS = (
    _insert_where_blocks_exceed_file("an endless loop", "all(iter(lambda: True, False))"),
    _insert_where_blocks_exceed_file("2 GiB of memory", "bytearray(2 << 30)"),
    _insert_where_blocks_exceed_file("the end of the process", "__import__('os')._exit(9)"),
    _insert_where_blocks_exceed_file("a wait without end", "__import__('time').sleep(1e6)"),
)
"""Faults that exceed a limit or end the process."""
