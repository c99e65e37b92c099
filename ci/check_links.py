"""Check that links in the built documentation lead to a page and to an anchor on it.

Sphinx checks references. This script checks the pages: links, anchors and pictures.
"""

import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Anchors and links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect ids, links and pictures."""
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.add(value)


parse_page = cache(Page)


def find_broken_links(path: Path) -> Iterator[str]:
    """Yield the links of a page to missing files and anchors."""
    for link in sorted(parse_page(path).links):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        anchor = unquote(parts.fragment) if target.suffix == ".html" else ""
        if not target.exists():
            yield f"{path}: {link}: the file does not exist"
        elif anchor and anchor not in parse_page(target).anchors:
            yield f"{path}: {link}: the page has no such anchor"


def main(root: Path) -> int:
    """Print the broken links of all pages and return their number."""
    pages = [path for path in sorted(root.resolve().rglob("*.html")) if "_static" not in path.parts]
    broken = [link for path in pages for link in find_broken_links(path)]
    print("\n".join([*broken, f"{len(pages)} pages, {len(broken)} broken links"]))
    return len(broken)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 1))
