from __future__ import annotations

import pickle

import pytest

from xr_tensorfmt import SourceChangedError, TensorFormatError, TensorFormatWarning
from xr_tensorfmt.errors import warn


@pytest.mark.parametrize("kind", [TensorFormatError, SourceChangedError])
def test_errors_are_one_sentence_and_pickle(kind) -> None:
    error = kind("/a.bin", "the order", 77, "at most 32", "fetch it again", offset=20)
    sentence = "/a.bin: the order at byte 20: 77, expected at most 32; fetch it again."
    assert str(error) == sentence
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == sentence
    assert isinstance(copy, ValueError)


def test_finding_of_an_error_has_the_same_message() -> None:
    error = TensorFormatError(
        "/a.bin", "the shape", [1, "x" * 300], "integers", "fetch it again", 7
    )
    finding = error.to_finding("warning")
    assert f"{finding.sentence}." == str(error)
    assert (finding.offset, finding.severity) == (7, "warning")
    assert len({finding, error.to_finding("warning")}) == 1
    assert error.actual == [1, "x" * 300]


def test_findings_about_a_changed_file_raise() -> None:
    error = SourceChangedError("/a.bin", "the file", "9 bytes", "8 bytes", "open it again")
    with pytest.raises(SourceChangedError) as caught:
        error.to_finding()
    assert caught.value is error


def test_error_without_offset_omits_it() -> None:
    error = TensorFormatError("/a.bin", "the file", "short", "more", "fetch it again")
    assert str(error) == "/a.bin: the file: short, expected more; fetch it again."


@pytest.mark.parametrize("call", [lambda: warn("x"), lambda: exec("warn('x')", {"warn": warn})])
def test_warnings_are_about_the_line_that_calls_the_package(call) -> None:
    with pytest.warns(TensorFormatWarning) as caught:
        call()  # code in exec() has no module name
    assert caught[0].filename in (__file__, "<string>")
