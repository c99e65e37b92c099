"""Inputs and outputs that lie in each other, so that writing the one would harm the other."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fsspec import get_filesystem_class
from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem


def check_overlap(source: str, target: str, *, from_store: bool, to_store: bool) -> None:
    """Refuse to write a store over what it is made of, and into the store that is read."""
    if not (from_store or to_store):
        return
    read, written = _spot(source), _spot(target)
    # A folder is written beside the old one, which stays until all is read; but not by a chain.
    in_place = not written.is_local or "::" in target
    if to_store and read == written and in_place:
        raise ValueError(
            f"{target} is the input itself, and would be deleted before it is read; write to "
            "another URL, and move that here"
        )
    if to_store and read.is_within(written):
        raise ValueError(f"{target} holds the input {source}; write to a place outside of it")
    if from_store and written.is_within(read):
        raise ValueError(f"{target} lies in the input {source}; write to a place outside of it")


@dataclass(frozen=True)
class _Spot:
    """Where something is, by one name of many."""

    protocol: str
    path: str

    @property
    def is_local(self) -> bool:
        return self.protocol == "file"

    def is_within(self, other: _Spot) -> bool:
        return self.protocol == other.protocol and self.path.startswith(f"{other.path}/")


def _spot(file: str) -> _Spot:
    """Of a chain of URLs, the last one; nothing is asked of any store."""
    protocol, path = split_protocol(file.rpartition("::")[2])
    if protocol is None:
        return _local(path)
    try:
        system = get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        raise type(error)(f"{file}: {error}; give a path or a URL that fsspec knows") from error
    plain = system._strip_protocol(f"{protocol}://{path}")  # noqa: SLF001  # fsspec names it so
    if issubclass(system, LocalFileSystem):
        return _local(plain)
    names = system.protocol
    return _Spot(names if isinstance(names, str) else names[0], plain.rstrip("/"))


def _local(path: str) -> _Spot:
    return _Spot("file", os.path.realpath(os.path.expanduser(path)))
