"""Check that the metadata of the package are ready for a release: `check_release.py v0.1.0`."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PLACEHOLDER = "OWNER"


def find_problems(root: Path, tag: str) -> Iterator[str]:
    """Find what differs from the tag, and addresses that are placeholders."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for label, url in project["urls"].items():
        if PLACEHOLDER in url:
            yield f"pyproject.toml: {label} is {url}; replace {PLACEHOLDER} by the real owner"
    version = tag.removeprefix("v")
    patterns = {
        "xr_tensorfmt/__init__.py": rf'^__version__ = "{re.escape(version)}"$',
        "CITATION.cff": rf"^version: {re.escape(version)}$",
        "ci/recipe/recipe.yaml": rf'^  version: "{re.escape(version)}"$',
        "CHANGELOG.md": rf"^## {re.escape(version)}\b",
    }
    for path, pattern in patterns.items():
        if not re.search(pattern, (root / path).read_text(encoding="utf-8"), re.MULTILINE):
            yield f"{path}: version {version} is missing; update the file or the tag"


if __name__ == "__main__":
    problems = list(find_problems(Path(__file__).resolve().parents[1], *sys.argv[1:]))
    print(*problems, sep="\n")
    sys.exit(bool(problems))
