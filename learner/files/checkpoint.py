"""Checkpoints: written whole or not at all, checked by digest when read. safetensors and JSON, never pickle.

A checkpoint is a folder v<version>/ with state.safetensors and checkpoint.json. It is written under another name,
synced to disk and renamed, so a crash at any moment leaves the older ones unchanged. A witness beside the folder knows
the newest version: a run whose checkpoints are gone waits for them instead of starting over silently.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.numpy

from parlmesh.durable_files import partial_path, remove, sync_folder, write_synced
from parlmesh.high_water_mark import Witness
from parlmesh.telemetry import get_logger
from parlmesh.types import Array

_STATE, _ABOUT = "state.safetensors", "checkpoint.json"
_SOURCE_PREFIX = "source."
_PARTIAL = ".partial-"
# Shared by all runs, because each has its own folder.
_IDENTITY = 1
log = get_logger("parlmesh.learner")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A run's training at one version: numbers in `counters`, arrays in `tensors`."""

    version: int
    counters: Mapping[str, Any]
    tensors: Mapping[str, Array]

    @property
    def of_trainer(self) -> dict[str, Array]:
        """The trainer's tensors."""
        return {name: value for name, value in self.tensors.items() if not name.startswith(_SOURCE_PREFIX)}

    @property
    def of_source(self) -> dict[str, Array]:
        """The tensors of the experience source."""
        found = self.tensors.items()
        return {name.removeprefix(_SOURCE_PREFIX): value for name, value in found if name.startswith(_SOURCE_PREFIX)}

    @classmethod
    def of(
        cls, version: int, counters: Mapping[str, Any], trainer: Mapping[str, Array], source: Mapping[str, Array]
    ) -> "Checkpoint":
        """Joins the tensors of the trainer and the source."""
        return cls(version, counters, {**trainer, **{_SOURCE_PREFIX + name: value for name, value in source.items()}})


class CheckpointsGone(OSError):
    """There were checkpoints, but none can be read. An operator may put them back."""


class CheckpointFolder:
    """The checkpoints of one run; keeps the newest few."""

    def __init__(self, path: Path, kept: int) -> None:
        self.path = path
        self._kept = kept
        self._witness = Witness(path)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Returns when the checkpoint is on disk."""
        self.path.mkdir(parents=True, exist_ok=True)
        final, partial = self.path / f"v{checkpoint.version:08d}", self.path / f"{_PARTIAL}v{checkpoint.version:08d}"
        state = safetensors.numpy.save(dict(checkpoint.tensors))
        about = {
            "version": checkpoint.version,
            "counters": dict(checkpoint.counters),
            "sha256": hashlib.sha256(state).hexdigest(),
        }
        with partial_path(partial):
            partial.mkdir()
            write_synced(partial / _STATE, state)
            write_synced(partial / _ABOUT, json.dumps(about, indent=2, sort_keys=True, allow_nan=False).encode())
            sync_folder(partial)
            remove(final)
            partial.rename(final)
        sync_folder(self.path)
        self._witness.tell(_IDENTITY, checkpoint.version)
        for old in self._folders()[: -self._kept]:
            remove(old)
        return final

    def tidy(self) -> None:
        """Removes files that crashes left behind; those that cannot be removed do no harm."""
        for left in self.path.glob(f"{_PARTIAL}*"):
            try:
                remove(left)
            except OSError as error:
                log.warning("partial_checkpoint_left", path=str(left), error=repr(error))

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint; damaged ones are skipped with an error in the log. Raises CheckpointsGone when
        there were some and none is left."""
        seen = self._witness.read()
        newest = 0 if seen is None else seen.last_id
        for folder in reversed(self._folders()):
            try:
                found = _read(folder)
            except (
                OSError,
                ValueError,
                KeyError,
                TypeError,
                OverflowError,
                RecursionError,
                safetensors.SafetensorError,
            ) as error:
                log.error("checkpoint_damaged", path=str(folder), error=repr(error))
                continue
            if found.version < newest:
                log.error("checkpoint_gone", path=str(self.path), version=newest, found_version=found.version)
            return found
        if newest:
            raise CheckpointsGone(
                f"the checkpoints in {self.path} are missing, and there was one of version {newest}: put them back, or"
                f" delete {self._witness.path.name} beside them to start the run over"
            )
        return None

    @property
    def highest_version(self) -> int:
        """The highest version of all checkpoints, damaged ones included; 0 when there is none."""
        return max((int(folder.name[1:]) for folder in self._folders()), default=0)

    def _folders(self) -> list[Path]:
        return sorted(folder for folder in self.path.glob("v*") if folder.is_dir() and folder.name[1:].isdigit())


def _read(folder: Path) -> Checkpoint:
    about = json.loads((folder / _ABOUT).read_bytes())
    state = (folder / _STATE).read_bytes()
    if hashlib.sha256(state).hexdigest() != about["sha256"]:
        raise ValueError(f"{_STATE} does not have the digest that {_ABOUT} names")
    if not isinstance(about["counters"], dict):
        raise ValueError(f"the counters of {_ABOUT} are not a JSON object")
    return Checkpoint(int(about["version"]), about["counters"], safetensors.numpy.load(state))
