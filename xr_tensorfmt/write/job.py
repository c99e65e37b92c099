"""One call of a writer: where to, how, and what the user has allowed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, get_args

from dask.delayed import Delayed
from xarray import DataArray, Dataset

from xr_tensorfmt.write.blueprint import Blueprint, Survey
from xr_tensorfmt.write.destination import destination
from xr_tensorfmt.write.region import write_region
from xr_tensorfmt.write.saving import save
from xr_tensorfmt.write.stores.sending import send
from xr_tensorfmt.write.subject import Encoding, Part, Subject, subject_of

Mode = Literal["w", "x"]

Plan = Callable[[Subject], Blueprint | Survey]
"""How a format arranges a Dataset in a file."""


class SaveOptions(TypedDict, total=False):
    """Keywords of every writer; `to_file` says what they mean."""

    mode: Mode
    compute: bool
    region: Mapping[str, slice] | None
    encoding: Encoding | None
    drop: Collection[Part]
    storage_options: Mapping[str, Any] | None
    fs: Any


@dataclass(frozen=True, eq=False)
class Job:
    """The same keywords, looked over."""

    mode: Mode = "w"
    compute: bool = True
    region: Mapping[str, slice] | None = None
    encoding: Encoding | None = None
    drop: Collection[Part] = ()
    storage_options: Mapping[str, Any] | None = None
    fs: Any = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Job:
        """Take the keywords of a call; TypeError if one is none of these."""
        known = [each.name for each in fields(cls)]
        for name in options:
            if name not in known:
                raise TypeError(
                    f"there is no keyword {name!r}; all formats know {', '.join(known)}, and each "
                    "those that help() shows of its own function"
                )
        return cls(**options)

    def __post_init__(self) -> None:
        """Refuse words that mean nothing."""
        if not isinstance(self.region, Mapping | None):
            raise TypeError(f"region={self.region!r} is not as {{'x': slice(0, 10)}}")
        if self.mode not in get_args(Mode):
            raise ValueError(
                f"mode={self.mode!r} is neither 'w' (replace) nor 'x' (only if there is none)"
            )
        if self.mode == "x" and self.region is not None:
            raise ValueError("mode='x' wants no file, and region= one to write into; leave one out")

    def run(self, data: Dataset | DataArray, path: Any, format: str, plan: Plan) -> Delayed | None:
        """Write.

        Parameters
        ----------
        data : Dataset or DataArray
            What the user has.
        path : str, PathLike or OpenFile
            Where to.
        format : str
            The format's name.
        plan : callable
            How the format arranges it.

        Returns
        -------
        Delayed or None
            What writes the file when it is computed, or None if that is done.
        """
        target = destination(path, self.storage_options, self.fs)
        name = target if isinstance(target, str) else target.url
        subject = subject_of(data, name, format, self.encoding, self.drop)
        replace = self.mode == "w"
        if isinstance(target, str):
            if self.region is not None:
                return write_region(subject, self.region, format.lower(), compute=self.compute)
            return save(plan(subject), target, replace=replace, compute=self.compute)
        if self.region is not None:
            raise ValueError(
                f"{name}: a store has no way to change a part of an object; write the whole "
                "of it, without region="
            )
        return send(plan(subject), target, replace=replace, compute=self.compute)
