"""Print pip constraints for the lowest versions that pyproject.toml admits.

Of the core dependencies and the dependency group ``test``; only the standard library is needed.
"""

import re
import sys
import tomllib
from pathlib import Path


def lowest(requirement: str) -> str:
    """``"numpy>=2.0.0"`` as ``"numpy==2.0.0"``; what stands after a semicolon stays."""
    # A constraint has no extras: "moto[server]" is "moto" there.
    pattern = r"([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?(>=|==)([0-9.]+)( *;.*)?"
    match = re.fullmatch(pattern, requirement)
    if match is None:
        raise SystemExit(f"{requirement!r} is not of the form name>=version or name==version")
    name, _, version, marker = match.groups(default="")
    return f"{name}=={version}{marker}"


pyproject = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
for each in (*pyproject["project"]["dependencies"], *pyproject["dependency-groups"]["test"]):
    print(lowest(each))
