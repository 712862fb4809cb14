"""The plug-in `tuning`: tasks of the kind `tune` train one part of a trial on an actor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from parlmesh.errors import InvalidInput
from parlmesh.plugins import Plugin
from parlmesh.types import Array

KIND = "tune"


class Attempt(Protocol):
    """What an attempt of a task can be asked."""

    def check(self) -> None:
        """Raises when nobody waits for the result any more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON object and named arrays."""

    parameters: Mapping[str, Any]
    tensors: Mapping[str, Array]


class TuneHandler:
    """Parameters: training (a whole section), plugins, start and until, in steps; tensors: those of the last part."""

    kind = KIND
    runs_in = "thread"

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Attempt) -> Answer:
        """Trains; looks for a cancellation before every update."""
        # Training needs packages that actors without this plug-in do without.
        from .pruning_rung import train_rung
        from .search_space import checked

        try:
            start, until = int(parameters["start"]), int(parameters["until"])
            training, plugins = parameters["training"], tuple(str(each) for each in parameters.get("plugins") or ())
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"a task of the kind {KIND} needs training, start and until: {error!r}") from None
        if not 0 <= start < until:
            raise InvalidInput(f"until must be above start, which must be >= 0, got {start} and {until}")
        copied = {name: array.copy() for name, array in tensors.items()}
        rung = train_rung(checked(training), plugins, copied, start, until, context.check)
        return Answer({"value": rung.value, "steps": rung.steps}, rung.tensors)


plugin = Plugin(handlers={KIND: TuneHandler})
