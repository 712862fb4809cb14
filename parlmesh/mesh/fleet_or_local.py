"""Where work is done: in this process, or as tasks on a fleet where that pays. The reason is part of the answer."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NoReturn, TypeVar

from parlmesh.client import Outcome, PARLController, TaskRequest
from parlmesh.errors import FailedPrecondition, InvalidInput

WORTH_SECONDS = 2.0
"""Work that this process has done sooner is not handed out."""
THREAD_PAYS_NODES = 300
"""Up to here distances are found in a few milliseconds, on a busy machine sooner than a thread has begun."""

Piece = TypeVar("Piece")
Done = TypeVar("Done")
Progress = Callable[[int, int], None]
"""Told how many of how many are done."""


def silent(done: int, total: int) -> None:
    """Nobody watches."""


class Where(StrEnum):
    """Who computes."""

    AUTO = "auto"
    HERE = "here"
    FLEET = "fleet"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise InvalidInput(f"where must be one of {', '.join(cls)}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Job(Generic[Piece, Done]):
    """Work in pieces that do not need each other."""

    pieces: Sequence[Piece]
    here: Callable[[Piece], Done]
    request: Callable[[Piece], TaskRequest]
    read: Callable[[Piece, Outcome], Done]
    size: Callable[[Piece], int]
    """Of a piece, for the progress."""


async def performed(
    job: Job[Piece, Done], controller: PARLController | None, where: Where, progress: Progress = silent
) -> tuple[list[Done], dict[str, Any]]:
    """One answer for each piece in their order, and how it was made."""
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
        return "as asked"
    return "there is no fleet" if controller is None else f"{seconds:.1f} s of work are not worth a fleet"
