"""Sphinx extension that colors the options of commands in examples of a shell."""

from __future__ import annotations

from typing import ClassVar

from pygments.lexer import inherit
from pygments.lexers.shell import BashLexer, BashSessionLexer
from pygments.token import Name
from sphinx.application import Sphinx


class OptionLexer(BashLexer):
    """Bash in which options are attributes."""

    tokens: ClassVar = {"root": [(r"(?<=\s)--?[a-z][a-z-]*", Name.Attribute), inherit]}


class OptionSessionLexer(BashSessionLexer):
    """Session of a shell in which options are attributes."""

    _innerLexerCls = OptionLexer  # noqa: N815


def setup(app: Sphinx) -> dict[str, bool]:
    """Replace the lexers of blocks of a shell."""
    for name in ("sh", "bash"):
        app.add_lexer(name, OptionLexer)
    for name in ("console", "shell-session"):
        app.add_lexer(name, OptionSessionLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
