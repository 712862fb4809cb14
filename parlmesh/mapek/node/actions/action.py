"""What an action is, and how one calls the system's commands."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from parlmesh.errors import FailedPrecondition, InvalidInput

from ..settings import NodeConfig


@dataclass(frozen=True, slots=True)
class Done:
    """What was done, and what undoing it needs; None = it cannot be undone."""

    detail: str
    undo: Mapping[str, Any] | None = None


@runtime_checkable
class Action(Protocol):
    """Doing it twice must be as good as once: a task may run again. InvalidInput says the parameters can never work."""

    @property
    def kind(self) -> str:
        """Name by which configurations ask for it."""
        ...

    def target(self, parameters: Mapping[str, Any]) -> str:
        """What it would touch; the node's operator allows it by this word. Checks the parameters."""
        ...

    async def do(self, parameters: Mapping[str, Any], settings: NodeConfig) -> Done:
        """Does it and sees that it took effect; any exception is a failure."""
        ...

    async def undo(self, parameters: Mapping[str, Any], undo: Mapping[str, Any]) -> str:
        """Puts back what was before, in words."""
        ...


@runtime_checkable
class Prepared(Protocol):
    """An action that knows before it is done what undoing it will need, so that a kill in the middle is undone too."""

    async def before(self, parameters: Mapping[str, Any], settings: NodeConfig) -> Mapping[str, Any] | None:
        """What `undo` is given should `do` never return; touches nothing."""
        ...


def text_of(parameters: Mapping[str, Any], name: str, kind: str, *, default: str | None = None) -> str:
    """A parameter that is text and cannot be taken for an option of a command."""
    value = parameters.get(name, default)
    if not isinstance(value, str) or not value or len(value) > 200 or value.startswith("-") or not value.isprintable():
        raise InvalidInput(f"{name} of {kind} must be text of 1 to 200 characters without - in front, got {value!r}")
    return value


async def command(*arguments: str) -> str:
    """The output of a command; FailedPrecondition with what it said when it fails. The caller has the time limit."""
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise FailedPrecondition(f"{arguments[0]} cannot be run: {error.strerror}", reason="COMMAND") from error
    try:
        output, said = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    if process.returncode:
        why = said.decode(errors="replace").strip()[:300] or f"exit code {process.returncode}"
        raise FailedPrecondition(f"{' '.join(arguments)}: {why}", reason="COMMAND")
    return output.decode(errors="replace")
