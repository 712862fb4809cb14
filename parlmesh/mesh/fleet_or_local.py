"""Decides where to compute: in this process, or as tasks on a fleet if that pays off. The result says why."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NoReturn, TypeVar

from parlmesh.client import Outcome, PARLController, TaskRequest
from parlmesh.errors import FailedPrecondition, InvalidInput

WORTH_SECONDS = 2.0
"""Work that takes less time than this stays in this process."""
THREAD_PAYS_NODES = 300
"""Up to this size, distances take a few milliseconds, less than starting a thread on a busy machine."""

Piece = TypeVar("Piece")
Done = TypeVar("Done")
Progress = Callable[[int, int], None]
"""Called with the amounts done and in total."""


def silent(done: int, total: int) -> None:
    """Reports no progress."""


class Where(StrEnum):
    """Where to compute."""

    AUTO = "auto"
    HERE = "here"
    FLEET = "fleet"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise InvalidInput(f"where must be one of {', '.join(cls)}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Job(Generic[Piece, Done]):
    """Work in independent pieces."""

    pieces: Sequence[Piece]
    here: Callable[[Piece], Done]
    request: Callable[[Piece], TaskRequest]
    read: Callable[[Piece, Outcome], Done]
    size: Callable[[Piece], int]
    """Size of a piece, for progress."""


async def performed(
    job: Job[Piece, Done], controller: PARLController | None, where: Where, progress: Progress = silent
) -> tuple[list[Done], dict[str, Any]]:
    """One result per piece, in order, and how they were computed."""
    if where is Where.FLEET and controller is None:
        raise FailedPrecondition("there is no fleet; give a controller or compute here", reason="NOT_CONNECTED")
    total = sum(job.size(piece) for piece in job.pieces)
    done: list[Done] = []
    count = 0
    started = time.perf_counter()
    if where is not Where.FLEET:
        for piece in job.pieces:
            done.append(await asyncio.to_thread(job.here, piece))
            count += job.size(piece)
            progress(count, total)
            passed = time.perf_counter() - started
            left = passed / count * (total - count) if count else 0.0
            if where is Where.AUTO and controller is not None and left > WORTH_SECONDS:
                break
        else:
            return done, {"where": "here", "why": _why_here(where, controller, time.perf_counter() - started)}
    assert controller is not None
    rest = list(job.pieces[len(done) :])
    answers: list[Done | None] = [None] * len(rest)
    actors = set()
    async for outcome in controller.as_completed([job.request(piece) for piece in rest]):
        piece = rest[outcome.index]
        outcome.unwrap()
        answers[outcome.index] = job.read(piece, outcome)
        actors.add(outcome.actor_id)
        count += job.size(piece)
        progress(count, total)
    done += [answer for answer in answers if answer is not None]
    assert len(done) == len(job.pieces)
    return done, {"where": "fleet", "why": f"{len(rest)} tasks", "tasks": len(rest), "actors": len(actors)}


def _why_here(where: Where, controller: PARLController | None, seconds: float) -> str:
    if where is Where.HERE:
        return "as requested"
    return "there is no fleet" if controller is None else f"{seconds:.1f} s of work do not justify a fleet"
