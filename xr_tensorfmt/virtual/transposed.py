"""Arrays with a transpose codec, to which xarray can add dims."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import numpy as np
from virtualizarr.manifests import ManifestArray
from xarray import Variable


class TransposedArray(ManifestArray):
    """A virtual array whose first codec is the transpose codec.

    The codec has an entry for each dim. VirtualiZarr would keep it unchanged for a new dim.
    """

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of numpy, as xarray does to combine arrays."""
        if func is np.expand_dims:
            return _expand_dims(*args, **kwargs)
        if func is np.stack:
            args = ([_expand_dims(array, *args[1:], **kwargs) for array in args[0]], *args[1:])
            func = np.concatenate
        elif func is np.broadcast_to:
            array, shape = args
            args = (array[(None,) * (len(shape) - array.ndim) + (...,)], shape)
        result = super().__array_function__(func, types, args, kwargs)
        return _wrap(result) if isinstance(result, ManifestArray) else result

    def __getitem__(self, key: Any, /) -> ManifestArray:
        """Add a dim for each None at the beginning."""
        keys = key if isinstance(key, tuple) else (key,)
        added = sum(1 for _ in takewhile(lambda item: item is None, keys))
        array: ManifestArray = _wrap(super().__getitem__(keys[added:]))
        for _ in range(added):
            array = _expand_dims(array)
        return array

    def rename_paths(self, new: str | Callable[[str], str]) -> ManifestArray:
        """Replace the URLs of the files."""
        return _wrap(super().rename_paths(new))

    def to_virtual_variable(self) -> Variable:
        """Return a variable of this array."""
        variable = super().to_virtual_variable()
        variable.data = _wrap(variable.data)
        return variable


def _wrap(array: ManifestArray) -> TransposedArray:
    return TransposedArray(array.metadata, array.manifest)


def _expand_dims(array: ManifestArray, axis: int = 0) -> TransposedArray:
    """Add an axis of length 1, which becomes the slowest of the file."""
    from_dict = type(array.metadata).from_dict
    document: dict[str, Any] = array.metadata.to_dict()
    transpose, *codecs = document["codecs"]
    plain = ManifestArray(from_dict({**document, "codecs": codecs}), array.manifest)
    axis %= array.ndim + 1
    expanded: Any = np.expand_dims(plain, axis=axis)
    order = (axis, *(other + (other >= axis) for other in transpose["configuration"]["order"]))
    transpose["configuration"]["order"] = order
    document = expanded.metadata.to_dict()
    document["codecs"] = (transpose, *document["codecs"])
    return TransposedArray(from_dict(document), expanded.manifest)
