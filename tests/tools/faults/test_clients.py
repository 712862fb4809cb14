"""The clients of a chaos run learn of every end, even if one answer is lost."""

import asyncio
from pathlib import Path
from typing import Any

from parlmesh.testing import wait_until_async
from parlmesh.testing.history import Journal
from parlmesh.testing.servers import serve
from parlmesh.testing.tasks import FakeTasks, failed
from parlmesh.v1 import scheduler_service_pb2 as pb
from tools.faults.clients import RawClient

SECONDS = 60.0
TASKS = 30


class Tasks(FakeTasks):
    """Ends no task by itself, and leaves the query for one of them unanswered."""

    silent = ""

    def __init__(self) -> None:
        super().__init__(lambda spec: None)

    async def GetTask(self, request: pb.GetTaskRequest, context: Any) -> pb.GetTaskResponse:
        if request.task_id == self.silent:
            await asyncio.Event().wait()
        return await super().GetTask(request, context)


async def test_one_answer_that_does_not_come_hides_no_other_end(tmp_path: Path) -> None:
    fake = Tasks()
    async with serve([fake.service]) as address:
        with Journal(tmp_path / "clients.jsonl") as journal:
            client = RawClient("raw-0", address, journal, seed=0)
            running = asyncio.create_task(client.run())
            await wait_until_async(lambda: client.accepted >= TASKS, SECONDS)
            client.stopping = True
            await wait_until_async(lambda: client.accepted == len(fake.specs), SECONDS)
            # They end unnoticed, and the stream breaks: the client has to ask for each. The first that it would ask
            # for is the one whose answer does not come.
            fake.silent = next(iter(client.waiting))
            fake.outcomes = {task_id: failed(spec, "HANDLER_ERROR", "broke") for task_id, spec in fake.specs.items()}
            await fake.end_watches()
            await wait_until_async(lambda: client.waiting == {fake.silent}, SECONDS)
            running.cancel()
            await asyncio.wait([running], timeout=SECONDS)
