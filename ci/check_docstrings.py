"""Check the docstrings of the public API against numpydoc's rules, and print the faults.

``[tool.numpydoc_validation]`` in pyproject.toml selects the rules. Private names are not checked.
Public functions also need an example.
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
from xr_tensorfmt import accessor, cc4s, contract, pycauset, testing, vespa, virtual

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
CHECKS = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["numpydoc_validation"][
    "checks"
]
USED = [getattr(xr_tensorfmt, name) for name in xr_tensorfmt.__all__ if name != "__version__"]
OFFERED = [getattr(contract, name) for name in contract.__all__ if name != "CONTRACT_VERSION"]
MODULES = [
    *(getattr(module, name) for module in (cc4s, pycauset, vespa) for name in module.__all__),
    virtual.TensorFormatParser,
]
OTHERS = [
    accessor.TensorFormatAccessor,
    *(getattr(testing, name) for name in testing.__all__),
]
MEMBERS = (FunctionType, classmethod, staticmethod, property, cached_property)


def list_names(thing: Any) -> Iterator[str]:
    """Yield the name of a class or function, and the names of public members of a class."""
    name = f"{thing.__module__}.{thing.__qualname__}"
    yield name
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            if not member.startswith("_") and isinstance(value, MEMBERS):
                yield f"{name}.{member}"


def find_faults(name: str, *, example: bool) -> Iterator[str]:
    """Yield the faults of the docstring of a name."""
    result = validate(name)
    docstring = result["docstring"]
    short = "\n\n" not in docstring.strip()
    for code, message in result["errors"]:
        # A docstring of one line needs no sections. Otherwise all sections are required.
        missing = code in ("PR01", "RT01", "YD01") and short and not example
        # A function that returns an iterator may document the values under "Yields".
        yields = code == "RT01" and "Yields\n------" in docstring.replace("    ", "")
        if code in CHECKS and not missing and not yields:
            yield f"{result['file']}:{result['file_line']}: {name}: {code} {message}"
    if example and "Examples\n--------" not in docstring:
        yield f"{result['file']}:{result['file_line']}: {name}: the docstring has no example"


def main() -> int:
    """Print the faults of all docstrings and return their number."""
    functions = [thing for thing in (*USED, *MODULES) if inspect.isfunction(thing)]
    faults, count = [], 0
    for thing in dict.fromkeys([*USED, *OFFERED, *MODULES, *OTHERS]):
        for name in list_names(thing):
            count += 1
            faults += find_faults(name, example=thing in functions)
    print("\n".join([*faults, f"{count} docstrings, {len(faults)} faults"]))
    return len(faults)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
