"""A plug-in for tests: nodes whose readings are in a file, and an action that records what it did to which node."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from parlmesh.mapek.node.actions import Done
from parlmesh.plugins import Plugin


def folder() -> Path:
    return Path(os.environ["SICK_NODES"])


class Readings:
    """Reads {node: metrics} from readings.json; "*" is for all others. A node under "dies" kills its process."""

    kind = "fake_monitor"
    runs_in = "loop"

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Any) -> dict[str, Any]:
        readings = json.loads((folder() / "readings.json").read_text())
        node = parameters["node"]
        if node in readings.get("dies", []):
            with (folder() / "deaths").open("a") as file:
                file.write(f"{node}\n")
            os._exit(9)
        if node in readings.get("silent", []):
            await asyncio.Event().wait()
        return {"metrics": readings.get(node, readings["*"]), "missing": readings.get("missing", {}).get(node, {})}


class Mend:
    """Parameters: node, fails, word. Undoing is recorded too."""

    kind = "mend"

    def target(self, parameters: Any) -> str:
        return str(parameters["node"])

    async def do(self, parameters: Any, settings: Any) -> Done:
        self._note("did", parameters)
        if parameters.get("fails"):
            raise OSError("as the test wishes")
        return Done("mended", {"word": "before"})

    async def undo(self, parameters: Any, undo: Any) -> str:
        self._note(f"undid {undo['word']}", parameters)
        return "as it was"

    def _note(self, what: str, parameters: Any) -> None:
        with (folder() / "deeds").open("a") as file:
            file.write(f"{what} {parameters.get('word', 'mend')} {parameters['node']}\n")


plugin = Plugin(handlers={Readings.kind: Readings})
