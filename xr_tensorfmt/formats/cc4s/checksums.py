"""Checksums of elements, in a comment at the end of the YAML file.

A writer replaces several files one after the other. The checksums tell a reader whether the
elements belong to the YAML file. cc4s copies unknown keys of ``metaData`` to derived
tensors, so the checksums are a comment. Programs that rewrite the YAML drop it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass

import numpy as np
from google_crc32c import extend

from xr_tensorfmt.contract import Extents, Source, TensorFormatError

HEAD_BYTES = 64 << 10
"""Bytes at the start of the elements. They are fetched when a remote file is opened."""

SAMPLES, SAMPLE_BYTES = 16, 4 << 10
"""Samples that opening a local file reads."""

MAX_REGION_BYTES = 64 << 20
"""Limit on the length of a file that is read completely after ``region=`` has changed it."""

UNKNOWN = "-" * 8
"""Stands for the checksum of a longer file that ``region=`` has changed."""

_READ_BYTES = 4 << 20
_PREFIX = b"# CRC-32C of elements: "
_LINE = re.compile(rb"^" + _PREFIX + rb"(\{.*\})[ \t]*\r?$", re.MULTILINE)
# The reader of YAML would take these characters for an anchor and an alias.
_ESCAPED = str.maketrans({"&": "\\u0026", "*": "\\u002a"})


class ChecksumError(TensorFormatError):
    """The elements differ from the checksums in the YAML file."""


@dataclass(frozen=True)
class Checksums:
    """The size of a file, and checksums (CRC-32C) as hexadecimal digits.

    Parameters
    ----------
    size : int
        Length of the file in bytes.
    head : str
        Checksum of the first `HEAD_BYTES`.
    samples : str
        Checksum of samples that are evenly spread, or of the whole of a short file.
    content : str
        Checksum of the whole file, or `UNKNOWN`.
    """

    size: int
    head: str = UNKNOWN
    samples: str = UNKNOWN
    content: str = UNKNOWN

    @classmethod
    def compute(cls, source: Source, max_bytes: int | None = None) -> Checksums:
        """Compute the checksums of a file. The content of a file above the limit is `UNKNOWN`."""
        size = source.size
        content = UNKNOWN if max_bytes is not None and size > max_bytes else _read_content(source)
        return cls(size, _read_head(source, b""), _read_samples(source), content)

    def check_opened(self, source: Source, head: bytes, yaml: str) -> None:
        """Raise ChecksumError if parts of the file differ; `head` has its first bytes."""
        if source.size != self.size:
            raise _build_error(source, f"{source.size} bytes", f"{self.size} bytes", yaml)
        if source.mapped:
            _compare(source, _read_samples(source), self.samples, yaml)
        else:
            _compare(source, _read_head(source, head), self.head, yaml)

    def check_content(self, source: Source, yaml: str) -> None:
        """Raise ChecksumError if a byte of the file differs, or a sample if that is all we know."""
        if self.content == UNKNOWN:
            _compare(source, _read_samples(source), self.samples, yaml)
        else:
            _compare(source, _read_content(source), self.content, yaml)


def _compare(source: Source, actual: str, expected: str, yaml: str) -> None:
    if actual != expected:
        raise _build_error(source, f"the CRC-32C {actual}", expected, yaml)


def _build_error(source: Source, actual: str, expected: str, yaml: str) -> ChecksumError:
    hint = (
        "the files may come from different writes: wait if a program is writing them, otherwise "
        "write or fetch both again; if another program has changed the elements on purpose, "
        "remove the last line of the YAML file"
    )
    return ChecksumError(source.name, "the elements", actual, f"{expected} as in {yaml}", hint)


def _read_head(source: Source, head: bytes) -> str:
    length = min(source.size, HEAD_BYTES)
    if len(head) < length:
        head = source.read_bytes(0, length)
    return f"{extend(0, head[:length]):08x}"


def _read_samples(source: Source) -> str:
    last = source.size - SAMPLE_BYTES
    if last < SAMPLES * SAMPLE_BYTES:
        return _read_content(source)
    starts = np.array([last * number // (SAMPLES - 1) for number in range(SAMPLES)])
    return f"{extend(0, source.read(Extents.uniform(starts, SAMPLE_BYTES)).tobytes()):08x}"


def _read_content(source: Source) -> str:
    checksum, size = 0, source.size
    for start in range(0, size, _READ_BYTES):
        part = source.read_bytes(start, min(start + _READ_BYTES, size))
        checksum = extend(checksum, part)
    return f"{checksum:08x}"


def format_checksums(checksums: Mapping[str, Checksums]) -> bytes:
    """Format the comment. Its length depends only on the names and sizes."""
    values = {name: astuple(item) for name, item in checksums.items()}
    return _PREFIX + json.dumps(values).translate(_ESCAPED).encode()


def find_checksums(yaml: bytes) -> tuple[int, dict[str, Checksums]]:
    """Return the checksums in the content of a YAML file, and the offset of the comment.

    A comment of another form is ignored.
    """
    match = _LINE.search(yaml)
    if match is not None:
        with suppress(ValueError, TypeError, AttributeError, RecursionError):
            values = json.loads(match[1])
            checksums = {name: Checksums(*item) for name, item in values.items()}
            if format_checksums(checksums) == _PREFIX + match[1]:
                return match.start(), checksums
    return 0, {}
