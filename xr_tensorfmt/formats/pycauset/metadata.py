"""What the metadata of a container say, one checked key after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from xr_tensorfmt.errors import TensorFormatError, shortened

Value = TypeVar("Value")


@dataclass(frozen=True)
class Metadata:
    """A map of a container, of the type that texts and binary encodings of it have in common.

    Parameters
    ----------
    values : mapping
        The keys and what they hold.
    path : str
        The file.
    offset : int
        Where in it the map is.
    """

    values: Mapping[str, Any]
    path: str
    offset: int

    def error(self, key: str, found: object, expected: str, hint: str) -> TensorFormatError:
        """An error about one key."""
        field = f"the metadata key {key!r}"
        return TensorFormatError(self.path, field, found, expected, hint, offset=self.offset)

    def take(self, key: str, kind: type[Value], default: Value | None = None) -> Value:
        """What a key holds.

        Parameters
        ----------
        key : str
            The key.
        kind : type
            What it must hold: int, bool, str, dict or list.
        default : object, optional
            What a missing key means; without it the key must be there.

        Returns
        -------
        object

        Raises
        ------
        TensorFormatError
            It is missing, or holds something else.
        """
        value = self.values.get(key, default)
        if value is None:
            raise self.error(
                key,
                "missing",
                f"a value of type {kind.__name__}",
                "without it the matrix cannot be read; save it again with a newer PyCauset",
            )
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(
                key, repr(value)[:60], f"a value of type {kind.__name__}", "the file is damaged"
            )
        return value

    def length(self, key: str) -> int:
        """A count, which is not negative."""
        value = self.take(key, int)
        if value < 0:
            raise self.error(key, value, "a count", "the file is damaged")
        return value

    def below(self, key: str) -> Metadata:
        """The map that a key holds; an empty one where it is missing."""
        return Metadata(self.take(key, dict, {}), self.path, self.offset)

    def scalar(self, key: str) -> complex:
        """A number, or a map of its real and imaginary parts; 1 where it is missing."""
        value = self.values.get(key, 1.0)
        parts = [value, 0.0]
        if isinstance(value, dict):
            parts = [value.get("real"), value.get("imag")]
        if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in parts):
            raise self.error(
                key, repr(value)[:60], "a number, or its real and imag", "the file is damaged"
            )
        try:
            return complex(*map(float, parts))
        except OverflowError:
            raise self.error(
                key, shortened(parts), "a number that fits double precision", "the file is damaged"
            ) from None
