"""Check what the site looks like on dark pages: the contrast of Datasets, pictures and logos."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

DARK = re.compile(r"""\[data-theme=["']?dark["']?\]""")
MIN_CONTRAST = 4.5  # WCAG 2.2, level AA
OPAQUE = re.compile(r'<img (?![^>]*class="[^"]*(?:only-light|only-dark|dark-light))[^>]*>')
Rule = tuple[str, dict[str, str]]


def find_rules(css: str) -> Iterator[Rule]:
    """Yield the selectors of a style sheet with their declarations."""
    for selectors, block in re.findall(r"([^{}]+)\{([^{}]*)\}", re.sub(r"/\*.*?\*/", "", css)):
        pairs = (line.partition(":") for line in block.split(";") if ":" in line)
        declarations = {name.strip(): value.strip() for name, _, value in pairs}
        for selector in re.split(r",(?![^(]*\))", selectors):
            yield selector.strip(), declarations


def get_specificity(selector: str) -> tuple[int, int]:
    """Return the number of classes and attributes, and of elements. None of them has an id."""
    classes = re.findall(r"\.[\w-]+|\[[^\]]+\]", selector)
    elements = re.findall(r"(?:^|[\s>+~(])([a-z][\w-]*)", selector)
    return len(classes), len(elements)


def get_luminance(color: str) -> float:
    """Return the relative luminance of a color such as #14181e or rgba(255, 255, 255, 1)."""
    if color.startswith("#"):
        digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    else:
        parts = [float(number) / 255 for number in re.findall(r"[\d.]+", color)[:3]]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def get_contrast(first: str, second: str) -> float:
    """Return the contrast of two colors, from 1 to 21."""
    low, high = sorted(map(get_luminance, (first, second)))
    return (high + 0.05) / (low + 0.05)


def measure_repr(page: Path) -> float:
    """Return the contrast of the text of a Dataset in the output of a cell on a dark page."""
    html = page.read_text(encoding="utf-8")
    sheets = re.findall(r'rel="stylesheet"[^>]*href="([^"?#]+)|href="([^"?#]+\.css)', html)
    paths = dict.fromkeys(page.parent / (first or second) for first, second in sheets)
    rules = [rule for path in paths if path.is_file() for rule in find_rules(path.read_text())]
    rules += find_rules("".join(re.findall(r"<style>(.*?)</style>", html, flags=re.DOTALL)))
    dark = [rule for rule in rules if DARK.search(rule[0])]
    names = {k: v for _, values in dark for k, v in values.items() if k.startswith("--")}
    of_output = [(s, d) for s, d in dark if re.search(r"\.text_html(:\S+\([^ ]*\))?$", s)]
    of_output.sort(key=lambda rule: get_specificity(rule[0]))  # stable: later rules win
    background = next(d["background-color"] for _, d in of_output[::-1] if "background-color" in d)
    if background == "transparent":
        background = "var(--pst-color-background)"

    def resolve(value: str) -> str:
        while match := re.match(r"var\((--[\w-]+)(?:,\s*(.*))?\)$", value):
            value = names.get(match[1]) or match[2]
        return value

    return get_contrast(resolve("var(--xr-font-color0)"), resolve(background))


def check_site(site: Path) -> Iterator[str]:
    """Yield what is wrong with the built pages."""
    for page in sorted(site.rglob("*.html")):
        for image in OPAQUE.findall(page.read_text(encoding="utf-8")):
            yield f"{page}: dark pages need another picture than {image}"
    for page in sorted((site / "tutorials").glob("*.html")):
        if "xr-wrap" in page.read_text(encoding="utf-8"):
            contrast = measure_repr(page)
            if contrast < MIN_CONTRAST:
                yield f"{page}: the contrast of a Dataset on dark pages is {contrast:.1f}"
    home = (site / "index.html").read_text(encoding="utf-8")
    for theme in ("light", "dark"):
        logo = re.search(rf'<img src="([^"]+)" class="logo__image only-{theme}', home)
        if logo is None or not (site / logo[1]).is_file():
            yield f"{site / 'index.html'}: there is no logo for {theme} pages"


if __name__ == "__main__":
    problems = [*check_site(Path(sys.argv[1]))]
    print(*problems, sep="\n")
    sys.exit(len(problems) > 0)
