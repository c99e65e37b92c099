"""Plan a safetensors file, or an index and its files, as the package huggingface_hub does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap
from json import dumps, loads
from posixpath import normpath
from secrets import token_hex
from typing import Any

from xr_tensorfmt.core.embedded_metadata import check_header_size
from xr_tensorfmt.core.file_format import EMBEDDED_KEY
from xr_tensorfmt.datasets.building import parse_size
from xr_tensorfmt.formats import keyed, safetensors
from xr_tensorfmt.writing.checked_input import CheckedInput
from xr_tensorfmt.writing.file_plan import FilePlan, Piece, PlannedVariable

_NAMES = {dtype: name for name, dtype in safetensors.DTYPES.items()}
_DEFAULT_SHARD_BYTES = 5_000_000_000


def plan(checked: CheckedInput, max_shard_bytes: int | str | None = None) -> FilePlan:
    """Plan a file, or an index and its files if the path has the suffix of an index."""
    checked = checked.encode(safetensors.ELEMENTS)
    entries, others = keyed.select_stored(checked, safetensors.ELEMENTS, empty=True)
    if any(conversion.name == safetensors.METADATA for _, conversion in entries):
        raise ValueError(
            f"{checked.path}: {safetensors.METADATA!r} is the name of the metadata; rename it"
        )
    is_index = bool(safetensors.INDEX_SUFFIX.search(checked.file_name))
    attrs = keyed.encode_dataset_attrs(checked)
    reserved = (safetensors.TOTAL_SIZE, safetensors.HEADER_CHECKSUMS) if is_index else ()
    strings = {x: y for x, y in attrs.items() if isinstance(y, str) and x not in reserved}
    text = keyed.embed_metadata(checked, entries, others, attrs, strings)
    embedded = {EMBEDDED_KEY: text} if text else {}
    if is_index:
        limit = _DEFAULT_SHARD_BYTES if max_shard_bytes is None else max_shard_bytes
        shards = _split(entries, parse_size("max_shard_bytes", limit))
        return _plan_index(checked, shards, strings, embedded)
    if max_shard_bytes is not None:
        raise ValueError(
            f"{checked.path}: max_shard_bytes= is for a model in several files; use a name that "
            f"ends with {safetensors.INDEX}"
        )
    has_suffix = checked.file_name.casefold().endswith(safetensors.SUFFIX)
    conflicts = safetensors.list_other_forms(checked.file_name) if has_suffix else ()
    return replace(_plan_file(checked, entries, strings | embedded), conflicts=conflicts)


def _plan_file(
    checked: CheckedInput, entries: Sequence[keyed.KeyedVariable], metadata: Mapping[str, str]
) -> FilePlan:
    """Plan a file. The widest elements are first, so all data are aligned."""
    ordered = sorted(entries, key=lambda entry: (-entry[1].element.stored.itemsize, entry[1].name))
    placed, data_bytes = keyed.place_tensors(ordered)
    content: dict[str, Any] = {safetensors.METADATA: metadata} if metadata else {}
    for variable, conversion in entries:
        content[conversion.name] = {
            "dtype": _NAMES[conversion.element.name],
            "shape": variable.shape,
            "data_offsets": placed[conversion.name],  # relative to the end of the header
        }
    options: Any = {"separators": (",", ":"), "ensure_ascii": False, "check_circular": False}
    text = dumps(content, **options).encode()
    text += b" " * (-len(text) % safetensors.LENGTH_BYTES)
    header = len(text).to_bytes(safetensors.LENGTH_BYTES, "little") + text
    check_header_size(checked, header, safetensors.MAX_HEADER_BYTES)
    planned = tuple(starmap(PlannedVariable, keyed.build_layouts(ordered, placed, len(header))))
    return FilePlan(len(header) + data_bytes, (Piece(0, header),), planned)


def _split(entries: Sequence[keyed.KeyedVariable], limit: int) -> list[list[keyed.KeyedVariable]]:
    """Distribute tensors over files in their order. A tensor is never divided."""
    shards: list[list[keyed.KeyedVariable]] = [[]]
    size = 0
    for entry in entries:
        size += keyed.count_bytes(entry)
        if shards[-1] and size > limit:
            shards.append([])
            size = keyed.count_bytes(entry)
        shards[-1].append(entry)
    return shards


def _plan_index(
    checked: CheckedInput,
    shards: Sequence[Sequence[keyed.KeyedVariable]],
    attrs: Mapping[str, str],
    embedded: Mapping[str, str],
    token: str = "",
) -> FilePlan:
    """Plan an index and its files. Programs look for the attributes in each file."""
    stem = safetensors.get_stem(checked.file_name)
    siblings, checksums, total = list[FilePlan](), dict[str, str](), 0
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"{stem}{token}-{number:05}-of-{len(shards):05}{safetensors.SUFFIX}"
        plan = replace(_plan_file(checked, shard, attrs), name=name)
        siblings.append(plan)
        checksums[name] = safetensors.compute_checksum(plan.pieces[0].data)
        total += sum(map(keyed.count_bytes, shard))
        weight_map |= dict.fromkeys((conversion.name for _, conversion in shard), name)
    facts = {safetensors.TOTAL_SIZE: total, safetensors.HEADER_CHECKSUMS: checksums}
    metadata = {**attrs, **embedded, **facts}
    content = {"metadata": metadata, safetensors.WEIGHT_MAP: weight_map}
    text = (dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    check_header_size(checked, text, safetensors.MAX_HEADER_BYTES)
    replaced = partial(_list_replaced, stem)
    conflicts = safetensors.list_other_forms(checked.file_name)
    rename = partial(_plan_index, checked, shards, attrs, embedded, f"-{token_hex(4)}")
    return FilePlan(len(text), (Piece(0, text),), (), tuple(siblings), replaced, conflicts, rename)


def _list_replaced(stem: str, replaced: bytes) -> list[str]:
    try:
        files = {normpath(str(name)) for name in loads(replaced)[safetensors.WEIGHT_MAP].values()}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return []
    numbered = re.compile(re.escape(stem) + r"(-[0-9a-f]{8})?-\d{5}-of-\d{5}\.safetensors")
    return sorted(filter(numbered.fullmatch, files))
