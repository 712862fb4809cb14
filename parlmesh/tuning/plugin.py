"""The plug-in `tuning`: tasks of the kind `tune` train one part of a trial on an actor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from parlmesh.errors import InvalidInput
from parlmesh.plugins import Plugin
from parlmesh.types import Array

KIND = "tune"


class Attempt(Protocol):
    """The part of an attempt's context used here."""

    def check(self) -> None:
        """Raises when the result is no longer wanted."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON object and named arrays."""

    parameters: Mapping[str, Any]
    tensors: Mapping[str, Array]


class TuneHandler:
    """Parameters: training (a whole section), plugins, start and until, in steps; tensors: from the previous part."""

    kind = KIND
    runs_in = "thread"

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Attempt) -> Answer:
        """Trains one part; checks for cancellation before every update."""
        # Imported here: training needs packages that other actors lack.
        from .pruning_rung import train_rung
        from .search_space import checked

        try:
            start, until = int(parameters["start"]), int(parameters["until"])
            training, plugins = parameters["training"], tuple(str(each) for each in parameters.get("plugins") or ())
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"a task of the kind {KIND} needs training, start and until: {error!r}") from None
        if not 0 <= start < until:
            raise InvalidInput(f"start must be >= 0 and until above it, got {start} and {until}")
        copied = {name: array.copy() for name, array in tensors.items()}
        rung = train_rung(checked(training), plugins, copied, start, until, context.check)
        return Answer({"value": rung.value, "steps": rung.steps}, rung.tensors)


plugin = Plugin(handlers={KIND: TuneHandler})
