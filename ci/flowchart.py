"""Sphinx directive that draws flowcharts, written with Mermaid arrows, as inline SVG."""

from __future__ import annotations

import re
from html import escape
from zlib import crc32

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

WIDTH, HEIGHT, GAP = 190, 56, 34
MIN_CHARACTER = 7.4  # pixels per character of a label
ARROW = re.compile(r"^\s*(\w+)(?:\[([^]]*)\])? --> (\w+)(?:\[([^]]*)\])?$")

Arrows = list[tuple[str, str]]


def parse_flowchart(lines: list[str]) -> tuple[dict[str, str], Arrows]:
    """Return the label of each node, and the arrows. The first label of a node is used."""
    labels: dict[str, str] = {}
    arrows = []
    for line in lines:
        if match := ARROW.match(line):
            start, start_label, end, end_label = match.groups()
            for name, label in ((start, start_label), (end, end_label)):
                if label or name not in labels:
                    labels[name] = label or name
            arrows.append((start, end))
    return labels, arrows


def reduce_arrows(arrows: Arrows) -> Arrows:
    """Omit arrows that a longer path implies."""

    def is_reachable(start: str, end: str, omitted: tuple[str, str]) -> bool:
        following = [arrow for arrow in arrows if arrow[0] == start and arrow != omitted]
        return any(b == end or is_reachable(b, end, omitted) for _, b in following)

    return [arrow for arrow in arrows if not is_reachable(*arrow, omitted=arrow)]


def compute_rows(labels: dict[str, str], arrows: Arrows) -> list[list[str]]:
    """Return the nodes by row: a node is below all nodes that have an arrow to it."""
    depth = dict.fromkeys(labels, 0)
    for _ in labels:
        for start, end in arrows:
            depth[end] = max(depth[end], depth[start] + 1)
    return [
        [name for name in labels if depth[name] == row] for row in range(max(depth.values()) + 1)
    ]


def draw_flowchart(source: list[str], alt: str) -> str:
    """Return a flowchart as SVG that takes its colors from the text around it."""
    labels, arrows = parse_flowchart(source)
    arrows = reduce_arrows(arrows)
    rows = compute_rows(labels, arrows)
    texts = {name: label.split("<br>") for name, label in labels.items()}
    longest = max(len(line) for text in texts.values() for line in text)
    width = max(WIDTH, int(longest * MIN_CHARACTER) + 24)
    total = max(len(row) for row in rows) * (width + GAP) + GAP
    center = {
        name: (
            total / 2 + (column - (len(row) - 1) / 2) * (width + GAP),
            (HEIGHT + GAP) / 2 + number * (HEIGHT + GAP),
        )
        for number, row in enumerate(rows)
        for column, name in enumerate(row)
    }
    marker = f"arrow-{crc32(alt.encode())}"  # unique on a page
    height = len(rows) * (HEIGHT + GAP)
    lines = [
        f'<svg viewBox="0 0 {total} {height}" style="max-width:{total}px;width:100%" role="img"',
        f' aria-label="{escape(alt)}" font-size="14" fill="currentColor" stroke="currentColor">',
        f'<defs><marker id="{marker}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"',
        ' markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" stroke="none"/></marker></defs>',
    ]
    for start, end in arrows:
        (x1, y1), (x2, y2) = center[start], center[end]
        lines.append(f'<line x1="{x1}" y1="{y1 + HEIGHT / 2}" x2="{x2}" y2="{y2 - HEIGHT / 2}"')
        lines.append(f' marker-end="url(#{marker})"/>')
    for name, (x, y) in center.items():
        lines.append(f'<rect x="{x - width / 2}" y="{y - HEIGHT / 2}" width="{width}"')
        lines.append(f' height="{HEIGHT}" rx="6" fill="none"/>')
        for number, text in enumerate(texts[name]):
            line_y = y + 5 + (number - (len(texts[name]) - 1) / 2) * 18
            lines.append(f'<text x="{x}" y="{line_y}" text-anchor="middle" stroke="none">')
            lines.append(f"{escape(text)}</text>")
    return "".join([*lines, "</svg>"])


class Flowchart(Directive):
    """A flowchart whose content is the arrows, one a line; the argument is its description."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the SVG for HTML."""
        return [nodes.raw("", draw_flowchart(list(self.content), self.arguments[0]), format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("flowchart", Flowchart)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
