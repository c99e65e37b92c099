"""JSON of unknown origin: what Python's own writer may write, checked before it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import JSONDecodeError, loads
from typing import Any

from xr_tensorfmt.errors import TensorFormatError, shortened
from xr_tensorfmt.formats.header import HeaderReader


@dataclass(frozen=True)
class Document:
    """A JSON object that describes a file.

    Parameters
    ----------
    path : str
        The file.
    offset : int
        Where the document begins.
    content : mapping
        The object.
    repeated : sequence of mapping
        The objects in it that have a key twice, with the last value of each.
    """

    path: str
    offset: int
    content: Mapping[str, Any]
    repeated: Sequence[Mapping[str, Any]]

    def error(self, field: str, found: object, expected: str) -> TensorFormatError:
        """An error about a part of the document."""
        return TensorFormatError(
            self.path, field, found, expected, "the document is damaged", offset=self.offset
        )

    def check_repeated(self, *objects: Mapping[str, Any]) -> None:
        """Refuse keys that occur twice in objects where each must mean one thing."""
        structure = {id(each) for each in objects}
        if any(id(each) in structure for each in self.repeated):
            raise self.error("a JSON object", "a key twice", "each key once")

    def warnings(self) -> tuple[str, ...]:
        """What to say of keys that occur twice in the users' own metadata."""
        if not self.repeated:
            return ()
        keys = shortened(", ".join(map(repr, self.repeated[0])))
        message = (
            f"{self.path}: the metadata hold an object with a key twice, of which the last value "
            f"is taken; its keys are {keys}."
        )
        return (message,)


def read_document(reader: HeaderReader, start: int, stop: int) -> Document:
    """Read a JSON object.

    Parameters
    ----------
    reader : HeaderReader
        The file.
    start, stop : int
        Where the object begins and ends, in bytes.

    Returns
    -------
    Document
        With NaN, infinities and integers of any size, as `json.dumps` writes them.

    Raises
    ------
    TensorFormatError
        It is no JSON in UTF-8, no object, or nested deeper than Python can follow.
    """
    repeated: list[Mapping[str, Any]] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            repeated.append(members)
        return members

    raw = reader.bytes_at(start, stop - start, "the JSON document")
    try:
        text = raw.decode()
        content = loads(text, object_pairs_hook=collect)
    except UnicodeDecodeError as error:
        raise _refusal(reader, start + error.start, "bytes that are not UTF-8") from None
    except JSONDecodeError as error:
        at = start + len(text[: error.pos].encode())
        raise _refusal(reader, at, f"{error.msg}: {text[error.pos : error.pos + 20]!r}") from None
    except RecursionError:
        raise _refusal(reader, start, "deeper nesting than Python can follow") from None
    except ValueError as error:
        # Python's own guard; printing such a number would meet it again.
        hint = "for longer integers call sys.set_int_max_str_digits"
        raise _refusal(reader, start, str(error), hint) from None
    if not isinstance(content, Mapping):
        raise _refusal(reader, start, f"a {type(content).__name__}")
    return Document(reader.source.name, start, content, repeated)


def _refusal(
    reader: HeaderReader, offset: int, found: str, hint: str = "the document is damaged"
) -> TensorFormatError:
    return TensorFormatError(
        reader.source.name, "the document", found, "a JSON object", hint, offset=offset
    )
