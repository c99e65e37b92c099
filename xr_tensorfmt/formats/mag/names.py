"""Keys of MAG tensors, and dimensions named after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def requested_names(requested: Names, tensors: Sequence[Stored]) -> Mapping[str, Sequence[str]]:
    """Names for dimensions by key.

    Parameters
    ----------
    requested : mapping, sequence or None
        What the user passed as `dims`.
    tensors : sequence of Stored
        What the file holds.

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
    if len(tensors) != 1:
        raise ValueError(
            f"dims={requested!r} names the dimensions of one variable, but the file holds "
            f"{len(tensors)}; give a mapping of keys to such names"
        )
    return {tensors[0].key: requested}


def dims_of(
    tensor: Stored, requested: Mapping[str, Sequence[str]], keys: set[str]
) -> tuple[str, ...]:
    """Names for the dimensions of a tensor, none of which is a key.

    Parameters
    ----------
    tensor : Stored
        The tensor.
    requested : mapping of str to sequence of str
        Names by key, as the user wants them.
    keys : set of str
        All keys of the file.

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
    default = default_dims(key, len(tensor.shape), keys)
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


def default_dims(key: str, rank: int, keys: set[str]) -> tuple[str, ...]:
    """Names for dimensions that no one has named.

    Parameters
    ----------
    key : str
        The tensor that they are of.
    rank : int
        How many they are.
    keys : set of str
        All keys of the file, none of which is one of the names.

    Returns
    -------
    tuple of str
    """
    default = tuple([f"{key}_dim_{axis}" for axis in range(rank)])
    if keys.isdisjoint(default):
        return default
    return tuple(_unlike(name, keys) for name in default)


def _unlike(name: str, keys: set[str]) -> str:
    while name in keys:
        name += "_"
    return name
