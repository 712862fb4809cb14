"""Exceptions as text: the sentence, and the frames of the user's own code."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from parlmesh.exception_text import LONGEST_TEXT, first_line, frames_of, place, sentence, tell

CODE = """
import json


def outer(depth):
    return outer(depth - 1) if depth else inner()


def inner():
    secret = "hunter2"
    raise KeyError("cell")


def broken():
    return json.loads("{")


def wrapped():
    try:
        inner()
    except KeyError as error:
        raise ValueError("no such cell") from error
"""


@pytest.fixture
def theirs(tmp_path: Path) -> ModuleType:
    """A user's module, and its path."""
    path = tmp_path / "theirs.py"
    path.write_text(CODE)
    module = ModuleType("theirs")
    module.__file__ = str(path)
    exec(compile(CODE, path, "exec"), module.__dict__)
    return module


def raised(module: ModuleType, name: str, *arguments: object) -> Exception:
    try:
        getattr(module, name)(*arguments)
    except Exception as error:
        return error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
    raise AssertionError(f"{name} raised nothing")


def test_a_sentence_comes_first_and_then_file_line_and_source(theirs: ModuleType) -> None:
    text = tell(raised(theirs, "outer", 1))
    assert first_line(text) == "KeyError: 'cell'"
    assert frames_of(text).splitlines() == [
        f'  File "{theirs.__file__}", line 6, in outer: return outer(depth - 1) if depth else inner()',
        f'  File "{theirs.__file__}", line 6, in outer: return outer(depth - 1) if depth else inner()',
        f'  File "{theirs.__file__}", line 11, in inner: raise KeyError("cell")',
    ]


def test_values_are_not_shown(theirs: ModuleType) -> None:
    assert "hunter2" not in tell(raised(theirs, "inner"))


def test_only_the_raising_frame_of_a_library_is_shown(theirs: ModuleType) -> None:
    lines = frames_of(tell(raised(theirs, "broken"))).splitlines()
    assert len(lines) == 2
    assert f'"{theirs.__file__}", line 15, in broken' in lines[0]
    assert str(Path(json.__file__).parent) in lines[1]


def test_the_cause_is_shown_too(theirs: ModuleType) -> None:
    text = tell(raised(theirs, "wrapped"))
    assert first_line(text) == "ValueError: no such cell"
    assert "caused by KeyError: 'cell'" in text
    assert "line 11, in inner" in text


def test_the_text_is_bounded_and_keeps_the_innermost_frames(theirs: ModuleType) -> None:
    text = tell(raised(theirs, "outer", 500))
    assert len(text) <= LONGEST_TEXT
    assert len(text.splitlines()) == 9
    assert text.endswith('in inner: raise KeyError("cell")')


def test_an_exception_that_was_never_raised_is_a_sentence() -> None:
    assert tell(ValueError("a\n b")) == sentence(ValueError("a b")) == "ValueError: a b"


def test_the_place_is_that_of_the_innermost_own_code(theirs: ModuleType) -> None:
    assert place(raised(theirs, "broken")) == f"{theirs.__file__}:15"
    assert place(ValueError("nowhere")) == ""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_without_a_text_and_text_that_is_not_utf_8_have_a_sentence_that_can_be_sent() -> None:
    assert sentence(Unprintable()) == "Unprintable: its text cannot be shown (RuntimeError)"
    assert sentence(ValueError("na\u00efve \udce9.txt")) == "ValueError: na\u00efve \\udce9.txt"
