"""TENS files with all values one after the other: versions 1.0 and 0.9."""

from __future__ import annotations

from collections.abc import Sequence

from xr_tensorfmt.formats.tens.notechunk import TENSOR
from xr_tensorfmt.formats.tens.symmetry import Symmetry
from xr_tensorfmt.layouts import Dense, Layout, column_major
from xr_tensorfmt.write.blueprint import Blueprint, Placed
from xr_tensorfmt.write.draft import Piece
from xr_tensorfmt.write.notes import encoded, one_tensor
from xr_tensorfmt.write.subject import Subject
from xr_tensorfmt.write.tens.header import UNIT, before_dense_values, header_bytes
from xr_tensorfmt.write.tens.tensor import TensTensor


def plan_chunked(subject: Subject, tensor: TensTensor, symmetries: Sequence[Symmetry]) -> Blueprint:
    """Arrange a Dataset as a file of version 1.0.

    Parameters
    ----------
    subject : Subject
        What is written.
    tensor : TensTensor
        Its variable.
    symmetries : sequence of Symmetry
        What is known of it.

    Returns
    -------
    Blueprint
    """
    note = encoded(subject, one_tensor(subject, TENSOR))
    head = before_dense_values(tensor.header, symmetries, note, tensor.nbytes)
    return _blueprint(tensor, head, UNIT)


def plan_raw(subject: Subject, tensor: TensTensor) -> Blueprint:
    """Arrange a Dataset as a file of version 0.9, as cc4s wrote it.

    Parameters
    ----------
    subject, tensor
        As for `plan_chunked`.

    Returns
    -------
    Blueprint

    Raises
    ------
    ValueError
        There is more than the version has a place for.
    """
    _check_bare(subject, tensor)
    return _blueprint(tensor, header_bytes(tensor.header), 1)


def _blueprint(tensor: TensTensor, head: bytes, unit: int) -> Blueprint:
    lengths = tensor.header.lengths[::-1]
    components = (tensor.components,) if tensor.components > 1 else ()
    dense = Dense((*lengths, *components), tensor.conversion.element, len(head))
    layout: Layout = column_major(dense, trailing=len(components))
    placed = Placed(tensor.variable, layout, tensor.conversion)
    size = len(head) + tensor.nbytes + -tensor.nbytes % unit
    return Blueprint(size, (Piece(0, head),), (placed,))


def _check_bare(subject: Subject, tensor: TensTensor) -> None:
    """Refuse all that version 0.9 has no place for, unless it may be dropped."""
    if tensor.name != TENSOR:
        way_out = f"rename it to {TENSOR!r}"
        subject.dropping("name", f"the name {tensor.name!r} in version 0.9", way_out)
    if tensor.dims != tensor.header.names:
        way_out = f"rename them to {tensor.header.names}"
        subject.dropping("dims", f"the dims {tensor.dims} in version 0.9", way_out)
    owners = {repr(tensor.name): tensor.variable.attrs, "the Dataset": subject.attrs}
    for owner, attrs in owners.items():
        if attrs:
            what = f"the attributes {', '.join(map(repr, attrs))} of {owner} in version 0.9"
            subject.dropping("attrs", what, "write version 1.0")
    for name in subject.coordinates:
        subject.dropping("coords", f"the coordinate {name!r} in version 0.9", "write version 1.0")
