"""Which way an object goes into a store."""

from __future__ import annotations

from fsspec.implementations.cached import CachingFileSystem

from xr_tensorfmt.sources.locate import Place
from xr_tensorfmt.sources.remote import of_this_process
from xr_tensorfmt.write.stores.multipart import Multipart
from xr_tensorfmt.write.stores.upload import (
    StreamedFile,
    Upload,
    ask_to_write,
    part_size,
    refuse_existing,
)
from xr_tensorfmt.write.targets import unfinished

# Of these fsspec's files appear when they are closed, and never if they are not.
_APPEARING_AT_ONCE = {"gs", "gcs", "abfs", "abfss", "az"}


def check_place(place: Place, *, replace: bool) -> None:
    """Refuse what can be no object, or must not be replaced.

    Parameters
    ----------
    place : Place
        Where an object is to be.
    replace : bool
        Whether it may take the place of another.

    Raises
    ------
    IsADirectoryError, FileExistsError
        It may not be there.
    ValueError
        It would go through a cache.
    """
    if place.url.endswith("/") or not place.path.strip("/"):
        raise IsADirectoryError(f"{place.url} is a folder; give the name of an object in it")
    cached = isinstance(place.fs, CachingFileSystem)
    if cached:
        raise ValueError(
            f"{place.url}: a cache goes on to hold what was there before; "
            "write to the URL after '::'"
        )
    if not replace:
        fs, path = of_this_process(place.fs), place.path
        ask_to_write(refuse_existing, place.url, fs, path, url=place.url, fs=fs, path=path)


def upload_to(place: Place, size: int, *, replace: bool) -> Upload:
    """How an object goes to its place.

    Parameters
    ----------
    place : Place
        The place.
    size : int
        Its bytes.
    replace : bool
        Whether it may take the place of another.

    Returns
    -------
    Upload
        To S3 in parts, several at a time; to stores whose objects appear when they are complete
        as a file; to others as a file of another name beside it, which is renamed.
    """
    fs, path, url, part = of_this_process(place.fs), place.path, place.url, part_size(size)
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if hasattr(fs, "call_s3"):
        return Multipart(url, fs, path, size, part, replace=replace)
    folder, slash, name = path.rpartition("/")
    aside = f"{folder}{slash}.{name}{unfinished()}"
    where = path if protocols & _APPEARING_AT_ONCE else aside
    return StreamedFile(url, fs, where, path, part, replace=replace)
