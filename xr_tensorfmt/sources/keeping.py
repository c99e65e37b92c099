"""What a pass over a remote file has found out, kept in a folder for the next time it is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from tempfile import NamedTemporaryFile

import numpy as np

from xr_tensorfmt.extents import Integers


def kept(folder: str, subject: str, compute: Callable[[], Integers]) -> Integers:
    """Take numbers out of a folder, or compute them and put them there.

    Parameters
    ----------
    folder : str
        The folder; it is made if it is not there.
    subject : str
        What the numbers are about; one that has changed is another one.
    compute : callable
        Finds them out.

    Returns
    -------
    ndarray of int64
        What is not such an array, as after a crash, is computed anew.
    """
    path = os.path.join(folder, f"{sha256(subject.encode()).hexdigest()}.npy")
    with suppress(FileNotFoundError, ValueError, EOFError):
        found: Integers = np.load(path, allow_pickle=False)
        if found.dtype == np.int64:
            return found
    values = compute()
    os.makedirs(folder, exist_ok=True)
    with NamedTemporaryFile(dir=folder, delete=False) as file:
        np.save(file, values, allow_pickle=False)
    os.replace(file.name, path)
    return values
