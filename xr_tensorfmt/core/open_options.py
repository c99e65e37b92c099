"""The options of opening a file that formats use. xarray imports this module with the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

Names = Mapping[str, Sequence[str]] | Sequence[str] | None
"""Names for dimensions: by variable, or the names alone where a file has one variable."""


def name_dims(requested: Names, variable: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """Names for the axes of a variable: those that the user asked for, else those of the file."""
    names = requested.get(variable) if isinstance(requested, Mapping) else requested
    if names is None:
        names = default
    if isinstance(names, str | bytes) or not isinstance(names, Sequence):
        raise TypeError(
            f"dims={requested!r} must have a sequence of names for {variable!r}, such as {default}"
        )
    if not all(isinstance(name, str) and name for name in names):
        raise TypeError(f"dims={requested!r} must have names that are non-empty str")
    if len(names) != len(default):
        raise ValueError(
            f"dims={requested!r} cannot name the {len(default)} dimensions {default} "
            f"of {variable!r}; give {len(default)} names"
        )
    if len(set(names)) != len(names):
        raise ValueError(f"dims={requested!r} gives two dimensions of {variable!r} the same name")
    if variable in names:
        raise ValueError(
            f"{variable!r} would be both the variable and one of its dimensions {tuple(names)}, "
            "which makes it an index; choose another with name= or dims="
        )
    return tuple(names)


Sparse = Literal["auto", "dense", "stored"]
TextErrors = Literal["strict", "surrogateescape"]


@dataclass(frozen=True)
class OpenOptions:
    """Options of opening a file.

    Parameters
    ----------
    name : str
        Name of the variable of a file that holds one tensor.
    dims : mapping or sequence, optional
        Names for dimensions: by variable, or a plain sequence for a file of one variable.
    sparse : {"auto", "dense", "stored"}
        Whether elements that the file does not store are filled in.
    verify : bool
        Whether a wrong checksum, or bytes after the end, raise an error instead of a warning.
    fill_value : float, optional
        Value of elements that a file does not store, where its format defines none.
    text_errors : {"strict", "surrogateescape"}
        How labels are decoded that are not UTF-8.
    apply_unit : bool
        Whether values are multiplied by the factor to atomic units that the file states.
    """

    name: str = "tensor"
    dims: Names = None
    sparse: Sparse = "auto"
    verify: bool = True
    fill_value: float | None = None
    text_errors: TextErrors = "strict"
    apply_unit: bool = False

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"name={self.name!r} must be a non-empty str such as 'tensor'")
        for keyword, value, allowed in (
            ("sparse", self.sparse, get_args(Sparse)),
            ("text_errors", self.text_errors, get_args(TextErrors)),
        ):
            if value not in allowed:
                words = ", ".join(map(repr, allowed))
                raise ValueError(f"{keyword}={value!r} is not one of {words}")
        fill_value: object = self.fill_value
        if fill_value is not None and not isinstance(fill_value, Real):
            raise TypeError(f"fill_value={fill_value!r} is not a real number")

    def check_unnamed(self, path: str) -> None:
        """Refuse a name for the one variable of a file whose variables have names of their own."""
        if self.name != OpenOptions.name:
            raise ValueError(
                f"{path} names its variables itself, so name={self.name!r} does not apply; "
                "use ds.rename"
            )

    def check_all_stored(self, path: str) -> None:
        """Refuse ``sparse="stored"`` for a file that leaves no element out."""
        if self.sparse == "stored":
            raise ValueError(
                f"{path} stores every element, so sparse='stored' has nothing to leave out; "
                "open it without"
            )
