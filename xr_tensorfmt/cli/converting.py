"""One conversion: what is opened, what becomes of it, and what is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import xarray as xr
from dask.diagnostics.progress import ProgressBar

from xr_tensorfmt import formats
from xr_tensorfmt.cli.apart import check_overlap
from xr_tensorfmt.cli.dtypenotes import lost_dtypes, unchanged
from xr_tensorfmt.cli.failing import one_line
from xr_tensorfmt.cli.foreign import Foreign
from xr_tensorfmt.cli.kinds import FOREIGN, KINDS, NETCDF, ZARR, foreign_kind
from xr_tensorfmt.cli.opening import open_any, open_tensors, reduced
from xr_tensorfmt.cli.options import reaching
from xr_tensorfmt.cli.troubles import said_of
from xr_tensorfmt.errors import shortened
from xr_tensorfmt.writing.checked_input import Part
from xr_tensorfmt.writing.to_file import to_file

_SWITCHES = {"true": True, "false": False}


@dataclass(frozen=True, eq=False)
class Conversion:
    """What the user of ``xr-tensorfmt convert`` wants; the help of the command says what it means."""

    source: str
    target: str
    from_: str | None
    to: str | None
    overwrite: bool
    variable: str | None
    name: str | None
    dims: tuple[str, ...] | None
    dtypes: Mapping[str | None, str]
    drop: tuple[Part, ...]
    options: Mapping[str, str]
    sparse: str
    storage_options: dict[str, Any]
    verify: bool
    notes: list[str] = field(default_factory=list)

    def run(self, *, progress: bool) -> None:
        """Do it."""
        kind = self.to or _kind_to_write(self.target)
        from_store = (self.from_ or foreign_kind(self.source)) == ZARR
        check_overlap(self.source, self.target, from_store=from_store, to_store=kind == ZARR)
        with self._opened() as opened:
            ds = reduced(
                opened, self.source, variable=self.variable, dims=self.dims, name=self.name
            )
            dtypes = self._dtypes_of(ds)
            with _bar() if progress else nullcontext():
                if kind in (ZARR, NETCDF):
                    self._write_foreign(ds, kind, dtypes)
                else:
                    self._write(ds, kind, dtypes)

    def _opened(self) -> xr.Dataset:
        with one_line(self.source):
            return open_any(
                self.source,
                self.from_,
                reaching(self.source, self.storage_options),
                sparse=self.sparse,
                verify=self.verify,
            )

    def _dtypes_of(self, ds: xr.Dataset) -> dict[str, str]:
        if None in self.dtypes and len(ds.data_vars) != 1:
            raise ValueError(
                f"{self.source}: --dtype {self.dtypes[None]} is for a sole variable, and there are "
                f"{len(ds.data_vars)}; say --dtype NAME={self.dtypes[None]}"
            )
        found: dict[str, str] = {}
        for wanted, dtype in self.dtypes.items():
            name = next(map(str, ds.data_vars)) if wanted is None else wanted
            if found.setdefault(name, dtype) != dtype:
                raise ValueError(f"--dtype asks for {name!r} as {found[name]} and as {dtype}")
        unknown = next((name for name in found if name not in ds.variables), None)
        if unknown is not None:
            names = shortened(", ".join(map(repr, ds.variables)))
            raise ValueError(f"{self.source}: --dtype names {unknown!r}, which is none of {names}")
        return found

    def _write(self, ds: xr.Dataset, kind: Any, dtypes: Mapping[str, str]) -> None:
        options = {**self._as_pairs(ds, kind), **dict(keywords(kind, self.options))}
        with said_of(self.target, self.source, "what was there before is unchanged"):
            to_file(
                ds,
                self.target,
                kind,
                mode="w" if self.overwrite else "x",
                encoding={name: {"dtype": dtype} for name, dtype in dtypes.items()},
                drop=self.drop,
                storage_options=reaching(self.target, self.storage_options),
                **options,
            )
        if not any(lost_dtypes(ds, dtypes, self.source, self.target)):
            return
        with suppress(OSError, ValueError):  # of a place that may only be written to
            written = open_tensors(self.target, kind, reaching(self.target, self.storage_options))
            settled = {*dtypes, *unchanged(ds, written)}
            self.notes.extend(lost_dtypes(ds, settled, self.source, self.target))

    def _as_pairs(self, ds: xr.Dataset, kind: Any) -> dict[str, Any]:
        """Pairs of index and value stay such, unless options say what becomes of them."""
        facts = [each.encoding.get("tensorfmt", {}) for each in ds.data_vars.values()]
        pairs = all(each.get("storage") == "pairs" for each in facts)
        return {"sparse": True} if pairs and kind == "tens" and not self.options else {}

    def _write_foreign(self, ds: xr.Dataset, kind: str, dtypes: Mapping[str, str]) -> None:
        if self.options:
            raise ValueError(f"--option is for tensor files, and {self.target} is {kind}")
        reach = reaching(self.target, self.storage_options)
        file = Foreign(self.target, kind, self.source, self.overwrite, reach)
        file.write(ds, drop=self.drop, dtypes=dtypes)
        self.notes.extend(lost_dtypes(ds, dtypes, self.source, self.target))


def _kind_to_write(file: str) -> str:
    """What the end of a name asks for."""
    suffix = os.path.splitext(file.casefold())[1]
    kind = foreign_kind(file) or _by_suffix().get(suffix)
    if kind is None:
        raise ValueError(
            f"{file}: the end of the name tells no format; give one by --to, one of "
            f"{', '.join(KINDS)}, or end it in one of {', '.join((*_by_suffix(), *FOREIGN))}"
        )
    return kind


def _bar() -> AbstractContextManager[Any]:
    bar: AbstractContextManager[Any] = ProgressBar(out=sys.stderr)  # type: ignore[no-untyped-call]
    return bar


def keywords(kind: str, options: Mapping[str, str]) -> Iterable[tuple[str, Any]]:
    """Texts as the values that a writer's keywords take."""
    chosen = formats.by_name(kind)
    for key, text in options.items():
        if key not in chosen.write_options:
            listed = ", ".join(sorted(chosen.write_options)) or "none"
            raise ValueError(f"--option {key}: the keywords of {chosen.title} are {listed}")
        if chosen.write_options[key]:
            yield key, _SWITCHES.get(text, text)
        else:
            yield key, int(text) if text.isdecimal() else text


def _by_suffix() -> dict[str, str]:
    """The formats that are written, by the suffixes of their files."""
    writers = [each for each in formats.all_formats() if each.can_write]
    return {suffix: each.name for each in writers for suffix in each.suffixes}
