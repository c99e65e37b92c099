"""Check that links within the built documentation lead to a page and to a place on it.

Sphinx checks references; this checks what is in the pages: hrefs, anchors and pictures.
"""

import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The places of a page, and where its links lead."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids, links and pictures."""
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.places.add(value)
            elif value and name in ("href", "src"):
                self.links.add(value)


page = cache(Page)


def broken(path: Path) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for link in sorted(page(path).links):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        place = unquote(parts.fragment) if target.suffix == ".html" else ""
        if not target.exists():
            yield f"{path}: {link}: there is no such file"
        elif place and place not in page(target).places:
            yield f"{path}: {link}: there is no such place on the page"


def main(root: Path) -> int:
    """Check all pages, print what is broken, and return how much that is."""
    pages = [each for each in sorted(root.resolve().rglob("*.html")) if "_static" not in each.parts]
    found = [line for each in pages for line in broken(each)]
    print("\n".join([*found, f"{len(pages)} pages, {len(found)} broken links"]))
    return len(found)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 1))
