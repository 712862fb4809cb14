"""Helper processes of one measurement: a line tells them what to do, and each answers with a line of JSON."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

ANSWER_SECONDS = 60.0

Answer = dict[str, Any]


class Children:
    """Several processes of one module; an async context manager that ends them."""

    def __init__(self, module: str, arguments: Sequence[Sequence[str]]) -> None:
        self._module = module
        self._arguments = arguments
        self._processes: list[Process] = []

    async def __aenter__(self) -> "Children":
        for arguments in self._arguments:
            command = (sys.executable, "-m", self._module, *arguments)
            self._processes.append(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE))
        await self.answers()
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def tell(self, **order: Any) -> None:
        """Gives all of them the same order."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(order).encode() + b"\n")

    async def answers(self) -> list[Answer]:
        """One line from each."""
        return list(await asyncio.gather(*(_answer(process) for process in self._processes)))


async def _answer(process: Process) -> Answer:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), ANSWER_SECONDS)
    if not line:
        raise RuntimeError(f"a child ended with code {await process.wait()}")
    answer: Answer = json.loads(line)
    return answer


async def obey(do: Callable[[Answer], Awaitable[Answer]]) -> None:
    """The child's side: reports that it is ready, then answers orders until its input ends."""
    say({"ready": True})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        say(await do(json.loads(line)))


def say(answer: Answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
