"""The policies of one run that are kept for use: all evaluated ones, and the run's last one.

A model is v<version>.safetensors, the policy in the form that actors read, and v<version>.json, its description. The
second is written last and deleted first, so that a model exists whole or not at all. It can also be exported as an ONNX
file.
"""

import hashlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from parlmesh.config import Config
from parlmesh.durable_files import replace_file
from parlmesh.errors import FailedPrecondition, NotFound
from parlmesh.telemetry import get_logger

_PROMOTED = "promoted.json"
log = get_logger("parlmesh.learner")


class Model(Config):
    """A kept policy."""

    run_id: str
    version: int = Field(ge=1)
    created_time: float
    """Seconds since 1970."""
    size_bytes: int
    digest: str
    """SHA-256 of the file, in hexadecimal."""
    metadata: Mapping[str, Any]
    """Environment, algorithm, steps, evaluation_return and the like."""


class _Promotion(Config):
    version: int


class ModelFolder:
    """Keeps the newest few models, the best and the promoted one. May be used from any thread."""

    def __init__(self, path: Path, run_id: str, kept: int) -> None:
        self._path = path
        self._run_id = run_id
        self._kept = kept
        self._lock = threading.Lock()

    def add(self, version: int, blob: bytes, metadata: Mapping[str, Any]) -> Model:
        """Returns when the model is on disk; adding a version again replaces it."""
        model = Model(
            run_id=self._run_id,
            version=version,
            created_time=time.time(),
            size_bytes=len(blob),
            digest=hashlib.sha256(blob).hexdigest(),
            metadata=metadata,
        )
        with self._lock:
            self._path.mkdir(parents=True, exist_ok=True)
            replace_file(self._weights(version), blob)
            replace_file(self._about(version), model.model_dump_json(indent=2).encode())
            self._prune()
        return model

    def newest_first(self) -> list[Model]:
        """All models; unreadable ones are logged and left out."""
        found = [self._read(path) for path in sorted(self._path.glob("v*.json"), reverse=True)]
        return [model for model in found if model is not None]

    def get(self, version: int = 0) -> Model:
        """A version; 0 = the promoted one, or the newest when none is promoted."""
        version = version or self.promoted
        if not version:
            models = self.newest_first()
            if not models:
                raise NotFound(f"run {self._run_id!r} has no model yet", reason="NO_MODEL")
            return models[0]
        model = self._read(self._about(version)) if self._about(version).exists() else None
        if model is None:
            kept = ", ".join(str(each.version) for each in self.newest_first()) or "none"
            message = f"run {self._run_id!r} has no model of version {version}; it has: {kept}"
            raise NotFound(message, reason="UNKNOWN_MODEL", run_id=self._run_id, version=version)
        return model

    def blob(self, model: Model) -> bytes:
        """The policy's bytes; FailedPrecondition when they have changed since they were written."""
        data = self._weights(model.version).read_bytes()
        if hashlib.sha256(data).hexdigest() != model.digest:
            message = f"the file of model {model.version} of run {self._run_id!r} was changed since it was written"
            raise FailedPrecondition(message, reason="MODEL_DAMAGED", run_id=self._run_id, version=model.version)
        return data

    @property
    def promoted(self) -> int:
        """The promoted version; 0 when none is."""
        try:
            return _Promotion.model_validate_json((self._path / _PROMOTED).read_bytes()).version
        except FileNotFoundError:
            return 0
        except (OSError, ValidationError) as error:
            log.error("promotion_damaged", path=str(self._path / _PROMOTED), error=repr(error))
            return 0

    def promote(self, version: int) -> Model:
        """Makes a version the default."""
        with self._lock:
            model = self.get(version)
            replace_file(self._path / _PROMOTED, _Promotion(version=model.version).model_dump_json().encode())
        return model

    def delete(self, version: int) -> None:
        """Deletes a version; FailedPrecondition when it is promoted."""
        with self._lock:
            model = self.get(version)
            if model.version == self.promoted:
                message = f"model {version} of run {self._run_id!r} is promoted; promote another one first"
                raise FailedPrecondition(message, reason="MODEL_PROMOTED", run_id=self._run_id, version=version)
            self._remove(model)

    def _prune(self) -> None:
        models = self.newest_first()
        # In a damaged file, this may not be a number.
        evaluated = [model for model in models if isinstance(model.metadata.get("evaluation_return"), (int, float))]
        best = max(evaluated, key=lambda model: float(model.metadata["evaluation_return"]), default=None)
        spared = {self.promoted} | ({best.version} if best is not None else set())
        for model in models[self._kept :]:
            if model.version not in spared:
                self._remove(model)

    def _remove(self, model: Model) -> None:
        self._about(model.version).unlink()
        self._weights(model.version).unlink(missing_ok=True)

    def _read(self, path: Path) -> Model | None:
        try:
            return Model.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            log.error("model_damaged", path=str(path), error=repr(error))
            return None

    def _about(self, version: int) -> Path:
        return self._path / f"v{version:08d}.json"

    def _weights(self, version: int) -> Path:
        return self._path / f"v{version:08d}.safetensors"


def to_safetensors(blob: bytes, observation_dtype: str) -> bytes:
    """The kept file: weights by name, the policy's specification as JSON in the metadata."""
    return blob


def to_onnx(blob: bytes, observation_dtype: str) -> bytes:
    """One graph from the raw observation to the greedy action."""
    try:
        # Imported here because most learners export nothing.
        from parlmesh.exports.onnx_file import policy_to_onnx
    except ImportError as error:
        message = (
            f"exporting to ONNX needs a package that is not installed here ({error}): pip install parlmesh[export]"
        )
        raise FailedPrecondition(message, reason="NOT_INSTALLED") from error
    return policy_to_onnx(blob, observation_dtype)
