"""Sizes that no header of MAG has room for."""

from __future__ import annotations

from xarray import Variable

from xr_tensorfmt.formats.limits import MOST_BYTES
from xr_tensorfmt.write.subject import Subject


def check_size(subject: Subject, key: str, variable: Variable) -> None:
    """Refuse what no computer can address, before a header is made of it.

    Parameters
    ----------
    subject : Subject
        What is written.
    key : str
        A variable.
    variable : Variable
        The same.

    Raises
    ------
    ValueError
        It is too large.
    """
    if variable.nbytes > MOST_BYTES:
        raise ValueError(
            f"{subject.path}: {key!r} has shape {variable.shape}, which no computer can address; "
            "write a part of it"
        )
