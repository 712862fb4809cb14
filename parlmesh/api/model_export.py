"""Exports a model from a run's folder, without a learner."""

from pathlib import Path
from typing import Any

import yaml

from parlmesh.durable_files import replace_file
from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.exports.hub import write_hub_folder
from parlmesh.policies.policy_file import with_environment

from .policy import SETTINGS, chosen_model, known_of

ONNX, SAFETENSORS = ".onnx", ".safetensors"


def export_model(run: str | Path, target: str | Path, *, version: int = 0, best: bool = False) -> list[Path]:
    """Writes a .safetensors or .onnx file, or a new folder for a model hub; returns the files.

    Exports `version`, or the promoted model, else the best evaluated one; `best` ignores the promoted model.
    """
    source, file = Path(run), Path(target)
    if version and best:
        raise InvalidInput(f"version is {version} and best is true; give only one of them", reason="INVALID_CHOICE")
    model = chosen_model(source, version, best=best)
    blob, about = model.read_bytes(), known_of(model)
    if file.suffix == SAFETENSORS:
        environment = _training(source).get("environment")
        replace_file(file, with_environment(blob, environment) if isinstance(environment, dict) else blob)
        return [file]
    if file.suffix == ONNX:
        replace_file(file, _onnx(blob, str(about.get("observation_dtype", "float32"))))
        return [file]
    if file.suffix:
        raise InvalidInput(f"{file} must end in {SAFETENSORS} or {ONNX}, or have no suffix for a folder")
    return write_hub_folder(file, blob, _training(source), {**about, "version": int(model.stem[1:])})


def _onnx(blob: bytes, observation_dtype: str) -> bytes:
    try:
        from parlmesh.exports.onnx_file import policy_to_onnx
    except ImportError as error:
        message = (
            f"exporting to ONNX needs a package that is not installed here ({error}): pip install parlmesh[export]"
        )
        raise FailedPrecondition(message, reason="NOT_INSTALLED") from error
    return policy_to_onnx(blob, observation_dtype)


def _training(run: Path) -> dict[str, Any]:
    try:
        return dict(yaml.safe_load((run / SETTINGS).read_text(encoding="utf-8"))["training"])
    except (OSError, TypeError, KeyError, ValueError, RecursionError, yaml.YAMLError):
        return {}
