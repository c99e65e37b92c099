"""Faults that are inserted into the package to measure how soon they are found.

Most remove a check. The last ones exceed a limit or end the process.
"""

from __future__ import annotations

import ast
import importlib
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xr_tensorfmt

PACKAGE = Path(xr_tensorfmt.__file__).parent


@dataclass(frozen=True)
class Fault:
    """A text that occurs once in the package, and what replaces it in its function."""

    name: str
    family: str
    old: str
    new: str

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Insert the fault temporarily."""
        texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
        places = [path for path, text in texts.items() if self.old in text]
        assert len(places) == 1, f"{self.old!r} is in {len(places)} modules"
        (path,) = places
        assert texts[path].count(self.old) == 1, f"{self.old!r} is not in {path} once"
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        module = importlib.import_module(name.removesuffix(".__init__"))
        owner, function, source = _find_function(module, texts[path], self.old)
        before = vars(owner)[function]
        code = compile(
            f"from __future__ import annotations\n{source.replace(self.old, self.new)}",
            str(path), "exec", dont_inherit=True,
        )  # fmt: skip
        namespace = dict(vars(module))
        # Look up names in the module itself, so that other patches apply.
        exec(code, vars(module), namespace)
        setattr(owner, function, namespace[function])
        try:
            yield
        finally:
            setattr(owner, function, before)


def _find_function(module: Any, text: str, old: str) -> tuple[Any, str, str]:
    """Return the owner, the name and the source of the function that contains a text."""
    line = text[: text.index(old)].count("\n") + 1
    owner, body = module, ast.parse(text).body
    while True:
        (node,) = (x for x in body if x.lineno <= line <= (x.end_lineno or 0))
        if not isinstance(node, ast.ClassDef):
            break
        owner, body = getattr(owner, node.name), node.body
    assert isinstance(node, ast.FunctionDef), f"{old!r} is not in a function"
    first = min([node.lineno, *(x.lineno for x in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    return owner, node.name, textwrap.dedent("\n".join(lines))


FAULTS = (
    Fault("an unknown type of numbers", "tens", "check(number_type in _CODES,", "check(True,"),
    Fault(
        "a key that is not in the pool, behind a checksum", "mag", " or key >= len(keys)", "",
    ),
    Fault(
        "lengths that are no numbers", "mag", " or not all(map(is_count, shape))", "",
    ),
    Fault(
        "metadata of another type, behind a checksum", "pycauset",
        "if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):",
        "if False:",
    ),
    Fault(
        "a header that numpy's parser cannot tokenize", "npy",
        "except (*_UNREADABLE, *_TOO_DEEP) as fault:", "except ValueError as fault:",
    ),
    Fault(
        "offsets that are no numbers", "safetensors",
        "type(first) is not int or type(stop) is not int", "False",
    ),
    Fault(
        "a value of YAML of another type", "cc4s",
        "if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):",
        "if False:",
    ),
    Fault(
        "embedded dims that disagree about a length", "safetensors",
        "if len(lengths) > len(dict(lengths)):", "if False:",
    ),
)  # fmt: skip
"""`tests.fuzz.choices` lists how soon some of them are found."""


def _insert_where_blocks_exceed_file(name: str, statement: str) -> Fault:
    """Insert a fault that is reached if a Vespa header has more blocks than bytes."""
    return Fault(
        name, "vespa", "min_bytes <= available,", f"min_bytes <= available or {statement},"
    )


BREAKS = (
    _insert_where_blocks_exceed_file("an endless loop", "all(iter(lambda: True, False))"),
    _insert_where_blocks_exceed_file("2 GiB of memory", "bytearray(2 << 30)"),
    _insert_where_blocks_exceed_file("the end of the process", "__import__('os')._exit(9)"),
    _insert_where_blocks_exceed_file("a wait without end", "__import__('time').sleep(1e6)"),
)
"""Faults that exceed a limit or end the process."""
