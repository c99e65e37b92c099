"""Names with separators in them, seen as paths: branches and trees of a Container."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from xr_tensorfmt.errors import shortened
from xr_tensorfmt.tensor import Container, Tensor

EMPTY = "%"
"""What stands for an empty part of a name, which no group can have."""

LEAF_AND_PREFIX = "%"
"""Appended to the last part of a name that is at the same time the beginning of others."""

MOST_LEVELS = 64
"""Limit on the groups within groups; each level costs a text as long as all above it."""


def branch(container: Container, group: str | None, separator: str) -> Container:
    """The tensors whose names begin with those of a group, under the rest of their names.

    Parameters
    ----------
    container : Container
        What a file holds.
    group : str or None
        The beginning of the names, without the separator after it (``"layers.0"``), or the path
        of the group in the tree (``"/layers/0"``); None, ``""`` or ``"/"`` is the whole.
    separator : str
        What stands between the parts of a name.

    Returns
    -------
    Container
        Without the attributes of the whole file, unless the group is the root.

    Raises
    ------
    ValueError
        No name begins so.
    """
    if group is None or not group.strip("/"):
        return container
    prefix = _prefix(group, separator)
    tensors = tuple(
        replace(each, name=each.name[len(prefix) :])
        for each in container.tensors
        if each.name.startswith(prefix)
    )
    if not tensors:
        first = {each.name.partition(separator)[0]: None for each in container.tensors}
        raise ValueError(
            f"group={shortened(repr(group))} is not in the file: no name begins with "
            f"{shortened(repr(prefix))}, but with "
            f"{shortened(', '.join(map(repr, first))) or 'nothing, as there is none'}"
        )
    return _node(tensors, container, group, is_root=False)


def split(container: Container, separator: str) -> dict[str, Container]:
    """The groups of a tree, by path.

    Parameters
    ----------
    container : Container
        What a file holds.
    separator : str
        What stands between the parts of a name.

    Returns
    -------
    dict of str to Container
        ``"/"`` first, with the attributes of the file, then every group in the order in which the
        names bring them up, those without tensors of their own as well.

    Raises
    ------
    ValueError
        A name has more than `MOST_LEVELS` parts.
    """
    for each in container.tensors:
        if each.name.count(separator) >= MOST_LEVELS:
            raise ValueError(
                f"the name {shortened(repr(each.name))} has more than {MOST_LEVELS} parts between "
                f"{separator!r}; choose another separator=, or open the file as a Dataset"
            )
    members: dict[str, list[Tensor]] = {"/": []}
    prefixes = _prefixes((each.name for each in container.tensors), separator)
    for tensor in container.tensors:
        *groups, leaf = tensor.name.split(separator)
        path = ""
        for part in groups:
            path = f"{path}/{quoted(part)}"
            members.setdefault(path, [])
        name = quoted(leaf) + (LEAF_AND_PREFIX if tensor.name in prefixes else "")
        members[path or "/"].append(replace(tensor, name=name))
    return {
        path: _node(tuple(tensors), container, path, is_root=path == "/")
        for path, tensors in members.items()
    }


def quoted(part: str) -> str:
    """One part of a name, made fit for a path; different parts stay different.

    Parameters
    ----------
    part : str
        Any text.

    Returns
    -------
    str
        Not empty, without slashes, neither ``"."`` nor ``".."``.
    """
    if part in (".", ".."):
        return part.replace(".", "%2E")
    return part.replace("%", "%25").replace("/", "%2F") or EMPTY


def unquoted(part: str) -> str:
    """The part of a name that `quoted` made this of."""
    if part == EMPTY:
        return ""
    return part.replace("%2E", ".").replace("%2F", "/").replace("%25", "%")


def _prefix(group: str, separator: str) -> str:
    if group.startswith("/"):
        parts = [unquoted(part) for part in group.strip("/").split("/")]
        return separator.join(parts) + separator
    return group + separator


def _prefixes(names: Iterable[str], separator: str) -> set[str]:
    """All that the names begin with, up to one of their separators."""
    prefixes: set[str] = set()
    for name in names:
        shorter = name
        while separator in shorter:
            shorter = shorter[: shorter.rindex(separator)]
            if shorter in prefixes:
                break
            prefixes.add(shorter)
    return prefixes


def _node(
    tensors: tuple[Tensor, ...], container: Container, path: str, *, is_root: bool
) -> Container:
    dims = {name for each in tensors for name in each.dims}
    clash = next((each.name for each in tensors if each.name in dims), None)
    if clash is not None:
        raise ValueError(
            f"{clash!r} would be both a variable and a dimension of the group {path!r}; "
            "open the file without groups, choose another separator=, or name dimensions with dims="
        )
    coordinates = tuple(each for each in container.coordinates if dims.issuperset(each.dims))
    if is_root:
        return replace(container, tensors=tensors, coordinates=coordinates)
    return Container(tensors, coordinates)
