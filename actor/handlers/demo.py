"""Kinds for trying a fleet: noop, echo, sleep and fail."""

import asyncio
from typing import Any

from pydantic import Field

from parlmesh.handlers import EMPTY, Context, HandlerError, Result, RunsIn
from parlmesh.types import Array

from .parameters import Parameters

_LONGEST_SLEEP_SECONDS = 24 * 3600.0


class Noop:
    """Answers immediately with an empty result."""

    kind = "noop"
    runs_in = RunsIn.INLINE

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Result:
        """Ignores its parameters."""
        return EMPTY


class Echo:
    """Answers with its parameters and arrays."""

    kind = "echo"
    runs_in = RunsIn.INLINE

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Result:
        """Any parameters and tensors."""
        return Result(parameters, tensors)


class SleepParameters(Parameters):
    """How long to sleep."""

    seconds: float = Field(default=1.0, ge=0, le=_LONGEST_SLEEP_SECONDS)


class Sleep:
    """Ends after some seconds."""

    kind = "sleep"
    runs_in = RunsIn.LOOP

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Result:
        """{seconds}"""
        wanted = SleepParameters.of(self.kind, parameters)
        await asyncio.sleep(wanted.seconds)
        return Result({"seconds": wanted.seconds})


class FailParameters(Parameters):
    """How to fail."""

    message: str = Field(default="it was asked to fail", max_length=1000)
    retryable: bool = False


class Fail:
    """Fails in the way its parameters ask for."""

    kind = "fail"
    runs_in = RunsIn.INLINE

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Result:
        """{message, retryable}"""
        wanted = FailParameters.of(self.kind, parameters)
        raise HandlerError(wanted.message, retryable=wanted.retryable)
