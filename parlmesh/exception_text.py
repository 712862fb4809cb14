"""An exception of someone's code as text: a sentence, and below it the frames where it was raised, theirs first.

The text travels in `Failure.message`: its first line is for everyone, the rest for the author of the code. Frames have
file, line and source, never values.
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
    words = " ".join(str(error).split())
    return cut(f"{type(error).__name__}: {words}" if words else type(error).__name__)


def cut(text: str, limit: int = LONGEST_SENTENCE) -> str:
    """The text, or as much of it as there is room for."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def tell(error: BaseException) -> str:
    """The sentence and where it was raised."""
    return with_frames(sentence(error), error)


def with_frames(first_line: str, error: BaseException | None) -> str:
    """A sentence about an exception, and where that was raised."""
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
    """Frames of the user's own code, outermost first; else those of libraries, else the last ones."""
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if not frame.filename.startswith(_OWN)]
    theirs = [frame for frame in foreign if not frame.filename.startswith(_LIBRARIES) and frame.filename[:1] != "<"]
    if theirs and foreign[-1] is not theirs[-1]:
        theirs.append(foreign[-1])  # the library that raised it
    return (theirs or foreign or frames)[-_MOST_FRAMES:]


def place(error: BaseException) -> str:
    """File and line of someone's own code, the innermost; empty when none of it took part."""
    frames = [frame for frame in telling_frames(error) if not frame.filename.startswith((*_OWN, *_LIBRARIES))]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def sentence_at(error: BaseException) -> str:
    """The exception in one line, with the place in someone's own code where there is one."""
    where = place(error)
    return f"{sentence(error)} ({where})" if where else sentence(error)


def first_line(text: str) -> str:
    """The sentence of a text that may have frames below it."""
    return text.partition("\n")[0]


def frames_of(text: str) -> str:
    """What is below the sentence; empty when nothing is."""
    return text.partition("\n")[2]


def told_in_one_line(text: str, limit: int) -> str:
    """A text with frames as its sentence and the outermost place, where there is room for the whole place."""
    frame = _FRAME.search(text)
    where = f" ({frame[1]}:{frame[2]})" if frame is not None else ""
    if len(where) > limit // 2:
        where = ""
    return cut(first_line(text), limit - len(where)) + where


def _line(frame: traceback.FrameSummary) -> str:
    head = f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
    return f"{head}: {cut(frame.line, _LONGEST_SOURCE)}" if frame.line else head
