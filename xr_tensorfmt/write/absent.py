"""Files that must not be replaced."""

from __future__ import annotations

import os


def check_absent(path: str) -> None:
    """Refuse to write over a file.

    Parameters
    ----------
    path : str
        The file.

    Raises
    ------
    FileExistsError
        It exists.
    """
    if os.path.exists(path):
        raise exists_already(path)


def exists_already(path: str) -> FileExistsError:
    """The error about a file that must not be replaced.

    Parameters
    ----------
    path : str
        The file.

    Returns
    -------
    FileExistsError
    """
    return FileExistsError(f"{path} exists already; pass mode='w' to replace it")
