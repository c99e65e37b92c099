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
from zlib import crc32

import numpy as np

from xr_tensorfmt.contract import Extents, Source, TensorFormatError

HEAD_BYTES = 64 << 10
"""Bytes at the start of the elements. They are fetched when a remote file is opened."""

OPENED_SAMPLES, OPENED_BYTES = 16, 4 << 10
"""Samples that opening a local file reads."""

VALIDATED_SAMPLES, VALIDATED_BYTES = 64, 128 << 10
"""Samples that `validate` reads: all of a file of up to 8 MiB."""

_PREFIX = b"# CRC-32 of elements: "
_LINE = re.compile(rb"^" + _PREFIX + rb"(\{.*\})[ \t]*\r?$", re.MULTILINE)
# The reader of YAML would take these characters for an anchor and an alias.
_ESCAPED = str.maketrans({"&": "\\u0026", "*": "\\u002a"})


class ChecksumError(TensorFormatError):
    """The elements differ from the checksums in the YAML file."""


@dataclass(frozen=True)
class Checksums:
    """The size of a file, and the CRC-32 of three samples as hexadecimal digits.

    Parameters
    ----------
    size : int
        Length of the file in bytes.
    head : str
        Checksum of the first `HEAD_BYTES`.
    opened, validated : str
        Checksums of samples that are evenly spread, or of the whole of a shorter file.
    """

    size: int
    head: str = "0" * 8
    opened: str = "0" * 8
    validated: str = "0" * 8

    @classmethod
    def compute(cls, source: Source) -> Checksums:
        """Compute the checksums of a file."""
        return cls(
            source.size, _compute_head(source, b""), _compute_opened(source), _validated(source)
        )

    def check_opened(self, source: Source, head: bytes, yaml: str) -> None:
        """Raise ChecksumError if the samples for opening differ; `head` has the first bytes."""
        if source.size != self.size:
            raise _error(source, f"{source.size} bytes", f"{self.size} bytes", yaml)
        if source.mapped:
            self._compare(source, _compute_opened(source), self.opened, yaml)
        else:
            self._compare(source, _compute_head(source, head), self.head, yaml)

    def check_validated(self, source: Source, yaml: str) -> None:
        """Raise ChecksumError if the samples for `validate` differ."""
        self._compare(source, _validated(source), self.validated, yaml)

    def _compare(self, source: Source, actual: str, expected: str, yaml: str) -> None:
        if actual != expected:
            raise _error(source, f"the CRC-32 {actual}", expected, yaml)


def _error(source: Source, actual: str, expected: str, yaml: str) -> ChecksumError:
    hint = (
        "the files may be of two writes, with different units: wait if a program writes them now, "
        "else write or fetch both again; if another program has changed the elements on purpose, "
        "remove the last line of the YAML file"
    )
    return ChecksumError(source.name, "the elements", actual, f"{expected} as in {yaml}", hint)


def _compute_head(source: Source, head: bytes) -> str:
    length = min(source.size, HEAD_BYTES)
    if len(head) < length:
        head = source.read_bytes(0, length)
    return f"{crc32(head[:length]):08x}"


def _compute_opened(source: Source) -> str:
    return _compute_samples(source, OPENED_SAMPLES, OPENED_BYTES)


def _validated(source: Source) -> str:
    return _compute_samples(source, VALIDATED_SAMPLES, VALIDATED_BYTES)


def _compute_samples(source: Source, count: int, length: int) -> str:
    """Compute the CRC-32 of samples that are evenly spread, from the first byte to the last."""
    if source.size > count * length:
        starts = [(source.size - length) * number // (count - 1) for number in range(count)]
    else:
        starts, length = [0], source.size
    checksum = 0
    if source.high_latency and length:
        checksum = crc32(source.read(Extents.uniform(np.array(starts), length)).data)
    elif length:
        with source.opened() as fill:  # without windows, whose page faults cost more
            for start in starts:
                sample, count = memoryview(bytearray(length)), 0
                while count < length and (more := fill(start + count, sample[count:])):
                    count += more
                checksum = crc32(sample, checksum)
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
