"""From the words of the functions in Python to those of the command."""

from __future__ import annotations

import re

_WORDS = (
    (r"drop=\['(\w+)'\]", r"--drop \1"),
    (r"mode='w'", "--overwrite"),
    (r"encoding=\{'([^']*)': \{'dtype': '?([^'}]+)'?\}\}", r"--dtype '\1=\2'"),
    (r"pass one of them, as a DataArray,", "choose one by --variable,"),
    (r"leave out engine= to let xarray look for another, or ", ""),
    (r"verify=False", "--no-verify"),
    (r"sparse='(\w+)'", r"--sparse \1"),
    (r"format='(\w+)'", r"--from \1"),
    (r"storage_options=", "--storage-option"),
    (r"(?<!--option )version=(\S+)", r"--option version=\1"),
    (r", or drop_encoding\(\) to keep them as (\w+)", r" or --dtype \1 to keep them"),
)


def printable(text: str) -> str:
    """A text of unknown origin without characters that could steer a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def without_secrets(text: str) -> str:
    """A text with URLs in it, such as an argument of the command, as it may be printed."""
    from xr_tensorfmt.sources.store_errors import redacted  # noqa: PLC0415

    return redacted(text) if "://" in text else text


def in_command_words(message: str) -> str:
    """A message with options in place of keywords, on one line."""
    text = printable(without_secrets(" ".join(message.split())))
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text
