"""Check the built pages: options of the command, outputs, code, and words of the search."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from search_words import SECTIONS

from xr_tensorfmt.cli import main as command

COMMAND_PAGES = "cli/*.html"


def find_missing_options(page: str) -> Iterator[str]:
    """Yield the options of all commands that the text of the pages has no anchor for."""
    for name, subcommand in command.commands.items():
        for parameter in subcommand.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                anchor = f"cmdoption-xr-tensorfmt-{name}-{option.lstrip('-')}"
                if f'id="{anchor}"' not in page:
                    yield f"{name} {option}: the option is not on a page"


def find_lazy_values(page: str) -> Iterator[str]:
    """Yield outputs of cells that are lazy arrays of one element instead of its value."""
    for output in re.split(r'<div class="cell_output', page)[1:]:
        text = " ".join(re.sub(r"<[^>]*>", " ", output.partition(">")[2]).split())
        is_table = re.match(r"Array Chunk .{0,80}Shape \(\) \(\)", text)
        if is_table or re.match(r"dask\.array(?:&lt;|<)[^>]*shape=\(\)|Delayed\(", text):
            yield f"an output is a lazy array, expected its value: {text[:60]}"


def find_empty_blocks(page: str) -> Iterator[str]:
    """Yield a fault for each block of code without text."""
    for block in re.findall(r"<pre>(.*?)</pre>", page, flags=re.DOTALL):
        if not re.sub(r"<[^>]*>", "", block).strip():
            yield "a block of code is empty"


def find_missing_words(index: dict[str, Any]) -> Iterator[str]:
    """Yield the words that do not lead to their sections in the index of the search."""
    for word, section in SECTIONS.items():
        page, _, anchor = section.partition("#")
        files = index["indexentries"].get(word.lower(), ())
        places = {(index["docnames"][file], name) for file, name, _ in files}
        if (page, anchor) not in places:
            yield f"{word}: the search does not lead to {section}"


def find_missing_sections(root: Path) -> Iterator[str]:
    """Yield the sections of the search that the pages lack."""
    for word, section in SECTIONS.items():
        page, _, anchor = section.partition("#")
        if anchor and f'id="{anchor}"' not in (root / f"{page}.html").read_text(encoding="utf-8"):
            yield f"{word}: the page has no section {section}"


def main(root: Path) -> int:
    """Print the faults of all pages and return their number."""
    commands = "".join(path.read_text(encoding="utf-8") for path in root.glob(COMMAND_PAGES))
    faults = [f"{COMMAND_PAGES}: {fault}" for fault in find_missing_options(commands)]
    script = (root / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(script.partition("(")[2].rpartition(")")[0])
    faults += [f"searchindex.js: {fault}" for fault in find_missing_words(index)]
    faults += find_missing_sections(root)
    for path in sorted(root.rglob("*.html")):
        page = path.read_text(encoding="utf-8")
        faults += [
            f"{path}: {fault}" for fault in (*find_lazy_values(page), *find_empty_blocks(page))
        ]
    print("\n".join([*faults, f"{len(faults)} faults of options, outputs and words"]))
    return len(faults)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 1))
