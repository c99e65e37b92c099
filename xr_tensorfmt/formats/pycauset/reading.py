"""Which generation a file is of, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.header import HeaderReader
from xr_tensorfmt.formats.pycauset import slots
from xr_tensorfmt.formats.pycauset.archive import MAGIC as ZIP_MAGIC
from xr_tensorfmt.formats.pycauset.archive import is_archive, read_archive
from xr_tensorfmt.formats.pycauset.blocks import (
    MOST_BLOCKS,
    MOST_LEVELS,
    blocks_layout,
    lossy_blocks,
)
from xr_tensorfmt.formats.pycauset.container import read_container
from xr_tensorfmt.formats.pycauset.diagonal import with_diagonal
from xr_tensorfmt.formats.pycauset.facts import matrix_of
from xr_tensorfmt.formats.pycauset.header import read_header
from xr_tensorfmt.formats.pycauset.matrix import Matrix
from xr_tensorfmt.formats.pycauset.metadata import Metadata
from xr_tensorfmt.formats.pycauset.storage import stored_layout, view_of
from xr_tensorfmt.layouts import Layout
from xr_tensorfmt.sources import Source

MAGIC = b"PYCAUSET"
BLOCK = "BLOCK"

_IDENTIFYING = 16
_MATRIX_TYPES_OF_V1 = range(1, 5)


def recognises(head: bytes, size: int) -> bool:
    """Whether a file can only be of PyCauset; session stores count, to be refused by their name."""
    return (head.startswith(MAGIC) and size >= _IDENTIFYING) or is_archive(head)


@dataclass
class Opening:
    """The files of one matrix, as they are opened one after the other.

    Parameters
    ----------
    warnings : list of str
        What was found on the way.
    siblings : list of Source
        Files of the blocks opened so far.
    """

    warnings: list[str] = field(default_factory=list)
    siblings: list[Source] = field(default_factory=list)

    def read(self, reader: HeaderReader, level: int = 0) -> tuple[Matrix, Layout]:
        """Read the header of a file.

        Parameters
        ----------
        reader : HeaderReader
            The file.
        level : int
            How many matrices it is a block of a block of.

        Returns
        -------
        matrix : Matrix
            What it says.
        layout : Layout
            Its values.

        Raises
        ------
        TensorFormatError
            The file is damaged, or holds no matrix.
        """
        generation = _generation(reader)
        if generation == "r1":
            return self._container(reader, level)
        if generation == "zip":
            matrix = read_archive(reader)
        else:
            matrix = read_header(reader, int(generation[1:]))
        return matrix, view_of(stored_layout(matrix, reader.source.name), matrix)

    def _container(self, reader: HeaderReader, level: int) -> tuple[Matrix, Layout]:
        source = reader.source
        content = read_container(reader)
        self.warnings += content.warnings
        metadata = Metadata(content.metadata, source.name, content.slot.metadata_offset)
        matrix = with_diagonal(reader, content.slot, matrix_of(content, metadata))
        if matrix.matrix_type != BLOCK:
            return matrix, view_of(stored_layout(matrix, source.name), matrix)

        def child(sibling: Source) -> tuple[Matrix, Layout]:
            self.siblings.append(sibling)
            self._check_count(source, metadata.offset, level)
            return self.read(HeaderReader(sibling), level + 1)

        mosaic = blocks_layout(source, matrix, metadata, child)
        self.warnings += lossy_blocks(source.name, mosaic)
        return matrix, view_of(mosaic, matrix)

    def _check_count(self, source: Source, offset: int, level: int) -> None:
        if len(self.siblings) > MOST_BLOCKS or level >= MOST_LEVELS:
            raise TensorFormatError(
                source.name,
                "the blocks of a BLOCK matrix",
                f"more than {MOST_BLOCKS}, or more than {MOST_LEVELS} within each other",
                "fewer",
                "the files are damaged, or made to keep readers busy",
                offset=offset,
            )


def _generation(reader: HeaderReader) -> str:
    head = reader.first_bytes(64)
    if head.startswith(ZIP_MAGIC):
        return "zip"
    if not head.startswith(MAGIC):
        raise reader.error(
            "the magic number", repr(head[:8]), repr(MAGIC), "it is no PyCauset file", 0
        )
    version = reader.unsigned(8, 4, "the version")
    word = reader.bytes_at(12, 4, "the matrix type")
    if version == 2:
        return "v2"
    if version == 1 and word == slots.PREAMBLE:
        return "r1"
    if version == 1 and int.from_bytes(word, "little") in _MATRIX_TYPES_OF_V1:
        return "v1"
    if version == 1 and not any(head[12:]):
        raise reader.error(
            "the header",
            "that of a backing store of a PyCauset session, which has no shape and no types",
            "a saved matrix",
            "save the matrix with pycauset.save, and open that file",
            12,
        )
    raise reader.error(
        "the version",
        f"{version}, then bytes {word.hex(' ')}",
        "2, or 1 and then 01 00 10 00 (a container) or a matrix type from 1 to 4",
        "the header is damaged, or of a newer version",
        8,
    )
