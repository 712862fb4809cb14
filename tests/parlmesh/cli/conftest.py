"""A scheduler with one actor, and a serial learner: real processes, shared by the tests of the commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from parlmesh.testing import Process

QUIET = ("--set", "metrics.port=null", "--set", "listen.port=0")


@pytest.fixture(scope="session")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a scheduler with one connected actor of two slots."""
    store = f"store.path={tmp_path_factory.mktemp('scheduler') / 'scheduler.sqlite'}"
    with Process("scheduler", *QUIET, "--set", store) as process:
        address = f"127.0.0.1:{process.wait_for('serving', 60)['port']}"
        settings = ("scheduler", address), ("actor_id", "ada"), ("slots", "2"), ("metrics.port", "null")
        arguments = [part for key, value in settings for part in ("--set", f"{key}={value}")]
        with Process("actor", *arguments) as actor:
            actor.wait_for("connected", 60)
            yield address


@pytest.fixture(scope="session")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a serial learner whose run `one` never ends."""
    folder: Path = tmp_path_factory.mktemp("learner")
    settings = (
        ("mode", "serial"),
        ("run_id", "one"),
        ("run_dir", str(folder)),
        ("training.step_budget", "1000000000"),
        ("training.goal_return", "null"),
        ("training.num_envs", "2"),
    )
    arguments = [part for key, value in settings for part in ("--set", f"{key}={value}")]
    with Process("learner", *QUIET, *arguments) as process:
        yield f"127.0.0.1:{process.wait_for('serving', 60)['port']}"
