"""A sub-agent that gives any answer a test wants, or kills its actor."""

import asyncio
import os
import random
import signal

from parlmesh.plugins import Plugin


class OddAnswer:
    kind = "odd_answer"
    runs_in = "loop"

    async def run(self, parameters, tensors, context):
        if parameters.get("kill_once") and context.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(parameters.get("seconds", 0))
        if "raise" in parameters:
            raise RuntimeError(parameters["raise"])
        answer = dict(parameters["answer"])
        return answer | ({"draw": random.random()} if parameters.get("draw") else {})


plugin = Plugin(handlers={"odd_answer": OddAnswer})
