"""The record of a run, run.json in its folder, so that it is the same run after a restart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from parlmesh.config import Config
from parlmesh.durable_files import replace_file
from parlmesh.telemetry import get_logger

from .progress import RunState

RUN_FILE = "run.json"
log = get_logger("parlmesh.learner")


class RunRecord(Config):
    """A run between two starts of its learner."""

    run_id: str
    state: RunState
    created_time: float
    """Seconds since 1970."""
    configuration: Mapping[str, Any]
    """The `training` section, defaults included."""
    reason: str = ""
    """Why it ended."""
    end_time: float | None = None
    standing: Mapping[str, Any] = Field(default_factory=dict)
    """Its progress, once it has ended; before that, its checkpoint has it."""

    def write(self, folder: Path) -> None:
        """Returns when the record is on disk."""
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / RUN_FILE, self.model_dump_json(indent=2).encode() + b"\n")


def read_record(folder: Path) -> RunRecord | None:
    """The record of a run; None when it is missing, or damaged, which is logged; OSError when it cannot be read."""
    try:
        return RunRecord.model_validate_json((folder / RUN_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        log.error("run_record_damaged", path=str(folder / RUN_FILE), error=repr(error))
        return None
