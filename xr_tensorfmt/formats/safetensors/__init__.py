"""safetensors files. A model is one file, or several files and an index."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from types import MappingProxyType
from zlib import crc32

from xr_tensorfmt.core.elements import build_elements
from xr_tensorfmt.core.file_format import LazyFormat, Match, Option, share_options
from xr_tensorfmt.core.header import HeaderReader, read_json
from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.zip_members import read_first_member

SUFFIX = ".safetensors"
# Suffix of the index of a model in several files. The pattern allows a variant, such as ``.fp16``.
INDEX = f"{SUFFIX}.index.json"
INDEX_SUFFIX = re.compile(r"(?<=.)\.safetensors(\.[\w-]+)?\.index(\.[\w-]+)?\.json$", re.IGNORECASE)
# Size of the length of the header. The header is padded to a multiple of it.
LENGTH_BYTES = 8
# Limit of the format on the length of the header.
MAX_HEADER_BYTES = 100_000_000
METADATA = "__metadata__"
# Names of files by key, in an index.
WEIGHT_MAP = "weight_map"
# Computed metadata of an index, no attributes: checksums of headers, and bytes of all tensors.
HEADER_CHECKSUMS = "header_crc32"
TOTAL_SIZE = "total_size"
INDEX_FACTS = (TOTAL_SIZE, HEADER_CHECKSUMS)
# dtypes by their names in a header.
DTYPES = (
    {"BOOL": "bool", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
    | {"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}
    | {"F8_E8M0": "float8_e8m0fnu"}
    | {"U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64"}
    | {"I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64"}
    | {"F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64"}
)
# Elements by dtype.
ELEMENTS = build_elements(DTYPES.values())


class SafetensorsFormat(LazyFormat):
    """safetensors files. A file has tensors under keys, and metadata."""

    name = "safetensors"
    title = "safetensors"
    suffixes = (".safetensors", INDEX)
    directory_patterns = ("*.safetensors*.index*.json", "*.safetensors")
    open_options = share_options("verify", "decode_floats")
    write_options = MappingProxyType(
        {
            "max_shard_bytes": Option(
                "Limit on the data of a file if there are several, such as 5GB, the default. A "
                "single tensor may be larger."
            )
        }
    )

    def find_suffix(self, path: str) -> str:
        """Return the suffix. The suffix of an index may contain a variant."""
        index = INDEX_SUFFIX.search(os.path.basename(path.casefold()))
        return index[0] if index else super().find_suffix(path)

    def match(self, reader: HeaderReader) -> Match:
        """Check the suffix and the first bytes. The format has no magic number."""
        match = super().match(reader)
        is_json = reader.head[LENGTH_BYTES:].startswith(b"{") or reader.head.lstrip()[:1] == b"{"
        return Match.CERTAIN if match and is_json else match

    def find_models(
        self, names: Collection[str], open_reader: Callable[[str], HeaderReader]
    ) -> list[str]:
        """Return the indexes, and files of whole models with the same stem that they do not list.

        Programs disagree which of both forms they load, and one of them may be older.
        """
        models = super().find_models(names, open_reader)
        by_folded = {name.casefold(): name for name in names}
        for index in filter(INDEX_SUFFIX.search, list(models)):
            whole = by_folded.get(f"{get_index_stem(index)}{SUFFIX}".casefold())
            if whole is not None and not _lists_file(open_reader(index), whole):
                models.append(whole)
        return models

    def describe_unsupported(self, reader: HeaderReader) -> tuple[str, str] | None:
        """Describe files without the suffix, and files of PyTorch."""
        length = int.from_bytes(reader.head[:LENGTH_BYTES], "little")
        if reader.head[8:10] == b'{"' and length <= reader.source.size - LENGTH_BYTES:
            hint = "pass format='safetensors' or --from safetensors"
            return "safetensors without its suffix", hint
        if read_first_member(reader)[0].endswith((b"/data.pkl", b"/version", b"/byteorder")):
            return "a PyTorch checkpoint", "convert it with safetensors.torch.save_file"
        return None


def _lists_file(reader: HeaderReader, file: str) -> bool:
    """Return whether an index lists a file, or cannot be read."""
    try:
        index = read_json(reader, 0, reader.source.size, MAX_HEADER_BYTES, "the index")
        files = index.get(WEIGHT_MAP, dict).values()
    except TensorFormatError:
        return True  # opening it explains why
    return any(isinstance(name, str) and name.removeprefix("./") == file for name in files)


def get_index_stem(name: str) -> str:
    """Return what the names of an index and its files begin with, including the variant."""
    suffix = INDEX_SUFFIX.search(name)
    assert suffix
    return "".join([name[: suffix.start()], *filter(None, suffix.groups())])


def list_index_names(name: str) -> tuple[str, ...]:
    """Return the names of an index with the same stem as a file of a whole model."""
    if not name.casefold().endswith(SUFFIX):
        return ()
    stem = name[: -len(SUFFIX)]
    base, dot, variant = stem.rpartition(".")
    variants = (f"{base}{SUFFIX}.index.{variant}.json", f"{base}{SUFFIX}.{variant}.index.json")
    return (f"{stem}{INDEX}", *(variants if base and dot else ()))


def compute_checksum(header: bytes) -> str:
    """Return the checksum of a header, including its length."""
    return f"{crc32(header):08x}"
