"""Every file a process reads, damaged: it is read as it was, or refused in one sentence; nothing else happens."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from actor.config import PrivacyFloorConfig
from actor.federation.privacy_floor import PrivacyFloor
from learner.federation import definition_file
from learner.federation.journal import Journal, encode, read_journal
from learner.federation.noise_key import NoiseKey
from learner.federation.rules import events
from learner.files.checkpoint import Checkpoint, CheckpointFolder, CheckpointsGone
from learner.files.curves import read_curves
from learner.files.kept_models import ModelFolder
from learner.policies.league import League
from learner.policies.registry import PolicyRegistry
from learner.policies.version_numbers import VERSIONS_FILE, Versions
from learner.runs.run_file import RUN_FILE, RunRecord, read_record
from learner.runs.settings_check import changed_settings
from parlmesh.api.policy import chosen_model, known_of
from parlmesh.config import load
from parlmesh.errors import FleetError
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.learning_task import FirstModel
from parlmesh.federation.model_file import read_model
from parlmesh.high_water_mark import Witness
from parlmesh.local.process_configs import RunPaths, read_incarnations
from parlmesh.mesh.formats import read_mesh
from parlmesh.mesh.traffic import read_demands
from parlmesh.policies import PolicySpec, pack_policy, unpack_policy
from parlmesh.security import Role
from parlmesh.security.certificates import hosts_of
from parlmesh.security.config import IssuerConfig
from parlmesh.security.openid_tokens import Keys
from parlmesh.security.pem_files import read_pair, write_authority, write_certificate
from parlmesh.security.revocation import read_revoked
from parlmesh.security.tokens import read_rows, write_token
from parlmesh.telemetry.log_files import line_of
from parlmesh.training.settings.opponents import OpponentsConfig
from parlmesh.training.settings.run import TrainingConfig
from parlmesh.types import ActionSpec
from parlmesh.worlds.cluster.parameter_fit import COLUMNS, read_records
from parlmesh.worlds.placement.load_patterns import read_trace
from scheduler.config import SchedulerConfig
from scheduler.journal import records
from tests.integration.security.fuzzing import Fuzzer

SHORT_SECONDS = 0.4
NIGHTLY_SECONDS = 300.0
SLOWEST_SECONDS = 5.0
DEEP = b"[" * 1_100


class Format(NamedTuple):
    """A sound file and how it is read."""

    file: Path
    read: Callable[[Path], object]


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


def task_journal(folder: Path) -> Format:
    file = folder / "batch"
    file.write_bytes(records.seal(bytes(range(200))))
    return Format(file, lambda file: records.unseal(file.read_bytes(), "batch 1"))


def tokens(folder: Path) -> Format:
    for role in Role:
        write_token(folder, role.value, role, force=False, namespace="team-a")
    return Format(folder / "tokens.yaml", read_rows)


def revoked(folder: Path) -> Format:
    (folder / "revoked").write_text(f"{'ab' * 32}\n0x1234 # lost\n\n")
    return Format(folder / "revoked", read_revoked)


def configuration(folder: Path) -> Format:
    sections = {"listen": {"port": 1}, "queue": {"max_tasks": 5}, "leases": {"heartbeat_seconds": 1.5}}
    (folder / "scheduler.yaml").write_text(yaml.safe_dump(sections))
    return Format(folder / "scheduler.yaml", lambda file: load(SchedulerConfig, file=file, prefix="NOTHING"))


def versions(folder: Path) -> Format:
    Versions(folder).reserve(5)
    return Format(folder / VERSIONS_FILE, lambda file: Versions(file.parent))


def noise_key(folder: Path) -> Format:
    NoiseKey(folder / "noise.json").seed(3)
    return Format(folder / "noise.json", lambda file: NoiseKey(file).seed(4))


def privacy_ledger(folder: Path) -> Format:
    file = folder / "spent.json"
    floor = PrivacyFloor(PrivacyFloorConfig(epsilon_budget=10.0, ledger=file))
    floor.spend("node-1", 5.0)
    return Format(file, lambda file: floor.spend("node-1", 1e6))


def key_set(folder: Path) -> Format:
    file = folder / "keys.json"
    rsa = {"kty": "RSA", "kid": "a", "alg": "RS256", "n": "u1SU1LfVLPHCozMxH2Mo" * 13, "e": "AQAB"}
    okp = {"kty": "OKP", "kid": "b", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
    file.write_text(json.dumps({"keys": [rsa, okp]}))
    config = IssuerConfig(issuer="i", audience="a", keys=file, roles={"r": Role.READER})
    return Format(file, lambda file: Keys(config, time.monotonic).renew(missing=True))


def witness(folder: Path) -> Format:
    made = Witness(folder / "store")
    made.begin(1, 5)
    made.note(9)
    made.close()
    return Format(made.path, lambda file: Witness(folder / "store").read())


def incarnations(folder: Path) -> Format:
    paths = RunPaths(folder)
    paths.incarnations.parent.mkdir(parents=True, exist_ok=True)
    paths.incarnations.write_text("actor-0: 3\nactor-1: 17\n")
    return Format(paths.incarnations, lambda file: read_incarnations(paths))


def mesh(folder: Path) -> Format:
    links = [{"source": "a", "target": "b", "cost": 1.0}, {"source": "b", "target": "c", "cost": 2.5}]
    document = {"type": "NetworkGraph", "nodes": [{"id": name} for name in "abc"], "links": links}
    (folder / "mesh.json").write_text(json.dumps(document))
    return Format(folder / "mesh.json", read_mesh)


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


def certificate(folder: Path) -> Format:
    write_authority(folder, name="ours", days=1, force=False)
    file, key = write_certificate(folder, "server", role=None, hosts=["127.0.0.1"], days=1, force=False)
    return Format(file, lambda file: hosts_of(read_pair(file, key).certificate))


def private_key(folder: Path) -> Format:
    certificate, key = write_authority(folder, name="ours", days=1, force=False)
    return Format(key, lambda file: read_pair(certificate, file))


def curves(folder: Path) -> Format:
    rows = [{"time": 1.5, "step": step, "return/episodes": float(step)} for step in range(3)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Format(folder / "metrics.jsonl", read_curves)


def one_curve_point(folder: Path) -> Format:
    """A single line is JSON, so that its values are changed too."""
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


def log_line(folder: Path) -> Format:
    line = {"time": "1", "level": "error", "event": "lost", "node": {"name": "a"}, "exception": "Traceback\nE"}
    (folder / "log").write_text(json.dumps(line))
    return Format(folder / "log", lambda file: line_of("actor-0", file.read_text(errors="replace")))


def graphml(folder: Path) -> Format:
    edge = '<edge source="a" target="b"><data key="d0">1.5</data></edge>'
    head = '<key id="d0" for="edge" attr.name="cost" attr.type="double"/>'
    graph = f'{head}<graph edgedefault="undirected"><node id="a"/><node id="b"/>{edge}</graph>'
    file = folder / "mesh.graphml"
    file.write_text(f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{graph}</graphml>')
    return Format(file, read_mesh)


def demands(folder: Path) -> Format:
    found = read_mesh(mesh(folder).file)
    rows = [{"source": "a", "target": "b", "volume": 3}, {"source": "b", "target": "c", "volume": 0.5}]
    (folder / "demands.json").write_text(json.dumps({"demands": rows}))
    return Format(folder / "demands.json", lambda file: read_demands(found, file))


def load_trace(folder: Path) -> Format:
    (folder / "trace.csv").write_text("time,load\n1,2.0\n2,3.5\n3,1e2\n4,0\n")
    return Format(folder / "trace.csv", lambda file: read_trace(file, "all"))


def pod_metrics(folder: Path) -> Format:
    rows = [COLUMNS, *(("1", "web", "2", "30.5", "12") for _ in range(4))]
    (folder / "metrics.csv").write_text("".join(f"{','.join(row)}\n" for row in rows))
    return Format(folder / "metrics.csv", read_records)


FORMATS = [
    policy,
    model,
    federation,
    federation_journal,
    checkpoint,
    checkpoint_state,
    run_record,
    task_journal,
    tokens,
    revoked,
    configuration,
    versions,
    noise_key,
    privacy_ledger,
    key_set,
    witness,
    incarnations,
    mesh,
    kept_model,
    promotion,
    model_of_a_folder,
    promotion_of_a_folder,
    certificate,
    private_key,
    log_line,
    graphml,
    demands,
    load_trace,
    pod_metrics,
    curves,
    one_curve_point,
    opponents,
    matches,
    settings_of_a_run,
]


def damaged(fuzzer: Fuzzer, sound: bytes) -> bytes:
    """Bits and pieces of the file, or JSON of the same length and another meaning."""
    if fuzzer.random.random() < 0.7:
        return fuzzer.broken(sound)
    try:
        content = json.loads(sound)
    except ValueError:
        return fuzzer.broken(fuzzer.broken(sound))
    return json.dumps(changed(fuzzer, content)).encode()


def changed(fuzzer: Fuzzer, content: Any) -> Any:
    """The same tree with one leaf or branch that is another."""
    if isinstance(content, dict) and content and fuzzer.random.random() < 0.8:
        name = fuzzer.random.choice(sorted(content))
        return {**content, name: changed(fuzzer, content[name])}
    if isinstance(content, list) and content and fuzzer.random.random() < 0.8:
        place = fuzzer.random.randrange(len(content))
        return [*content[:place], changed(fuzzer, content[place]), *content[place + 1 :]]
    return fuzzer.json(3)


@contextmanager
def quiet() -> Iterator[None]:
    """What is refused may be logged; a thousand times nobody wants to read it."""
    import logging

    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_a_file_that_is_nested_without_end_is_refused_or_passed_over(
    tmp_path: Path, make: Callable[[Path], Format]
) -> None:
    found = make(tmp_path)
    found.file.write_bytes(DEEP)
    with quiet(), suppress(FleetError, CheckpointsGone):
        found.read(found.file)


@pytest.mark.parametrize(
    "seconds",
    [SHORT_SECONDS, pytest.param(NIGHTLY_SECONDS, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
    ids=["short", "nightly"],
)
@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    tmp_path: Path, make: Callable[[Path], Format], seconds: float
) -> None:
    found = make(tmp_path)
    sound = found.file.read_bytes()
    found.read(found.file)
    first = int(os.environ.get("PARLMESH_FUZZ_SEED", "1" if seconds < 60 else str(time.time_ns() % 10**9)))
    end, seed, refused = time.monotonic() + seconds, first, [""]
    with quiet():
        while time.monotonic() < end or seed < first + 50:
            seed += 1
            found.file.write_bytes(damaged(Fuzzer(seed), sound))
            started = time.process_time()
            try:
                found.read(found.file)
            except (FleetError, CheckpointsGone) as error:
                refused.append(str(error))
            except Exception as error:
                raise AssertionError(f"seed {seed}: {make.__name__} raises {error!r}") from error
            assert time.process_time() - started < SLOWEST_SECONDS, f"seed {seed}"
            assert len(refused[-1]) < 2000, f"seed {seed}"
    print(f"{make.__name__}: {seed - first} files, {len(refused) - 1} refused")
