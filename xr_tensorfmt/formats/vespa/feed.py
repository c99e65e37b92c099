"""Feeds: one document with a tensor per line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from xr_tensorfmt.core.elements import Array
from xr_tensorfmt.errors import did_you_mean
from xr_tensorfmt.formats.vespa.json_input import (
    Labels,
    format_type,
    load_json,
    pack_blocks,
    parse_tensor,
    parse_type,
    select_field,
)
from xr_tensorfmt.formats.vespa.json_output import Form, Rows, build_json
from xr_tensorfmt.formats.vespa.spec import LONG_BIT, MAX_INTEGER, VespaHeader

BATCH_DOCUMENTS = 1024
"""Number of documents that are converted at a time."""

_ENCODER = json.JSONEncoder(allow_nan=False, check_circular=False)
_ID_KEYS = ("put", "update", "id")
# Lines around the documents if the feed is a list, as `vespa visit` prints it.
_NO_DOCUMENT = ("", "[", "]", b"", b"[", b"]")


@dataclass
class FeedReader:
    """Reads one field of all documents as one tensor, with the ids as another mapped dimension."""

    name: str
    field: str
    type: str | None
    dim: str
    prefix: str

    def read(self, lines: Iterable[Any]) -> bytearray:
        """Return a typed binary tensor."""
        content, blocks, header = bytearray(), 0, None
        parsed = self._parse(lines)
        while batch := list(islice(parsed, BATCH_DOCUMENTS)):
            if header is None:
                header = self._add_dimension(parse_type(str(self.type)))
                content += header.pack()
            labels, cells = zip(*batch, strict=True)
            content += pack_blocks(header, labels, cells)
            blocks += len(batch)
        if header is None:
            raise ValueError(f"{self.name}: no line is a document with the field {self.field!r}")
        # Four bytes for the number of blocks, which is known at the end.
        content[header.stop - 4 : header.stop] = (LONG_BIT << 24 | blocks).to_bytes(4, "big")
        return content

    def _parse(self, lines: Iterable[Any]) -> Iterator[tuple[Labels, Array]]:
        """Yield the labels and the cells of all blocks."""
        for number, line in enumerate(lines, 1):
            if isinstance(line, str | bytes) and line.strip() in _NO_DOCUMENT:
                continue
            try:
                yield from self._parse_document(load_json(line))
            except ValueError as error:
                raise ValueError(f"{self.name}: line {number}: {error}") from error

    def _parse_document(self, document: Any) -> Iterator[tuple[Labels, Array]]:
        fields = document.get("fields") if isinstance(document, dict) else None
        if not isinstance(fields, dict) or fields.get(self.field) is None:
            return
        header, blocks = parse_tensor(select_field(document, self.field), self.type)
        self.type = self.type or format_type(header)
        id_ = next((document[key] for key in _ID_KEYS if key in document), None)
        if not isinstance(id_, str) or not id_.startswith(self.prefix):
            raise ValueError(f"the id of the document is {id_!r}, expected '{self.prefix}...'")
        # The dimensions are sorted by name.
        position = sum(name < self.dim for name in header.mapped)
        label = id_[len(self.prefix) :]
        for labels, cells in blocks.items():
            yield (*labels[:position], label, *labels[position:]), cells

    def _add_dimension(self, header: VespaHeader) -> VespaHeader:
        """Return the header of all documents, with the largest number of blocks."""
        if self.dim in header.mapped + header.indexed:
            raise ValueError(
                f"{self.name}: dim={self.dim!r} is a dimension of {format_type(header)}; choose "
                "another name"
            )
        mapped = tuple(sorted((*header.mapped, self.dim)))
        indexed, lengths = header.indexed, header.lengths
        return VespaHeader.create(header.cell_type, mapped, indexed, lengths, MAX_INTEGER)


def format_document(
    header: VespaHeader, id_: str, field: str, labels: Rows, cells: Array, form: Form
) -> str:
    """Return a line of a feed from the labels and the encoded cells of the blocks of a document."""
    document = {"put": id_, "fields": {field: build_json(header, labels, cells, form)}}
    return _ENCODER.encode(document) + "\n"


def check_dim(header: VespaHeader, dim: str) -> None:
    """Raise ValueError if a dimension has no labels."""
    if dim not in header.mapped:
        raise ValueError(
            f"dim={dim!r}{did_you_mean(dim, header.mapped)} has no labels, expected one of "
            f"{list(header.mapped)}, whose labels become the ids of documents"
        )
