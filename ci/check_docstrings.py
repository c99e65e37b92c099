"""Check the docstrings of the public API against numpydoc's rules, and print what is wrong.

The rules are those of ``[tool.numpydoc_validation]`` in pyproject.toml. What is private has one
line and is not looked at. What stands in ``xr_tensorfmt.__all__`` needs an example as well.
"""

import inspect
import sys
import tomllib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

from numpydoc.validate import validate

import xr_tensorfmt
from xr_tensorfmt import accessor, contract, testing, virtual
from xr_tensorfmt.datasets import explanation

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
CHECKS = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["numpydoc_validation"][
    "checks"
]
USED = [getattr(xr_tensorfmt, name) for name in xr_tensorfmt.__all__ if name != "__version__"]
OFFERED = [getattr(contract, name) for name in contract.DOCUMENTED if name != "CONTRACT_VERSION"]
VIRTUAL = [virtual.TensorFormatParser, virtual.to_kerchunk]
OTHERS = [
    accessor.TensorFormatAccessor,
    explanation.Explanation,
    *(getattr(testing, name) for name in testing.__all__),
]
MEMBERS = (FunctionType, classmethod, staticmethod, property, cached_property)


def names_of(thing: Any) -> Iterator[str]:
    """The name of a class or function, and those of the public members of a class."""
    name = f"{thing.__module__}.{thing.__qualname__}"
    yield name
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            if not member.startswith("_") and isinstance(value, MEMBERS):
                yield f"{name}.{member}"


def faults(name: str, *, example: bool) -> Iterator[str]:
    """What is wrong with the docstring of one name."""
    result = validate(name)
    docstring = result["docstring"]
    short = "\n\n" not in docstring.strip()
    for code, message in result["errors"]:
        # Members may have one line; where there are sections, all of them are asked for.
        missing = code in ("PR01", "RT01", "YD01") and short and not example
        # What gives values one by one may return an iterator that it does not make itself.
        yields = code == "RT01" and "Yields\n------" in docstring.replace("    ", "")
        if code in CHECKS and not missing and not yields:
            yield f"{result['file']}:{result['file_line']}: {name}: {code} {message}"
    if example and "Examples\n--------" not in docstring:
        yield f"{result['file']}:{result['file_line']}: {name}: it has no example"


def main() -> int:
    """Check all, print the faults, and return how many there are."""
    functions = [thing for thing in (*USED, *VIRTUAL) if inspect.isfunction(thing)]
    found, count = [], 0
    for thing in dict.fromkeys([*USED, *OFFERED, *VIRTUAL, *OTHERS]):
        for name in names_of(thing):
            count += 1
            found += faults(name, example=thing in functions)
    print("\n".join([*found, f"{count} docstrings, {len(found)} faults"]))
    return len(found)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
