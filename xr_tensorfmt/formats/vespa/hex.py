"""Tensors that are given as hexadecimal digits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xarray import Dataset


def from_hex(digits: str, **keywords: Any) -> Dataset:
    """Open a tensor given as hexadecimal digits, as Vespa's tools print its bytes.

    Parameters
    ----------
    digits : str
        Two for each byte, with or without ``0x`` before them; white space is ignored.
    **keywords
        Keywords of `xarray.open_dataset` and of this engine.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        The string has other characters, or the bytes are not a typed binary tensor.
    TypeError
        `digits` is not a string.

    See Also
    --------
    xr_tensorfmt.vespa_from_json : A tensor as JSON.

    Examples
    --------
    >>> from_hex("0x0601010178023F80000040000000").tensor.values
    array([1., 2.], dtype=float32)
    """
    from xarray import open_dataset  # noqa: PLC0415

    if not isinstance(digits, str):
        raise TypeError(f"digits={digits!r} must be a str of hexadecimal digits, as '0x0200...'")
    stripped = digits.strip()
    try:
        content = bytes.fromhex(stripped[2:] if stripped[:2] in ("0x", "0X") else stripped)
    except ValueError as error:
        raise ValueError(
            f"digits={stripped[:40]!r} must be hexadecimal digits, two for each byte ({error})"
        ) from error
    # xarray can name chunks of a memoryview, but not of bytes.
    return open_dataset(
        memoryview(content),
        engine="tensorfmt",
        **{"format": "vespa", **keywords},
    )
