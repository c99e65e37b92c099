"""What a tensor and its dimensions are called in a file of Vespa."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from xarray import Variable

from xr_tensorfmt.errors import shortened
from xr_tensorfmt.formats.limits import MOST_DIMENSIONS
from xr_tensorfmt.formats.vespa.cells import CellType
from xr_tensorfmt.formats.vespa.header import MOST_NAME_BYTES, Header
from xr_tensorfmt.write.subject import Subject
from xr_tensorfmt.write.vespa.dimensions import Dimensions
from xr_tensorfmt.write.vespa.header import new_header

TYPE = "vespa_type"
"""The one attribute that the format has a place for."""

# What both Java and C++ take in the words of a type.
_LEGAL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_IN_TYPE = re.compile(r"(\w+)[\[{]")


def named(
    subject: Subject, name: str, variable: Variable, dimensions: Dimensions, cell_type: CellType
) -> tuple[dict[str, str], Header]:
    """Name the dimensions in the file.

    Parameters
    ----------
    subject : Subject
        What is written.
    name : str
        Its one variable.
    variable : Variable
        The same.
    dimensions : Dimensions
        What its dimensions are in Vespa.
    cell_type : CellType
        What the cells are.

    Returns
    -------
    stored : dict of str to str
        What the dimensions are called, by their names in the Dataset: the same, unless
        `vespa_type` says that opening a file has made them so.
    header : Header
        The header with these names.

    Raises
    ------
    ValueError
        Vespa refuses a name, or `vespa_type` is another type.
    """
    wanted = variable.attrs.get(TYPE)
    stored = _names_in_file((*dimensions.labels, *dimensions.indexed), wanted)
    _check_names(subject, list(stored.values()))
    mapped = [stored[dim] for dim in dimensions.labels]
    indexed = [(stored[dim], variable.sizes[dim]) for dim in dimensions.indexed]
    blocks = 1 if dimensions.along is None else variable.sizes[dimensions.along]
    header = new_header(cell_type, mapped, indexed, blocks)
    if wanted is not None and str(wanted) != header.type:
        what = f"the attribute {TYPE!r} {shortened(repr(wanted))} of a tensor that is {header.type}"
        subject.dropping("attrs", what, f"delete it, as by ds[{name!r}].attrs.pop({TYPE!r})")
    return stored, header


def _names_in_file(names: Collection[str], type_: object) -> dict[str, str]:
    """The names without the underscores that opening gives to those that would clash."""
    known = set(_NAME_IN_TYPE.findall(type_)) if isinstance(type_, str) else set()
    missing = known.difference(names)
    bare = {name: name.rstrip("_") for name in names}
    return {
        name: bare[name] if name not in known and bare[name] in missing else name for name in names
    }


def _check_names(subject: Subject, names: Sequence[str]) -> None:
    if len(names) > MOST_DIMENSIONS:
        raise ValueError(
            f"{subject.path}: {len(names)} dimensions are more than the {MOST_DIMENSIONS} that can "
            "be opened again; stack some of them"
        )
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"{subject.path}: two dimensions would be called {name!r}; rename one of them"
            )
        if not _LEGAL_NAME.fullmatch(name) or len(name) > MOST_NAME_BYTES:
            raise ValueError(
                f"{subject.path}: Vespa refuses the name {shortened(repr(name))} of a dimension; "
                f"rename it to at most {MOST_NAME_BYTES} letters from a to z, digits and "
                "underscores, with no digit first"
            )
