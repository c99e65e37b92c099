from __future__ import annotations

import pickle

import pytest

from xr_tensorfmt import SourceChangedError, TensorFormatError


@pytest.mark.parametrize("kind", [TensorFormatError, SourceChangedError])
def test_errors_are_one_sentence_and_travel_to_and_from_workers(kind) -> None:
    error = kind("/a.bin", "the order", 77, "at most 32", "fetch it again", offset=20)
    sentence = "/a.bin: the order at byte 20: 77, expected at most 32; fetch it again."
    assert str(error) == sentence
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == sentence
    assert isinstance(copy, ValueError)


def test_an_error_without_a_place_leaves_it_out() -> None:
    error = TensorFormatError("/a.bin", "the file", "short", "more", "fetch it again")
    assert str(error) == "/a.bin: the file: short, expected more; fetch it again."
