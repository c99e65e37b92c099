"""A Dataset's one variable as the tensor of a TENS file to be."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from string import ascii_letters
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray
from xarray import DataArray, Dataset, Variable

from xr_tensorfmt.core.chunk_grid import TARGET
from xr_tensorfmt.core.dense import Dense
from xr_tensorfmt.core.elements import Array, Element, Plain
from xr_tensorfmt.core.embedded_metadata import EmbeddedMetadata
from xr_tensorfmt.core.extents import Extents, Integers
from xr_tensorfmt.core.header import MOST_DIMENSIONS
from xr_tensorfmt.core.layout import BATCH, Encoded, Layout, raw_bytes
from xr_tensorfmt.core.selection import MOST_RUNS, Selection
from xr_tensorfmt.core.source import Source
from xr_tensorfmt.core.views import column_major
from xr_tensorfmt.datasets.lazy_array import unchunked, wrapped_data
from xr_tensorfmt.errors import shortened
from xr_tensorfmt.formats.tens import TensFormat
from xr_tensorfmt.formats.tens.pairs import INDEX_BYTES, Pairs
from xr_tensorfmt.formats.tens.read import COMPONENT, COUNT_BYTES, ENTRY
from xr_tensorfmt.formats.tens.spec import (
    DTYPES,
    INDEX_VALUE_FLAG,
    MOST_OPERATIONS,
    NUMBERS_PER_ELEMENT,
    TENSOR,
    UNIT,
    VERSION_0_9,
    VERSION_1_0,
    Dimension,
    Header,
    Operation,
    Symmetry,
    before_dense_values,
    before_pair_count,
    generated,
    header_bytes,
    number_fields,
    obstacle,
    operation_of,
)
from xr_tensorfmt.writing.atomic_file import Piece
from xr_tensorfmt.writing.checked_input import CheckedInput, Encoding, Part
from xr_tensorfmt.writing.conversion import Conversion
from xr_tensorfmt.writing.embedded_metadata import encoded, one_tensor
from xr_tensorfmt.writing.file_plan import (
    BlockGrid,
    Chunks,
    FilePlan,
    FirstPass,
    Placed,
    cut,
    in_file_order,
)
from xr_tensorfmt.writing.to_file import Mode, write

Version = Literal["1.0", "0.9"]

VERSIONS: dict[Version, int] = {"1.0": VERSION_1_0, "0.9": VERSION_0_9}

LONGEST = (1 << 32) - 1
"""What the field of a dimension's length can hold."""

_WRITTEN: dict[Version, Sequence[str]] = {"1.0": DTYPES, "0.9": ("float64", "complex128")}


@dataclass(frozen=True, eq=False)
class TensTensor:
    """What is written, and how the header describes it."""

    name: str
    variable: Variable
    conversion: Conversion
    header: Header

    @property
    def components(self) -> int:
        """Length of the axis of components; 1 where there is none."""
        has = self.variable.ndim > len(self.header.dimensions)
        return self.header.numbers if has else 1

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions of the tensor, without that of its components."""
        return tuple(map(str, self.variable.dims[: len(self.header.dimensions)]))

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return prod(self.variable.shape) * self.conversion.element.stored.itemsize


def facts_of(variable: Variable) -> Mapping[str, Any]:
    """What is known of the TENS file that a variable was opened from; nothing if there is none."""
    facts = variable.encoding.get("tensorfmt")
    return facts if isinstance(facts, Mapping) and facts.get("format") == "tens" else {}


def elements(version: Version) -> dict[str, Element]:
    """What a version can hold, by the names of dtypes."""
    return {name: Plain(np.dtype(name).newbyteorder("<")) for name in _WRITTEN[version]}


def tensor_of(checked: CheckedInput, version: Version, flags: int = 0) -> TensTensor:
    """The one variable of what is written, as a TENS file can hold it."""
    name, variable = checked.only
    conversion = checked.conversion(name, variable, elements(version))
    has_components = version == "1.0" and _has_components(variable, conversion.element)
    rank = variable.ndim - has_components
    _check_shape(checked.path, name, variable, rank)
    dims = [str(dim) for dim in variable.dims[:rank]]
    names = index_names(dims) if version == "1.0" else [ord("a") + axis for axis in range(rank)]
    components = variable.shape[-1] if has_components else 1
    header = Header(
        VERSIONS[version],
        *number_fields(conversion.element.dtype, components),
        flags,
        tuple(
            Dimension(length, index, 0)
            for length, index in zip(variable.shape[:rank], names, strict=True)
        ),
    )
    return TensTensor(name, variable, conversion, header)


def index_names(dims: Sequence[str]) -> list[int]:
    """A character for each dimension: its own name where that is one, else a letter."""
    own = {dim for dim in dims if len(dim) == 1 and "!" <= dim <= "~"}
    letters = (letter for letter in ascii_letters if letter not in own)
    return [ord(dim if dim in own else next(letters)) for dim in dims]


def component_counts(dtype: np.dtype[Any]) -> tuple[int, ...]:
    """How many numbers of a dtype an element can have, but for one; two floats are complex."""
    return {"c": (), "f": NUMBERS_PER_ELEMENT[2:]}.get(dtype.kind, NUMBERS_PER_ELEMENT[1:])


def _has_components(variable: Variable, element: Element) -> bool:
    """Whether the last axis is what the file, that it was opened from, had for components."""
    return (
        variable.dims[-1:] == (COMPONENT,)
        and len(facts_of(variable).get("shape", ())) == variable.ndim - 1
        and variable.shape[-1] in component_counts(element.dtype)
    )


def _check_shape(path: str, name: str, variable: Variable, rank: int) -> None:
    if rank > MOST_DIMENSIONS:
        raise ValueError(
            f"{path}: {name!r} has {rank} dimensions, and a TENS file is read with at most "
            f"{MOST_DIMENSIONS}; stack some of them"
        )
    for dim, length in zip(variable.dims, variable.shape, strict=True):
        if length > LONGEST:
            raise ValueError(
                f"{path}: {name!r} has {length} elements along {dim!r}, and TENS counts to "
                f"{LONGEST}; split that dimension in two"
            )


def plan_chunked(
    checked: CheckedInput, tensor: TensTensor, symmetries: Sequence[Symmetry]
) -> FilePlan:
    """Arrange a Dataset as a file of version 1.0."""
    embedded = encoded(checked, one_tensor(checked, TENSOR))
    head = before_dense_values(tensor.header, symmetries, embedded, tensor.nbytes)
    return _file_plan(tensor, head, UNIT)


def plan_raw(checked: CheckedInput, tensor: TensTensor) -> FilePlan:
    """Arrange a Dataset as a file of version 0.9, as cc4s wrote it."""
    _check_bare(checked, tensor)
    return _file_plan(tensor, header_bytes(tensor.header), 1)


def _file_plan(tensor: TensTensor, head: bytes, unit: int) -> FilePlan:
    lengths = tensor.header.lengths[::-1]
    components = (tensor.components,) if tensor.components > 1 else ()
    dense = Dense((*lengths, *components), tensor.conversion.element, len(head))
    layout: Layout = column_major(dense, trailing=len(components))
    placed = Placed(tensor.variable, layout, tensor.conversion)
    size = len(head) + tensor.nbytes + -tensor.nbytes % unit
    return FilePlan(size, (Piece(0, head),), (placed,))


def _check_bare(checked: CheckedInput, tensor: TensTensor) -> None:
    """Refuse all that version 0.9 has no place for, unless it may be dropped."""
    if tensor.name != TENSOR:
        way_out = f"rename it to {TENSOR!r}"
        checked.dropping("name", f"the name {tensor.name!r} in version 0.9", way_out)
    if tensor.dims != tensor.header.names:
        way_out = f"rename them to {tensor.header.names}"
        checked.dropping("dims", f"the dims {tensor.dims} in version 0.9", way_out)
    owners = {repr(tensor.name): tensor.variable.attrs, "the Dataset": checked.attrs}
    for owner, attrs in owners.items():
        if attrs:
            what = f"the attributes {', '.join(map(repr, attrs))} of {owner} in version 0.9"
            checked.dropping("attrs", what, "write version 1.0")
    for name in checked.coordinates:
        checked.dropping("coords", f"the coordinate {name!r} in version 0.9", "write version 1.0")


Symmetries = str | Collection[str]
"""As the reader gives them: ``"-x bacd"``, several in a text with ``", "`` between or in a list."""

_SEPARATOR = ", "


def given(path: str, symmetries: Symmetries, header: Header) -> tuple[Symmetry, ...]:
    """The symmetries that the user wants used."""
    texts = symmetries.split(_SEPARATOR) if isinstance(symmetries, str) else list(symmetries)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"symmetries={symmetries!r} is not a list of texts such as '-x bacd'")
    found = tuple(_parsed(text, packed=True) for text in texts if text)
    for each in found:
        if sorted(each.index_map) != sorted(header.index_names):
            raise ValueError(
                f"{path}: the symmetry {str(each)!r} has no permutation of the index names "
                f"{header.index_names!r}; give 'x' or '-x' and, after a space, one that leaves "
                "the tensor as it is"
            )
        problem = obstacle(each, header)
        if problem is not None:
            raise ValueError(
                f"{path}: the symmetry {str(each)!r} would be {problem.found}, and TENS packs "
                f"{problem.expected} only; leave it out of symmetries="
            )
    return found


def inherited(
    facts: Mapping[str, Any],
    header: Header,
    was: Sequence[str],
    dims: Sequence[str],
    *,
    pack: bool,
) -> tuple[Symmetry, ...]:
    """The symmetries of the file that a variable was opened from, as far as they fit it still."""
    letters, known = facts.get("index_names", ""), facts.get("symmetries", "")
    if not known or set(was) != set(dims) or len(set(letters)) != len(dims):
        return ()
    packed = facts.get("packed_symmetries", "").split(_SEPARATOR) if pack else []
    stated = [_parsed(text, packed=text in packed) for text in known.split(_SEPARATOR)]
    old = dict(zip(was, letters, strict=True))
    return tuple(_renamed(stated, old, dict(zip(dims, header.index_names, strict=True)), header))


def orbit_of(path: str, symmetries: Sequence[Symmetry], header: Header) -> tuple[Operation, ...]:
    """The group of the packed symmetries, as operations on the axes in file order."""
    operations = [operation_of(each, header) for each in symmetries]
    group = generated(operations, len(header.dimensions))
    if group is None:
        raise ValueError(
            f"{path}: the symmetries {shortened(', '.join(map(str, symmetries)))} make a group of "
            f"more than {MOST_OPERATIONS} operations; leave some of them out of symmetries="
        )
    return group


def _renamed(
    symmetries: Sequence[Symmetry],
    old: Mapping[str, str],
    new: Mapping[str, str],
    header: Header,
) -> Iterator[Symmetry]:
    """In other letters, and for another order of the dimensions; both give a letter to each."""
    places = list(old)
    letters = {old[dim]: letter for dim, letter in new.items()}
    for each in symmetries:
        if sorted(each.index_map) != sorted(letters):
            continue
        index_map = "".join(letters[each.index_map[places.index(dim)]] for dim in new)
        renamed = replace(each, index_map=index_map)
        if _exchanges_equal_lengths(renamed, header):
            yield replace(renamed, packed=renamed.packed and obstacle(renamed, header) is None)


def _exchanges_equal_lengths(symmetry: Symmetry, header: Header) -> bool:
    lengths = dict(zip(header.index_names, header.lengths, strict=True))
    pairs = zip(header.index_names, symmetry.index_map, strict=True)
    return all(lengths[one] == lengths[other] for one, other in pairs)


def _parsed(text: str, *, packed: bool) -> Symmetry:
    code, _, index_map = text.rpartition(" ")
    return Symmetry(code, index_map, packed, 0)


@dataclass(frozen=True, eq=False)
class Invariance:
    """What must hold for a tensor, whose axes are in the order of the file."""

    conversion: Conversion
    dims: tuple[str, ...]
    operations: Sequence[Operation]
    texts: Sequence[str]

    def check(
        self,
        values: Array,
        *partners: Array,
        starts: Sequence[Sequence[int]],
        block_id: tuple[int, ...],
    ) -> NDArray[np.bool_]:
        """Compare a block with those that the operations make it of."""
        converted = self.conversion.apply(np.asarray(values))
        for number, operation in enumerate(self.operations):
            partner = self.conversion.apply(np.asarray(partners[number]))
            wrong = _differ(converted, partner, operation.sign)
            if wrong.any():
                within = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
                begins = [each[i] for each, i in zip(starts, block_id, strict=True)]
                place = tuple(int(i) + begin for i, begin in zip(within, begins, strict=True))
                raise self._contradiction(number, place, converted[within], partner[within])
        return np.ones((1,) * values.ndim, dtype=np.bool_)

    def _contradiction(
        self, number: int, place: tuple[int, ...], value: Any, related: Any
    ) -> ValueError:
        axes = self.operations[number].axes
        return ValueError(
            f"{self.conversion.name!r} is {value} at {self._named(place)} and {related} at "
            f"{self._named(tuple(place[axis] for axis in axes))}, which the symmetry "
            f"{self.texts[number]!r} does not allow; pass symmetries= without it"
        )

    def _named(self, place: tuple[int, ...]) -> str:
        pairs = reversed(list(zip(self.dims, place[: len(self.dims)], strict=True)))
        return ", ".join(f"{dim}={index}" for dim, index in pairs)


def checked(array: da.Array, invariance: Invariance) -> da.Array:
    """The tasks that compare each block of a tensor with its partners."""
    partners = [_partner(array, operation) for operation in invariance.operations]
    starts = [list(accumulate(lengths, initial=0)) for lengths in array.chunks]
    return each_block(invariance.check, np.bool_, array, *partners, starts=starts)


def even_chunks(chunks: Chunks, item: int, operations: Sequence[Operation]) -> Chunks:
    """Chunks that are cut alike along axes which change places."""
    if all(chunks[a] == chunks[b] for each in operations for a, b in enumerate(each.axes)):
        return chunks
    shape = tuple(map(sum, chunks))
    rank = len(operations[0].axes)
    wanted = ("auto",) * rank + (-1,) * (len(shape) - rank)  # components
    even: Chunks = da.core.normalize_chunks(  # type: ignore[no-untyped-call]
        wanted, shape, limit=TARGET, dtype=f"V{item}"
    )
    return even


def _partner(array: da.Array, operation: Operation) -> da.Array:
    """For each element of an array the one that an operation relates to it, cut as the array."""
    rank = len(operation.axes)
    order = [operation.axes.index(axis) for axis in range(rank)]
    moved: Any = array.transpose([*order, *range(rank, array.ndim)])  # type: ignore[no-untyped-call]
    partner: da.Array = moved.rechunk(array.chunks)
    return partner


def _differ(values: Array, partner: Array, sign: int) -> NDArray[np.bool_]:
    """Where a block is not what its partner makes it; NaN is the same as NaN."""
    with np.errstate(all="ignore"):
        related = -partner if sign < 0 else partner
        same = (values == related) | ((values != values) & (related != related))
    if sign < 0 and values.dtype.kind == "i":
        # Its negative is no number of the dtype, so that no reader can fill it in.
        same &= partner != np.iinfo(partner.dtype).min
    return np.asarray(~same)


Found = tuple[Integers, Array]
"""Global indices, ascending, and the stored values there, each with its components."""


def pair_dtype(stored: np.dtype[Any], components: int) -> np.dtype[Any]:
    """A pair as it lies in a file."""
    return np.dtype([("index", "<u8"), ("value", stored, (components,))])


@dataclass(frozen=True, eq=False)
class CountedPairs(Layout):
    """Pairs whose number is known for each block in which they are written."""

    pairs: Pairs
    chunks: Chunks
    counts: Integers

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the tensor."""
        return self.pairs.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the values."""
        return self.pairs.dtype

    @cached_property
    def _begins(self) -> list[list[int]]:
        return [list(accumulate(lengths, initial=0)) for lengths in self.chunks]

    @cached_property
    def _stops(self) -> Integers:
        return np.cumsum(self.counts)

    def numbers(self, selection: Selection) -> tuple[int, int]:
        """Number of the first pair of a block, and that behind its last; or those of all."""
        if not selection.size:
            return 0, 0  # it begins where another block does
        if selection.size == prod(self.shape):
            return 0, self.pairs.count
        begins = zip(self._begins, _starts(selection), strict=True)
        block = [bisect_right(*each) - 1 for each in begins]
        lengths = tuple(each[i] for each, i in zip(self.chunks, block, strict=True))
        assert selection.shape == lengths, "pairs are counted in other blocks"
        number = int(np.ravel_multi_index(block, tuple(map(len, self.chunks))))
        stop = int(self._stops[number])
        return stop - int(self.counts[number]), stop

    def extents(self, selection: Selection) -> Extents:
        """The pairs of a block, or all of them."""
        first, stop = self.numbers(selection)
        if first == stop:
            return Extents.none()
        stride, begin = self.pairs.table.stride, self.pairs.offset
        return Extents.single(begin + first * stride, begin + stop * stride)

    def chunk_shape(self, target: int) -> tuple[int, ...]:
        """That of the tensor."""
        return self.pairs.chunk_shape(target)

    def read(self, source: Source, selection: Selection) -> Array:
        """Read a selection, which may be any."""
        return self.pairs.read(source, selection)

    def read_points(self, source: Source, points: tuple[Integers, ...]) -> Array:
        """Read single elements."""
        return self.pairs.read_points(source, points)

    @property
    def write_units(self) -> tuple[int, ...]:
        """Those of the tensor."""
        return self.pairs.write_units

    @property
    def bytes_per_element(self) -> float:
        """As if no element were zero."""
        return self.pairs.bytes_per_element

    def encode(self, selection: Selection, values: Array) -> Iterator[Encoded]:
        """The pairs of a block, as many as were counted."""
        pairs, (first, stop) = self.pairs, self.numbers(selection)
        dtype = pair_dtype(pairs.element.stored, pairs.components)
        done = first
        for index, stored in found(pairs, selection, values):
            made = np.empty(index.size, dtype=dtype)
            made["index"], made["value"] = index, stored
            begin = pairs.offset + done * dtype.itemsize
            done += index.size
            if done > stop:
                break
            if index.size:
                yield Extents.single(begin, begin + made.nbytes), raw_bytes(made)
        if done != stop:
            raise ValueError(
                f"{stop - first} values of a chunk were not zero when they were counted, and "
                f"{'more' if done > stop else done - first} when they were written; they must be "
                "the same each time they are computed, so call load() or persist() first"
            )


def found(layout: Pairs, selection: Selection, values: Array) -> Iterator[Found]:
    """The elements of a block that are stored."""
    rank, components = len(layout.lengths), layout.components
    block = Selection.everything(values.shape[:rank])
    step = max(1, BATCH // (components * layout.element.stored.itemsize))
    for batch in block.batches(runs=MOST_RUNS, span=step):
        stored = layout.element.encode(values[(*batch.entries, ...)]).reshape(-1, components)
        positions = np.flatnonzero(_has_bits(stored))
        index = _global(positions, batch, selection, layout.lengths)
        for operation in layout.orbit[1:]:
            kept = operation.images(index, layout.lengths) >= index
            positions, index = positions[kept], index[kept]
        yield index, stored[positions]


def count(layout: Pairs, selection: Selection, values: Array) -> int:
    """How many elements of a block are stored; as `found`."""
    return sum(index.size for index, _ in found(layout, selection, values))


def _has_bits(stored: Array) -> NDArray[np.bool_]:
    """Rows in which any bit is set."""
    size = min(INDEX_BYTES, stored.itemsize)
    words = stored.view(f"u{size}")
    found = words[:, 0] != 0
    for column in range(1, words.shape[1]):
        found |= words[:, column] != 0
    return np.asarray(found)


def _global(
    positions: Integers, batch: Selection, block: Selection, whole: tuple[int, ...]
) -> Integers:
    """Flat positions in a part of a block as flat positions in the tensor."""
    if not whole:
        return positions
    along = np.unravel_index(positions, batch.shape)
    starts = zip(_starts(batch), _starts(block), strict=False)  # a component has no index
    index = tuple(each + sum(start) for each, start in zip(along, starts, strict=True))
    return np.ravel_multi_index(index, whole).astype(np.int64, copy=False)


def _starts(selection: Selection) -> list[int]:
    """Where slices begin."""
    return [entry.start for entry in selection.entries if isinstance(entry, slice)]


class Uncopied:
    """An array as dask slices it without a copy of its own, which it makes of numpy's."""

    def __init__(self, values: Array) -> None:
        self._values = values
        self.shape = values.shape
        self.ndim = values.ndim
        self.dtype = values.dtype

    def __getitem__(self, key: Any) -> Array:
        """A view of a part."""
        part: Array = self._values[key]
        return part


def as_dask(variable: Variable, chunks: Chunks) -> da.Array:
    """A variable as an array of dask; what is lazy is read by chunks."""
    values = wrapped_data(variable)
    if isinstance(values, np.ndarray):
        uncopied: da.Array = da.from_array(Uncopied(values), chunks, name=False)  # type: ignore[no-untyped-call]
        return uncopied
    # A name of its own spares dask a pass over all values.
    cut = variable.chunk(
        dict(zip(variable.dims, chunks, strict=True)), from_array_kwargs={"name": False}
    )
    array: da.Array = cut.data
    return array


def each_block(
    call: Callable[..., Any], dtype: Any, array: da.Array, *others: da.Array, **keywords: Any
) -> da.Array:
    """Call something with each block of an array."""
    blocks: Any = da
    made: da.Array = blocks.map_blocks(
        call,
        array,
        *others,
        dtype=dtype,
        chunks=tuple((1,) * len(lengths) for lengths in array.chunks),
        meta=np.empty((0,) * array.ndim, dtype=dtype),
        **keywords,
    )
    return made


@dataclass(frozen=True, eq=False)
class PairMaker:
    """Makes pairs of values and of the indices along each dimension."""

    conversion: Conversion
    dims: Sequence[str]
    lengths: Sequence[int]
    dtype: np.dtype[Any]

    def __call__(self, values: Array, *indices: Array) -> Array:
        """The pairs of a chunk."""
        stored = self.conversion.element.encode(self.conversion.apply(np.asarray(values)))
        pairs = np.empty(len(stored), dtype=self.dtype)
        pairs["value"] = stored.reshape(pairs["value"].shape)
        flat = np.zeros(len(stored), dtype=np.int64)
        inner = 1
        for dim, length, along in zip(self.dims, self.lengths, indices, strict=True):
            outside = (along < 0) | (along >= length)
            if outside.any():
                raise ValueError(
                    f"{self.conversion.name!r} has a pair whose index {dim!r} is "
                    f"{along[np.argmax(outside)]}; it must be from 0 to {length - 1}"
                )
            flat += along.astype(np.int64) * inner
            inner *= length
        pairs["index"] = flat
        return pairs


def are_stored_pairs(variable: Variable) -> bool:
    """Whether values are pairs that were opened as they lie in a file."""
    facts = facts_of(variable)
    return (
        facts.get("storage") == "pairs"
        and variable.dims in ((ENTRY,), (ENTRY, COMPONENT))
        and ENTRY not in facts["dims"]
    )


def plan_stored(checked: CheckedInput) -> FilePlan:
    """Arrange pairs as a file of pairs, in the order in which they are."""
    name, variable = checked.only
    facts = facts_of(variable)
    lengths: Sequence[int] = facts["shape"]
    indices = _indices(checked, len(lengths))
    conversion = checked.conversion(name, variable, elements("1.0"))
    header = _header(checked.path, name, variable, conversion, lengths, list(indices))
    dims = tuple(indices)
    symmetries = inherited(facts, header, dims, dims, pack=True)
    embedded = encoded(checked, _note(checked, variable, indices))
    head = before_pair_count(header, symmetries, embedded)
    count = len(variable)
    if count > prod(lengths):
        raise ValueError(
            f"{checked.path}: {name!r} has {count} pairs, and the tensor that they belong to has "
            f"{prod(lengths)} elements; drop those that are there twice"
        )
    dtype = pair_dtype(conversion.element.stored, prod(variable.shape[1:]))
    pairs = Variable(
        (ENTRY,), _pairs(variable, indices, PairMaker(conversion, dims, lengths, dtype))
    )
    begin = len(head) + COUNT_BYTES
    layout = Dense((count,), Plain(dtype), begin)
    placed = Placed(pairs, layout, Conversion(name, layout.element, exact=True))
    number = Piece(len(head), count.to_bytes(COUNT_BYTES, "little"))
    return FilePlan(begin + count * dtype.itemsize, (Piece(0, head), number), (placed,))


def _indices(checked: CheckedInput, rank: int) -> dict[str, Variable]:
    """The coordinates that say where each value belongs, in the order of the dimensions."""
    found = {
        facts_of(each).get("axis"): name
        for name, each in checked.coordinates.items()
        if each.dims == (ENTRY,)
    }
    missing = [axis for axis in range(rank) if axis not in found]
    if missing:
        raise ValueError(
            f"{checked.path}: the pairs have lost the coordinates that were opened with them (for "
            f"dimension {', '.join(map(str, missing))} of {rank}); keep them, or open the file "
            "without sparse='stored'"
        )
    return {found[axis]: checked.coordinates[found[axis]] for axis in range(rank)}


def _header(
    path: str,
    name: str,
    variable: Variable,
    conversion: Conversion,
    lengths: Sequence[int],
    dims: Sequence[str],
) -> Header:
    dtype = conversion.element.dtype
    components = prod(variable.shape[1:])
    if variable.ndim > 1 and components not in component_counts(dtype):
        raise ValueError(
            f"{path}: {name!r} has pairs of {components} {dtype} each, and TENS has only "
            f"{', '.join(map(str, component_counts(dtype))) or 1}; select one with isel"
        )
    dimensions = zip(lengths, index_names(dims), strict=True)
    return Header(
        VERSION_1_0,
        *number_fields(dtype, components),
        INDEX_VALUE_FLAG,
        tuple(Dimension(length, index, 0) for length, index in dimensions),
    )


def _note(
    checked: CheckedInput, variable: Variable, indices: Mapping[str, Variable]
) -> EmbeddedMetadata:
    """What is embedded of the tensor that the pairs belong to."""
    others = {}
    for other, each in checked.coordinates.items():
        if other in indices:
            if each.attrs:
                what = f"the attributes {', '.join(map(repr, each.attrs))} of the index {other!r}"
                checked.dropping("attrs", what, "move them to the variable")
        elif {ENTRY, *indices} & set(each.dims):
            what = f"the coordinate {other!r} of pairs"
            checked.dropping("coords", what, f"call drop_vars({other!r})")
        else:
            others[other] = each
    dims = [*indices, *variable.dims[1:]]
    return one_tensor(checked, TENSOR, dims=dims, coordinates=others)


def _pairs(variable: Variable, indices: Mapping[str, Variable], maker: PairMaker) -> da.Array:
    whole: dict[Any, int] = dict.fromkeys(variable.dims[1:], -1)
    if variable.chunks is None:
        step = max(1, TARGET // maker.dtype.itemsize)
        values = variable.chunk({ENTRY: step} | whole).data
    else:
        values = variable.chunk(whole).data
    along = [each.chunk({ENTRY: values.chunks[0]}).data for each in indices.values()]
    operands = [each for array in along for each in (array, "i")]
    pairs: da.Array = da.blockwise(  # type: ignore[no-untyped-call]
        maker,
        "i",
        values,
        "ij"[: values.ndim],
        *operands,
        dtype=maker.dtype,
        concatenate=True,
        align_arrays=False,
        meta=np.empty(0, dtype=maker.dtype),
    )
    return pairs


@dataclass(frozen=True, eq=False)
class PairPlan:
    """A file of pairs, but for their number."""

    head: bytes
    variable: Variable
    blocks: BlockGrid
    free: Variable
    invariance: Invariance

    def file_plan(self) -> FilePlan:
        """Look at all values, and arrange the file."""
        if self.invariance.operations:
            self._check()
        counts = self._counts()
        total, bound = int(counts.sum()), pairs_of(self.blocks)
        layout = CountedPairs(replace(bound, count=total), self.blocks.chunks, counts)
        number = Piece(len(self.head), total.to_bytes(COUNT_BYTES, "little"))
        return FilePlan(
            bound.offset + total * bound.table.stride,
            (Piece(0, self.head), number),
            (Placed(self.variable, layout, self.blocks.conversion),),
        )

    def _check(self) -> None:
        item = self.variable.dtype.itemsize
        even = even_chunks(self.blocks.chunks, item, self.invariance.operations)
        checked(as_dask(self.free, even), self.invariance).compute()  # type: ignore[no-untyped-call]

    def _counts(self) -> Integers:
        array = as_dask(self.variable, self.blocks.chunks)
        # What is called must not hold the values, or dask would take them for a part of it.
        counts: Any = each_block(counted, np.int64, array, blocks=self.blocks)
        return np.ravel(counts.compute())


def pairs_of(blocks: BlockGrid) -> Pairs:
    """The layout of blocks, which is `Pairs`."""
    assert isinstance(blocks.layout, Pairs)
    return blocks.layout


def counted(values: Any, *, blocks: BlockGrid, block_id: tuple[int, ...] = ()) -> NDArray[np.int64]:
    """How many pairs a block has."""
    shape = tuple(map(len, blocks.chunks))
    selection = blocks.selection(int(np.ravel_multi_index(block_id, shape)) if block_id else 0)
    converted = blocks.conversion.apply(blocks.plain(values, selection.shape))
    number = count(pairs_of(blocks), selection, converted)
    return np.full((1,) * len(block_id), number, dtype=np.int64)


def plan_pairs(
    checked: CheckedInput, tensor: TensTensor, symmetries: Sequence[Symmetry]
) -> FilePlan | FirstPass:
    """Arrange a Dataset as a file of pairs."""
    embedded = encoded(checked, one_tensor(checked, TENSOR))
    head = before_pair_count(tensor.header, symmetries, embedded)
    lengths, element = tensor.header.lengths[::-1], tensor.conversion.element
    packed = [each for each in symmetries if each.packed]
    orbit = orbit_of(checked.path, packed, tensor.header)
    begin = len(head) + COUNT_BYTES
    if not tensor.variable.size:
        return FilePlan(begin, (Piece(0, head),), ())
    layout = Pairs(lengths, element, tensor.components, begin, prod(lengths), orbit)
    inner = column_major(layout, trailing=int(tensor.components > 1))
    placed = Placed(tensor.variable, inner, tensor.conversion)
    variable, blocks = cut(placed)
    free = in_file_order(replace(placed, variable=unchunked(tensor.variable))).variable
    operations = [operation_of(each, tensor.header) for each in packed]
    dims, texts = tensor.dims[::-1], list(map(str, packed))
    invariance = Invariance(tensor.conversion, dims, operations, texts)
    return FirstPass(PairPlan(head, variable, blocks, free, invariance).file_plan)


def to_tens(
    data: Dataset | DataArray,
    path: Any,
    *,
    version: Version | None = None,
    sparse: bool = False,
    symmetries: Symmetries | None = None,
    mode: Mode = "w",
    compute: bool = True,
    region: Mapping[Any, slice] | None = None,
    encoding: Encoding | None = None,
    drop: Collection[Part] = (),
    storage_options: Mapping[str, Any] | None = None,
    fs: Any = None,
) -> Delayed | None:
    """Write a TENS file: one tensor.

    Parameters
    ----------
    data : Dataset or DataArray
        What to write; one variable, with its coordinates.
    path : str or PathLike
        The file, or its URL.
    version : {"1.0", "0.9"}
        What the specification describes, or what cc4s until 2020 and sisi4s read: float64 or
        complex128, without names, coordinates and attributes.
    sparse : bool
        Whether to store only what is not zero, as pairs of index and value. For this the values
        are computed twice: to count them, and to write them. What was opened with
        ``sparse="stored"`` is written as pairs in any case.
    symmetries : str or collection of str, optional
        With ``sparse=True``, what leaves the tensor as it is: ``"-x ba"`` says
        T[a, b] = -T[b, a]. Of elements that are related so only one is stored. Dimensions of
        longer names are called a, b, ... in their order. By default those by which the
        opened file was packed, if they still fit the dims; an empty list for none.
    mode, compute, region, encoding, drop, storage_options, fs
        As for `to_file`.

    Returns
    -------
    Delayed or None
        What writes the file when it is computed, where ``compute=False``.

    Raises
    ------
    ValueError
        The format cannot hold something, or the values do not have the symmetries; the message
        says what, and what would work.
    OSError
        The system refuses; what was there before is unchanged.
    """
    return write(
        data,
        path,
        TensFormat(),
        {"version": version, "sparse": sparse or None, "symmetries": symmetries},
        mode=mode,
        compute=compute,
        region=region,
        encoding=encoding,
        drop=drop,
        storage_options=storage_options,
        fs=fs,
    )


def plan(
    checked: CheckedInput,
    *,
    version: Version = "1.0",
    sparse: bool = False,
    symmetries: Symmetries | None = None,
) -> FilePlan | FirstPass:
    """Arrange a Dataset as a TENS file."""
    if symmetries and not sparse:
        raise ValueError(
            f"symmetries={symmetries!r} leaves elements out, and TENS can do that only in pairs; "
            "pass sparse=True too"
        )
    stored = are_stored_pairs(checked.only[1])
    if version == "0.9":
        if sparse or stored:
            raise ValueError(
                f"{checked.path}: version 0.9 has no pairs of index and value; write version 1.0, "
                "or all values: without sparse=True, and of a file opened without sparse='stored'"
            )
        return plan_raw(checked, tensor_of(checked, version))
    if stored:
        if symmetries:
            raise ValueError(
                f"{checked.path}: pairs opened with sparse='stored' are written as they are; to "
                f"pack by symmetries={symmetries!r}, open the file without"
            )
        return plan_stored(checked)
    tensor = tensor_of(checked, version, INDEX_VALUE_FLAG if sparse else 0)
    if symmetries is None:
        facts = facts_of(tensor.variable)
        was = facts.get("dims", ())
        stated = inherited(facts, tensor.header, was, tensor.dims, pack=sparse)
    else:
        stated = given(checked.path, symmetries, tensor.header)
    if sparse:
        return plan_pairs(checked, tensor, stated)
    return plan_chunked(checked, tensor, stated)
