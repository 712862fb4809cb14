"""A client that is away while outcomes are kept only briefly: finished work is not run again."""

import asyncio
import textwrap
from pathlib import Path

import pytest

from parlmesh.client import ClientConfig, OutcomeState, PARLController, TaskRequest
from parlmesh.errors import NotFound
from parlmesh.testing import Process, free_port, wait_until_async

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
CONFIG = ClientConfig(reconnect_seconds=0.1)


class Line:
    """A TCP connection to a port that can be cut and mended."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = f"127.0.0.1:{free_port()}"

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._serve, *self.address.split(":"))

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, back}
        await asyncio.gather(_copy(reader, back), _copy(there, writer), return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


def settings(**values: object) -> list[str]:
    return [part for key, value in values.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]


async def test_a_task_that_ended_while_the_client_was_away_runs_once(tmp_path: Path) -> None:
    (tmp_path / "noting.py").write_text(
        textwrap.dedent("""
            import pathlib
            import time


            class Note:
                kind = "note"
                runs_in = "thread"

                def run(self, parameters, tensors, context):
                    with open(parameters["path"], "a") as file:
                        file.write(context.task_id + "\\n")
                    while not pathlib.Path(parameters["path"] + ".go").exists():
                        context.check()
                        time.sleep(0.01)
                    return {}
        """)
    )
    port, journal, release = free_port(), tmp_path / "ran", tmp_path / "ran.go"
    scheduler = Process(
        "scheduler",
        *settings(
            listen__port=port,
            metrics__port="null",
            store__path=tmp_path / "tasks.sqlite",
            retention__max_seconds=0.2,
        ),
        cwd=ROOT,
    )
    actor = Process(
        "actor",
        *settings(scheduler=f"127.0.0.1:{port}", metrics__port="null", slots=4, handlers='{note: "noting:Note"}'),
        cwd=ROOT,
        environment={"PYTHONPATH": str(tmp_path)},
    )
    with scheduler, actor:
        await asyncio.to_thread(actor.wait_for, "connected")
        line = Line(port)
        await line.mend()
        async with await PARLController.connect(line.address, config=CONFIG) as controller:
            tasks = [TaskRequest("note", {"path": str(journal)})] * 4
            call = asyncio.ensure_future(controller.execute_parallel(tasks, timeout=60))
            await wait_until_async(lambda: journal.exists() and len(journal.read_text().split()) == 4, 60)
            await line.cut()
            async with await PARLController.connect(f"127.0.0.1:{port}") as other:
                release.touch()
                await wait_until_async(lambda: _completed(other, 4), 60)
                (one, *_) = journal.read_text().split()
                await wait_until_async(lambda: _is_forgotten(other, one), 60)
            await line.mend()
            outcomes = await call
            assert {outcome.state for outcome in outcomes} == {OutcomeState.FORGOTTEN}
            counts = (await controller.get_statistics()).client
            assert (counts.reconnects, counts.resubmitted_tasks, counts.forgotten_outcomes) == (1, 0, 4)
        await line.cut()
        assert len(journal.read_text().split()) == 4


async def _completed(controller: PARLController, count: int) -> bool:
    return (await controller.get_statistics()).completed_tasks == count


async def _is_forgotten(controller: PARLController, task_id: str) -> bool:
    try:
        await controller.explain(task_id)
    except NotFound:
        return True
    return False
