from __future__ import annotations

import pickle

import pytest

from xr_tensorfmt import SourceChangedError, TensorFormatError
from xr_tensorfmt.core.elements import ElementError
from xr_tensorfmt.errors import find_stack_level


@pytest.mark.parametrize("kind", [TensorFormatError, SourceChangedError])
def test_errors_are_one_sentence_and_pickle(kind) -> None:
    error = kind("/a.bin", "the order", 77, "at most 32", "fetch it again", offset=20)
    sentence = "/a.bin: the order at byte 20: 77, expected at most 32; fetch it again."
    assert str(error) == sentence
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == sentence
    assert isinstance(copy, ValueError)


def test_error_about_an_element_pickles_with_keywords() -> None:
    error = ElementError(3, "'x'", "UTF-8", hint="correct it", field="label 1", offset=7)
    copy = pickle.loads(pickle.dumps(error))
    assert vars(copy) == vars(error)
    assert str(copy.in_file("/a", 7)) == str(error.in_file("/a", 7))


def test_error_without_offset_omits_it() -> None:
    error = TensorFormatError("/a.bin", "the file", "short", "more", "fetch it again")
    assert str(error) == "/a.bin: the file: short, expected more; fetch it again."


def test_level_of_caller_is_counted_from_first_frame_outside_of_package() -> None:
    assert find_stack_level() == 1


def test_code_that_runs_by_exec_without_module_name_is_caller() -> None:
    namespace: dict = {"find_stack_level": find_stack_level}
    exec("level = find_stack_level()", namespace)
    assert namespace["level"] == 1
