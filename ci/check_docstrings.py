"""Check the docstrings of xr_tensorfmt against numpydoc's rules, and print what is wrong.

The checks are those of ``[tool.numpydoc_validation]`` in pyproject.toml. Modules are imported
instead of parsed, as ``numpydoc lint`` would, so that the fields of a dataclass count as its
parameters and properties need no section Returns.

A short docstring needs no sections, except for what users call. Where parameters are described,
all of them are, and what is returned as well.
"""

import importlib
import inspect
import pkgutil
import sys
import tomllib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType

from numpydoc.validate import validate

import xr_tensorfmt

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
CHECKS = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["numpydoc_validation"][
    "checks"
]
MISSING_SECTIONS = ("PR01", "RT01", "YD01")
MEMBERS = (FunctionType, classmethod, staticmethod, property, cached_property)


def is_own(thing: object, module: ModuleType) -> bool:
    """Whether a thing was made in a module, and not only named there."""
    return getattr(thing, "__module__", None) == module.__name__


def public_names(module: ModuleType) -> Iterator[str]:
    """Full names of a module's own public classes and functions, and of their public members."""
    for name, thing in vars(module).items():
        is_class = inspect.isclass(thing)
        if name.startswith("_") or not (is_class or inspect.isfunction(thing)):
            continue
        if not is_own(thing, module):
            continue
        yield f"{module.__name__}.{name}"
        for member, value in vars(thing).items() if is_class else ():
            if member.startswith("_") or not isinstance(value, MEMBERS):
                continue
            # xarray puts methods of its own making into subclasses of Variable.
            if not isinstance(value, FunctionType) or is_own(value, module):
                yield f"{module.__name__}.{name}.{member}"


def modules() -> Iterator[ModuleType]:
    """The package and all modules in it."""
    yield xr_tensorfmt
    for each in pkgutil.walk_packages(xr_tensorfmt.__path__, "xr_tensorfmt."):
        yield importlib.import_module(each.name)


def faults(name: str, users: set[str]) -> Iterator[str]:
    """What is wrong with the docstring of one name."""
    result = validate(name)
    begun = "Parameters\n----" in result["docstring"]
    called_by_users = name.rpartition(".")[0] in users
    for code, message in result["errors"]:
        needed = called_by_users or begun or code not in MISSING_SECTIONS
        is_private = code == "PR01" and "'_" in message
        if code in CHECKS and needed and not is_private:
            yield f"{result['file']}:{result['file_line']}: {name}: {code} {message}"


def main() -> int:
    """Check all, print the faults, and return how many there are."""
    here = [getattr(xr_tensorfmt, name) for name in xr_tensorfmt.__all__]
    users = {f"{each.__module__}.{each.__qualname__}" for each in here if inspect.isclass(each)}
    names = [name for module in modules() for name in public_names(module)]
    found = [fault for name in names for fault in faults(name, users)]
    print("\n".join([*found, f"{len(names)} docstrings, {len(found)} faults"]))
    return len(found)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
