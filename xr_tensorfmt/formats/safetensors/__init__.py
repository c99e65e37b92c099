"""safetensors files. A model is one file, or several files and an index. `write` writes them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any
from zlib import crc32

from xr_tensorfmt.core.elements import build_elements
from xr_tensorfmt.core.file_format import (
    Container,
    End,
    Format,
    LazyFormat,
    Match,
    OpenOptions,
    Option,
    share_options,
)
from xr_tensorfmt.core.header import Fields, HeaderReader, read_json
from xr_tensorfmt.core.source import Source, is_file_name, open_sibling
from xr_tensorfmt.errors import Finding, TensorFormatError, shorten
from xr_tensorfmt.formats import keyed
from xr_tensorfmt.formats.zip_members import read_first_member

SUFFIX = ".safetensors"
# Suffix of the index of a model in several files. The pattern allows a variant, such as ``.fp16``.
INDEX = f"{SUFFIX}.index.json"
INDEX_SUFFIX = re.compile(r"(?i)(?<=.)\.safetensors(\.[\w-]+)?\.index(?(1)|(\.[\w-]+)?)\.json$")
# End of the name of one of several files of a model.
_NUMBERED = re.compile(r"-\d{5,}-of-(?!0*1\.)\d{5,}(\.[\w-]+)?\.safetensors$", re.IGNORECASE)
# Size of the length of the header. The header is padded to a multiple of it.
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
METADATA = "__metadata__"
# Names of files by key, in an index.
WEIGHT_MAP = "weight_map"
# Computed metadata of an index, no attributes: checksums of headers, and bytes of all tensors.
HEADER_CHECKSUMS = "header_crc32"
TOTAL_SIZE = "total_size"
DTYPES = (
    {"BOOL": "bool", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
    | {"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}
    | {"F8_E8M0": "float8_e8m0fnu"}
    | {"U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64"}
    | {"I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64"}
    | {"F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64"}
)
ELEMENTS = build_elements(DTYPES.values())

_FILE_INFO = {"format": "safetensors"}
_entry_fields = itemgetter("dtype", "shape", "data_offsets")
_get_offsets = itemgetter("data_offsets")


class SafetensorsFormat(LazyFormat):
    """safetensors files. A file has tensors under keys, and metadata."""

    name = "safetensors"
    title = "safetensors"
    suffixes = (".safetensors", INDEX)
    directory_patterns = ("*.safetensors*.index*.json", "*.safetensors")
    open_options = share_options("verify", "decode_floats")
    check = Format.check
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

    def read(self, reader: HeaderReader, options: OpenOptions) -> Container:
        """Read a header, or an index and the headers of all its files."""
        # The length before the header of a file ends with zeros, and JSON does not contain them.
        if reader.head.lstrip().startswith(b"{") and 0 not in reader.head[:LENGTH_BYTES]:
            return _read_index(reader, options)
        header = _Header.read(reader)
        return keyed.build_container(
            *(options, reader.source.name, header.parsed, _FILE_INFO, header.metadata),
            ends=(header.end,),
        )

    def find_models(
        self, names: Collection[str], open_reader: Callable[[str], HeaderReader]
    ) -> list[str]:
        """Return the indexes, and files of whole models with the same stem that they do not list.

        Programs disagree which of both forms they load, and one of them may be older. Files of a
        model mean their index, which may be missing.
        """
        found = super().find_models(names, open_reader)
        models = list(dict.fromkeys(_NUMBERED.sub(INDEX, name) for name in found))
        by_folded = {name.casefold(): name for name in names}
        for index in filter(INDEX_SUFFIX.search, {*models} & {*names}):
            whole = by_folded.get(f"{get_stem(index)}{SUFFIX}".casefold())
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


def get_stem(name: str) -> str:
    """Return what the names of an index and its files begin with, including the variant."""
    index = INDEX_SUFFIX.search(name)
    parts = [name[: index.start()], *index.groups()] if index else [name[: -len(SUFFIX)]]
    return "".join(filter(None, parts))


def list_other_forms(name: str) -> tuple[str, ...]:
    """Return the names of other indexes, and of a file of a whole model, with the same stem."""
    stem = get_stem(name)
    forms, (base, _, variant) = [f"{stem}{SUFFIX}", f"{stem}{INDEX}"], stem.rpartition(".")
    if base:
        forms += [f"{base}{SUFFIX}.{variant}.index.json", f"{base}{SUFFIX}.index.{variant}.json"]
    return tuple(form for form in forms if form.casefold() != name.casefold())


def compute_checksum(header: bytes) -> str:
    """Return the checksum of a header, including its length."""
    return f"{crc32(header):08x}"


@dataclass(frozen=True)
class _Header:
    parsed: Mapping[str, keyed.Parsed]
    metadata: Mapping[str, str]
    end: End
    checksum: str

    @classmethod
    def read(cls, reader: HeaderReader) -> _Header:
        """Read and check a header."""
        length = reader.read_unsigned(0, LENGTH_BYTES, "the length of the header")
        document = read_json(reader, LENGTH_BYTES, length, MAX_HEADER_BYTES, "the header")
        entries = dict(document.values)
        metadata = entries.pop(METADATA, None)
        metadata = {} if metadata is None else metadata  # the package safetensors accepts null
        if not isinstance(metadata, dict) or not {*map(type, metadata.values())} <= {str}:
            expected = "an object whose values are strings"
            raise document.error(METADATA, shorten(repr(metadata)), expected)
        start, shapes = LENGTH_BYTES + length, keyed.Shapes()
        parsed = {x: _parse(document, x, y, start, shapes) for x, y in entries.items()}
        checksum = compute_checksum(reader.read_field(0, start, "the header"))
        end = _check_consecutive(reader, entries, start)
        return cls(parsed, metadata, end, checksum)


def _parse(
    document: Fields, key: str, entry: Any, start: int, shapes: keyed.Shapes
) -> keyed.Parsed:
    """Parse an entry with offsets relative to `start`. Return the reason not to support it."""
    try:
        dtype, shape, (first, stop) = _entry_fields(entry)
    except (KeyError, TypeError, ValueError):  # ValueError if there are not two offsets
        dtype, shape, first, stop = None, [], -1, 0
    is_text = isinstance(dtype, str)
    if type(first) is not int or type(stop) is not int or not (is_text and 0 <= first <= stop):
        expected = "an object with a dtype, a shape and two ascending data_offsets"
        raise keyed.build_error(document, "the entry", key, entry, expected)
    if dtype not in DTYPES:
        hint, expected = "load it with safetensors.torch.load_file", f"one of {', '.join(DTYPES)}"
        return keyed.build_error(document, "the dtype", key, dtype, expected, hint)
    element = ELEMENTS[DTYPES[dtype]]
    lengths, nbytes = keyed.parse_shape(document, key, shape, element, shapes)
    if stop - first != nbytes:
        expected = f"{nbytes} bytes between them, for {dtype} of shape {shape}"
        raise keyed.build_error(document, "the data_offsets", key, [first, stop], expected)
    return lengths, element, start + first


def _check_consecutive(reader: HeaderReader, entries: Mapping[str, Any], start: int) -> End:
    """Return the end of the data. Raise an error if they overlap, have gaps or are truncated."""
    previous = 0
    for first, stop in sorted(map(_get_offsets, entries.values())):
        if first != previous:
            key = next(x for x, entry in entries.items() if entry["data_offsets"] == [first, stop])
            field, actual = f"the data_offsets of {key!r}", f"data from byte {start + first} on"
            expected = f"byte {start + previous}, because data cannot overlap or have gaps"
            raise reader.error(field, actual, expected, offset=start + first)
        previous = stop
    reader.check_complete(start + previous)
    return End(reader.source, start + previous, "the data")


def _read_index(reader: HeaderReader, options: OpenOptions) -> Container:
    path, size = reader.source.name, reader.source.size
    index = read_json(reader, 0, size, MAX_HEADER_BYTES, "the index")
    listed = index.get(WEIGHT_MAP, dict)
    is_null = index.values.get("metadata") is None
    metadata = {} if is_null else dict(index.get("metadata", dict))
    files = {key: _normalize_path(index, file) for key, file in listed.items()}
    names = list(dict.fromkeys(files.values()))
    # Remote files are read concurrently.
    opened = reader.source.run(partial(_open_file, reader.source), names)
    headers = dict(zip(names, opened, strict=True))
    # A writer replaces the files, then the index. Raise an error if it has done so meanwhile.
    reader.source.check_unchanged()
    _check_headers(index, headers, metadata.pop(HEADER_CHECKSUMS, None))
    parsed = dict[str, keyed.Parsed]()
    expected, hint = "a file with that tensor", "fetch the index and its files again"
    for key, file in files.items():
        layout = headers[file].parsed.get(key)
        parsed[key] = layout or index.error(f"the file of {key!r}", repr(file), expected, hint)
    unsupported = [x for x in parsed.values() if isinstance(x, TensorFormatError)]
    if unsupported and len(unsupported) == len(parsed):
        raise unsupported[0]
    file_info = dict(_FILE_INFO)
    if (total := metadata.pop(TOTAL_SIZE, None)) is not None:
        file_info[TOTAL_SIZE] = total
    for name, value in next(iter(headers.values())).metadata.items() if headers else ():
        if all(header.metadata.get(name) == value for header in headers.values()):
            metadata.setdefault(name, value)
    sources = {key: headers[file].end.source for key, file in files.items()}
    return keyed.build_container(
        *(options, path, parsed, _FILE_INFO, metadata, sources),
        encoding={"tensorfmt": file_info},
        findings=_find_unlisted(path, files, headers),
        ends=tuple(header.end for header in headers.values()),
    )


def _find_unlisted(
    path: str, files: Mapping[str, str], headers: Mapping[str, _Header]
) -> tuple[Finding, ...]:
    """Return one finding about all tensors that an index does not list, or in another file."""
    keys = ((key, file) for file, header in headers.items() for key in header.parsed)
    unlisted = [f"{shorten(repr(key))} in {file}" for key, file in keys if files.get(key) != file]
    reason = "because it does not list them, or lists them in another file"
    omitted = f"{len(unlisted)} tensors of its files are omitted, {reason}"
    actual, hint = f"{omitted}: {shorten(', '.join(unlisted))}", "open a file to read them"
    finding = Finding(path, "the index", actual, hint=hint, severity="warning")
    return (finding,) if unlisted else ()


def _normalize_path(index: Fields, file: Any) -> str:
    """Return the path of a file without ``./``. Raise an error if it leaves the directory."""
    parts = [part for part in file.split("/") if part != "."] if isinstance(file, str) else []
    # Windows alone gives colons a meaning.
    names = parts if os.name == "nt" else [part.replace(":", "_") for part in parts]
    is_inside = bool(parts) and all(map(is_file_name, names))
    expected = "paths of files in the directory of the index or below"
    index.check(is_inside, WEIGHT_MAP, shorten(repr(file)), expected)
    return "/".join(parts)


def _open_file(source: Source, name: str) -> _Header:
    return _Header.read(HeaderReader(*open_sibling(source, name, f"it is named by {source.name}")))


def _check_headers(index: Fields, headers: Mapping[str, _Header], checksums: Any) -> None:
    """Raise an error if a file is not the one that was written with the index."""
    for file, header in headers.items() if isinstance(checksums, Mapping) else ():
        expected = checksums.get(file, header.checksum)
        field, actual = f"the header of {shorten(repr(file))}", f"checksum {header.checksum}"
        remove = f"remove {HEADER_CHECKSUMS!r} from the index if it was changed on purpose"
        hint = f"the files are from different writes; write them again, or {remove}"
        is_equal = header.checksum == expected
        index.check(is_equal, field, actual, shorten(str(expected)), hint)
