"""Reading of safetensors: a file, or the files that an index names."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping

from xr_tensorfmt.core.container import Container
from xr_tensorfmt.core.embedded_metadata import KEY as EMBEDDED_KEY
from xr_tensorfmt.core.findings import Finding
from xr_tensorfmt.core.header import HeaderReader
from xr_tensorfmt.core.json_document import Document
from xr_tensorfmt.core.keyed import KeyedDims, StoredTensor
from xr_tensorfmt.core.options import OpenOptions
from xr_tensorfmt.core.source import Source, is_file_name
from xr_tensorfmt.errors import shorten
from xr_tensorfmt.formats.safetensors import INDEX
from xr_tensorfmt.formats.safetensors.spec import (
    LENGTH_BYTES,
    MOST_HEADER_BYTES,
    Header,
)

_FACTS = {"format": "safetensors"}


def recognises(reader: HeaderReader) -> bool:
    """Whether a file with one of the suffixes begins as the format does."""
    if _is_index(reader):
        return b'"weight_map"' in reader.first_bytes(min(reader.source.size, MOST_HEADER_BYTES))
    head, size = reader.head, reader.source.size
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    return head[LENGTH_BYTES:].startswith(b"{") and length <= min(
        MOST_HEADER_BYTES, size - LENGTH_BYTES
    )


def _is_index(reader: HeaderReader) -> bool:
    return reader.source.name.casefold().endswith(INDEX)


def read(reader: HeaderReader, options: OpenOptions) -> Container:
    """Read a header, or an index and the headers of all its files."""
    options.check_unnamed(reader.source.name)
    options.check_all_stored(reader.source.name)
    if _is_index(reader):
        return _read_index(reader, options)
    header = Header.read(reader)
    dims = KeyedDims(options.dims, [each.key for each in header.tensors])
    return Container(
        tuple(each.tensor(dims.of(each.key, len(each.shape)), _FACTS) for each in header.tensors),
        attrs={name: value for name, value in header.metadata.items() if name != EMBEDDED_KEY},
        encoding={"tensorfmt": _FACTS},
        embedded=header.metadata.get(EMBEDDED_KEY),
    )


Shards = Mapping[str, tuple[Source, Header]]
"""The files of an index, by their names."""


def _read_index(reader: HeaderReader, options: OpenOptions) -> Container:
    size, path = reader.source.size, reader.source.name
    if size > MOST_HEADER_BYTES:
        hint = "the file is damaged, or of another format"
        raise reader.error("the index", f"{size} bytes", f"at most {MOST_HEADER_BYTES}", hint, 0)
    index = Document.read(reader, 0, size, "the index")
    files = index.member("weight_map")
    index.check_repeated(index.content, files)
    shards = _opened(reader.source, index, files)
    found = {
        (file, each.key): (source, each)
        for file, (source, header) in shards.items()
        for each in header.tensors
    }
    dims = KeyedDims(options.dims, list(files))
    tensors = []
    for key, file in files.items():
        if (file, key) not in found:
            raise index.error(f"the file of {key!r}", repr(file), "a file with that tensor")
        source, stored = found.pop((file, key))
        names = dims.of(key, len(stored.shape))
        tensors.append(stored.tensor(names, {**_FACTS, "file": file}, source))
    return Container(
        tuple(tensors),
        attrs=_attributes(index, shards),
        encoding={"tensorfmt": {**_FACTS, "files": list(shards)}},
        siblings=tuple(source for source, _ in shards.values()),
        findings=tuple(_unnamed(path, file, stored) for (file, _), (_, stored) in found.items()),
    )


def _opened(source: Source, index: Document, files: Mapping[str, object]) -> Shards:
    """Open all files and read their headers, at once where that takes requests."""
    names = list(dict.fromkeys(map(str, files.values())))
    for each in files.values():
        if not is_file_name(each):
            raise index.error("weight_map", shorten(repr(each)), "names of files beside the index")
    shards: dict[str, tuple[Source, Header]] = {}

    def open_one(number: int) -> None:
        file = names[number]
        try:
            beside = source.sibling(file)
        except FileNotFoundError:
            reason = f"{source.name} names it and it is missing; fetch it too"
            place = re.sub(r"[^/\\]*$", lambda _: file, source.name)
            raise FileNotFoundError(errno.ENOENT, reason, place) from None
        if beside is None:
            raise ValueError(
                f"{source.name} has no directory in which its files could be; open it by its path "
                "or URL"
            )
        shards[file] = beside[0], Header.read(HeaderReader(*beside))

    source.run(open_one, range(len(names)))
    return {file: shards[file] for file in names}


def _attributes(index: Document, shards: Shards) -> dict[str, object]:
    """The metadata of the index, and those that all of its files agree in."""
    own = index.content.get("metadata", {})
    if not isinstance(own, Mapping):
        raise index.error("'metadata'", shorten(repr(own)), "a JSON object")
    every = [header.metadata for _, header in shards.values()]
    common = {
        name: value
        for name, value in (every[0] if every else {}).items()
        if name != EMBEDDED_KEY and all(each.get(name) == value for each in every)
    }
    return {**common, **own}


def _unnamed(path: str, file: str, stored: StoredTensor) -> Finding:
    message = (
        f"{file} has it and the index does not name it, so that it is left out; open {file} "
        "itself to read it"
    )
    return Finding(path, None, f"the tensor {shorten(repr(stored.key))}", message, "warning")
