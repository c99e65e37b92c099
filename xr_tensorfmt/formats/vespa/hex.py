"""Tensors that somebody printed as hexadecimal digits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xarray import Dataset


def from_hex(digits: str, **keywords: Any) -> Dataset:
    """Open a tensor given as hexadecimal digits, as Vespa's tools print its bytes.

    Parameters
    ----------
    digits : str
        Two for each byte, perhaps after ``0x``; white space does not matter.
    **keywords
        Those of `xarray.open_dataset` and of this engine.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        The text is something else, or the bytes are no typed binary tensor.

    Examples
    --------
    >>> from_hex("0x0601010178023F80000040000000").tensor.values
    array([1., 2.], dtype=float32)
    """
    from xarray import open_dataset  # noqa: PLC0415

    if not isinstance(digits, str):
        raise TypeError(f"{digits!r} is not a text of hexadecimal digits such as '0x0200...'")
    text = digits.strip()
    try:
        content = bytes.fromhex(text[2:] if text[:2] in ("0x", "0X") else text)
    except ValueError as error:
        raise ValueError(
            f"{text[:40]!r} is not a text of hexadecimal digits, two for each byte ({error})"
        ) from error
    # Over a memoryview, unlike bytes, xarray can name chunks.
    return open_dataset(
        memoryview(content),
        engine="tensorfmt",
        **{"format": "vespa", **keywords},
    )
