"""Options of opening a file that apply to formats."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import inf
from numbers import Real
from typing import Any, ClassVar, Literal, get_args

from xr_tensorfmt.errors import TensorFormatError, build_choice_error

MAX_FILLED_ELEMENTS = 1 << 40
"""Limit on the elements of a tensor that opens dense although the file stores few of them."""

DEFAULT_TIMEOUT = 60.0
"""Seconds that one attempt of a request to a store may take, plus 1 s per 5000 requested bytes."""


def check_timeout(timeout: object) -> float | None:
    """Return a timeout in seconds, or None for no limit; raise if `timeout` is invalid."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"timeout={timeout!r} must be a number of seconds, or None for no limit")
    if not 0 < float(timeout) < inf:
        raise ValueError(f"timeout={timeout!r} must be positive; pass None for no limit")
    return float(timeout)


Names = Mapping[str, Sequence[str]] | Sequence[str] | None
"""Dimension names: a mapping by variable or pattern, or a sequence for a file of one variable."""


def name_dims(requested: Names, variable: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dimension names: the user's if given, otherwise the file's."""
    if requested is None and variable not in default:
        return default
    names = find_names(requested, variable, len(default))
    if names is None:
        names = default
    is_sequence = isinstance(names, Sequence) and not isinstance(names, str | bytes)
    if not is_sequence or not all(isinstance(name, str) and name for name in names):
        raise TypeError(
            f"dims={requested!r} must be a sequence of non-empty str for {variable!r}, such as "
            f"{default}"
        )
    if len(names) != len(default):
        raise ValueError(
            f"dims={requested!r} cannot name the {len(default)} dimensions {default} "
            f"of {variable!r}; pass {len(default)} names"
        )
    if len(set(names)) != len(names):
        raise ValueError(f"dims={requested!r} gives two dimensions of {variable!r} the same name")
    if tuple(names) != default and set(names) == set(default):
        raise ValueError(
            f"dims={requested!r} contains the names of {variable!r} in another order, expected "
            f"{default}; omit it and transpose, or exchange names with ds.rename"
        )
    if variable in names:
        raise ValueError(
            f"{variable!r} is both a variable and one of its dimensions {tuple(names)}, which "
            "would make it an index; choose another name with name= or dims="
        )
    return tuple(names)


def match_names(key: object, names: Collection[Any]) -> list[Any]:
    """Return the key itself if it is a name, or else all names that match it as a pattern."""
    return [key] if key in names else [n for n in names if fnmatchcase(str(n), str(key))]


def find_names(requested: Names, variable: str, rank: int) -> Sequence[str] | None:
    """Return the names for a variable, or for the first matching pattern with `rank` names."""
    if not isinstance(requested, Mapping):
        return requested
    if variable in requested:
        return requested[variable]
    fitting = (names for names in requested.items() if len(names[1]) == rank)
    return next((names for key, names in fitting if match_names(key, [variable])), None)


Sparse = Literal["auto", "dense", "stored"]
TextErrors = Literal["strict", "surrogateescape"]
_SPARSE, _TEXT_ERRORS = get_args(Sparse), get_args(TextErrors)


@dataclass(frozen=True)
class OpenOptions:
    """Options of opening a file, which `TensorFormatBackend.open_dataset` describes."""

    name: str = "tensor"
    dims: Names = None
    sparse: Sparse = "auto"
    verify: bool = True
    fill_value: float | None = None
    text_errors: TextErrors = "strict"
    apply_unit: bool = False
    decode_floats: bool = True
    format_options: Mapping[str, Any] = field(default_factory=dict)

    loads_labels: ClassVar[bool] = True
    """Whether the labels of an index are read at once. This is no keyword."""

    def __post_init__(self) -> None:
        """Raise an error if a value is invalid."""
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"name={self.name!r} must be a non-empty str such as 'tensor'")
        if self.sparse not in _SPARSE:
            raise build_choice_error("sparse", self.sparse, _SPARSE)
        if self.text_errors not in _TEXT_ERRORS:
            raise build_choice_error("text_errors", self.text_errors, _TEXT_ERRORS)
        if not isinstance(self.fill_value, Real | None):
            raise TypeError(f"fill_value={self.fill_value!r} is not a real number")

    def refuse_stored(self, path: str) -> None:
        """Raise an error if ``sparse="stored"``, for a file that opens with all elements."""
        if self.sparse == "stored":
            raise ValueError(
                f"{path}: sparse='stored' does not apply to this file; omit it to open all elements"
            )

    def check_filled(
        self, path: str, field: str, count: int, stored: object, offset: int | None
    ) -> None:
        """Raise TensorFormatError if too many elements of a tensor are not stored in its file."""
        if self.sparse == "auto" and count > MAX_FILLED_ELEMENTS:
            hint = "open it with sparse='dense' (--sparse dense) to fill in the others"
            actual = f"{count} elements, of which {stored} are stored"
            expected = f"at most {MAX_FILLED_ELEMENTS} elements"
            raise TensorFormatError(path, field, actual, expected, hint, offset=offset)


@dataclass(frozen=True)
class RegionOptions(OpenOptions):
    """Options of reading a file to write a region of it, which needs few labels."""

    text_errors: TextErrors = "surrogateescape"
    loads_labels = False
