"""Where the data of tensors lie: checks against the file, and against what writers do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from xr_tensorfmt.errors import TensorFormatError
from xr_tensorfmt.formats.mag.spec import Contents, StoredTensor

_offset = attrgetter("offset")


def round_up(position: int, multiple: int) -> int:
    """The first multiple at or after a position."""
    return -(-position // multiple) * multiple


def check_keys(path: str, tensors: Sequence[StoredTensor]) -> None:
    """Refuse keys that occur twice, and those that UTF-8 cannot encode."""
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.key in seen:
            raise TensorFormatError(
                path,
                "the key",
                f"{tensor.key!r} twice",
                "a different key for each tensor",
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
            path, "the key", ascii(key), "a string that UTF-8 can encode", "the header is damaged"
        ) from None


def check_placement(path: str, contents: Contents, size: int) -> None:
    """Refuse data outside of the file, in its header, or in the data of another tensor."""
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
    path: str, tensors: Sequence[StoredTensor], start: int, stop: int, alignment: int
) -> None:
    """Refuse gaps in a data section other than those of a writer that aligns each tensor."""
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


def end_of_consecutive(tensors: Iterable[StoredTensor], start: int, alignment: int) -> int | None:
    """Where data end that have no gaps but those of their alignment; None if they have others."""
    position = start
    for tensor in sorted(tensors, key=_offset):
        if tensor.offset != round_up(position, alignment):
            return None
        position = tensor.stop
    return position


def first_that_fits(
    candidates: Sequence[Callable[[], tuple[Contents, bool]]],
) -> tuple[Contents, bool]:
    """The first interpretation of a header whose data lie as its writer places them."""
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
