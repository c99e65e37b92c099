"""TENS: one tensor of cc4s."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

from dask.delayed import Delayed
from xarray import DataArray, Dataset

from xr_tensorfmt.formats.tens.header import INDEX_VALUE_FLAG
from xr_tensorfmt.write.blueprint import Blueprint, Survey
from xr_tensorfmt.write.job import Job, SaveOptions
from xr_tensorfmt.write.subject import Subject
from xr_tensorfmt.write.tens.dense import plan_chunked, plan_raw
from xr_tensorfmt.write.tens.pairs import plan_pairs
from xr_tensorfmt.write.tens.stored import are_stored_pairs, plan_stored
from xr_tensorfmt.write.tens.symmetries import Symmetries, given, inherited
from xr_tensorfmt.write.tens.tensor import VERSIONS, Version, facts_of, tensor_of


def to_tens(
    data: Dataset | DataArray,
    path: Any,
    *,
    version: Version = "1.0",
    sparse: bool = False,
    symmetries: Symmetries | None = None,
    **options: Unpack[SaveOptions],
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
    **options
        As for `to_file`: mode, compute, region, encoding, drop, storage_options, fs.

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
    if version not in VERSIONS:
        raise ValueError(f"version={version!r} is not one of {', '.join(map(repr, VERSIONS))}")
    if symmetries and not sparse:
        raise ValueError(
            f"symmetries={symmetries!r} leaves elements out, and TENS can do that only in pairs; "
            "pass sparse=True too"
        )
    plan = partial(plan_tens, version=version, sparse=sparse, symmetries=symmetries)
    return Job.of(options).run(data, path, "TENS", plan)


def plan_tens(
    subject: Subject, version: Version, *, sparse: bool, symmetries: Symmetries | None
) -> Blueprint | Survey:
    """Arrange a Dataset as a TENS file.

    Parameters
    ----------
    subject : Subject
        What is written.
    version, sparse, symmetries
        As for `to_tens`.

    Returns
    -------
    Blueprint or Survey
    """
    stored = are_stored_pairs(subject.only[1])
    if version == "0.9":
        if sparse or stored:
            raise ValueError(
                f"{subject.path}: version 0.9 has no pairs of index and value; write version 1.0, "
                "or all values: without sparse=True, and of a file opened without sparse='stored'"
            )
        return plan_raw(subject, tensor_of(subject, version))
    if stored:
        if symmetries:
            raise ValueError(
                f"{subject.path}: pairs opened with sparse='stored' are written as they are; to "
                f"pack by symmetries={symmetries!r}, open the file without"
            )
        return plan_stored(subject)
    tensor = tensor_of(subject, version, INDEX_VALUE_FLAG if sparse else 0)
    if symmetries is None:
        facts = facts_of(tensor.variable)
        was = facts.get("dims", ())
        stated = inherited(facts, tensor.header, was, tensor.dims, pack=sparse)
    else:
        stated = given(subject.path, symmetries, tensor.header)
    if sparse:
        return plan_pairs(subject, tensor, stated)
    return plan_chunked(subject, tensor, stated)
