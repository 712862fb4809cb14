"""Logs of the processes, including dead ones."""

import asyncio
from typing import Any

from parlmesh.errors import NotFound
from parlmesh.telemetry.log_files import LogFolder

from ..page_request import View

LOG_LINES = 300


async def logs(view: View) -> dict[str, Any]:
    """The logs of every process, including dead ones."""
    if view.config.logs is None:
        return {"files": None}
    folder = LogFolder(view.config.logs)
    files = await asyncio.to_thread(folder.files)
    name, run_id, text = view.asked("process"), view.asked("run"), view.asked("q")
    chosen = [file for file in files if (not name or file.process == name) and (not run_id or file.run_id == run_id)]
    if (name or run_id) and not chosen:
        raise NotFound(f"there is no log of {name or 'any process'} in {run_id or 'any run'}")
    newest = files[0].run_id if files else ""
    shown = chosen if run_id or name else [file for file in files if file.run_id == newest]
    lines = await asyncio.to_thread(folder.lines, contains=text, most=LOG_LINES, files=shown)
    return {
        "files": [{"run": file.run_id, "process": file.process} for file in files],
        "runs": list(dict.fromkeys(file.run_id for file in files)),
        "processes": sorted({file.process for file in files}),
        "process": name,
        "run": run_id,
        "q": text,
        "lines": lines,
        "most": LOG_LINES,
    }
