"""Check the built pages: options of the command, outputs, code, and words of the search."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from sphinx.search.en import SearchEnglish

from xr_tensorfmt.cli import main as command

COMMAND_PAGE = "reference/command.html"

# What users type into the search field, often in the words of other libraries.
SEARCHED_WORDS = ("MP2", "quantize", "fp8", "neighbors", "scipy", "GPU", "bfloat16", "SLURM", "S3")


def find_missing_options(page: str) -> Iterator[str]:
    """Yield the options of all commands that a page has no anchor for."""
    for name, subcommand in command.commands.items():
        for parameter in subcommand.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                anchor = f"cmdoption-xr-tensorfmt-{name}-{option.lstrip('-')}"
                if f'id="{anchor}"' not in page:
                    yield f"{name} {option}: the option is not on the page"


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


def find_missing_words(index: str) -> Iterator[str]:
    """Yield the words that the index of the search, the text of ``searchindex.js``, lacks."""
    terms = index.partition('"terms":{')[2].partition("}")[0]
    language = SearchEnglish({})
    for word in SEARCHED_WORDS:
        if f'"{language.stem(word.lower())}":' not in terms:
            yield f"{word}: the search finds no page"


def main(root: Path) -> int:
    """Print the faults of all pages and return their number."""
    faults = [
        f"{COMMAND_PAGE}: {fault}"
        for fault in find_missing_options((root / COMMAND_PAGE).read_text(encoding="utf-8"))
    ]
    index = (root / "searchindex.js").read_text(encoding="utf-8")
    faults += [f"searchindex.js: {fault}" for fault in find_missing_words(index)]
    for path in sorted(root.rglob("*.html")):
        page = path.read_text(encoding="utf-8")
        faults += [
            f"{path}: {fault}" for fault in (*find_lazy_values(page), *find_empty_blocks(page))
        ]
    print("\n".join([*faults, f"{len(faults)} faults of options, outputs and words"]))
    return len(faults)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 1))
