"""An action for tests: records what it did, and kills its process at the requested step."""

import os
import signal
from pathlib import Path
from typing import Any

from parlmesh.mapek.node.actions import Done


class Lever:
    """Parameters: target; dies, the step at which to die; stuck, the number of undos that fail."""

    kind = "lever"

    def target(self, parameters: Any) -> str:
        return str(parameters["target"])

    async def before(self, parameters: Any, settings: Any) -> dict[str, Any]:
        self._dies(parameters, "before")
        return {"was": "up"}

    async def do(self, parameters: Any, settings: Any) -> Done:
        self._dies(parameters, "first")
        self._note(f"did-{parameters['target']}")
        self._dies(parameters, "last")
        return Done("pulled", {"was": "up"})

    async def undo(self, parameters: Any, undo: Any) -> str:
        assert undo == {"was": "up"}
        if self._notes().count("stuck") < parameters.get("stuck", 0):
            self._note("stuck")
            raise OSError("it is stuck")
        if "dying" not in self._notes():
            self._dies(parameters, "undo")
        self._note(f"undid-{parameters['target']}")
        return "as it was"

    def _dies(self, parameters: Any, step: str) -> None:
        if parameters.get("dies") == step:
            if step == "undo":
                self._note("dying")
            os.kill(os.getpid(), signal.SIGKILL)

    def _notes(self) -> list[str]:
        return Path(os.environ["LEVER"]).read_text().split() if Path(os.environ["LEVER"]).exists() else []

    def _note(self, what: str) -> None:
        with Path(os.environ["LEVER"]).open("a") as file:
            file.write(f"{what}\n")
