"""Mutations of lengths, counts, offsets, versions and documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tests.fuzz.choices import Choices, choose_often, pick
from tests.fuzz.structure import (
    Field,
    Structure,
    Walk,
    find_structure,
    make_zip,
    parse,
    patch,
    unparse,
)

MAX_BYTES = 1 << 17
"""Limit on a mutated file: time should go into many small ones."""

MAX_NESTED = 150
"""Twice the limit on nesting: copies and writers of trees are recursive."""


@dataclass(frozen=True)
class Original:
    """A golden file and its siblings, by paths relative to its directory."""

    name: str
    family: str
    main: str
    files: Mapping[str, bytes]
    is_generated: bool = True

    @cached_property
    def changeable(self) -> list[str]:
        """Paths of the files. The main file occurs several times."""
        return [*self.files, *[self.main] * (2 * len(self.files) - 1)]


def mutate(original: Original, choices: Choices) -> dict[str, bytes]:
    """Mutate the files of a case."""
    files = dict(original.files)
    for _ in range(1 + choose_often(choices, 1, 8)):
        path = pick(choices, original.changeable)
        files[path] = mutate_file(original.family, path, files[path], choices)[:MAX_BYTES]
    return files


def mutate_file(family: str, name: str, content: bytes, choices: Choices) -> bytes:
    structure = find_structure(family, name, content)
    if structure.members is not None and choose_often(choices, 2, 3):
        return _mutate_member(family, structure, content, choices)
    steps = 1
    while steps < 6 and choose_often(choices, 2, 5):
        steps += 1
    for _ in range(steps):
        content = _mutate_step(structure, content, choices)
    return structure.repair(content) if choose_often(choices, 15, 16) else content


def _mutate_member(family: str, structure: Structure, content: bytes, choices: Choices) -> bytes:
    assert structure.members is not None
    members = structure.members(content)
    if not members:
        return content
    number = choices.below(len(members))
    name, raw = members[number]
    if name.endswith((".npy", ".json")):
        raw = mutate_file(family, name, raw, choices)
    else:
        raw = _mutate_bytes(raw, Walk(raw), choices)
    members[number] = (name, raw)
    if choose_often(choices, 1, 8):
        members.append(pick(choices, members))
    return make_zip(members)


def _mutate_step(structure: Structure, content: bytes, choices: Choices) -> bytes:
    walk = _walk(structure, content)
    if structure.document is not None and choose_often(choices, 1, 2):
        with suppress(Exception):  # a header that is damaged already
            document = structure.document(content)
            if document:
                return structure.replaced(content, _mutate_document(structure, document, choices))
    if len(walk.marks) > 1 and choose_often(choices, 1, 6):
        return _mutate_records(content, walk, choices)
    if walk.fields and choose_often(choices, 4, 5):
        return _mutate_fields(content, walk, choices)
    return _mutate_bytes(content, walk, choices)


@lru_cache(maxsize=512)
def _walk(structure: Structure, content: bytes) -> Walk:
    return structure.walked(content)


def _mutate_fields(content: bytes, walk: Walk, choices: Choices) -> bytes:
    one = pick(choices, walk.fields)
    way = choices.below(8)
    if way == 0:  # two fields change places
        other = pick(choices, walk.fields)
        first, second = one.value(content), other.value(content)
        return _replace_bytes(_replace_bytes(content, one, second), other, first)
    if way == 1:  # move a factor from one field to another, which keeps the product of lengths
        other, factor = pick(choices, walk.fields), 1 << choices.below(40)
        grown = _replace_bytes(content, one, one.value(content) * factor)
        return _replace_bytes(grown, other, other.value(content) // factor)
    if way == 2:  # a run of fields gets the same value
        start = walk.fields.index(one)
        value = _choose_number(content, one, walk, choices)
        for field in walk.fields[start : start + 1 + choices.below(4)]:
            content = _replace_bytes(content, field, value)
        return content
    return _replace_bytes(content, one, _choose_number(content, one, walk, choices))


def _mutate_records(content: bytes, walk: Walk, choices: Choices) -> bytes:
    """Repeat or omit a record, and sometimes adjust the count."""
    number = choices.below(len(walk.marks) - 1)
    start, stop = walk.marks[number : number + 2]
    copies = pick(choices, [0, 2, 3, 33, 65])
    counts = [field for field in walk.fields if field.start < start and field.size < 8]
    if counts and start < stop and choose_often(choices, 3, 4):
        likely = [count for count in counts if count.value(content) == len(walk.marks) - 1]
        count = pick(choices, likely if likely and choose_often(choices, 3, 4) else counts)
        content = _replace_bytes(content, count, count.value(content) + copies - 1)
    return content[:start] + content[start:stop] * copies + content[max(start, stop) :]


def _replace_bytes(content: bytes, field: Field, value: int) -> bytes:
    return patch(content, field.start, field.packed(value))


def _choose_number(content: bytes, field: Field, walk: Walk, choices: Choices) -> int:
    value, bits = field.value(content), 8 * field.size
    way = choices.below(8)
    if way == 0:
        return choices.below(17)
    if way == 1:
        return value + choices.below(17) - 8
    if way == 2:
        return (1 << choices.below(bits + 1)) + choices.below(3) - 1
    if way == 3:
        return value ^ (1 << choices.below(bits))
    if way == 4:
        return pick(choices, walk.fields).value(content)
    if way == 5:
        return len(content) + choices.below(17) - 8 - pick(choices, [0, field.start, walk.at])
    if way == 6:
        return pick(choices, [value * 2, value // 2, value * 3, -value, value << 32, value << 16])
    return choices.below(1 << min(bits, 62))


def _mutate_bytes(content: bytes, walk: Walk, choices: Choices) -> bytes:
    """Flip, omit, repeat or cut bytes of unknown meaning."""
    places = [*walk.marks, *(field.start for field in walk.fields[:8]), 0, len(content)]
    start = (
        pick(choices, places) if choose_often(choices, 1, 2) else choices.below(len(content) + 1)
    )
    length = choices.below(9) if choose_often(choices, 1, 2) else choices.below(len(content) + 1)
    stop = min(len(content), start + length)
    way = choices.below(7)
    if way == 0 and start < len(content):
        return patch(content, start, bytes([content[start] ^ (1 << choices.below(8))]))
    if way == 1:
        return content[:start] + content[stop:]
    if way == 2:
        return content[:stop] + content[start:stop] * (1 + choices.below(3)) + content[stop:]
    if way == 3:
        return content[:start]
    if way == 4:
        filler = bytes([pick(choices, [0, 0xFF, 0x80, 0x20, 0x7B])])
        return content[:start] + filler * length + content[start:]
    filler = bytes([choices.below(256)]) if way == 5 else pick(choices, [b"\0", b"\xff", b"\x7f"])
    return content[:start] + filler * (stop - start) + content[stop:]


STRINGS = (
    "", "a", "x" * 300, "\0", "\N{SNOWMAN}", "\ud800", "/", "..", "../a", "a/b", "a.b", "%", "nan",
    "inf", "-inf", "1e999", "null", "block", "component", "tensor", "dim_0", "__metadata__",
    "xr_tensorfmt", "time", "units", "days since 2001-01-01", "_FillValue", "datetime64[ns]",
    "<f8", ">i4", "|O", "S99999999999", "<M8[ns]", "F32", "BF16", "I64", "BOOL", "float32", "BIT",
    "BLOCK", "IDENTITY", "DIAGONAL", "SYMMETRIC", "VECTOR", "CAUSAL", "TRIANGULAR_FLOAT",
    "DENSE_FLOAT", "FLOAT64", "COMPLEX_FLOAT16", "tensor(x{})", "tensor<float>(x[3],y{})",
)  # fmt: skip

VALUES: tuple[Any, ...] = (
    None, True, False, [], {}, "", 0, -1, 1, 0.5, -0.0, float("nan"), float("inf"), -float("inf"),
    1e300, 10**30, -(10**30), 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
    [0], [[]], {"a": 1}, [None],
)  # fmt: skip


def _mutate_document(structure: Structure, document: bytes, choices: Choices) -> bytes:
    if structure.tree != "text" and choose_often(choices, 7, 8):
        try:
            tree = _make_tree(structure, document)
        except ValueError:
            return _mutate_text(document, choices)
        if _measure_depth(tree) <= MAX_NESTED:
            return unparse(structure, mutate_tree(deepcopy(tree), choices))
    return _mutate_text(document, choices)


def _measure_depth(tree: Any) -> int:
    """Return the nesting of lists and dicts."""
    depth, level = -1, [[tree]]
    while level:
        depth += 1
        inner = [list(value.values()) if isinstance(value, dict) else value for value in level]
        level = [value for some in inner for value in some if isinstance(value, list | dict)]
    return depth


@lru_cache(maxsize=512)
def _make_tree(structure: Structure, document: bytes) -> Any:
    return parse(structure, document)


def mutate_tree(tree: Any, choices: Choices) -> Any:
    """Replace, omit, repeat, rename or move a node of a tree."""
    root = [tree]
    nodes: list[tuple[Any, Any]] = []
    _collect(root, nodes, 0)
    within = [(container, key) for container, key in nodes if _is_json(container[key])]
    container, key = pick(choices, within if within and choose_often(choices, 1, 2) else nodes)
    value = container[key]
    if _is_json(value) and choose_often(choices, 7, 8):
        inner = _mutate_document(_JSON_WITHIN, value.encode("utf-8", "surrogatepass"), choices)
        container[key] = inner.decode("utf-8", "replace")
        return root[0]
    if not _is_removed_or_repeated(container, key, root, choices):
        container[key] = deepcopy(_change(value, nodes, choices))
    return root[0]


def _is_removed_or_repeated(container: Any, key: Any, root: Any, choices: Choices) -> bool:
    """Omit, repeat or rename a node. Return False to change its value instead."""
    way, value = choices.below(12), container[key]
    if way == 0 and container is not root:
        del container[key]
    elif way == 1 and isinstance(container, list) and container is not root:
        container.insert(key, deepcopy(value))
    elif way == 2 and isinstance(container, dict):
        container[_choose_name(key, container, choices)] = container.pop(key)
    elif way == 3 and isinstance(container, dict):
        container[_choose_name(key, container, choices)] = deepcopy(value)
    else:
        return False
    return True


def _change(value: Any, nodes: list[tuple[Any, Any]], choices: Choices) -> Any:
    """Return another value: of the same type, of another node, of any type, or nested."""
    # Names of dims, keys and dtypes are mixed up more often than others.
    way = 1 if isinstance(value, str) and choose_often(choices, 1, 2) else choices.below(8)
    if way < 2:
        elsewhere = [container[key] for container, key in nodes]
        alike = [item for item in elsewhere if type(item) is type(value)]
        return pick(choices, alike if way else elsewhere)
    if way == 2:
        return pick(choices, VALUES)
    if way == 3:
        for _ in range(pick(choices, [1, 2, 30, 60, MAX_NESTED])):
            value = [value] if choose_often(choices, 1, 2) else {"a": value}
        return value
    return _choose_value(value, choices)


def _is_json(value: Any) -> bool:
    """Return whether a value is JSON in a string."""
    return isinstance(value, str) and value[:1] == "{"


_JSON_WITHIN = Structure(lambda walk: None, document=lambda content: content, tree="json")


def _collect(value: Any, nodes: list[tuple[Any, Any]], depth: int) -> None:
    keys = range(len(value)) if isinstance(value, list) else list(value)
    for key in keys:
        nodes.append((value, key))
        if isinstance(value[key], list | dict) and depth < 20:
            _collect(value[key], nodes, depth + 1)


def _choose_name(key: str, container: dict[str, Any], choices: Choices) -> str:
    return pick(choices, [*STRINGS, *container, key + "_", key[:-1], key * 2])


def _choose_value(value: Any, choices: Choices) -> Any:
    """Return a value of the same type, or of another."""
    if isinstance(value, bool) or value is None:
        return pick(choices, VALUES)
    if isinstance(value, int):
        near = [value - 1, value + 1, value * 2, value // 2, -value, value + 8, 0, 1]
        power = 1 << choices.below(66)
        return pick(choices, [*near, power, power - 1, -power, float(value), str(value), [value]])
    if isinstance(value, float):
        return pick(
            choices, [-value, value * 1e300, int(value) if value == value // 1 else 0, *VALUES]
        )
    if isinstance(value, str):
        return pick(choices, [*STRINGS, value[:-1], value * 2, value.upper(), value.swapcase()])
    return pick(choices, VALUES)


_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][\w.]*")

TOKENS = (
    *b"""0 -1 1 2 3 1e999 -0 nan .nan .inf inf 1_000 0x10 01 4294967296 9223372036854775807
    9223372036854775808 1e-400 true null ~ [] {} '' "" *a , [ ] { } ( ) ' " % Real64 Complex64
    IeeeBinaryFile TextFile TensorSet '<f8' '>c16' '|O' '<U3' '<M8[D]' '<M8[25us]' True (3,)
    ()""".split(),
    *(b"- ", b": ", b"? ", b"| ", b"> ", b"# ", b"---\n", b"...\n", b"\n", b"\t", b"\r\n"),
    *(b"!!binary ", b"!text ", b"&a ", b"<<: ", b"metaData:\n  a: 1\n", b"1" * 30, b"1" * 400),
    *(b"\0", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
)


def _mutate_text(text: bytes, choices: Choices) -> bytes:
    """Change a number, a word or a line of a text, or insert a token."""
    way = choices.below(8)
    if way < 4:
        matches = list((_NUMBER if way < 2 else _WORD).finditer(text))
        if matches:
            match = pick(choices, matches)
            if way == 0:
                number = 1 << choices.below(66)
                new = str(pick(choices, [number, number - 1, -number, number / 3])).encode()
            else:
                new = pick(choices, [*TOKENS, pick(choices, matches)[0], match[0] + match[0]])
            return text[: match.start()] + new + text[match.end() :]
    if way == 4:
        lines = text.splitlines(keepends=True) or [b""]
        number, other = choices.below(len(lines)), choices.below(len(lines))
        return b"".join(_change_line(lines, number, other, choices))
    start = choices.below(len(text) + 1)
    if way == 5:
        return text[:start] + text[start + 1 + choices.below(8) :]
    if way == 6:
        return (
            text[:start]
            + pick(choices, [b"[", b"{", b"- ", b" ", b"[]", b"\n"])
            * pick(choices, [1, 2, 70, 300])
            + text[start:]
        )
    return text[:start] + pick(choices, TOKENS) + text[start:]


def _change_line(lines: list[bytes], number: int, other: int, choices: Choices) -> list[bytes]:
    ways: list[Callable[[], list[bytes]]] = [
        lambda: lines[:number] + lines[number + 1 :],
        lambda: [*lines[:number], lines[other], *lines[number:]],
        lambda: [*lines[:number], lines[other], *lines[number + 1 :]],
        lambda: [*lines[:number], b"  " + lines[number], *lines[number + 1 :]],
        lambda: [*lines[:number], lines[number].lstrip(), *lines[number + 1 :]],
    ]
    return pick(choices, ways)()
