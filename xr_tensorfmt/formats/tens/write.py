"""Writing a TENS file: all values, in both versions, or pairs of index and value."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed
from xarray import Variable

from xr_tensorfmt.contract import (
    DEFAULT_CHUNK_BYTES,
    PAGE,
    Array,
    BlockGrid,
    CheckedInput,
    Conversion,
    DeferredPlans,
    Dense,
    FilePlan,
    OpenOptions,
    Piece,
    Plain,
    PlannedVariable,
    TensorFormatWarning,
    build_elements,
    column_major,
    contiguous_chunk,
    drop_chunks,
    embed_one_tensor,
    encode_metadata,
    find_stack_level,
    regular_chunks,
)
from xr_tensorfmt.formats.tens import chunks, spec
from xr_tensorfmt.formats.tens.pairs import (
    COUNT_BYTES,
    bits_of,
    made_pairs,
    pair_dtype,
    sorted_pairs,
)
from xr_tensorfmt.formats.tens.read import ENTRY
from xr_tensorfmt.formats.tens.spec import Header
from xr_tensorfmt.formats.tens.symmetries import (
    Symmetry,
    check_images,
    joined,
    split,
    still_holding,
)

Version = Literal["1.0", "0.9"]

Symmetries = str | Collection[str]
"""As the reader gives them: ``"-x bacd"``, several in a list or in a string, after ``", "``."""


def plan(
    checked: CheckedInput,
    *,
    version: Version | None = None,
    sparse: bool = False,
    symmetries: Symmetries | None = None,
) -> FilePlan | DeferredPlans:
    """Plan a TENS file."""
    name, variable = checked.only
    checked.check_rank(name, variable)
    is_bin = version is None and checked.path.casefold().endswith(".bin")
    which = (
        "as of .bin files, unless version='1.0' is asked for" if is_bin else "unlike version='1.0'"
    )
    older = replace(checked, format=f"TENS 0.9 ({which})")
    if is_bin or version == "0.9":
        return _plan_0_9(older, sparse, symmetries)
    if version is None and _facts_of(variable).get("version") == "0.9":
        try:
            return _plan_0_9(older, sparse, symmetries)
        except ValueError as error:
            reason = str(error).removeprefix(f"{checked.path}: ")
        message = (
            f"{checked.path}: the file is of version 1.0, which cc4s and sisi4s cannot load, as "
            f"{reason}"
        )
        warnings.warn(message, TensorFormatWarning, stacklevel=find_stack_level())
    return _plan_1_0(checked, sparse, symmetries)


def _facts_of(variable: Variable) -> Mapping[str, Any]:
    """What is known of the TENS file that a variable was opened from; nothing if there is none."""
    facts = variable.encoding.get("tensorfmt")
    return facts if isinstance(facts, Mapping) and facts.get("format") == "tens" else {}


def _are_stored_pairs(variable: Variable) -> bool:
    """Whether values are pairs that were opened as they are in a file."""
    return _facts_of(variable).get("sparse") == "stored" and variable.dims == (ENTRY,)


def _header(
    checked: CheckedInput, version: int, sizes: Mapping[Any, int], flags: int = 0
) -> tuple[Header, Conversion]:
    """The header of the one variable, and its dtype in the file."""
    elements = build_elements(spec.DTYPES[version])
    conversion = checked.conversion(*checked.only, elements)
    fields = spec.number_fields(conversion.element.dtype)
    return Header(version, *fields, flags, spec.dimensions_of(checked.path, sizes)), conversion


def _plan_values(variable: Variable, conversion: Conversion, head: bytes, unit: int) -> FilePlan:
    """A file of values after the head, filled up to a multiple of a unit."""
    layout = column_major(Dense(variable.shape[::-1], conversion.element, len(head)))
    size = len(head) + prod(variable.shape) * conversion.element.stored.itemsize
    placed = PlannedVariable(variable, layout, conversion)
    return FilePlan(size + -size % unit, (Piece(0, head),), (placed,))


def _plan_pairs(pairs: Any, name: str, head: bytes) -> FilePlan:
    """A file of the head, the number of pairs and the pairs."""
    count = len(pairs).to_bytes(COUNT_BYTES, "little")
    conversion = Conversion(name, Plain(pairs.dtype), exact=True)
    return _plan_values(Variable((ENTRY,), pairs), conversion, head + count, 1)


def _plan_0_9(checked: CheckedInput, sparse: bool, symmetries: Symmetries | None) -> FilePlan:
    """A file of version 0.9, as cc4s wrote it; ValueError for what that has no place for."""
    _, variable = checked.only
    if sparse or symmetries or _are_stored_pairs(variable):
        raise ValueError(
            f"{checked.path}: {checked.format} has neither pairs of index and value nor "
            "symmetries; write all values, without sparse= and symmetries=, of a file that was "
            "opened without sparse='stored'"
        )
    header, conversion = _header(checked, spec.VERSION_0_9, variable.sizes)
    checked.only_values(header.names)
    return _plan_values(variable, conversion, header.pack(), 1)


def _plan_1_0(
    checked: CheckedInput, sparse: bool, symmetries: Symmetries | None
) -> FilePlan | DeferredPlans:
    """A file of version 1.0."""
    name, variable = checked.only
    if _are_stored_pairs(variable):
        return _plan_stored(checked, symmetries)
    flags = spec.INDEX_VALUE_FLAG if sparse else 0
    header, conversion = _header(checked, spec.VERSION_1_0, variable.sizes, flags)
    stated = _stated_symmetries(checked.path, symmetries, header, variable)
    nbytes = prod(variable.shape) * conversion.element.stored.itemsize
    data = b"" if sparse else chunks.packed_header(chunks.DENSE_DATA, nbytes)
    is_same = symmetries is None and checked.unmodified(name, variable) is not None
    replaced = {} if is_same else {"symmetries": joined(stated) or None}
    embedded = encode_metadata(
        checked, embed_one_tensor(checked, OpenOptions.name, replaced=replaced)
    )
    head = _head(header, stated, embedded, len(data) or COUNT_BYTES) + data

    if not sparse and not stated:
        return _plan_values(variable, conversion, head, chunks.UNIT)

    def plans() -> Iterator[FilePlan]:
        _check_symmetries(variable, header, conversion, stated)
        if sparse:
            yield _plan_pairs(_pairs_of_tensor(variable, conversion), conversion.name, head)
        else:
            yield _plan_values(variable, conversion, head, chunks.UNIT)

    return DeferredPlans(plans)


def _head(header: Header, symmetries: Sequence[Symmetry], embedded: bytes, following: int) -> bytes:
    """Header and chunks; after so many more bytes a page of the file begins."""
    stated = b"".join(chunks.packed_chunk(chunks.SYMMETRY, each.pack()) for each in symmetries)
    start = header.pack() + stated
    known = len(start) + chunks.HEADER_BYTES + len(embedded) + following
    return start + chunks.packed_chunk(chunks.EMBEDDED, embedded + bytes(-known % PAGE))


def _stated_symmetries(
    path: str, symmetries: Symmetries | None, header: Header, variable: Variable
) -> list[Symmetry]:
    """The symmetries that the user gives, or those of the opened file that can hold."""
    if symmetries is None:
        facts = _facts_of(variable)
        has_same_dims = variable.encoding.get("original_dims") == variable.dims
        known = facts.get("symmetries", "") if has_same_dims else ""
        return still_holding(known, facts.get("index_names", ""), header)
    strings = split(symmetries) if isinstance(symmetries, str) else list(symmetries)
    if not all(isinstance(string, str) for string in strings):
        raise TypeError(f"symmetries={symmetries!r} is not a list of strings such as '-x ba'")
    stated = [Symmetry.parse(string) for string in strings if string]
    for each in stated:
        if obstacle := each.obstacle(header):
            raise ValueError(
                f"{path}: the symmetry {str(each)!r} cannot hold with {obstacle[0]}, expected "
                f"{obstacle[1]}; leave it out of symmetries="
            )
    return stated


def _check_symmetries(
    variable: Variable, header: Header, conversion: Conversion, symmetries: Sequence[Symmetry]
) -> None:
    """Compare all values with those that the symmetries relate them to, a chunk at a time."""
    if not variable.size or not symmetries:
        return
    variable = drop_chunks(variable)
    if variable.chunks is None:
        normalize: Any = da.core.normalize_chunks  # alike along axes of equal lengths
        lengths = normalize("auto", variable.shape, limit=DEFAULT_CHUNK_BYTES, dtype=variable.dtype)
        # A name of its own spares dask a pass over all values.
        cut = dict(zip(variable.dims, lengths, strict=True))
        variable = variable.chunk(cut, from_array_kwargs={"name": False})
    array, differing = variable.data, []
    for each in symmetries:
        operation = each.operation(header)
        image = array.transpose(operation.inverse).rechunk(array.chunks)
        check = partial(check_images, conversion.name, variable.dims, each, operation)
        compare = partial(_compare, check, conversion)
        meta = np.empty(0, dtype=bool)
        differing.append(da.map_blocks(compare, array, image, dtype=bool, meta=meta).any())  # type: ignore[no-untyped-call]
    compute(*differing)  # type: ignore[no-untyped-call]


def _compare(
    check: Callable[..., Array],
    conversion: Conversion,
    values: Array,
    images: Array,
    block_info: Any = None,
) -> Array:
    """Compare a block with its images."""
    starts = [start for start, _ in block_info[0]["array-location"]]
    values, images = (conversion.apply(np.asarray(each)) for each in (values, images))
    return check(values, images, starts)


def _pairs_of_tensor(variable: Variable, conversion: Conversion) -> Any:
    """The pairs of a tensor: of the elements with any bit set, as NaN and the negative zero have.

    All chunks are computed here to count the pairs, and once more when they are written.
    """
    dtype = pair_dtype(conversion.element, 1)
    if not variable.size:
        return np.empty(0, dtype)
    variable = variable.transpose()
    block = contiguous_chunk(variable.shape, dtype.itemsize, DEFAULT_CHUNK_BYTES)
    lengths = variable.chunks or regular_chunks(variable.shape, block)
    layout = Dense(variable.shape, conversion.element, 0)
    grid = BlockGrid(layout, conversion, lengths, (0,) * variable.ndim)
    if variable.chunks is None:  # dask would copy an array as a whole
        blocks = [variable[grid.part(number)] for number in range(grid.count)]
    else:
        blocks = variable.data.to_delayed().ravel()
    count, make = delayed(partial(_counted_pairs, grid)), delayed(partial(_made_pairs, grid))
    counts = compute(*(count(block, number) for number, block in enumerate(blocks)))  # type: ignore[no-untyped-call]
    parts = [
        da.from_delayed(make(blocks[number], number, counts[number]), (counts[number],), dtype)  # type: ignore[no-untyped-call]
        for number in np.flatnonzero(counts).tolist()
    ]
    return da.concatenate(parts) if parts else np.empty(0, dtype)  # type: ignore[no-untyped-call]


def _counted_pairs(grid: BlockGrid, values: Any, number: int) -> int:
    """How many pairs a block has."""
    # In the order of memory, which spares a copy.
    return int(np.count_nonzero(bits_of(_stored(grid, values, number, "K"))))


def _made_pairs(grid: BlockGrid, values: Any, number: int, count: int) -> Array:
    """The pairs of a block by ascending index, after checking that they are as many as counted."""
    stored = _stored(grid, values, number, "C")
    positions = np.flatnonzero(bits_of(stored))
    if positions.size != count:
        raise ValueError(
            f"{count} values of a chunk were not zero when they were counted, and "
            f"{positions.size} when they were written; they must be the same each time they "
            "are computed, so call load() or persist() first"
        )
    runs = grid.selection(number).runs()
    run, within = np.divmod(positions, runs.length)
    return made_pairs(runs.starts[run] + within, stored[positions], grid.conversion.element)


def _stored(grid: BlockGrid, values: Any, number: int, order: Literal["C", "K"]) -> Array:
    """The values of a block as they are stored."""
    # Indexing makes a copy of a lazy variable, since the variable keeps what it has read.
    values = values[...].values if isinstance(values, Variable) else values
    _, converted = grid.convert(number, values)
    return grid.conversion.element.encode(converted.ravel(order))


def _plan_stored(checked: CheckedInput, symmetries: Symmetries | None) -> DeferredPlans:
    """A file of the pairs that were opened with sparse='stored', which are loaded and sorted."""
    _, variable = checked.only
    facts = _facts_of(variable)
    if related := symmetries or facts.get("packed_symmetries"):
        raise ValueError(
            f"{checked.path}: pairs opened with sparse='stored' are written without a look at "
            f"symmetries such as {related!r}; open the file without sparse='stored', and write it "
            "with sparse=True"
        )
    along = {
        _facts_of(each).get("axis"): name
        for name, each in checked.coordinates.items()
        if each.dims == (ENTRY,)
    }
    axes = range(len(facts["shape"]))
    if missing := [axis for axis in axes if axis not in along]:
        raise ValueError(
            f"{checked.path}: the pairs have lost the coordinates that were opened with them (for "
            f"dimension {', '.join(map(str, missing))} of {len(axes)}); keep them, or open the "
            "file without sparse='stored'"
        )
    sizes = {along[axis]: facts["shape"][axis] for axis in axes}
    others = _other_coordinates(checked, sizes)
    header, conversion = _header(checked, spec.VERSION_1_0, sizes, spec.INDEX_VALUE_FLAG)
    embedded = embed_one_tensor(checked, OpenOptions.name, dims=list(sizes), coordinates=others)
    head = _head(header, (), encode_metadata(checked, embedded), COUNT_BYTES)

    def plans() -> Iterator[FilePlan]:
        indices = {dim: checked.coordinates[dim].values for dim in sizes}
        stored = conversion.element.encode(conversion.apply(variable.values))
        pairs = sorted_pairs(conversion.name, indices, sizes, stored, conversion.element)
        yield _plan_pairs(pairs, conversion.name, head)

    return DeferredPlans(plans)


def _other_coordinates(checked: CheckedInput, indices: Collection[str]) -> dict[str, Variable]:
    """The coordinates beside the indices of pairs, after a look at what would be lost."""
    others = {}
    for name, each in checked.coordinates.items():
        if name not in indices and not {ENTRY, *indices} & set(each.dims):
            others[name] = each
        elif name not in indices:
            what = f"the coordinate {name!r} of pairs"
            checked.dropping("coords", what, f"call drop_vars({name!r})")
        elif each.attrs:
            what = f"the attributes {', '.join(map(repr, each.attrs))} of the index {name!r}"
            checked.dropping("attrs", what, "move them to the variable")
    return others
