"""Files that a learner, its runs and its federations keep."""

import json
from pathlib import Path

import numpy as np
import yaml

from learner.federation import definition_file
from learner.federation.journal import Journal, encode, read_journal
from learner.federation.model_versions import ModelFiles
from learner.federation.noise_key import NoiseKey
from learner.federation.rules import events
from learner.federation.updates.update_aggregation import Aggregator
from learner.federation.updates.update_spool import Spool
from learner.files.checkpoint import Checkpoint, CheckpointFolder
from learner.files.curves import read_curves
from learner.files.kept_models import ModelFolder
from learner.policies.league import League
from learner.policies.registry import PolicyRegistry
from learner.policies.version_numbers import VERSIONS_FILE, Versions
from learner.runs.run_file import RUN_FILE, RunRecord, read_record
from learner.runs.settings_check import changed_settings
from parlmesh.api.policy import chosen_model, known_of
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.learning_task import FirstModel
from parlmesh.federation.model_file import read_model
from parlmesh.federation.schema import ModelSchema
from parlmesh.policies import PolicySpec, pack_policy, unpack_policy
from parlmesh.training.settings.opponents import OpponentsConfig
from parlmesh.training.settings.run import TrainingConfig
from parlmesh.types import ActionSpec

from .file_damage import Format


def policy(folder: Path) -> Format:
    spec = PolicySpec((4,), ActionSpec("discrete", sizes=(2,)), hidden=(8,))
    (folder / "policy").write_bytes(pack_policy(spec, {"w": np.ones((2, 3), np.float32)}))
    return Format(folder / "policy", lambda file: unpack_policy(file.read_bytes()))


def federation_folder(folder: Path) -> Path:
    config = FederationConfig.model_validate({"task": "drift", "rounds": 2})
    definition_file.create(folder / "f", "f", config, FirstModel({"w": np.ones(5, np.float32)}))
    return folder / "f"


def model(folder: Path) -> Format:
    (file,) = [file for file in (federation_folder(folder) / "models").iterdir() if file.is_file()]
    return Format(file, lambda file: read_model(file.read_bytes()))


def older_model(folder: Path) -> Format:
    """An older version, as it is served to a node that asks for it."""
    tensors = {"w": np.ones(5, np.float32)}
    files = ModelFiles(folder, ModelSchema.of(tensors), {})
    files.first(tensors)
    newest = files.derive(1, lambda: iter([np.zeros(5, "<f4").view(np.uint8).data]))
    digest = files.whole(1, "").digest
    return Format(files.path(1), lambda file: list(files.kept(1, newest, digest).encoded()))


def federation(folder: Path) -> Format:
    return Format(federation_folder(folder) / definition_file.ABOUT, lambda file: definition_file.read(file.parent))


def federation_journal(folder: Path) -> Format:
    file = folder / "journal.jsonl"
    journal = Journal(file)
    for number in range(3):
        event = events.Begin(("a", "b"), f"entropy{number}", float(number))
        journal.append(event, encode(event, 1.0))
    journal.close()
    return Format(file, lambda file: list(read_journal(file)))


def checkpoint(folder: Path) -> Format:
    checkpoints = CheckpointFolder(folder, kept=1)
    saved = checkpoints.save(Checkpoint(3, {"steps": 5}, {"w": np.ones(3, np.float32)}))
    return Format(saved / "checkpoint.json", lambda file: checkpoints.newest())


def checkpoint_state(folder: Path) -> Format:
    sound = checkpoint(folder)
    return sound._replace(file=sound.file.with_name("state.safetensors"))


def run_record(folder: Path) -> Format:
    configuration = {"environment": {"id": "CartPole-v1"}}
    record = {"run_id": "r", "state": "running", "created_time": 1.0, "configuration": configuration}
    RunRecord.model_validate(record).write(folder)
    return Format(folder / RUN_FILE, lambda file: read_record(file.parent))


def versions(folder: Path) -> Format:
    Versions(folder).reserve(5)
    return Format(folder / VERSIONS_FILE, lambda file: Versions(file.parent))


def noise_key(folder: Path) -> Format:
    NoiseKey(folder / "noise.json").seed(3)
    return Format(folder / "noise.json", lambda file: NoiseKey(file).seed(4))


def model_folder(folder: Path) -> ModelFolder:
    models = ModelFolder(folder / "models", "r", kept=2)
    for version in (1, 2):
        models.add(version, b"weights", {"evaluation_return": float(version), "environment": {"id": "CartPole-v1"}})
    models.promote(1)
    return models


def kept_model(folder: Path) -> Format:
    models = model_folder(folder)

    def read(file: Path) -> object:
        models._prune()
        return models.newest_first(), models.get(2)

    return Format(folder / "models/v00000002.json", read)


def promotion(folder: Path) -> Format:
    models = model_folder(folder)
    return Format(folder / "models/promoted.json", lambda file: models.get())


def model_of_a_folder(folder: Path) -> Format:
    model_folder(folder)
    (folder / "models/promoted.json").unlink()
    return Format(folder / "models/v00000002.json", lambda file: (chosen_model(folder, 0), known_of(file)))


def promotion_of_a_folder(folder: Path) -> Format:
    model_folder(folder)
    return Format(folder / "models/promoted.json", lambda file: chosen_model(folder, 0).read_bytes())


def curves(folder: Path) -> Format:
    rows = [{"time": 1.5, "step": step, "return/episodes": float(step)} for step in range(3)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Format(folder / "metrics.jsonl", read_curves)


def one_curve_point(folder: Path) -> Format:
    """A single line is JSON, so its values are changed too."""
    (folder / "metrics.jsonl").write_text(json.dumps({"time": 1.5, "step": 7, "return/episodes": 3.5}))
    return Format(folder / "metrics.jsonl", read_curves)


def league(folder: Path) -> League:
    found = League(OpponentsConfig(interval_versions=1), PolicyRegistry("run", "uid"), folder, seed=0)
    found.recall()
    return found


def opponents(folder: Path) -> Format:
    for version in (1, 2):
        league(folder).save(version, b"policy")
    return Format(folder / "records.json", lambda file: league(folder))


def matches(folder: Path) -> Format:
    (folder / "matches.json").write_text(json.dumps([[1, 2, 3, 4, 5], [2, 1, 0, 0, 7]]))
    return Format(folder / "matches.json", lambda file: league(folder))


def settings_of_a_run(folder: Path) -> Format:
    training = TrainingConfig().model_dump(mode="json")
    (folder / "learner.effective.yaml").write_text(yaml.safe_dump({"training": training}))
    return Format(folder / "learner.effective.yaml", lambda file: changed_settings(file, training))


def server_moments(folder: Path) -> Format:
    """The state of a federation's optimiser; a damaged one starts over."""
    config = FederationConfig.model_validate({"task": "drift", "rounds": 2, "server": {"optimiser": "fedadam"}})
    schema = ModelSchema.of({"w": np.ones(5, np.float32)})
    models = ModelFiles(folder / "models", schema, {})
    models.first({"w": np.ones(5, np.float32)})
    aggregator = Aggregator(config, models, Spool(folder / "spool", 5), folder)
    aggregator._keep_moments(2, aggregator._server.initial(5))

    def read(file: Path) -> object:
        moments = aggregator._moments(2)
        return aggregator._server.step(np.ones(5, np.float32), moments)

    return Format(aggregator._moment_path(2), read)
