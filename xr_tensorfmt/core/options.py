"""Options of opening a file that formats receive."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

from xr_tensorfmt.core.container import Names

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
        Whether a wrong checksum, or bytes after the end, is an error and not a warning.
    fill_value : float, optional
        Value of elements that a file does not store, where its format defines none.
    errors : {"strict", "surrogateescape"}
        How labels are decoded that are not UTF-8.
    apply_unit : bool
        Whether values are multiplied by the factor to atomic units that the file states.
    """

    name: str = "tensor"
    dims: Names = None
    sparse: Sparse = "auto"
    verify: bool = True
    fill_value: float | None = None
    errors: TextErrors = "strict"
    apply_unit: bool = False

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"name={self.name!r} must be a non-empty str such as 'tensor'")
        for keyword, value, allowed in (
            ("sparse", self.sparse, get_args(Sparse)),
            ("errors", self.errors, get_args(TextErrors)),
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
