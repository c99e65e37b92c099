"""Plan a TENS file of version 0.9 or 1.0."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask.base import compute
from numpy.typing import NDArray
from xarray import Variable

from xr_tensorfmt.contract import (
    DEFAULT_CHUNK_BYTES,
    Array,
    CheckedInput,
    Conversion,
    DeferredPlans,
    FilePlan,
    OpenOptions,
    TensorFormatWarning,
    drop_chunks,
    embed_one_tensor,
    encode_metadata,
    find_stack_level,
)
from xr_tensorfmt.formats._shared.symmetries import are_nearly_equal
from xr_tensorfmt.formats.tens import chunks, spec
from xr_tensorfmt.formats.tens.pairs import COUNT_BYTES
from xr_tensorfmt.formats.tens.spec import TensHeader
from xr_tensorfmt.formats.tens.symmetries import (
    Operation,
    Symmetry,
    format_symmetries,
    split_symmetries,
    transfer_symmetries,
)
from xr_tensorfmt.formats.tens.write_pairs import (
    collect_pairs,
    has_stored_pairs,
    plan_pairs,
    plan_stored,
)
from xr_tensorfmt.formats.tens.write_values import (
    build_header,
    get_file_info,
    pack_head,
    plan_values,
)

Version = Literal["1.0", "0.9"]

Symmetries = str | Collection[str]
"""Symmetries as in attributes: ``"-x bacd"``, several in a list or separated by ``", "``."""


def plan(
    checked: CheckedInput,
    *,
    version: Version | None = None,
    sparse: bool = False,
    symmetries: Symmetries | None = None,
) -> FilePlan | DeferredPlans:
    """Plan a TENS file."""
    name, variable = checked.single_variable
    checked.check_rank(name, variable)
    is_bin = version is None and checked.path.casefold().endswith(".bin")
    default = "the default for .bin files, " if is_bin else ""
    older = replace(checked, format=f"TENS 0.9 ({default}unlike version='1.0')")
    if is_bin or version == "0.9":
        return _plan_0_9(older, sparse, symmetries)
    if version is None and get_file_info(variable).get("version") == "0.9":
        try:
            return _plan_0_9(older, sparse, symmetries)
        except ValueError as error:
            obstacle = str(error).removeprefix(f"{checked.path}: ")
        message = (
            f"{checked.path}: the file has version 1.0, which cc4s and sisi4s cannot load, "
            f"because {obstacle}"
        )
        warnings.warn(message, TensorFormatWarning, stacklevel=find_stack_level())
    return _plan_1_0(checked, sparse, symmetries)


def _plan_0_9(checked: CheckedInput, sparse: bool, symmetries: Symmetries | None) -> FilePlan:
    """Plan a file of version 0.9. Raise ValueError if the version cannot represent the input."""
    _, variable = checked.single_variable
    if sparse or symmetries or has_stored_pairs(variable):
        raise ValueError(
            f"{checked.path}: {checked.format} supports neither pairs nor symmetries; omit "
            "sparse= and symmetries=, and open the original without sparse='stored'"
        )
    header, conversion = build_header(checked, spec.VERSION_0_9, variable.sizes)
    checked.require_values_only(header.dimension_names)
    return plan_values(variable, conversion, header.pack(), 1)


def _plan_1_0(
    checked: CheckedInput, sparse: bool, symmetries: Symmetries | None
) -> FilePlan | DeferredPlans:
    """Plan a file of version 1.0."""
    name, variable = checked.single_variable
    if has_stored_pairs(variable):
        return plan_stored(checked, symmetries)
    flags = spec.INDEX_VALUE_FLAG if sparse else 0
    header, conversion = build_header(checked, spec.VERSION_1_0, variable.sizes, flags)
    stated = _choose_symmetries(checked.path, symmetries, header, variable)
    nbytes = prod(variable.shape) * conversion.element.stored.itemsize
    data = b"" if sparse else chunks.pack_chunk_header(chunks.DENSE_DATA, nbytes)
    is_original = symmetries is None and checked.get_unmodified_tensor(name, variable) is not None
    replaced = {} if is_original else {"symmetries": format_symmetries(stated) or None}
    embedded = encode_metadata(
        checked, embed_one_tensor(checked, OpenOptions.name, replaced=replaced)
    )
    head = pack_head(header, stated, embedded, len(data) or COUNT_BYTES) + data

    if not sparse and not stated:
        return plan_values(variable, conversion, head, chunks.UNIT)

    def plans() -> Iterator[FilePlan]:
        _check_symmetries(variable, header, conversion, stated)
        if sparse:
            yield plan_pairs(collect_pairs(variable, conversion), conversion.name, head)
        else:
            yield plan_values(variable, conversion, head, chunks.UNIT)

    return DeferredPlans(plans)


def _choose_symmetries(
    path: str, symmetries: Symmetries | None, header: TensHeader, variable: Variable
) -> list[Symmetry]:
    """Return the symmetries of the user, or those of the opened file that fit the tensor."""
    if symmetries is None:
        file_info = get_file_info(variable)
        has_same_dims = variable.encoding.get("original_dims") == variable.dims
        original = file_info.get("symmetries", "") if has_same_dims else ""
        return transfer_symmetries(original, file_info.get("index_names", ""), header)
    strings = split_symmetries(symmetries) if isinstance(symmetries, str) else list(symmetries)
    if not all(isinstance(string, str) for string in strings):
        raise TypeError(f"symmetries={symmetries!r} is not a list of strings such as '-x ba'")
    stated = [Symmetry.parse(string) for string in strings if string]
    for symmetry in stated:
        if mismatch := symmetry.find_mismatch(header):
            raise ValueError(
                f"{path}: the symmetry {str(symmetry)!r} cannot hold with {mismatch[0]}, expected "
                f"{mismatch[1]}; leave it out of symmetries="
            )
    return stated


def _check_symmetries(
    variable: Variable, header: TensHeader, conversion: Conversion, symmetries: Sequence[Symmetry]
) -> None:
    """Compare all values with their images under the symmetries, one chunk at a time."""
    if not variable.size or not symmetries:
        return
    variable = drop_chunks(variable)
    if variable.chunks is None:
        normalize: Any = da.core.normalize_chunks  # same chunks along axes of equal lengths
        lengths = normalize("auto", variable.shape, limit=DEFAULT_CHUNK_BYTES, dtype=variable.dtype)
        # Without a name, dask would hash all values.
        block = dict(zip(variable.dims, lengths, strict=True))
        variable = variable.chunk(block, from_array_kwargs={"name": False})
    array, violations = variable.data, []
    for symmetry in symmetries:
        operation = symmetry.operation(header)
        image = array.transpose(operation.inverse).rechunk(array.chunks)
        check = partial(_check_images, conversion.name, variable.dims, symmetry, operation)
        compare = partial(_compare_block, check, conversion)
        meta = np.empty(0, dtype=bool)
        violations.append(da.map_blocks(compare, array, image, dtype=bool, meta=meta).any())  # type: ignore[no-untyped-call]
    compute(*violations)  # type: ignore[no-untyped-call]


def _compare_block(
    check: Callable[..., Array],
    conversion: Conversion,
    values: Array,
    images: Array,
    block_info: Any = None,
) -> Array:
    starts = [start for start, _ in block_info[0]["array-location"]]
    values, images = (conversion.apply(np.asarray(block)) for block in (values, images))
    return check(values, images, starts)


def _check_images(
    name: str,
    dims: Sequence[Hashable],
    symmetry: Symmetry,
    operation: Operation,
    values: Array,
    images: Array,
    starts: Sequence[int],
) -> NDArray[np.bool_]:
    """Compare values with their images. Raise ValueError at the first difference."""
    wrong = ~are_nearly_equal(values, images if operation.sign > 0 else -images)
    if operation.sign < 0 and values.dtype.kind == "i":
        wrong |= images == np.iinfo(images.dtype).min  # its negative is itself
    if wrong.any():
        position = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        index = np.add(starts, position).tolist()
        image_index = [index[axis] for axis in operation.axes]
        element, image = (
            ", ".join(f"{dim}={label}" for dim, label in zip(dims, labels, strict=True))
            for labels in (index, image_index)
        )
        raise ValueError(
            f"{name!r} is {values[position]} at {element} and {images[position]} at {image}, "
            f"which the symmetry '{symmetry}' does not allow; pass symmetries= without it"
        )
    return wrong
