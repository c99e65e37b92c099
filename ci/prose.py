"""Print sentences of docstrings, comments, messages and pages that may need another look.

Usage: python ci/prose.py FILE.... CONTRIBUTING.md explains the rules. The output is advice, so the
exit code is 0.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

RULES = {
    "split the relative clause": r"\b(?:of|in|to|by|for|from|with|on|at) (?:which|whom|whose)\b",
    "start with the subject": r"^(?:What|Where|Who|Whoever|Whatever) (?!to\b)(?!.*\?$)",
    "use 'if' or 'because'": r", (?:where|as) (?:it|this|that|they|the|there|an?|no)\b",
    "name the noun": r"\b(?:those (?:of|that)|the one that|that of|ones that)\b",
    "name the subject": r"^(?:Nothing|Nobody|None|Neither)\b|\bnothing (?:is|was|else)\b",
    "use an ordinary word": r"\b(?:beside|mend(?:ed)?|lies|stands|way out|anew|comes? back)\b",
    "use 'there is'": r"\b(?:what|that|which|if|as) (?:is|are|was|were) there\b",
    "repeat the noun": r"\b(?:it|they|them)\b.*\b(?:it|they|them)\b.*\b(?:it|they|them)\b",
}
NOUN_START = re.compile(r"(?:The|A|An|Whether|What|How|Which)\b")
Advice = tuple[int, str, str]


def find_python_passages(text: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings, messages and comments of a module with their lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            prose = re.sub(r"^\s*(?:>>>|\.\.\.).*", "", node.value, flags=re.MULTILINE)
            yield from ((node.lineno, part) for part in re.split(r"\n\s*\n", prose))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def find_markdown_passages(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, list items and table rows outside of code with their lines."""
    text = re.sub(r"(?ms)^```.*?^```", lambda code: "\n" * code[0].count("\n"), text)
    for match in re.finditer(r"(?m)(?:^(?![#|:]).*\S.*\n?(?![-*|] ))+|^\|.*", text):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def find_noun_summaries(text: str) -> Iterator[Advice]:
    """Yield the docstring summaries of functions that do not start with a verb."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            is_property = any("property" in ast.unparse(name) for name in node.decorator_list)
            if NOUN_START.match(summary) and not is_property:
                yield node.lineno, "start with a verb", summary


def find_sentences(name: str, text: str) -> Iterator[Advice]:
    """Yield line, advice and sentence for the content of a .py or .md file."""
    find = find_python_passages if name.endswith(".py") else find_markdown_passages
    for line, passage in find(text):
        prose = re.sub(r"``[^`]*``|`[^`]*`", "X", " ".join(passage.split()).lstrip("-* "))
        for sentence in re.split(r"(?<=[.!?:;]) ", prose):
            advice = [key for key, rule in RULES.items() if re.search(rule, sentence)]
            yield from ((line, key, sentence) for key in advice)
    if name.endswith(".py"):
        yield from find_noun_summaries(text)


def main(names: list[str]) -> None:
    """Print the advice for .py and .md files."""
    for name in names:
        for line, advice, sentence in find_sentences(name, Path(name).read_text(encoding="utf-8")):
            print(f"{name}:{line}: {advice}: {sentence[:160]}")


if __name__ == "__main__":
    main(sys.argv[1:])
