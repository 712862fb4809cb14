"""The action interface, and a helper for running system commands."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from parlmesh.errors import FailedPrecondition, InvalidInput

from ..settings import NodeConfig


@dataclass(frozen=True, slots=True)
class Done:
    """What was done, and the data needed to undo it; None = it cannot be undone."""

    detail: str
    undo: Mapping[str, Any] | None = None


@runtime_checkable
class Action(Protocol):
    """Actions must be idempotent: a task may run again. InvalidInput means that the parameters can never work."""

    @property
    def kind(self) -> str:
        """The name that configurations use."""
        ...

    def target(self, parameters: Mapping[str, Any]) -> str:
        """What it would change; the node's operator allows it under this name. Checks the parameters."""
        ...

    async def do(self, parameters: Mapping[str, Any], settings: NodeConfig) -> Done:
        """Takes the action and checks that it took effect; any exception is a failure."""
        ...

    async def undo(self, parameters: Mapping[str, Any], undo: Mapping[str, Any]) -> str:
        """Restores the previous state and describes it in words."""
        ...


@runtime_checkable
class Prepared(Protocol):
    """An action that knows in advance what undoing it will need, so that an interrupted action can be undone too."""

    async def before(self, parameters: Mapping[str, Any], settings: NodeConfig) -> Mapping[str, Any] | None:
        """The argument for `undo` in case `do` never returns; changes nothing."""
        ...


def text_of(parameters: Mapping[str, Any], name: str, kind: str, *, default: str | None = None) -> str:
    """A text parameter that a command cannot mistake for an option."""
    value = parameters.get(name, default)
    if not isinstance(value, str) or not value or len(value) > 200 or value.startswith("-") or not value.isprintable():
        raise InvalidInput(f"{name} of {kind} must be text of 1 to 200 characters without - in front, got {value!r}")
    return value


async def command(*arguments: str) -> str:
    """A command's output; a failure raises FailedPrecondition with its error output. The caller sets the time limit."""
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
