"""`ci/prose` points to sentences that break the rules of CONTRIBUTING.md."""

from __future__ import annotations

import pytest
from prose import find_sentences

PAGE = """# What is read

```python
nothing is read  # here
```

The file, of which
the header is read.

- Good: the parser reads the header.
- Where it ends, stop.
| who | a table row with nothing else |
"""

MODULE = '''
def read():
    """The header of a file."""
    # As above, the data lies there.
    raise ValueError("it fails, as the file is empty")


@property
def header():
    """The header of a file."""
'''


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "page.md",
            PAGE,
            [
                (7, "split the relative clause"),
                (11, "start with the subject"),
                (12, "name the subject"),
            ],
        ),
        (
            "module.py",
            MODULE,
            [
                (5, "use 'if' or 'because'"),
                (4, "use an ordinary word"),
                (2, "start with a verb"),
            ],
        ),
    ],
)
def test_sentences_to_reconsider(name: str, text: str, expected: list[tuple[int, str]]) -> None:
    assert [(line, advice) for line, advice, _ in find_sentences(name, text)] == expected
