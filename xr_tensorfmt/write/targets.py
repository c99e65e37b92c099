"""Where a local file is to be, and where it lies until it is complete."""

from __future__ import annotations

import os
import uuid
from errno import EINVAL, ELOOP

from xr_tensorfmt.write.absent import check_absent

_SUFFIX = ".part"
"""End of the name of an unfinished file."""

_LONGEST_NAME = 255


def target_of(path: str, *, replace: bool) -> str:
    """Find out which file a path means, and refuse what can be none.

    Parameters
    ----------
    path : str
        The file; of a symbolic link, what it points to.
    replace : bool
        Whether it may take the place of a file.

    Returns
    -------
    str
        The file itself.

    Raises
    ------
    FileExistsError
        There is such a file, and it must not be replaced.
    IsADirectoryError, FileNotFoundError
        It is a folder, or in one that does not exist.
    OSError
        It is no ordinary file.
    """
    target = os.path.realpath(path)
    if os.path.islink(target):
        raise OSError(ELOOP, "its symbolic links lead to each other", path)
    folder = os.path.dirname(target)
    if os.path.isdir(target):
        raise IsADirectoryError(f"{path} is a folder; give the name of a file")
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{path}: there is no folder {folder}; make it first")
    if os.path.exists(target) and not os.path.isfile(target):
        raise OSError(EINVAL, "it is no ordinary file, so that nothing can take its place", path)
    if not replace:
        check_absent(target)
    return target


def unfinished() -> str:
    """The end of a name of its own for what is unfinished, another one with each call."""
    return f".{uuid.uuid4().hex[:8]}{_SUFFIX}"


def beside(target: str) -> str:
    """A name of its own for what lies unfinished beside the file that it is to become.

    Parameters
    ----------
    target : str
        The file.

    Returns
    -------
    str
        Another one with each call.
    """
    folder, name = os.path.split(target)
    end = unfinished()
    short = os.fsencode(name)[: _LONGEST_NAME - len(end) - 1].decode(errors="ignore")
    return os.path.join(folder, f".{short}{end}")
