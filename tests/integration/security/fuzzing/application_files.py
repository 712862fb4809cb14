"""Files that applications read: traces and metrics of worlds, MAPE-K's series and policies, studies, exported
policies."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parlmesh.api.policy import _environment_of
from parlmesh.errors import InvalidInput
from parlmesh.exports.hub import hub_environment
from parlmesh.mapek.detection.nab_files import read_files
from parlmesh.mapek.planning.trained_planner import Policy as PlannerPolicy
from parlmesh.mapek.planning.trained_planner import trained
from parlmesh.mapek.simulation.swim import traced
from parlmesh.mapek.types import Decision, Status, Symptom
from parlmesh.orchestration.language.chat_sub_agents import KEY_FILE, ChatFailed, key_header
from parlmesh.orchestration.report.trace import attempts_in
from parlmesh.orchestration.training.comparison import read_curves
from parlmesh.selfplay.terminal_game import _promoted
from parlmesh.worlds.cluster.parameter_fit import COLUMNS, read_records
from parlmesh.worlds.placement.load_patterns import read_trace

from .file_damage import Format


def load_trace(folder: Path) -> Format:
    (folder / "trace.csv").write_text("time,load\n1,2.0\n2,3.5\n3,1e2\n4,0\n")
    return Format(folder / "trace.csv", lambda file: read_trace(file, "all"))


def pod_metrics(folder: Path) -> Format:
    rows = [COLUMNS, *(("1", "web", "2", "30.5", "12") for _ in range(4))]
    (folder / "metrics.csv").write_text("".join(f"{','.join(row)}\n" for row in rows))
    return Format(folder / "metrics.csv", read_records)


def planner_policy(folder: Path) -> Format:
    symptom = Symptom("cpu_high", "cpu_percent", 97.0, 90.0, "warning", "above 90")
    statuses = [Status.WORKED, Status.FAILED] * 6
    decisions = [
        Decision(f"d{number}", number, "n1", symptom, f"a{number % 2}", "service", "cpu_*", "edge", status=status)
        for number, status in enumerate(statuses)
    ]
    trained(decisions).save(folder / "policy.json")
    return Format(folder / "policy.json", PlannerPolicy.load)


def nab_windows(folder: Path) -> Format:
    (folder / "series.csv").write_text("timestamp,value\n2014-04-01 00:00:00,1.5\n2014-04-01 00:05:00,2.5\n")
    windows = {"series.csv": [["2014-04-01 00:00:00.000000", "2014-04-01 00:05:00.000000"]]}
    (folder / "windows.json").write_text(json.dumps(windows))
    return Format(folder / "windows.json", lambda file: read_files(file.parent))


def nab_series(folder: Path) -> Format:
    return nab_windows(folder)._replace(file=folder / "series.csv")


def request_trace(folder: Path) -> Format:
    (folder / "trace").write_text("0.5\n1.25\n30\n61.5\n")
    return Format(folder / "trace", traced)


def task_trace(folder: Path) -> Format:
    about = {"task_id": "t1", "state": "succeeded", "attempt": 1, "queued_ms": 2.5, "dependencies": ["t0"]}
    attempt = {"ph": "X", "pid": 1, "tid": 2, "ts": 5.0, "dur": 9.0, "name": "noop", "args": about}
    events = [{"ph": "M", "pid": 1, "args": {"name": "actor-0"}}, attempt]
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
    return Format(folder / "trace.json", lambda file: attempts_in(file.read_text(errors="replace")))


def compared_curves(folder: Path) -> Format:
    rows = [{"step": step, "return/episodes": float(step)} for step in range(3)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Format(folder / "metrics.jsonl", read_curves)


def hub_config(folder: Path) -> Format:
    (folder / "config.json").write_text(json.dumps({"environment": {"id": "CartPole-v1"}}))
    return Format(folder / "config.json", lambda file: hub_environment(file.parent))


def settings_of_a_model(folder: Path) -> Format:
    (folder / "settings.yaml").write_text("training: {environment: {id: CartPole-v1}, seed: 3}\n")
    return Format(folder / "settings.yaml", lambda file: _environment_of(file.parent))


def promoted_player(folder: Path) -> Format:
    (folder / "models").mkdir()
    (folder / "models/promoted.json").write_text(json.dumps({"version": 3}))
    return Format(folder / "models/promoted.json", lambda file: _promoted(folder))


def model_key(folder: Path) -> Format:
    """A response of a language model's server."""
    (folder / "key").write_text("sk-abcdef\n")

    @contextmanager
    def told() -> Iterator[None]:
        before = os.environ.get(KEY_FILE)
        os.environ[KEY_FILE] = str(folder / "key")
        try:
            yield
        finally:
            os.environ.pop(KEY_FILE)
            if before is not None:
                os.environ[KEY_FILE] = before

    def read(file: Path) -> object:
        try:
            with told():
                return key_header()
        except ChatFailed as error:
            raise InvalidInput(str(error)) from error

    return Format(folder / "key", read)


def _study(folder: Path, storage: str) -> Format:
    pytest.importorskip("optuna")
    from parlmesh.tuning.config import TuneConfig
    from parlmesh.tuning.study import opened_study

    search = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "ppo.epochs": {"choices": [1, 4]}}
    config = TuneConfig.model_validate({"search": search, "trials": 6, "startup_trials": 2, "storage": storage})
    with opened_study(folder, config) as study:
        for _ in range(3):
            trial, _ = study.ask()
            study.finished(trial, 1.0)
        study.ask()

    def read(file: Path) -> object:
        with opened_study(folder, config) as study:
            return study.left, study.counts(), study.first_value(), study.best(), study.ask()[1]

    return Format(folder / f"study.{storage}", read)


def study(folder: Path) -> Format:
    return _study(folder, "journal")


def study_database(folder: Path) -> Format:
    return _study(folder, "sqlite")
