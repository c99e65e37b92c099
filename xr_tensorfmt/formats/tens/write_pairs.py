"""Write a tensor, or pairs that were opened as stored, as pairs of index and value."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed
from xarray import Variable

from xr_tensorfmt.contract import (
    DEFAULT_CHUNK_BYTES,
    Array,
    BlockGrid,
    CheckedInput,
    Conversion,
    DeferredPlans,
    Dense,
    Element,
    FilePlan,
    Integers,
    OpenOptions,
    Plain,
    build_regular_chunks,
    contiguous_chunk,
    embed_one_tensor,
    encode_metadata,
)
from xr_tensorfmt.formats.tens import spec
from xr_tensorfmt.formats.tens.pairs import COUNT_BYTES, build_pair_dtype
from xr_tensorfmt.formats.tens.stored_pairs import ENTRY
from xr_tensorfmt.formats.tens.write_values import (
    build_header,
    get_file_info,
    pack_head,
    plan_values,
)


def has_stored_pairs(variable: Variable) -> bool:
    """Return whether a variable has the pairs of a file opened with ``sparse="stored"``."""
    return get_file_info(variable).get("sparse") == "stored" and variable.dims == (ENTRY,)


def plan_pairs(pairs: Any, name: str, head: bytes) -> FilePlan:
    """Plan a file of pairs."""
    count = len(pairs).to_bytes(COUNT_BYTES, "little")
    conversion = Conversion(name, Plain(pairs.dtype), exact=True)
    return plan_values(Variable((ENTRY,), pairs), conversion, head + count, 1)


def collect_pairs(variable: Variable, conversion: Conversion) -> Any:
    """Return the pairs of all elements with a bit set. NaN and negative zero are among them.

    All chunks are computed here to count the pairs, and again when they are written.
    """
    dtype = build_pair_dtype(conversion.element, 1)
    if not variable.size:
        return np.empty(0, dtype)
    variable = variable.transpose()
    chunk = contiguous_chunk(variable.shape, dtype.itemsize, DEFAULT_CHUNK_BYTES)
    lengths = variable.chunks or build_regular_chunks(variable.shape, chunk)
    layout = Dense(variable.shape, conversion.element, 0)
    grid = BlockGrid(layout, conversion, lengths, (0,) * variable.ndim)
    if variable.chunks is None:  # dask would copy the whole array
        parts = [variable[grid.get_slices(block)] for block in range(grid.count)]
    else:
        parts = variable.data.to_delayed().ravel()
    count, build = delayed(partial(_count_pairs, grid)), delayed(partial(_build_pairs, grid))
    counts = compute(*(count(part, block) for block, part in enumerate(parts)))  # type: ignore[no-untyped-call]
    pairs = [
        da.from_delayed(build(parts[block], block, counts[block]), (counts[block],), dtype)  # type: ignore[no-untyped-call]
        for block in np.flatnonzero(counts).tolist()
    ]
    return da.concatenate(pairs) if pairs else np.empty(0, dtype)  # type: ignore[no-untyped-call]


def _count_pairs(grid: BlockGrid, values: Any, block: int) -> int:
    # The order of memory avoids a copy.
    return int(np.count_nonzero(_get_bits(_encode_block(grid, values, block, "K"))))


def _build_pairs(grid: BlockGrid, values: Any, block: int, count: int) -> Array:
    """Return the pairs of a block by ascending index. Raise ValueError if their count changed."""
    stored = _encode_block(grid, values, block, "C")
    positions = np.flatnonzero(_get_bits(stored))
    if positions.size != count:
        raise ValueError(
            f"{count} values of a chunk were not zero when they were counted, and "
            f"{positions.size} when they were written, expected the same values in each "
            "computation; call load() or persist() first"
        )
    runs = grid.get_selection(block).runs()
    run, offset = np.divmod(positions, runs.length)
    return _join_pairs(runs.starts[run] + offset, stored[positions], grid.conversion.element)


def _encode_block(grid: BlockGrid, values: Any, block: int, order: Literal["C", "K"]) -> Array:
    """Encode the values of a block."""
    # A lazy variable keeps what it has read. Indexing makes a copy that is freed.
    values = values[...].values if isinstance(values, Variable) else values
    _, converted = grid.convert(block, values)
    return grid.conversion.element.encode(converted.ravel(order))


def _get_bits(stored: Array) -> Array:
    """Return one integer per stored element. It is zero if no bit of the element is set."""
    words = stored.view(f"u{min(8, stored.itemsize)}")
    bits: Array = words if words.size == stored.size else words[::2] | words[1::2]
    return bits


def _join_pairs(index: Integers, stored: Array, element: Element) -> Array:
    pairs = np.empty(index.size, build_pair_dtype(element, 1))
    pairs["index"], pairs["value"] = index, stored[:, np.newaxis]
    return pairs


def plan_stored(checked: CheckedInput, symmetries: object) -> DeferredPlans:
    """Plan a file of pairs that were opened as stored. They are loaded and sorted."""
    _, variable = checked.single_variable
    file_info = get_file_info(variable)
    if related := symmetries or file_info.get("packed_symmetries"):
        raise ValueError(
            f"{checked.path}: symmetries such as {related!r} are not supported for pairs "
            "opened with sparse='stored'; open the file without sparse='stored', and write it "
            "with sparse=True"
        )
    names = {
        get_file_info(coordinate).get("axis"): name
        for name, coordinate in checked.coordinates.items()
        if coordinate.dims == (ENTRY,)
    }
    axes = range(len(file_info["shape"]))
    if missing := [axis for axis in axes if axis not in names]:
        raise ValueError(
            f"{checked.path}: the pairs have lost the coordinates that were opened with them (for "
            f"dimension {', '.join(map(str, missing))} of {len(axes)}); keep them, or open the "
            "file without sparse='stored'"
        )
    sizes = {names[axis]: file_info["shape"][axis] for axis in axes}
    coordinates = _select_coordinates(checked, sizes)
    header, conversion = build_header(checked, spec.VERSION_1_0, sizes, spec.INDEX_VALUE_FLAG)
    embedded = embed_one_tensor(
        checked, OpenOptions.name, dims=list(sizes), coordinates=coordinates
    )
    head = pack_head(header, (), encode_metadata(checked, embedded), COUNT_BYTES)

    def plans() -> Iterator[FilePlan]:
        indices = {dim: checked.coordinates[dim].values for dim in sizes}
        stored = conversion.element.encode(conversion.apply(variable.values))
        pairs = _sort_pairs(conversion.name, indices, sizes, stored, conversion.element)
        yield plan_pairs(pairs, conversion.name, head)

    return DeferredPlans(plans)


def _sort_pairs(
    name: str,
    indices: Mapping[str, Array],
    sizes: Mapping[str, int],
    stored: Array,
    element: Element,
) -> Array:
    """Sort pairs by index. Raise ValueError if an index is out of bounds or repeated."""
    flat, inner = np.zeros(stored.size, dtype=np.int64), 1
    for dim, index in indices.items():
        outside = ~((index >= 0) & (index < sizes[dim]))  # also true for NaN
        if outside.any():
            raise ValueError(
                f"{name!r} has a pair whose index {dim!r} is {index[outside][0]}, expected 0 to "
                f"{sizes[dim] - 1}; correct the coordinate {dim!r}"
            )
        flat += index.astype(np.int64) * inner
        inner *= sizes[dim]
    order = np.argsort(flat, kind="stable")
    repeated = order[1:][flat[order[1:]] == flat[order[:-1]]]
    if repeated.size:
        labels = {dim: int(index[repeated[0]]) for dim, index in indices.items()}
        raise ValueError(f"{name!r} has two pairs for the element {labels}; drop one of them")
    return _join_pairs(flat[order], stored[order], element)


def _select_coordinates(checked: CheckedInput, indices: Collection[str]) -> dict[str, Variable]:
    """Return the coordinates to embed. Others are dropped if the user allows it."""
    selected = {}
    for name, coordinate in checked.coordinates.items():
        if name not in indices and not {ENTRY, *indices} & set(coordinate.dims):
            selected[name] = coordinate
        elif name not in indices:
            subject = f"the coordinate {name!r} of pairs"
            checked.require_drop("coords", subject, f"call drop_vars({name!r})")
        elif coordinate.attrs:
            attrs = ", ".join(map(repr, coordinate.attrs))
            subject = f"the attributes {attrs} of the index {name!r}"
            checked.require_drop("attrs", subject, "move them to the variable")
    return selected
