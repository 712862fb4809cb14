"""What a federation waits out, and what ends it: a full disk or a lost scheduler passes, a defect does not."""

from collections.abc import Iterator

from parlmesh.errors import FleetError, Unavailable

_LONGEST = 300


def passing(error: BaseException) -> str:
    """One sentence on a cause that can go away by itself; empty when it is the federation's own fault."""
    causes = list(_leaves(error))
    if not causes or not all(isinstance(cause, (OSError, MemoryError, Unavailable)) for cause in causes):
        return ""
    return sentence_of(causes[0])


def sentence_of(error: BaseException) -> str:
    """For people."""
    if isinstance(error, FleetError):
        return error.message[:_LONGEST]
    if isinstance(error, OSError) and error.strerror:
        return f"the learner's disk: {error.strerror}"[:_LONGEST]
    return f"{type(error).__name__}: {error}"[:_LONGEST]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error
