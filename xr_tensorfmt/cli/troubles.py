"""What goes wrong in the libraries that write zarr and netCDF, said of the file that is written."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from xr_tensorfmt.errors import TensorFormatError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def said_of(path: str, source: str, outcome: str, *, atomic_file: str = "") -> Iterator[None]:
    """Let errors begin with the file, and end with what has become of it, unless they name a file."""
    try:
        yield
    except TensorFormatError:
        raise  # they are of another file, and say so
    except Exception as error:
        text = _text(error, atomic_file)
        if outcome in text or text.startswith((*_names(path), *_names(source))):
            raise
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(f"{path} (from {source}): {text}; {outcome}") from error


def _names(file: str) -> tuple[str, ...]:
    plain = os.path.expanduser(file)
    return file, plain, os.path.abspath(plain), os.path.realpath(plain)


def _text(error: Exception, atomic_file: str) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
        if error.filename and not (atomic_file and str(error.filename).startswith(atomic_file)):
            text = f"{error.filename}: {text}"
    elif not text or isinstance(error, KeyError | NotImplementedError):
        text = f"{type(error).__name__} {text}".rstrip()
    by_hdf5 = re.search(r"error message = '([^']+)'", text)  # among much about its own affairs
    text = by_hdf5[1] if by_hdf5 else text
    full = getattr(error, "errno", None) in _FULL or "HDF error" in text
    hint = " (the disk may be full)" if full else ""
    return (text.replace(atomic_file, "it") if atomic_file else text).rstrip(".;") + hint
