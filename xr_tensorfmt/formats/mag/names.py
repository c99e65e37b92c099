"""Keys of MAG tensors, and dimensions named after them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.mag.contents import Stored
from xr_tensorfmt.tensor import Names, named_dims


def decode_key(path: str, raw: bytes, offset: int) -> str:
    """The text of a key.

    Parameters
    ----------
    path : str
        The file.
    raw : bytes
        The key as it is stored.
    offset : int
        Where it begins.

    Returns
    -------
    str

    Raises
    ------
    TensorFormatError
        It is not UTF-8.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise TensorFormatError(
            path,
            "the key",
            f"the bytes {raw[error.start : error.end]!r}",
            "UTF-8",
            "the header is damaged, or the file is of another format",
            offset=offset + error.start,
        ) from None


def check_keys(path: str, tensors: Sequence[Stored]) -> None:
    """Refuse keys that occur twice, and those that no text can hold.

    Parameters
    ----------
    path : str
        The file.
    tensors : sequence of Stored
        The tensors.

    Raises
    ------
    TensorFormatError
        Two tensors have one key, or a key is half of a surrogate pair.
    """
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.key in seen:
            raise TensorFormatError(
                path,
                "the key",
                f"{tensor.key!r} twice",
                "a key of its own for each tensor",
                "the header is damaged",
            )
        if not tensor.key.isascii():
            _check_encodable(path, tensor.key)
        seen.add(tensor.key)


def _check_encodable(path: str, key: str) -> None:
    try:
        key.encode()
    except UnicodeEncodeError:
        raise TensorFormatError(
            path, "the key", ascii(key), "text that UTF-8 can hold", "the header is damaged"
        ) from None


def requested_names(requested: Names, keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Names for dimensions by key.

    Parameters
    ----------
    requested : mapping, sequence or None
        What the user passed as `dims`.
    keys : sequence of str
        The keys of the file.

    Returns
    -------
    mapping of str to sequence of str

    Raises
    ------
    ValueError
        A plain sequence was given, but the file does not hold one tensor.
    """
    if requested is None or isinstance(requested, Mapping):
        return requested or {}
    if len(keys) != 1:
        raise ValueError(
            f"dims={requested!r} names the dimensions of one variable, but the file holds "
            f"{len(keys)}; give a mapping such as "
            f"{{{(keys[0] if keys else 'key')!r}: ('row', 'col')}}"
        )
    return {keys[0]: requested}


def dims_of(
    tensor: Stored, requested: Mapping[str, Sequence[str]], keys: Collection[str]
) -> tuple[str, ...]:
    """Names for the dimensions of a tensor, none of which is a key.

    Parameters
    ----------
    tensor : Stored
        The tensor.
    requested : mapping of str to sequence of str
        Names by key, as the user wants them.
    keys : collection of str
        All keys of the file, quick to search.

    Returns
    -------
    tuple of str
        Those that were asked for, else ``<key>_dim_0`` and so on, with underscores after it where
        a key has that name.

    Raises
    ------
    TypeError, ValueError
        As for `named_dims`; or one of the names is a key.
    """
    key = tensor.key
    default = tuple([_unlike(f"{key}_dim_{axis}", keys) for axis in range(len(tensor.shape))])
    if key not in requested:
        return default
    names = named_dims(requested, key, default)
    for name in names:
        if name in keys:
            raise ValueError(
                f"dims={requested!r} gives a dimension of {key!r} the name of the variable "
                f"{name!r}; choose another"
            )
    return names


def _unlike(name: str, keys: Collection[str]) -> str:
    while name in keys:
        name += "_"
    return name
