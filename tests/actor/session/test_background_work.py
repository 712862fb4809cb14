"""What a handler looks after begins with the actor, goes on after a failure and ends with it."""

import asyncio
from typing import Any

from actor.session import background_work
from actor.session.background_work import Attendance


class Handler:
    kind = "looks"
    runs_in = "loop"

    async def run(self, parameters: Any, tensors: Any, context: Any) -> dict[str, Any]:
        return {}


class Looking(Handler):
    def __init__(self) -> None:
        self.begun: list[str] = []
        self.again = asyncio.Event()
        self.ended = False

    async def attend(self, node_id: str) -> None:
        self.begun.append(node_id)
        if len(self.begun) == 1:
            raise OSError("the disk is full")
        self.again.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


async def test_it_begins_anew_after_a_failure_and_ends_with_the_actor(monkeypatch) -> None:
    monkeypatch.setattr(background_work, "_AGAIN_SECONDS", 0.001)
    handler = Looking()
    async with Attendance("n", [handler, Handler()]):
        async with asyncio.timeout(20):
            await handler.again.wait()
        monkeypatch.setattr(background_work, "_AGAIN_SECONDS", 20.0)
    assert handler.begun == ["n", "n"]
    assert handler.ended
