"""Where the data of tensors may lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.mag.contents import Contents, Stored

_offset = attrgetter("offset")


def round_up(position: int, multiple: int) -> int:
    """The next multiple at or after a position."""
    return -(-position // multiple) * multiple


def check_placement(path: str, contents: Contents, size: int) -> None:
    """Refuse data outside of the file, in its header, or in the data of another tensor.

    Parameters
    ----------
    path : str
        The file.
    contents : Contents
        What its header says.
    size : int
        Bytes of the file.

    Raises
    ------
    TensorFormatError
        Some data cannot lie where the header says.
    """
    stop, before = contents.data_start, "the header"
    for tensor in sorted(contents.tensors, key=_offset):
        if not contents.data_start <= tensor.offset <= tensor.stop <= size:
            raise TensorFormatError(
                path,
                f"the data of {tensor.key!r}",
                f"bytes {tensor.offset} to {tensor.stop}",
                f"a place between byte {contents.data_start} and the end at byte {size}",
                "the file is incomplete or its header damaged; fetch it again",
                offset=tensor.offset,
            )
        if not tensor.nbytes:
            continue
        if tensor.offset < stop:
            raise TensorFormatError(
                path,
                f"the data of {tensor.key!r}",
                f"bytes {tensor.offset} to {tensor.stop}",
                f"data after byte {stop}, where those of {before} end",
                "two tensors cannot share bytes; the header is damaged",
                offset=tensor.offset,
            )
        stop, before = tensor.stop, repr(tensor.key)


def check_alignment(
    path: str, tensors: Sequence[Stored], start: int, stop: int, alignment: int
) -> None:
    """Refuse data that lie elsewhere than a writer puts them who aligns each tensor.

    Parameters
    ----------
    path : str
        The file.
    tensors : sequence of Stored
        The tensors.
    start, stop : int
        Where the section of all data begins and ends.
    alignment : int
        What each offset in the section is a multiple of; no gap is as long.

    Raises
    ------
    TensorFormatError
        A tensor begins elsewhere, or bytes are left that belong to none.
    """
    position = start
    for tensor in sorted(tensors, key=_offset):
        if not tensor.nbytes:
            continue
        if tensor.offset >= position + alignment or (tensor.offset - start) % alignment:
            raise TensorFormatError(
                path,
                f"the data of {tensor.key!r}",
                f"at byte {tensor.offset - start} of the data section",
                f"the first multiple of {alignment} from {position - start} on",
                "the header is damaged; fetch the file again",
                offset=tensor.offset,
            )
        position = max(position, tensor.stop)
    if stop - position >= alignment:
        raise TensorFormatError(
            path,
            "the data section",
            f"{stop - position} bytes more than its tensors need",
            f"fewer than {alignment}",
            "the header is damaged; fetch the file again",
            offset=position,
        )


def follow_each_other(tensors: Iterable[Stored], start: int, alignment: int) -> int | None:
    """Whether data lie without any gaps but those of their alignment.

    Parameters
    ----------
    tensors : iterable of Stored
        The tensors.
    start : int
        Where the first data begin.
    alignment : int
        What each offset is a multiple of, counted from the start of the file.

    Returns
    -------
    int or None
        Where the last data end; None if some lie elsewhere.
    """
    position = start
    for tensor in sorted(tensors, key=_offset):
        if tensor.offset != round_up(position, alignment):
            return None
        position = tensor.stop
    return position


def first_that_fits(
    candidates: Sequence[Callable[[], tuple[Contents, bool]]],
) -> tuple[Contents, bool]:
    """The first reading of a header whose data lie as its writer puts them.

    Parameters
    ----------
    candidates : sequence of callable
        Readings of one header, the most usual first. Each gives the contents, and whether their
        data lie so; it may raise `TensorFormatError`.

    Returns
    -------
    Contents
        The first that fits; if none does, the first that can be read at all.
    bool
        Whether it fits.

    Raises
    ------
    TensorFormatError
        None can be read; the error is that of the first.
    """
    readable: list[tuple[Contents, bool]] = []
    errors: list[TensorFormatError] = []
    for candidate in candidates:
        try:
            contents, fits = candidate()
        except TensorFormatError as error:
            errors.append(error)
            continue
        if fits:
            return contents, True
        readable.append((contents, False))
    if readable:
        return readable[0]
    raise errors[0]
