"""An exception from user code as text: a sentence, and below it the frames that raised it, the user's own first.

The text travels in `Failure.message`: its first line is for all readers, the rest for the author of the code. Frames
show file, line and source, never values.
"""

import os
import re
import site
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

LONGEST_SENTENCE = 500
LONGEST_TEXT = 4000
_MOST_FRAMES = 8
_MOST_CAUSES = 3
_LONGEST_SOURCE = 160
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)

_OWN = tuple(
    f"{Path(__file__).parent.parent / package}{os.sep}" for package in ("parlmesh", "actor", "learner", "scheduler")
)
_LIBRARIES = tuple(
    f"{path}{os.sep}"
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
)


def sentence(error: BaseException) -> str:
    """The exception in one line of bounded length."""
    name = type(error).__name__
    try:
        words = " ".join(str(error).split())
    except Exception as worse:  # the exception's own __str__ is broken
        words = f"its text cannot be shown ({type(worse).__name__})"
    return cut(sendable(f"{name}: {words}" if words else name))


def sendable(text: str) -> str:
    """The text as UTF-8 has it: lone surrogates, as in names of files that are not UTF-8, are written as escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def cut(text: str, limit: int = LONGEST_SENTENCE) -> str:
    """Truncates the text to the limit."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def tell(error: BaseException) -> str:
    """The sentence, and the frames that raised it."""
    return with_frames(sentence(error), error)


def with_frames(first_line: str, error: BaseException | None) -> str:
    """A given first line, and the frames of the exception and its causes."""
    lines = [first_line]
    for depth in range(_MOST_CAUSES):
        if error is None:
            break
        if depth:
            lines.append(f"caused by {sentence(error)}")
        lines += [_line(frame) for frame in telling_frames(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return cut("\n".join(lines), LONGEST_TEXT)


def telling_frames(error: BaseException) -> Sequence[traceback.FrameSummary]:
    """Frames of user code, outermost first; else frames of libraries, else the innermost frames."""
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if not frame.filename.startswith(_OWN)]
    theirs = [frame for frame in foreign if not frame.filename.startswith(_LIBRARIES) and frame.filename[:1] != "<"]
    if theirs and foreign[-1] is not theirs[-1]:
        theirs.append(foreign[-1])  # the library that raised it
    return (theirs or foreign or frames)[-_MOST_FRAMES:]


def place(error: BaseException) -> str:
    """File and line of the innermost frame of user code; empty when there is none."""
    frames = [
        frame for frame in telling_frames(error) if not frame.filename.startswith((*_OWN, *_LIBRARIES, "<frozen "))
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def sentence_at(error: BaseException) -> str:
    """The exception in one line, with the place in user code if there is one."""
    where = place(error)
    return f"{sentence(error)} ({where})" if where else sentence(error)


def first_line(text: str) -> str:
    """The first line of a text that may have frames below it."""
    return text.partition("\n")[0]


def frames_of(text: str) -> str:
    """The lines below the sentence; may be empty."""
    return text.partition("\n")[2]


def told_in_one_line(text: str, limit: int) -> str:
    """The first line of a text, with the place of its outermost frame if that fits."""
    frame = _FRAME.search(text)
    where = f" ({frame[1]}:{frame[2]})" if frame is not None else ""
    if len(where) > limit // 2:
        where = ""
    return cut(first_line(text), limit - len(where)) + where


def _line(frame: traceback.FrameSummary) -> str:
    head = f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
    return sendable(f"{head}: {cut(frame.line, _LONGEST_SOURCE)}" if frame.line else head)
