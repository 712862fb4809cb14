"""Self-play through real processes: the opponent is the requested one, and only one side is trained on."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.testing import Process, serve
from parlmesh.testing.fleet import FakeLearner, FakeScheduler
from parlmesh.types import ActionSpec
from parlmesh.v1.fleet_service_pb2 import ConnectResponse
from parlmesh.wire import payload_from_proto
from parlmesh.wire.trajectories import trajectory_from_proto

pytestmark = pytest.mark.e2e


def player(square):
    """Prefers one square by a bias, which shows which policy is playing."""
    spec = PolicySpec((2, 3, 3), ActionSpec("discrete", (9,)), hidden=(), masked=True)
    bias = np.zeros(9, np.float32)
    bias[square] = 50.0
    return pack_policy(spec, {"policy.0.weight": np.zeros((9, 18), np.float32), "policy.0.bias": bias})


async def test_the_opponents_version_is_the_one_requested_by_digest():
    scheduler, learner = FakeScheduler(), FakeLearner()
    for version, square in ((1, 0), (2, 8), (3, 4)):
        await learner.publish("run-1", version, player(square))
    async with serve([scheduler.service, *learner.services]) as address:
        settings = ("metrics.port=null", f"scheduler={address}", f"learner={address}", "actor_id=a", "node_id=n")
        with Process("actor", *(part for each in settings for part in ("--set", each))):
            stream = await scheduler.welcomed()
            rollout = scheduler.assignment(
                "rollout",
                {
                    "run_id": "run-1",
                    "environment": {"id": "games/tictactoe", "kwargs": {"seat": "second"}},
                    "num_envs": 8,
                    "trajectory_steps": 6,
                    "min_policy_version": 3,
                    "opponents": [{"version": 2, "share": 1.0}],
                },
            )
            stream.send(ConnectResponse(assignments=[rollout]))
            result, _ = payload_from_proto((await stream.result(rollout.lease.lease_id)).result)
    assert result["opponents"] == {"2": hashlib.sha256(player(8)).hexdigest()}
    assert set(result["games"]) == {"2"}
    (message,) = learner.trajectories
    assert message.policy_version == 3
    columns = trajectory_from_proto(message).fragment.columns
    own, other = columns["observation"][0].swapaxes(0, 1)
    # Version 2 began every game with its own square; only the choices of version 3 are trained on.
    assert other[:, 2, 2].all()
    assert not own.any()
    assert (columns["action"][0] == 4).all()
    # The square belongs to version 2 in every game, so version 3 never chooses it later.
    trained = columns["action"][columns["valid"]]
    assert len(trained) > 8
    assert 8 not in trained


def test_a_game_trains_through_a_fleet_against_its_own_past_by_name(tmp_path):
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--free-ports", "--json", "--actors", "1"]
    command += ["--runs-dir", str(tmp_path), "--run-id", "run", "--environment", "pettingzoo.classic:tictactoe_v3"]
    matches = ("opponents.match_games=20", "opponents.gate=true", "evaluation_interval_steps=2000")
    settings = (*matches, "evaluation_episodes=20", "opponents.interval_versions=2", "num_envs=16", "max_policy_lag=1")
    command += ["--steps", "6000", "--no-goal", *(part for each in settings for part in ("--set", f"training.{each}"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-1000:]
    found = json.loads(done.stdout)
    assert found["state"] == "finished"
    assert found["training"]["progress"]["max_policy_lag_seen"] <= 1
    folder = tmp_path / "run" / "opponents"
    records = json.loads((folder / "records.json").read_text())
    assert len(records) > 2
    assert {f"v{int(version):08d}.safetensors" for version in records} <= {each.name for each in folder.iterdir()}
    # Past versions were met, and the reported results are theirs.
    assert sum(map(sum, records.values())) > 0
    log = "".join(file.read_text() for file in (tmp_path / "run" / "logs").glob("learner*"))
    assert "opponent_entered" in log
    assert "opponent_differs" not in log
    # Evaluated versions were rated, and the gate promoted the first of them.
    assert '"matched"' in log
    assert (tmp_path / "run" / "models" / "promoted.json").exists()
    assert "selfplay/elo_error" in (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_shogi_trains_in_one_process_and_continues_when_its_games_cannot_be_replayed(tmp_path):
    # rsshogi's boards abort the process when used by a thread other than the one that made them.
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--free-ports", "--no-dashboard", "--serial", "--json"]
    command += ["--runs-dir", str(tmp_path), "--no-goal"]
    small = ("num_envs=4", "trajectory_steps=8", "evaluation_episodes=1", "opponents.scripted=true")
    command += [part for each in small for part in ("--set", f"training.{each}")]
    kwargs = "training.environment.kwargs={opening_plies: %d, options: {max_plies: 80}}"
    begun = [*command, "--environment", "games/shogi", "--run-id", "run", "--steps", "200", "--set", kwargs % 0]
    resumed = [*command, "--resume", "run", "--steps", "400", "--set", kwargs % 60]
    for each, steps in ((begun, 200), (resumed, 400)):
        done = subprocess.run(each, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr[-1000:]
        found = json.loads(done.stdout)
        assert found["state"] == "finished"
        assert found["training"]["progress"]["steps"] >= steps
        assert "starting it again" not in done.stderr
