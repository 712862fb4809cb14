"""The definition of a federation on disk: written once, whole, and readable by its owner only."""

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from parlmesh.durable_files import PRIVATE, replace_file, sync_folder
from parlmesh.errors import FailedPrecondition
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.learning_task import FirstModel
from parlmesh.federation.schema import ModelSchema

from .model_versions import ModelFiles
from .noise_key import NOISE_KEY, NoiseKey

ABOUT = "federation.json"
PARTIAL = ".partial-"


@dataclass(frozen=True, slots=True)
class About:
    """A federation's name, settings and model."""

    federation_id: str
    created: float
    config: FederationConfig
    schema: ModelSchema
    metadata: dict[str, str]


def create(folder: Path, federation_id: str, config: FederationConfig, first: FirstModel) -> None:
    """Writes a new federation with its first model; InvalidInput when the model cannot be federated."""
    schema = ModelSchema.of(first.tensors, first.rules)
    partial = folder.with_name(f"{PARTIAL}{folder.name}")
    remove(partial)
    partial.mkdir(parents=True, mode=0o700)
    metadata = {"federation": federation_id, **first.metadata}
    ModelFiles(partial / "models", schema, metadata).first(first.tensors)
    about = {
        "federation_id": federation_id,
        "created": time.time(),
        "config": config.model_dump(mode="json"),
        "schema": schema.to_list(),
        "metadata": metadata,
    }
    if config.privacy.mode == "central":
        # Created now, so that a federation draws the same noise however often it is resumed.
        NoiseKey(partial / NOISE_KEY).seed(1)
    replace_file(partial / ABOUT, json.dumps(about, indent=2).encode(), mode=PRIVATE)
    partial.rename(folder)
    sync_folder(folder.parent)


def read(folder: Path) -> About:
    """Reads a definition; FailedPrecondition when the file is damaged."""
    try:
        about = json.loads((folder / ABOUT).read_bytes())
        return About(
            str(about["federation_id"]),
            float(about["created"]),
            FederationConfig.model_validate(about["config"]),
            ModelSchema.from_list(about["schema"]),
            {str(name): str(value) for name, value in about["metadata"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, RecursionError, ValidationError) as error:
        text = f"{folder / ABOUT} cannot be read: {type(error).__name__}"
        raise FailedPrecondition(text, reason="FEDERATION_DAMAGED") from error


def may_be_in(folder: Path) -> bool:
    """Whether the folder holds a federation; True also when the disk cannot tell."""
    try:
        return (folder / ABOUT).exists()
    except OSError:
        return True


def remove(path: Path) -> None:
    """Removes a folder, a file or a link; links are not followed."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
