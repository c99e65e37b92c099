"""Options of formats, and dimension names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import inf
from numbers import Real
from typing import Any

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


@dataclass(frozen=True)
class Option:
    """A keyword of a format, for `xarray.open_dataset` or `xr_tensorfmt.to_file`.

    Parameters
    ----------
    description : str
        A line for the help.
    choices : tuple of str
        Allowed values, unless any is allowed.
    default : object
        The value if the keyword is omitted.
    type : type
        Type of other values.
    refusal : str
        Why the keyword does not apply to other formats, and what to do, for the error. They ignore
        the default value. Without it, other formats do not know the keyword.
    """

    description: str
    choices: tuple[str, ...] = ()
    default: Any = None
    type: type = object
    refusal: str = ""

    def normalize(self, name: str, value: Any) -> Any:
        """Return a value, or the choice with the same text. ``1`` is ``"1"`` and ``"1.0"``."""
        for choice in self.choices:
            if str(value) in (choice, choice.removesuffix(".0")):
                return choice
        if self.choices and value is not self.default:
            raise build_choice_error(name, value, self.choices)
        if value is not self.default and not isinstance(value, self.type):
            expected = _EXPECTED.get(self.type, f"must be of type {self.type.__name__}")
            raise TypeError(f"{name}={value!r} {expected}")
        return value


_EXPECTED = {bool: "must be True or False", Real: "is not a real number"}

SHARED_OPTIONS = {
    "name": Option(
        "Name of the variable, for files with one unnamed tensor.",
        default="tensor",
        refusal="contains variable names; use ds.rename",
    ),
    "sparse": Option(
        "How to open a file that does not store all elements. dense returns the full tensor, with "
        "a fill value for missing elements. stored returns the stored values along one dimension, "
        "with a coordinate per dimension of the tensor, for formats with blocks or labels. auto is "
        "the default of the format, and raises an error for a full tensor of more than 2**40 "
        "elements if the file need not store most of them.",
        ("auto", "dense", "stored"),
        default="auto",
        refusal="stores all elements; omit it",
    ),
    "verify": Option(
        "If False, a wrong header checksum and trailing bytes cause a warning instead of an error. "
        "A truncated file always raises an error, and so does a file of the wrong size if the size "
        "determines the offsets of the values.",
        default=True,
        type=bool,
        refusal="has no data to verify; omit it",
    ),
    "decode_floats": Option(
        "If False, bfloat16 and float8 are not converted to float32, and values have the dtypes of "
        "the package ml_dtypes.",
        default=True,
        type=bool,
        refusal="returns numpy's dtypes; omit it",
    ),
}
"""Options of several formats."""


def share_options(*names: str) -> dict[str, Option]:
    """Return some of the options that several formats have, for ``Format.open_options``."""
    return {name: SHARED_OPTIONS[name] for name in names}


@dataclass(frozen=True)
class OpenOptions:
    """What `Format.read` gets: ``options["sparse"]`` is an option that the format declares."""

    name: str = "tensor"
    dims: Names = None
    format_options: Mapping[str, Any] = field(default_factory=dict)
    loads_labels: bool = True
    """Whether the labels of an index are read at once. This is no keyword."""

    def __post_init__(self) -> None:
        """Raise an error if the name is invalid."""
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"name={self.name!r} must be a non-empty str such as 'tensor'")

    def __getitem__(self, option: str) -> Any:
        """Return the value of an option of the format."""
        return self.format_options[option]

    def refuse_stored(self, path: str) -> None:
        """Raise an error if ``sparse="stored"``, for a file that opens with all elements."""
        if self["sparse"] == "stored":
            raise ValueError(
                f"{path}: sparse='stored' does not apply to this file; omit it to open all elements"
            )

    def check_filled(
        self, path: str, field: str, count: int, stored: object, offset: int | None
    ) -> None:
        """Raise TensorFormatError if too many elements of a tensor are not stored in its file."""
        if self["sparse"] == "auto" and count > MAX_FILLED_ELEMENTS:
            hint = "open it with sparse='dense' (--sparse dense) to fill in the others"
            actual = f"{count} elements, of which {stored} are stored"
            expected = f"at most {MAX_FILLED_ELEMENTS} elements"
            raise TensorFormatError(path, field, actual, expected, hint, offset=offset)
